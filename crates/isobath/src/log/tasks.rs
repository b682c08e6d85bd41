//! The log's part in a worker: tasks that write it, tasks that wait until it is durable, and tasks
//! that wait for log space.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use isobath_io::Io;

use crate::Error;
use crate::canary::{self, Canary};
use crate::log::{Claim, Flush, LogReservation, LogTasks, ReservationClass, ReservationRequest};
use crate::page::Lsn;
use crate::runtime::{TaskId, WorkerState, clock};
use crate::shared::{Counters, Durability};
use crate::sync::atomic::{AtomicU64, Ordering};

/// Tasks that write the log, per worker.
pub(crate) const LOG_WRITERS: usize = 2;

/// How long a commit may take to be durable before it is reported.
#[cfg(feature = "tracing")]
const SLOW_COMMIT: Duration = Duration::from_millis(100);

#[cfg(feature = "tracing")]
fn tell_slow(lsn: Lsn, took: Duration) {
    if took >= SLOW_COMMIT {
        let ms = took.as_millis() as u64;
        crate::trace::tell!(
            warn,
            "a commit was slow to become durable",
            lsn = lsn.0,
            ms = ms
        );
    }
}

/// A worker on which no task waits for the log.
const NO_WAITER: u64 = u64::MAX;

/// Per worker, for the others: the smallest LSN that a task of it waits for.
#[repr(align(128))]
pub(crate) struct Awaited(AtomicU64);

impl Awaited {
    pub(crate) fn new() -> Awaited {
        Awaited(AtomicU64::new(NO_WAITER))
    }
}

/// One worker's part in the log.
pub(crate) struct LogShare {
    /// Tasks that wait until their LSN is durable, the smallest first.
    waiters: RefCell<BinaryHeap<Reverse<(Lsn, TaskId)>>>,
    /// Parked log writers.
    idle: RefCell<Vec<TaskId>>,
    /// Log writers that still run.
    pub(crate) running: Cell<usize>,
    /// When what is buffered has to be written at the latest.
    deadline: Cell<Option<Instant>>,
}

impl LogShare {
    pub(crate) fn new() -> LogShare {
        LogShare {
            waiters: RefCell::new(BinaryHeap::new()),
            idle: RefCell::new(Vec::new()),
            running: Cell::new(0),
            deadline: Cell::new(None),
        }
    }

    /// Time until buffered commits have to be written.
    pub(crate) fn until_deadline(&self) -> Option<Duration> {
        let deadline = self.deadline.get()?;
        Some(deadline.saturating_duration_since(clock::now()))
    }
}

impl LogTasks {
    /// Wakes the workers on which a task waits for what is durable now.
    fn wake_durable(&self, except: usize) {
        let durable = self.log.durable().0;
        for (index, awaited) in self.awaited.iter().enumerate() {
            if index != except && awaited.0.load(Ordering::SeqCst) < durable {
                self.workers.notify(index);
            }
        }
    }
}

impl WorkerState {
    // ---- waiting ------------------------------------------------------------

    /// Waits until what was given `lsn` is durable, and sees to it that it is
    /// written. The caller holds no latch, guard or borrow.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if a write failed before it was.
    pub(crate) fn wait_durable(&self, lsn: Lsn) -> Result<(), Error> {
        let engine = &self.engine;
        while !engine.log.is_durable(lsn) {
            engine.shared.writable()?;
            engine.log.request_flush(lsn);
            let waiter = Reverse((lsn, self.worker.task_id()));
            self.log.waiters.borrow_mut().push(waiter);
            self.publish_awaited();
            // `wake_for_log` compares with the durable end after this, before the
            // worker sleeps; the worker that moves that end looks at what is published.
            self.worker.suspend();
        }
        Ok(())
    }

    /// Has `lsn`, a commit's, made durable as `durability` says: waits, or sees
    /// to it that it is written in time.
    ///
    /// # Errors
    ///
    /// As for [`WorkerState::wait_durable`].
    pub(crate) fn make_durable(&self, lsn: Lsn, durability: Durability) -> Result<(), Error> {
        if canary::sings(Canary::AcknowledgeEarly) {
            return Ok(());
        }
        match durability {
            Durability::Synced => {
                #[cfg(feature = "tracing")]
                let since = clock::now();
                let waited = self.wait_durable(lsn);
                #[cfg(feature = "tracing")]
                tell_slow(lsn, clock::now() - since);
                waited
            }
            Durability::Buffered { window_ms } => {
                let deadline = clock::now() + Duration::from_millis(u64::from(window_ms));
                let earlier = self.log.deadline.get().is_none_or(|set| deadline < set);
                if self.engine.log.is_on() && earlier {
                    self.log.deadline.set(Some(deadline));
                }
                Ok(())
            }
            Durability::None => Ok(()),
        }
    }

    fn publish_awaited(&self) {
        let waiters = self.log.waiters.borrow();
        let least = waiters.peek().map_or(NO_WAITER, |Reverse((lsn, _))| lsn.0);
        self.engine.log_tasks.awaited[self.worker.index]
            .0
            .store(least, Ordering::SeqCst);
    }

    // ---- reservations --------------------------------------------------------

    /// Reserves log space for a record of `bytes` bytes and, for a commit, for what applying
    /// it causes; waits until there is some. Called before the first latch. Release
    /// it (drop it) once everything is appended and applied, and before
    /// waiting for anything of unknown length, such as durability.
    ///
    /// # Errors
    ///
    /// [`Error::TransactionTooLarge`]; [`Error::Poisoned`] or [`Error::ReadOnly`].
    pub(crate) fn reserve_log(
        &self,
        bytes: u64,
        class: ReservationClass,
    ) -> Result<LogReservation<'_>, Error> {
        let log = &self.engine.log;
        if !log.is_on() {
            return Ok(LogReservation::none());
        }
        if class == ReservationClass::Commit {
            if bytes > log.transaction_limit_now() {
                self.wait_for_larger_log(bytes)?;
            }
            if let Some(delay) = log.commit_delay() {
                self.worker.sleep_until(clock::now() + delay);
                self.engine.shared.counters.stalled(delay);
            }
        }
        self.wait_for_reservation(ReservationRequest::records(bytes, class))
    }

    /// Reserves space in the ring for one structure modification; see [`WorkerState::reserve_log`].
    pub(crate) fn reserve_for_structure(&self) -> Result<LogReservation<'_>, Error> {
        if !self.engine.log.is_on() {
            return Ok(LogReservation::none());
        }
        self.wait_for_reservation(ReservationRequest::structure())
    }

    fn wait_for_reservation(
        &self,
        request: ReservationRequest,
    ) -> Result<LogReservation<'_>, Error> {
        let engine = &self.engine;
        engine.shared.writable()?;
        if engine.log.ring_is_filling() {
            engine.log.request_flush_of_all();
        }
        if let Some(room) = engine.log.try_reserve(request) {
            return Ok(room);
        }
        let Some(task) = self.worker.current_task() else {
            return Err(Error::Closed);
        };
        let since = clock::now();
        let waiter = engine
            .log
            .queue_for_reservation(request, Waker::from(Arc::new(task)));
        engine.pagestore.watch_stall();
        // After the waiter is listed: the log does not become smaller while a task waits.
        engine.request_log_growth(&request);
        if engine.log.area_is_short_for_system() {
            // After the waiter is listed: a checkpoint that waits for pages to be written sees it, or is woken.
            engine.buffer.changes.wake_all();
        }
        if engine.log.area_is_short() {
            // The checkpointer's worker may sleep.
            engine.workers.notify_all();
        }
        loop {
            if let Some(room) = engine.log.granted(&waiter) {
                engine.shared.counters.stalled(clock::now() - since);
                return Ok(room);
            }
            if let Err(error) = engine.shared.writable() {
                engine.log.leave_queue(&waiter);
                return Err(error);
            }
            self.worker.park();
        }
    }

    // ---- writing ------------------------------------------------------------

    /// A log writer's life: writes what is contiguous while a flush of it is requested.
    pub(crate) fn log_writer(&self) {
        loop {
            match self.engine.log.claim(self.worker.index) {
                Claim::Flush(flush) => self.flush_log(flush),
                Claim::Later => self.worker.yield_now(),
                Claim::Overrun => self.engine.shared.poison(Error::LogOverrun),
                Claim::Nothing if self.log_has_ended() => return,
                Claim::Nothing => {
                    self.log.idle.borrow_mut().push(self.worker.task_id());
                    self.worker.suspend();
                }
            }
        }
    }

    /// Whether no task is left on this worker that could request a flush.
    fn log_has_ended(&self) -> bool {
        self.engine.workers.is_stopping()
            && self.system_tasks.get() == 0
            && self.worker.has_no_user_tasks()
    }

    fn flush_log(&self, flush: Flush) {
        let engine = &self.engine;
        self.register_ring();
        let since = clock::now();
        for (offset, memory, length) in engine.log.writes(flush) {
            let io = Io::write(offset, memory, length, 0);
            let io = if canary::sings(Canary::SkipLogFlush) {
                io
            } else {
                io.durable()
            };
            // SAFETY: the ring lives as long as the engine, and what a flush
            // covers is not overwritten before it is durable.
            unsafe { self.worker.start_io(io) };
        }
        // The writes of the chunks that its records name had ended before these were appended. So a flush of all devices of the
        // volume that begins now makes them durable.
        if engine.log.flushes_volume(flush) && !canary::sings(Canary::FlushLogAlone) {
            // SAFETY: a flush has no buffer.
            unsafe { self.worker.start_io(Io::flush(0)) };
        }
        let calls = self.worker.blocking_calls();
        let result = self.worker.wait_io();
        // A worker makes them only with nothing else in flight: they were this flush's.
        if self.worker.blocking_calls() > calls {
            Counters::add(&engine.shared.counters.log_flushes_blocking, 1);
        }
        let bytes = flush.end - flush.start;
        Counters::add(&engine.shared.counters.bytes_written, bytes);
        let took = clock::now() - since;
        if engine.log.flushed(flush, result.is_ok(), took) {
            engine.log_tasks.wake_durable(self.worker.index);
            self.wake_durable_waiters();
        }
        if let Err(error) = result {
            engine.shared.poison(Error::Io(error));
        }
        // Tasks whose commits are durable now run first: what they commit next
        // shares the flush that begins now, instead of waiting for its end.
        self.worker.yield_now();
    }

    // ---- the log's part of a worker's step -------------------------------------------------------

    /// Readies the tasks that wait for the log; part of each step while there is a log.
    pub(crate) fn wake_for_log(&self) -> bool {
        let mut woke = self.wake_durable_waiters();
        if let Some(deadline) = self.log.deadline.get()
            && deadline <= clock::now()
        {
            self.log.deadline.set(None);
            self.engine.log.request_flush_of_all();
        }
        let mut idle = self.log.idle.borrow_mut();
        if !idle.is_empty() && (self.engine.log.flush_is_due() || self.log_has_ended()) {
            // One at a time: if that is not enough, the next step sees it.
            if let Some(task) = idle.pop() {
                self.worker.make_ready(task);
                woke = true;
            }
        }
        woke
    }

    fn wake_durable_waiters(&self) -> bool {
        if self.log.waiters.borrow().is_empty() {
            return false;
        }
        let mut woke = false;
        loop {
            let durable = self.engine.log.durable();
            let poisoned = self.engine.shared.is_poisoned();
            let mut changed = false;
            let mut waiters = self.log.waiters.borrow_mut();
            while let Some(&Reverse((lsn, task))) = waiters.peek()
                && (lsn < durable || poisoned)
            {
                waiters.pop();
                self.worker.make_ready(task);
                changed = true;
            }
            drop(waiters);
            if !changed {
                return woke;
            }
            woke = true;
            // The next one waits for something that may have become durable
            // before this was published: look again.
            self.publish_awaited();
        }
    }
}
