//! How much accepted work has not ended yet.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Counts the user work that was accepted and has not ended, so that closing
/// can wait for it: a page that a task changed after the last flush would be
/// missing from the checkpoint.
#[derive(Default)]
pub(crate) struct Admission {
    pub(crate) live: AtomicUsize,
    pub(crate) closing: AtomicBool,
    /// Notified when `live` falls to zero while closing.
    pub(crate) idle: Mutex<Option<oneshot::Sender<()>>>,
}

impl Admission {
    /// Whether only work of tasks that are running already is accepted.
    #[inline]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// One piece of accepted work has ended.
    pub(crate) fn leave(&self) {
        // Sequentially consistent, as in `Runtime::admit` and `refuse_and_drain`:
        // of a last leaver and its waiter, one sees the other.
        if self.live.fetch_sub(1, Ordering::SeqCst) == 1 && self.closing.load(Ordering::SeqCst) {
            let waiting = self.idle.lock().take();
            if let Some(tell) = waiting {
                // The waiter may have seen the zero already.
                let _ = tell.send(());
            }
        }
    }
}
