//! Keeping many tasks in flight without keeping too many.
//!
//! A thread that reads input must not wait for each record's page faults: it
//! hands records to tasks on the store's workers and goes on. What is in
//! flight is bounded in number and in bytes, so memory stays bounded however
//! large the input is.

use std::collections::VecDeque;

use isobath::{Store, TaskHandle, Tree};

use crate::LabError;

/// What a task answers.
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

    /// Waits for everything.
    pub(crate) fn finish(mut self, mut done: impl FnMut(T)) -> Result<(), LabError> {
        while !self.tasks.is_empty() {
            self.wait_oldest(&mut done)?;
        }
        Ok(())
    }

    fn wait_oldest(&mut self, done: &mut impl FnMut(T)) -> Result<(), LabError> {
        if let Some((bytes, task)) = self.tasks.pop_front() {
            self.bytes -= bytes;
            done(task.join()??);
        }
        Ok(())
    }
}

/// Records per batch that [`Lanes`] hands to a task.
const LANE_BATCH: usize = 32;
/// Bytes per batch after which a lane does not wait for more records.
const LANE_BYTES: usize = 256 << 10;
/// Lanes; each has at most one batch in flight.
const LANES: usize = 128;

/// Owned key and value.
pub(crate) type Record = (Vec<u8>, Vec<u8>);

/// Writes records with many tasks and keeps the order of records of one key,
/// so that the last one wins as it does in the input.
///
/// A key belongs to one lane, and a lane has at most one batch in flight.
pub(crate) struct Lanes<'s> {
    store: &'s Store,
    tree: Tree,
    lanes: Vec<Lane>,
}

#[derive(Default)]
struct Lane {
    batch: Vec<Record>,
    batch_bytes: usize,
    running: Option<TaskHandle<Outcome<()>>>,
}

impl<'s> Lanes<'s> {
    pub(crate) fn new(store: &'s Store, tree: &Tree) -> Self {
        Lanes {
            store,
            tree: tree.clone(),
            lanes: (0..LANES).map(|_| Lane::default()).collect(),
        }
    }

    /// Hands one record over.
    pub(crate) fn push(&mut self, key: Vec<u8>, value: Vec<u8>) -> Result<(), LabError> {
        let at = crc32c::crc32c(&key) as usize % LANES;
        let lane = &mut self.lanes[at];
        lane.batch_bytes += key.len() + value.len();
        lane.batch.push((key, value));
        if lane.batch.len() >= LANE_BATCH || lane.batch_bytes >= LANE_BYTES {
            self.send(at)?;
        }
        Ok(())
    }

    /// Writes what is left and waits for everything.
    pub(crate) fn finish(mut self) -> Result<(), LabError> {
        for at in 0..LANES {
            if !self.lanes[at].batch.is_empty() {
                self.send(at)?;
            }
        }
        for lane in &mut self.lanes {
            if let Some(task) = lane.running.take() {
                task.join()??;
            }
        }
        Ok(())
    }

    fn send(&mut self, at: usize) -> Result<(), LabError> {
        let lane = &mut self.lanes[at];
        if let Some(task) = lane.running.take() {
            task.join()??;
        }
        lane.batch_bytes = 0;
        let batch = std::mem::take(&mut lane.batch);
        let tree = self.tree.clone();
        lane.running = Some(self.store.spawn(move || {
            for (key, value) in &batch {
                tree.insert(key, value)?;
            }
            Ok(())
        }));
        Ok(())
    }
}
