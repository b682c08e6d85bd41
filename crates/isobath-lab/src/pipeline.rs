//! Keeping many tasks in flight without keeping too many.
//!
//! A thread that reads input must not wait for each record's page faults: it
//! hands records to tasks on the store's workers and goes on. What is in
//! flight is bounded in number and in bytes, so memory stays bounded however
//! large the input is.

use std::collections::VecDeque;

use isobath::{Store, TaskHandle};

use crate::LabError;

/// The answer of a task.
pub(crate) type Outcome<T> = Result<T, LabError>;

/// Most tasks that one thread keeps in flight.
const TASKS_IN_FLIGHT: usize = 64;
/// Most bytes of input that one thread keeps in flight.
const BYTES_IN_FLIGHT: usize = 16 << 20;

/// Tasks that one thread has started and not yet waited for, oldest first.
pub(crate) struct InFlight<'s, T> {
    store: &'s Store,
    tasks: VecDeque<(usize, TaskHandle<Outcome<T>>)>,
    bytes: usize,
}

impl<'s, T: Send + 'static> InFlight<'s, T> {
    pub(crate) fn new(store: &'s Store) -> Self {
        InFlight {
            store,
            tasks: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Starts `work`, which holds `bytes` of input. While too much is in
    /// flight, the oldest tasks are waited for and `done` gets their answers.
    pub(crate) fn start(
        &mut self,
        bytes: usize,
        work: impl FnOnce() -> Outcome<T> + Send + 'static,
        mut done: impl FnMut(T),
    ) -> Result<(), LabError> {
        while self.tasks.len() >= TASKS_IN_FLIGHT
            || (self.bytes + bytes > BYTES_IN_FLIGHT && !self.tasks.is_empty())
        {
            self.wait_oldest(&mut done)?;
        }
        self.bytes += bytes;
        self.tasks.push_back((bytes, self.store.spawn(work)));
        Ok(())
    }

    /// Waits for everything, also after a failure; the first one.
    pub(crate) fn finish(mut self, mut done: impl FnMut(T)) -> Result<(), LabError> {
        let mut first = Ok(());
        while !self.tasks.is_empty() {
            let outcome = self.wait_oldest(&mut done);
            first = first.and(outcome);
        }
        first
    }

    fn wait_oldest(&mut self, done: &mut impl FnMut(T)) -> Result<(), LabError> {
        if let Some((bytes, task)) = self.tasks.pop_front() {
            self.bytes -= bytes;
            done(task.join()??);
        }
        Ok(())
    }
}
