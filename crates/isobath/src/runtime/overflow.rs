//! A task that overflows its stack is named as such before the process ends.
//!
//! Each stack ends with a page that no access may touch. The kernel answers with SIGSEGV, whose
//! default message names neither the task nor what to do. The handler here looks whether the
//! address lies in that page of the task that runs on the thread, says so, and lets the default
//! action follow; everything else goes to whichever handler was there before.

#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Once;

/// Bytes of a handler's own stack, where the thread has none.
const HANDLER_BYTES: usize = 64 << 10;

const MESSAGE: &str = "\nstack overflow in an Isobath task: it needs more than its stack has (Options::task_stack_bytes)\n";

thread_local! {
    /// The end of the stack of the task that runs on this thread: its page is not to be touched. 0
    /// outside tasks.
    static LIMIT: Cell<usize> = const { Cell::new(0) };
}

/// The previous handler of the signal, and the bytes of a page: written once, before the handler is
/// installed.
struct Previous(UnsafeCell<MaybeUninit<(libc::sigaction, usize)>>);

// SAFETY: written by one thread before anything can read it, only read afterwards.
unsafe impl Sync for Previous {}

static PREVIOUS: Previous = Previous(UnsafeCell::new(MaybeUninit::uninit()));
static INSTALL: Once = Once::new();

/// The task that runs on this thread from now on has a stack that ends at `limit`.
#[inline]
pub(super) fn enter(limit: usize) {
    LIMIT.set(limit);
}

/// No task runs on this thread.
#[inline]
pub(super) fn leave() {
    LIMIT.set(0);
}

/// While it lives, overflows of tasks on this thread are named.
pub(crate) struct Watch {
    /// A stack for handlers that this has made, as the thread had none.
    stack: *mut libc::c_void,
}

impl Watch {
    /// Watches the calling thread. Without memory for it overflows end the process all the same.
    pub(crate) fn this_thread() -> Watch {
        INSTALL.call_once(install);
        let mut watch = Watch {
            stack: ptr::null_mut(),
        };
        // SAFETY: queries and sets this thread's alternate stack; the memory stays mapped until
        // `drop`, on this thread.
        unsafe {
            let mut present: libc::stack_t = std::mem::zeroed();
            let asked = libc::sigaltstack(ptr::null(), &raw mut present);
            if asked != 0 || present.ss_flags & libc::SS_DISABLE == 0 {
                return watch;
            }
            let memory = libc::mmap(
                ptr::null_mut(),
                HANDLER_BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if memory == libc::MAP_FAILED {
                return watch;
            }
            let stack = libc::stack_t {
                ss_sp: memory,
                ss_flags: 0,
                ss_size: HANDLER_BYTES,
            };
            if libc::sigaltstack(&raw const stack, ptr::null_mut()) == 0 {
                watch.stack = memory;
            } else {
                libc::munmap(memory, HANDLER_BYTES);
            }
        }
        watch
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if self.stack.is_null() {
            return;
        }
        // SAFETY: no handler runs on this thread now; its stack is taken away before its memory is.
        unsafe {
            let mut none: libc::stack_t = std::mem::zeroed();
            none.ss_flags = libc::SS_DISABLE;
            if libc::sigaltstack(&raw const none, ptr::null_mut()) == 0 {
                libc::munmap(self.stack, HANDLER_BYTES);
            }
        }
    }
}

fn install() {
    // SAFETY: the handler does what a handler may; the previous one is kept before it can be
    // asked for.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE);
        let page = usize::try_from(page).unwrap_or(4096);
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGSEGV, ptr::null(), &raw mut before) != 0 {
            return;
        }
        (*PREVIOUS.0.get()).write((before, page));
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGSEGV, &raw const action, ptr::null_mut());
    }
}

/// Only calls that a signal handler may make.
extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives a valid `info`; `PREVIOUS` was written before this handler was
    // installed.
    unsafe {
        let address = (*info).si_addr().addr();
        let limit = LIMIT.get();
        let (before, page) = (*PREVIOUS.0.get()).assume_init_ref();
        if limit != 0 && (limit..limit + page).contains(&address) {
            libc::write(2, MESSAGE.as_ptr().cast(), MESSAGE.len());
            default_action(signal);
            return;
        }
        match before.sa_sigaction {
            libc::SIG_DFL | libc::SIG_IGN => default_action(signal),
            handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
                let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
            handler => {
                let handler: extern "C" fn(i32) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

/// The instruction is tried again after the handler, and ends the process.
///
/// # Safety
///
/// May be called in a signal handler.
unsafe fn default_action(signal: i32) {
    // SAFETY: resets a signal's action, which a handler may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}
