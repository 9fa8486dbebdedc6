//! nftw(3) and fts(3), which libc does by itself, without calls that we see: they go to the FUSE mount. With `FTW_CHDIR`, and without `FTS_NOCHDIR`, libc changes the current
//! directory on the way: what is known of that is forgotten before the program goes on, or names that begin there would lead into another one.
//!
//! Where tested: `tests/all/c_calls.rs`.

use crate::cwd;
use crate::hook::{Out, Res, errno, fail, hook, inside, outside, set_errno};
use libc::{c_char, c_int, c_void};
use std::cell::Cell;

/// What nftw calls for each file.
pub(crate) type Visit =
    Option<unsafe extern "C" fn(*const c_char, *const libc::stat, c_int, *mut c_void) -> c_int>;

const FTW_CHDIR: c_int = 4;
const FTS_NOCHDIR: c_int = 4;

thread_local! {
    /// That of the walk which this thread is on.
    static VISIT: Cell<Visit> = const { Cell::new(None) };
}

/// libc has gone into the directory of the file.
unsafe extern "C" fn visit(
    path: *const c_char,
    st: *const libc::stat,
    kind: c_int,
    at: *mut c_void,
) -> c_int {
    let before = errno();
    {
        let _inside = inside();
        cwd::moved(false);
    }
    set_errno(before);
    // SAFETY: the program's function with the arguments of libc.
    VISIT.get().map_or(0, |visit| unsafe { visit(path, st, kind, at) })
}

/// The beginning of libc's `FTS`, which fts.h shows to programs.
#[repr(C)]
pub(crate) struct Fts {
    files: [*mut c_void; 3],
    dev: libc::dev_t,
    path: *mut c_char,
    numbers: [c_int; 3],
    compare: *mut c_void,
    options: c_int,
}

/// A step of a walk; what it gives says whether libc is back where it began.
///
/// # Safety
/// `fts` is null or a walk.
unsafe fn step<T: Copy>(fts: *mut Fts, step: impl FnOnce() -> T, is_back: impl FnOnce(T) -> bool) -> Res<T> {
    // SAFETY: as the caller says.
    if unsafe { fts.as_ref() }.is_none_or(|fts| fts.options & FTS_NOCHDIR != 0) {
        return Err(Out::Libc);
    }
    // It may call the program's function that compares names.
    let done = outside(step);
    // Where nothing is found it says by this why.
    let why = errno();
    cwd::moved(is_back(done));
    set_errno(why);
    Ok(done)
}

hook! {
    fn nftw | nftw64(path: *const c_char, each: Visit, most: c_int, flags: c_int) -> c_int {
        if flags & FTW_CHDIR == 0 {
            return Err(Out::Libc);
        }
        let before = VISIT.replace(each);
        let done = outside(|| nftw::real(path, Some(visit), most, flags));
        let why = errno();
        VISIT.set(before);
        cwd::moved(true);
        if done == -1 { fail(why) } else { Ok(done) }
    }
    fn fts_read | fts64_read(fts: *mut Fts) -> *mut c_void { step(fts, || fts_read::real(fts), |entry| entry.is_null()) }
    fn fts_children | fts64_children(fts: *mut Fts, options: c_int) -> *mut c_void {
        step(fts, || fts_children::real(fts, options), |_| cwd::is_back())
    }
    fn fts_close | fts64_close(fts: *mut Fts) -> c_int { step(fts, || fts_close::real(fts), |_| true) }
}
