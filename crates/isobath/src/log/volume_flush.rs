//! Flushes of the volume that tasks share.

use crate::error::StorageError as Error;
use crate::log::LogTasks;
use crate::runtime::{WaitQueue, Worker};
use crate::sync::Mutex;

/// Flushes of the volume that many writers share: a writer that finds none under way
/// starts one, which covers every write that ended before it began.
pub(crate) struct VolumeFlush {
    state: Mutex<FlushState>,
    /// Tasks that wait for the end of a flush.
    waiters: WaitQueue,
}

impl VolumeFlush {
    pub(crate) fn new() -> VolumeFlush {
        VolumeFlush {
            state: Mutex::default(),
            waiters: WaitQueue::new(),
        }
    }

    /// How many tasks wait for the end of a flush.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(super) fn waiters(&self) -> usize {
        self.waiters.waiters()
    }
}

#[derive(Default)]
struct FlushState {
    is_running: bool,
    started: u64,
    finished: u64,
}

impl LogTasks {
    /// Waits until what the worker's task has written to the volume is on the drive.
    ///
    /// # Errors
    ///
    /// A failed flush, which poisons the store; [`Error::Poisoned`] if it
    /// was another task's.
    pub(crate) fn flush_volume(&self, worker: &Worker) -> Result<(), Error> {
        debug_assert!(worker.in_task(), "only tasks wait");
        let flush = &self.volume_flush;
        let needed = flush.state.lock().started + 1;
        loop {
            let mut state = flush.state.lock();
            if state.finished >= needed {
                return Ok(());
            }
            if !state.is_running {
                state.is_running = true;
                state.started += 1;
                drop(state);
                return self.run_flush(worker);
            }
            drop(state);
            flush.waiters.wait(worker, 0, || {
                let state = flush.state.lock();
                state.finished >= needed || !state.is_running
            });
            self.shared.writable()?;
        }
    }

    fn run_flush(&self, worker: &Worker) -> Result<(), Error> {
        let result = worker.flush().map_err(Error::Io);
        if let Err(error) = &result {
            self.shared.poison(error.clone());
        }
        let mut state = self.volume_flush.state.lock();
        state.is_running = false;
        if result.is_ok() {
            state.finished = state.started;
        }
        drop(state);
        self.volume_flush.waiters.wake_all();
        result
    }
}
