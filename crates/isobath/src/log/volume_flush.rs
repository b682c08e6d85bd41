//! Flushes of the volume that tasks share.

use crate::Error;
use crate::runtime::{WaitQueue, WorkerState};
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
}

#[derive(Default)]
struct FlushState {
    is_running: bool,
    started: u64,
    finished: u64,
}

impl WorkerState {
    /// Waits until what this task has written to the volume is on the drive.
    ///
    /// # Errors
    ///
    /// A failed flush, which poisons the store; [`Error::Poisoned`] where it
    /// was another task's.
    pub(crate) fn flush_volume(&self) -> Result<(), Error> {
        debug_assert!(self.worker.in_task(), "only tasks wait");
        let flush = &self.engine.log_tasks.volume_flush;
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
                return self.run_flush();
            }
            drop(state);
            flush.waiters.wait(&self.worker, 0, || {
                let state = flush.state.lock();
                state.finished >= needed || !state.is_running
            });
            self.engine.shared.writable()?;
        }
    }

    fn run_flush(&self) -> Result<(), Error> {
        let engine = &self.engine;
        let result = self.worker.flush().map_err(Error::Io);
        if let Err(error) = &result {
            engine.poison(error.clone());
        }
        let mut state = engine.log_tasks.volume_flush.state.lock();
        state.is_running = false;
        if result.is_ok() {
            state.finished = state.started;
        }
        drop(state);
        engine.log_tasks.volume_flush.waiters.wake_all();
        result
    }
}
