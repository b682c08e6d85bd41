//! Flushes of the volume that tasks share.

#![allow(unsafe_code)]

use isobath_io::Io;

use super::WorkerState;
use crate::Error;
use crate::sched::TaskRef;
use crate::sync::Mutex;

/// Flushes of the volume that many writers share: a writer that finds none under way
/// starts one, which covers every write that ended before it began.
#[derive(Default)]
pub(crate) struct VolumeFlush(Mutex<FlushState>);

#[derive(Default)]
struct FlushState {
    is_running: bool,
    started: u64,
    finished: u64,
    /// Tasks that wait for a flush.
    waiters: Vec<TaskRef>,
}

impl WorkerState {
    /// Waits until what this task has written to the volume is on the drive.
    ///
    /// # Errors
    ///
    /// A failed flush, which poisons the store; [`Error::Poisoned`] where it
    /// was another task's.
    pub(crate) fn flush_volume(&self) -> Result<(), Error> {
        let flush = &self.engine.volume_flush.0;
        let needed = flush.lock().started + 1;
        loop {
            let mut state = flush.lock();
            if state.finished >= needed {
                return Ok(());
            }
            if !state.is_running {
                state.is_running = true;
                state.started += 1;
                drop(state);
                return self.run_flush();
            }
            let Some(task) = self.worker.current_task() else {
                return Err(Error::Closed);
            };
            state.waiters.push(task);
            drop(state);
            self.worker.park();
            self.engine.writable()?;
        }
    }

    fn run_flush(&self) -> Result<(), Error> {
        let engine = &self.engine;
        // SAFETY: a flush has no buffer.
        unsafe { self.worker.start_io(Io::flush(0)) };
        let result = self.worker.wait_io().map_err(Error::Io);
        if let Err(error) = &result {
            engine.poison(error.clone());
        }
        let mut state = engine.volume_flush.0.lock();
        state.is_running = false;
        if result.is_ok() {
            state.finished = state.started;
        }
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        for task in waiters {
            task.unpark();
        }
        result
    }
}
