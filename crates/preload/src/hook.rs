//! How a function of libc is replaced: the macro [`hook!`], the real function behind it, and the guard around our code.
//!
//! A hooked function runs its body unless the library is off or this thread is already inside it; calls that our own code (or a
//! signal handler on top of it) makes go to libc. A body answers `Err(Out::Libc)` when the call is none of ours. Panics become `EIO`.
//!
//! Variadic functions are declared with the one argument that can follow, which x86-64 and aarch64 Linux pass in the same register.

use parking_lot::lock_api::{self, RawMutex};
use std::cell::Cell;
use std::ffi::{CStr, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

/// Why a body has no result of its own.
#[derive(Debug)]
pub(crate) enum Out {
    /// The call is for libc, as it was made.
    Libc,
    /// The same of a call about memory, with no descriptor that may be a parked one: allocators make those with their locks held, and nothing may be done on the way.
    Memory,
    /// It fails with this errno.
    Errno(c_int),
}

impl From<fs::Error> for Out {
    fn from(e: fs::Error) -> Out {
        Out::Errno(match e.errno() {
            libc::EUCLEAN | libc::ESHUTDOWN => libc::EIO,
            errno => errno,
        })
    }
}

/// What a body gives.
pub(crate) type Res<T> = std::result::Result<T, Out>;

/// The failure `errno`.
pub(crate) fn fail<T>(errno: c_int) -> Res<T> {
    Err(Out::Errno(errno))
}

/// Results that say "look at errno".
pub(crate) trait Failed: Copy + PartialEq {
    const FAILED: Self;
}
impl Failed for i32 {
    const FAILED: i32 = -1;
}
impl Failed for i64 {
    const FAILED: i64 = -1;
}
impl Failed for isize {
    const FAILED: isize = -1;
}
/// Functions without a result.
impl Failed for () {
    const FAILED: () = ();
}
impl<T> Failed for *mut T {
    const FAILED: *mut T = std::ptr::null_mut();
}

thread_local! {
    /// Whether this thread runs our code. Without a destructor, so that it works at any time of a thread's life.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// This thread is inside until the value is dropped.
pub(crate) struct Inside(bool);

/// Goes inside.
pub(crate) fn inside() -> Inside {
    Inside(INSIDE.replace(true))
}

/// Lets the calls go out again for the time of `f`: for callbacks of the program, and streams that come back to us.
pub(crate) fn outside<T>(f: impl FnOnce() -> T) -> T {
    let _back = Inside(INSIDE.replace(false));
    f()
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(self.0);
    }
}

/// Whether the thread is inside.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the address is that of this thread's errno.
    unsafe { *libc::__errno_location() }
}

pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno }
}

/// Runs a hooked call.
pub(crate) fn run<R: Failed>(body: impl Fn() -> Res<R>, real: impl FnOnce() -> R) -> R {
    if INSIDE.get() || !crate::mounts::active() {
        return real();
    }
    let before = errno();
    let inside = inside();
    // An inode that goes away between the walk and the call makes the call start again. Others may replace a name as fast as we look it up.
    let mut tries = 0;
    let done = loop {
        tries += 1;
        match catch_unwind(AssertUnwindSafe(&body)) {
            Ok(Err(Out::Errno(libc::ESTALE))) if tries < TRIES => again(tries),
            Ok(Err(Out::Errno(libc::ESTALE))) => break Ok(fail(libc::ENOENT)),
            done => break done,
        }
    };
    drop(inside);
    match done {
        Ok(Ok(value)) => {
            if value != R::FAILED {
                set_errno(before);
            }
            value
        }
        Ok(Err(Out::Libc)) => {
            crate::parked::close();
            set_errno(before);
            real()
        }
        Ok(Err(Out::Memory)) => {
            set_errno(before);
            real()
        }
        Ok(Err(Out::Errno(errno))) => {
            if errno == libc::EFBIG {
                crate::limits::signal();
            }
            set_errno(errno);
            R::FAILED
        }
        Err(_) => {
            set_errno(libc::EIO);
            R::FAILED
        }
    }
}

/// How often a call is made for which inodes go away meanwhile.
const TRIES: u32 = 400;

/// Before a call is made again: others get out of step with us.
#[cold]
fn again(tries: u32) {
    match tries {
        ..4 => {}
        4..16 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(tries.min(100) as u64)),
    }
}

/// Makes a lock free in a child of fork, whoever held it or waited for it. Giving it up would not do, also later: it is passed on then, now and then, to a thread that waits for it, and
/// that exists only in the parent.
///
/// # Safety
/// There is no other thread.
pub(crate) unsafe fn free<R: RawMutex, T>(lock: &lock_api::Mutex<R, T>) {
    // SAFETY: a lock is all cells, nobody in this process holds it, and nobody looks at it now.
    unsafe { std::ptr::from_ref(lock.raw()).cast_mut().write(R::INIT) };
}

/// Makes a lock usable in a child of fork. What stands in one that another thread held, which exists only in the parent, may be half
/// changed: it is left behind.
///
/// # Safety
/// There is no other thread.
pub(crate) unsafe fn alone<T: Default>(lock: &share::lock::Mutex<T>) {
    let changing = lock.is_locked();
    // SAFETY: as the caller says.
    unsafe { free(lock) };
    if changing {
        std::mem::forget(std::mem::take(&mut *lock.lock()));
    }
}

/// The next function of this name behind us, looked up once.
pub(crate) fn next(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let _inside = inside();
    // SAFETY: the name ends with NUL.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    cache.store(found, Ordering::Relaxed);
    found
}

/// Defines functions that stand before those of libc. `open` becomes `open` for the program and `open::real` for us. Names after
/// `|` are aliases with the same body.
macro_rules! hook {
    ($( fn $name:ident $(| $alias:ident)* ($($args:tt)*) -> $r:ty $body:block )*) => {
        $( hook!(@each [$name $($alias)*] ($($args)*) -> $r $body); )*
    };
    (@each [] $args:tt -> $r:ty $body:block) => {};
    (@each [$name:ident $($more:ident)*] $args:tt -> $r:ty $body:block) => {
        hook!(@one $name $args -> $r $body);
        hook!(@each [$($more)*] $args -> $r $body);
    };
    (@one $name:ident ($($a:ident: $t:ty),*) -> $r:ty $body:block) => {
        #[allow(unused_imports, dead_code, non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]
        pub(crate) mod $name {
            use super::*;
            /// The function of libc, in the course of a call of the program.
            pub(crate) unsafe fn real($($a: $t),*) -> $r {
                $crate::parked::close();
                // SAFETY: as the caller says.
                unsafe { onward($($a),*) }
            }
            /// The function of libc.
            pub(super) unsafe fn onward($($a: $t),*) -> $r {
                static NEXT: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
                    std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
                const NAME: &std::ffi::CStr =
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => panic!(),
                    };
                let next = $crate::hook::next(&NEXT, NAME);
                if next.is_null() {
                    $crate::hook::set_errno(libc::ENOSYS);
                    return <$r as $crate::hook::Failed>::FAILED;
                }
                // SAFETY: this is what libc has under this name, and the prototype is that of the manual.
                let next: unsafe extern "C" fn($($t),*) -> $r = unsafe { std::mem::transmute(next) };
                // SAFETY: the arguments are the caller's.
                unsafe { next($($a),*) }
            }
        }
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, clippy::too_many_arguments)]
        pub(crate) unsafe extern "C" fn $name($($a: $t),*) -> $r {
            $crate::hook::run(
                // SAFETY: pointers are what the caller's contract with libc makes them.
                #[allow(unused_unsafe)] || -> $crate::hook::Res<$r> { unsafe { $body } },
                // SAFETY: the call goes on as it came.
                || unsafe { $name::onward($($a),*) },
            )
        }
    };
}
pub(crate) use hook;

/// Flags of a call of which `known` are those that we know: the kernel refuses others before it looks at the path, or has an answer of its own.
#[inline]
pub(crate) fn check(flags: c_int, known: c_int) -> Res<()> {
    if flags & !known == 0 { Ok(()) } else { Err(Out::Libc) }
}

/// Whether no program has memory there: the first page, and the last one, in which errors lie that were taken for pointers (`MAP_FAILED`).
/// Other wrong pointers are not noticed here, as they are by a kernel.
pub(crate) fn nowhere<T>(p: *const T) -> bool {
    const PAGE: usize = 4096;
    p.addr() < PAGE || p.addr() > usize::MAX - PAGE
}

/// The bytes of a C string. `EFAULT` where no memory is.
///
/// # Safety
/// `p` is nowhere or a C string that lives as long as the call.
pub(crate) unsafe fn text<'a>(p: *const libc::c_char) -> Res<&'a [u8]> {
    if nowhere(p) {
        return fail(libc::EFAULT);
    }
    // SAFETY: as the caller says.
    Ok(unsafe { CStr::from_ptr(p) }.to_bytes())
}

/// No memory is so long, of any program.
const TOO_LONG: usize = isize::MAX as usize + 1;

/// Memory that the caller gives us to read. `EFAULT` where no memory is.
///
/// # Safety
/// `p` points to `n` readable bytes, or nowhere.
pub(crate) unsafe fn memory<'a>(p: *const c_void, n: usize) -> Res<&'a [u8]> {
    match (nowhere(p), n) {
        (_, 0) => Ok(&[]),
        (true, _) | (_, TOO_LONG..) => fail(libc::EFAULT),
        // SAFETY: as the caller says.
        _ => Ok(unsafe { std::slice::from_raw_parts(p.cast(), n) }),
    }
}

/// Memory that the caller gives us to write.
///
/// # Safety
/// `p` points to `n` writable bytes that nobody else uses, or nowhere.
pub(crate) unsafe fn memory_mut<'a>(p: *mut c_void, n: usize) -> Res<&'a mut [u8]> {
    match (nowhere(p), n) {
        (_, 0) => Ok(&mut []),
        (true, _) | (_, TOO_LONG..) => fail(libc::EFAULT),
        // SAFETY: as the caller says.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(p.cast(), n) }),
    }
}
