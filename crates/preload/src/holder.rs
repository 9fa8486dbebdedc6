//! Who holds a lock in memory that processes share. It is free again when its holder is gone, however that comes: killed, another program by another thread's exec,
//! and in whichever namespace the holder's number counts.
//!
//! The kernel does that, as for the robust mutexes of libc (get_robust_list(2)): each thread has a place for the address of a lock that it is about to take or to give up. When the
//! thread ends with its own number in that lock, the kernel puts a mark there in the number's stead. The address stands there as long as the lock is held. Without contention there
//! is no system call. What libc itself may have put there (the call may be that of a signal handler) is put back.
//!
//! Where tested: `tests/all/more_c_programs.rs`, `tests/all/c_sharers.rs`.

use crate::mounts;
use libc::{c_int, c_long, c_void};
use std::cell::{Cell, UnsafeCell};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering, compiler_fence};

/// `FUTEX_TID_MASK`: where the number of the holder's thread stands. Without one the lock is free.
const NUMBER: u32 = 0x3fff_ffff;

/// `robust_list_head` of the kernel.
#[repr(C)]
struct Head {
    list: *mut c_void,
    /// From an entry to its lock.
    offset: c_long,
    pending: AtomicPtr<c_void>,
}

/// A thread, in one life of its process.
#[derive(Clone, Copy)]
struct Me {
    life: u64,
    number: u32,
    head: *mut Head,
}

thread_local! {
    static ME: Cell<Me> = const { Cell::new(Me { life: 0, number: 0, head: null_mut() }) };
    /// For threads that libc did not make.
    static OWN: UnsafeCell<Head> = const { UnsafeCell::new(Head { list: null_mut(), offset: 0, pending: AtomicPtr::new(null_mut()) }) };
}

impl Me {
    #[inline]
    fn now() -> Me {
        let me = ME.get();
        if me.life == mounts::life() { me } else { Me::find() }
    }

    #[cold]
    fn find() -> Me {
        let (mut head, mut len): (*mut Head, usize) = (null_mut(), 0);
        // SAFETY: places for the answers; our own head lives as long as the thread, and is an empty list.
        let number = unsafe {
            libc::syscall(libc::SYS_get_robust_list, 0 as c_int, &raw mut head, &raw mut len);
            if head.is_null() {
                let own = OWN.with(UnsafeCell::get);
                (*own).list = own.cast();
                if libc::syscall(libc::SYS_set_robust_list, own, size_of::<Head>()) == 0 {
                    head = own;
                }
            }
            libc::syscall(libc::SYS_gettid) as u32
        };
        let me = Me { life: mounts::life(), number, head };
        ME.set(me);
        me
    }

    /// Says which lock is about to be taken or given up, if any; gives what was said before.
    #[inline]
    fn say(self, entry: *mut c_void) -> *mut c_void {
        // The kernel looks when this thread is gone: only the order of its own steps counts.
        compiler_fence(Ordering::SeqCst);
        // SAFETY: the head is the thread's, which calls.
        let Some(head) = (unsafe { self.head.as_ref() }) else { return null_mut() };
        let before = head.pending.load(Ordering::Relaxed);
        head.pending.store(entry, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        before
    }

    /// What is said of a lock.
    #[inline]
    fn entry(self, lock: &AtomicU32) -> *mut c_void {
        // SAFETY: as above.
        let offset = unsafe { self.head.as_ref() }.map_or(0, |head| head.offset);
        std::ptr::from_ref(lock).cast_mut().cast::<c_void>().wrapping_byte_offset(-(offset as isize))
    }
}

/// The lock is held until the value is dropped.
pub(crate) struct Held<'a> {
    lock: &'a AtomicU32,
    me: Me,
    before: *mut c_void,
}

impl Held<'_> {
    #[inline]
    pub(crate) fn take(lock: &AtomicU32) -> Held<'_> {
        let me = Me::now();
        let mut tries = 0u32;
        loop {
            let seen = lock.load(Ordering::Relaxed);
            if seen & NUMBER == 0 {
                // Not while it is another's, who may have the same number in another namespace.
                let before = me.say(me.entry(lock));
                if lock.compare_exchange(seen, me.number, Ordering::Acquire, Ordering::Relaxed).is_ok() {
                    return Held { lock, me, before };
                }
                me.say(before);
            }
            tries += 1;
            match tries {
                ..100 => std::hint::spin_loop(),
                100..1000 => std::thread::yield_now(),
                _ => std::thread::sleep(std::time::Duration::from_micros(100)),
            }
        }
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lock.store(0, Ordering::Release);
        self.me.say(self.before);
    }
}
