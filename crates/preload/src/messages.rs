//! Functions of libc that print to a descriptor by a call of libc's own, which we would not see: dprintf and its kin, herror,
//! backtrace_symbols_fd. What they have to say is made in memory and goes through our write.
//!
//! perror, psignal, error, warn and assert print to `stderr`, which is ours when its descriptor is (`stdio`). psiginfo and the last words of libc itself
//! (of a damaged heap or stack) go past us.
//!
//! Where tested: `tests/all/c_programs.rs`.

use crate::hook::{Out, Res, errno, fail, hook, outside};
use crate::table;
use libc::{c_char, c_int, c_void};
use std::ffi::CStr;

/// Words of a `va_list`, which is passed by its address. It is used up by who formats: we give a copy, so that libc can have the call afterwards.
const LIST: usize = if cfg!(target_arch = "x86_64") { 3 } else { 4 };
type List = *mut [u64; LIST];

unsafe extern "C" {
    fn vasprintf(to: *mut *mut c_char, format: *const c_char, list: List) -> c_int;
    fn __vasprintf_chk(to: *mut *mut c_char, flag: c_int, format: *const c_char, list: List) -> c_int;
    fn hstrerror(error: c_int) -> *const c_char;
    fn __h_errno_location() -> *mut c_int;
}

/// Writes all of it, in as many calls as it takes.
fn write_all(fd: c_int, mut bytes: &[u8]) -> Res<()> {
    while !bytes.is_empty() {
        // SAFETY: memory with its length.
        match outside(|| unsafe { crate::rw::write(fd, bytes.as_ptr().cast(), bytes.len()) }) {
            ..0 => return fail(errno()),
            0 => return fail(libc::EIO),
            wrote => bytes = &bytes[(wrote as usize).min(bytes.len())..],
        }
    }
    Ok(())
}

/// Writes what `format` makes of the copy of a list.
///
/// # Safety
/// `list` is a `va_list`; `format` is safe with it.
unsafe fn print(fd: c_int, list: List, format: impl FnOnce(*mut *mut c_char, List) -> c_int) -> Res<c_int> {
    if !table::is_ours(fd) {
        return Err(Out::Libc);
    }
    // SAFETY: as the caller says.
    let mut list = unsafe { list.read() };
    let mut made = std::ptr::null_mut();
    let len = format(&mut made, &mut list);
    let Ok(n) = usize::try_from(len) else { return fail(errno()) };
    // SAFETY: the memory was made just now, with this many bytes.
    let wrote = write_all(fd, unsafe { std::slice::from_raw_parts(made.cast(), n) });
    // SAFETY: it is from malloc, and ours to free.
    unsafe { libc::free(made.cast()) };
    wrote.map(|()| len)
}

hook! {
    fn vdprintf(fd: c_int, format: *const c_char, list: List) -> c_int {
        print(fd, list, |to, list| vasprintf(to, format, list))
    }
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, list: List) -> c_int {
        print(fd, list, |to, list| __vasprintf_chk(to, flag, format, list))
    }
    fn herror(prefix: *const c_char) -> () {
        if !table::is_ours(2) {
            return Err(Out::Libc);
        }
        let mut line = Vec::new();
        if !prefix.is_null() && *prefix != 0 {
            line.extend_from_slice(CStr::from_ptr(prefix).to_bytes());
            line.extend_from_slice(b": ");
        }
        line.extend_from_slice(CStr::from_ptr(hstrerror(*__h_errno_location())).to_bytes());
        line.push(b'\n');
        write_all(2, &line)
    }
    fn backtrace_symbols_fd(frames: *const *mut c_void, n: c_int, fd: c_int) -> () {
        if !table::is_ours(fd) {
            return Err(Out::Libc);
        }
        // Handlers of crashes call this: without the allocator, which may be what has crashed.
        let memory = libc::memfd_create(c"freehold-backtrace".as_ptr(), libc::MFD_CLOEXEC);
        if memory < 0 {
            return fail(errno());
        }
        backtrace_symbols_fd::real(frames, n, memory);
        let mut piece = [0u8; 1024];
        let mut at = 0;
        let mut done = Ok(());
        while done.is_ok() {
            let got = libc::syscall(libc::SYS_pread64, memory, piece.as_mut_ptr(), piece.len(), at as i64);
            let Some(got) = usize::try_from(got).ok().filter(|&got| got > 0) else { break };
            done = write_all(fd, &piece[..got]);
            at += got;
        }
        libc::syscall(libc::SYS_close, memory);
        done
    }
}

/// The functions with `...`: they make a list of their arguments, as a compiler would, and go on in those that take one. On aarch64, which
/// has other lists, they are libc's and fail (`EPERM`).
#[cfg(target_arch = "x86_64")]
mod variadic {
    macro_rules! variadic {
        ($($name:ident => $next:path, $fixed:literal, $list:literal;)*) => { $(
            /// # Safety
            /// As of libc's function.
            #[unsafe(naked)]
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name() {
                std::arch::naked_asm!(
                    "endbr64",
                    // 24 bytes of list, then at 32 the registers that arguments come in; the stack is aligned for a call.
                    "sub rsp, 216",
                    "mov [rsp + 32], rdi",
                    "mov [rsp + 40], rsi",
                    "mov [rsp + 48], rdx",
                    "mov [rsp + 56], rcx",
                    "mov [rsp + 64], r8",
                    "mov [rsp + 72], r9",
                    "test al, al",
                    "je 2f",
                    "movaps [rsp + 80], xmm0",
                    "movaps [rsp + 96], xmm1",
                    "movaps [rsp + 112], xmm2",
                    "movaps [rsp + 128], xmm3",
                    "movaps [rsp + 144], xmm4",
                    "movaps [rsp + 160], xmm5",
                    "movaps [rsp + 176], xmm6",
                    "movaps [rsp + 192], xmm7",
                    "2:",
                    // Where the first of them stands that is not fixed, and the first in a vector register.
                    concat!("mov dword ptr [rsp], 8 * ", $fixed),
                    "mov dword ptr [rsp + 4], 48",
                    // The others are on the caller's stack.
                    "lea rax, [rsp + 224]",
                    "mov [rsp + 8], rax",
                    "lea rax, [rsp + 32]",
                    "mov [rsp + 16], rax",
                    concat!("mov ", $list, ", rsp"),
                    "call {next}",
                    "add rsp, 216",
                    "ret",
                    next = sym $next,
                )
            }
        )* };
    }
    variadic! {
        dprintf => super::vdprintf, 2, "rdx";
        __dprintf_chk => super::__vdprintf_chk, 3, "rcx";
    }
}
