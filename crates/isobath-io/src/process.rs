//! Distinguishing a process from the children that it forks.
#![allow(unsafe_code)]

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);
static WATCH: Once = Once::new();

/// A number that is another one in a forked child than in its parent. Threads do not survive a
/// fork: code that has started some compares.
#[must_use]
pub fn generation() -> u32 {
    WATCH.call_once(|| {
        extern "C" fn in_child() {
            GENERATION.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the handler stays, and does nothing but change an atomic number. If there is
        // no memory for it, children go unnoticed, as without it.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    GENERATION.load(Ordering::Relaxed)
}
