//! Wide characters on streams of ours, which libc's functions refuse for all streams of fopencookie(3): `rev`, `col` and `ul` read and
//! write so. Characters are converted by the locale's multibyte encoding, which must not have states (those of C and UTF-8 have none).
//!
//! The functions of the family of `wprintf` are not here: on a stream of ours they fail. Where tested: `tests/all/more_programs.rs`.

use crate::hook::{Failed, Out, Res, fail, hook, outside};
use crate::stdio::{of_stream, standard};
use libc::{EOF, FILE, c_char, c_int, size_t, wchar_t};

#[allow(non_camel_case_types)]
type wint_t = u32;

const WEOF: wint_t = wint_t::MAX;

impl Failed for wint_t {
    const FAILED: wint_t = WEOF;
}

/// `mbstate_t` of glibc: a count and a value. All zeros is the beginning.
#[repr(C)]
struct State(c_int, u32);

unsafe extern "C" {
    fn mbrtowc(to: *mut wchar_t, from: *const c_char, n: size_t, state: *mut State) -> size_t;
    fn wcrtomb(to: *mut c_char, from: wchar_t, state: *mut State) -> size_t;
    fn ungetc(c: c_int, stream: *mut FILE) -> c_int;
}

const INCOMPLETE: size_t = size_t::MAX - 1;
/// Longest multibyte character of any locale (`MB_LEN_MAX`).
const LONGEST: usize = 16;

/// `EILSEQ`, which marks the stream as programs see it with ferror(3).
///
/// # Safety
/// `stream` is an open stream, here and below.
unsafe fn broken<T>(stream: *mut FILE) -> Res<T> {
    // `_IO_ERR_SEEN` in the first field, which glibc's macros have put into programs since ever.
    // SAFETY: as the caller says.
    unsafe { *stream.cast::<c_int>() |= 0x20 };
    fail(libc::EILSEQ)
}

/// # Safety
/// As of [`broken`].
unsafe fn get(stream: *mut FILE) -> Res<wint_t> {
    of_stream(stream).ok_or(Out::Libc)?;
    let (mut wide, mut state, mut begun) = (0, State(0, 0), false);
    loop {
        // SAFETY: as the caller says; the rest is memory of our own.
        let byte = outside(|| unsafe { libc::fgetc(stream) });
        if byte == EOF {
            // SAFETY: as the caller says.
            return if begun { unsafe { broken(stream) } } else { Ok(WEOF) };
        }
        begun = true;
        let byte = byte as c_char;
        // SAFETY: as above.
        match unsafe { mbrtowc(&mut wide, &byte, 1, &mut state) } {
            INCOMPLETE => {}
            // SAFETY: as the caller says.
            size_t::MAX => return unsafe { broken(stream) },
            _ => return Ok(wide as wint_t),
        }
    }
}

/// The bytes of a character, and how many they are.
fn bytes(wide: wchar_t) -> Res<([u8; LONGEST], usize)> {
    let mut bytes = [0u8; LONGEST];
    // SAFETY: there is room for any character.
    match unsafe { wcrtomb(bytes.as_mut_ptr().cast(), wide, &mut State(0, 0)) } {
        n @ 0..=LONGEST => Ok((bytes, n)),
        _ => fail(libc::EILSEQ),
    }
}

/// # Safety
/// As of [`get`].
unsafe fn put(wide: wchar_t, stream: *mut FILE) -> Res<wint_t> {
    of_stream(stream).ok_or(Out::Libc)?;
    let (bytes, n) = bytes(wide)?;
    // SAFETY: as the caller says.
    let wrote = outside(|| unsafe { libc::fwrite(bytes.as_ptr().cast(), 1, n, stream) });
    Ok(if wrote == n { wide as wint_t } else { WEOF })
}

/// # Safety
/// As of [`get`]; there is room for `n` characters.
unsafe fn get_line(to: *mut wchar_t, n: c_int, stream: *mut FILE) -> Res<*mut wchar_t> {
    of_stream(stream).ok_or(Out::Libc)?;
    let room = usize::try_from(n).ok().and_then(|n| n.checked_sub(1)).ok_or(Out::Errno(libc::EINVAL))?;
    let mut at = 0;
    while at < room {
        // SAFETY: as the caller says.
        let wide = unsafe { get(stream) }?;
        if wide == WEOF {
            break;
        }
        // SAFETY: as the caller says.
        unsafe { to.add(at).write(wide as wchar_t) };
        at += 1;
        if wide == '\n' as wint_t {
            break;
        }
    }
    if at == 0 && room > 0 {
        return Ok(std::ptr::null_mut());
    }
    // SAFETY: as the caller says.
    unsafe { to.add(at).write(0) };
    Ok(to)
}

hook! {
    fn fgetwc | getwc | fgetwc_unlocked | getwc_unlocked(stream: *mut FILE) -> wint_t { get(stream) }
    fn getwchar | getwchar_unlocked() -> wint_t { get(standard(0).ok_or(Out::Libc)?) }
    fn fgetws | fgetws_unlocked(to: *mut wchar_t, n: c_int, stream: *mut FILE) -> *mut wchar_t {
        get_line(to, n, stream)
    }
    fn __fgetws_chk | __fgetws_unlocked_chk(
        to: *mut wchar_t, room: size_t, n: c_int, stream: *mut FILE
    ) -> *mut wchar_t {
        get_line(to, n.min(room.min(c_int::MAX as size_t) as c_int), stream)
    }
    fn fputwc | putwc | fputwc_unlocked | putwc_unlocked(wide: wchar_t, stream: *mut FILE) -> wint_t {
        put(wide, stream)
    }
    fn putwchar | putwchar_unlocked(wide: wchar_t) -> wint_t { put(wide, standard(1).ok_or(Out::Libc)?) }
    fn fputws | fputws_unlocked(from: *const wchar_t, stream: *mut FILE) -> c_int {
        of_stream(stream).ok_or(Out::Libc)?;
        let mut from = from;
        while *from != 0 {
            if put(*from, stream)? == WEOF {
                return Ok(EOF);
            }
            from = from.add(1);
        }
        Ok(1)
    }
    fn ungetwc(wide: wint_t, stream: *mut FILE) -> wint_t {
        of_stream(stream).ok_or(Out::Libc)?;
        if wide == WEOF {
            return Ok(WEOF);
        }
        let (bytes, n) = bytes(wide as wchar_t)?;
        for byte in bytes[..n].iter().rev() {
            if outside(|| ungetc(*byte as c_int, stream)) == EOF {
                return Ok(WEOF);
            }
        }
        Ok(wide)
    }
}
