//! The workers as others see them, and whether they go on.

use std::sync::Arc;

use super::{Admission, WorkerHandle};
use crate::sync::atomic::{AtomicBool, Ordering};

/// All workers of a store.
pub(crate) struct WorkerPool {
    handles: Vec<Arc<WorkerHandle>>,
    /// Workers leave their loops.
    stopping: AtomicBool,
    /// A worker has ended by a panic; the others end, too.
    died: AtomicBool,
    /// Which user work is accepted.
    pub(crate) admission: Admission,
}

impl WorkerPool {
    /// `workers` of them; none runs yet.
    pub(crate) fn new(workers: usize) -> WorkerPool {
        WorkerPool {
            handles: (0..workers)
                .map(|_| Arc::new(WorkerHandle::new()))
                .collect(),
            stopping: AtomicBool::new(false),
            died: AtomicBool::new(false),
            admission: Admission::default(),
        }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.handles.len()
    }

    /// Each of them, by its index.
    pub(crate) fn handles(&self) -> &[Arc<WorkerHandle>] {
        &self.handles
    }

    /// Makes worker `index` run one more step even if it sleeps.
    pub(crate) fn notify(&self, index: usize) {
        self.handles[index].notify();
    }

    /// Makes each worker run one more step even if it sleeps.
    pub(crate) fn notify_all(&self) {
        self.handles.iter().for_each(|handle| handle.notify());
    }

    /// Workers leave their loops once nothing is left to do.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.notify_all();
    }

    /// Whether workers are leaving their loops.
    #[inline]
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// A worker has ended by a panic: all end.
    pub(crate) fn die(&self) {
        self.died.store(true, Ordering::SeqCst);
        self.notify_all();
    }

    /// Whether a worker has ended by a panic.
    #[inline]
    pub(crate) fn has_died(&self) -> bool {
        self.died.load(Ordering::SeqCst)
    }
}
