//! The eventfd by which a sleeping worker is woken.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::waker::Wake;

/// The [`Wake`] of channels that sleep on an eventfd: shared by one sleeper (the channel) and any
/// number of wakers.
///
/// `wake` writes the eventfd only when `sleeping` is set, so waking a busy worker costs one atomic
/// swap. Both flags are sequentially consistent: the sleeper sets `sleeping` before it looks at
/// `signalled`, a waker sets `signalled` before it looks at `sleeping`; so at least one of them
/// sees the other.
pub struct EventWake {
    fd: OwnedFd,
    signalled: AtomicBool,
    sleeping: AtomicBool,
}

impl EventWake {
    /// A sleeper that is awake, and that has not been woken.
    ///
    /// # Errors
    /// The system's, if it gives no eventfd.
    pub fn new() -> io::Result<EventWake> {
        // SAFETY: no memory is passed.
        let raw = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `raw` was just returned to us alone.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        Ok(EventWake {
            fd,
            signalled: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
        })
    }

    pub(crate) fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// Announces a sleep. False when a wake has come already: then do not sleep.
    pub fn begin(&self) -> bool {
        self.sleeping.store(true, Ordering::SeqCst);
        if self.signalled.swap(false, Ordering::SeqCst) {
            self.sleeping.store(false, Ordering::SeqCst);
            return false;
        }
        true
    }

    /// Ends a sleep. True when a wake came during it.
    pub fn end(&self) -> bool {
        self.sleeping.store(false, Ordering::SeqCst);
        self.signalled.swap(false, Ordering::SeqCst)
    }

    /// Whether a wake has come that no sleep has consumed.
    pub fn is_signalled(&self) -> bool {
        self.signalled.load(Ordering::Relaxed)
    }

    /// Resets the eventfd after it became readable.
    pub(crate) fn drain(&self) {
        let mut count = 0u64;
        // SAFETY: reads at most the 8 bytes of `count`. EAGAIN (nothing to drain) is as good as
        // success.
        unsafe { libc::read(self.fd.as_raw_fd(), (&raw mut count).cast(), 8) };
    }

    /// Sleeps until woken or for `timeout`. Returns whether it was woken; early returns are
    /// possible.
    ///
    /// # Errors
    /// The system's, if it cannot wait.
    pub fn sleep(&self, timeout: Option<Duration>) -> io::Result<bool> {
        if !self.begin() {
            return Ok(true);
        }
        let slept = poll_readable(self.fd.as_raw_fd(), timeout);
        let woken = self.end();
        if let Ok(true) = slept {
            self.drain();
        }
        slept.map(|_| woken)
    }
}

impl std::fmt::Debug for EventWake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventWake").finish_non_exhaustive()
    }
}

impl Wake for EventWake {
    fn wake(&self) {
        let already = self.signalled.swap(true, Ordering::SeqCst);
        if !already && self.sleeping.load(Ordering::SeqCst) {
            let one = 1u64;
            // SAFETY: writes the 8 bytes of `one`. It fails only when the counter is full, and then
            // the sleeper is being woken already.
            unsafe { libc::write(self.fd.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }
}

/// Waits until `fd` is readable; false after the timeout or a signal.
pub(crate) fn poll_readable(fd: RawFd, timeout: Option<Duration>) -> io::Result<bool> {
    let spec = timeout.map(timespec);
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    let spec_ptr = spec.as_ref().map_or(std::ptr::null(), |s| s as *const _);
    // SAFETY: one pollfd, a timespec that outlives the call or null, no signal mask.
    let n = unsafe { libc::ppoll(&raw mut poll, 1, spec_ptr, std::ptr::null()) };
    if n >= 0 {
        return Ok(n > 0);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted {
        Ok(false)
    } else {
        Err(error)
    }
}

/// The kernel's form of a duration (saturating).
pub(crate) fn timespec(d: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: libc::time_t::try_from(d.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: libc::c_long::from(d.subsec_nanos() as i32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

    #[test]
    fn a_wake_before_the_sleep_ends_it_at_once() {
        let wake = EventWake::new().unwrap();
        wake.wake();
        assert!(wake.is_signalled());
        assert!(wake.sleep(None).unwrap());
        assert!(!wake.is_signalled());
    }

    #[test]
    fn a_wake_from_another_thread_ends_an_endless_sleep() {
        let wake = Arc::new(EventWake::new().unwrap());
        for _ in 0..200 {
            let other = Arc::clone(&wake);
            let thread = std::thread::spawn(move || other.wake());
            while !wake.sleep(None).unwrap() {}
            thread.join().unwrap();
        }
    }

    #[test]
    fn the_timeout_ends_a_sleep() {
        let wake = EventWake::new().unwrap();
        let start = Instant::now();
        assert!(!wake.sleep(Some(Duration::from_millis(20))).unwrap());
        assert!(start.elapsed() >= Duration::from_millis(19));
    }
}
