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

use super::{Claim, Flush, LogReservation, LogTasks, ReservationClass, ReservationRequest};
use crate::canary::{self, Canary};
use crate::error::StorageError as Error;
use crate::page::Lsn;
use crate::runtime::{TaskId, Worker, clock};
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

    /// Whether a task waits.
    #[cfg(any(debug_assertions, test, feature = "simulation"))]
    pub(super) fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) != NO_WAITER
    }
}

/// A worker's state for its tasks.
pub(super) struct Own {
    /// Tasks that wait until their LSN is durable, the smallest first.
    waiters: RefCell<BinaryHeap<Reverse<(Lsn, TaskId)>>>,
    /// Parked log writers.
    idle: RefCell<Vec<TaskId>>,
    /// When what is buffered has to be written at the latest.
    deadline: Cell<Option<Instant>>,
    /// The ring was not registered with the kernel yet.
    ring_due: Cell<bool>,
}

impl Own {
    pub(super) fn new() -> Own {
        Own {
            waiters: RefCell::new(BinaryHeap::new()),
            idle: RefCell::new(Vec::new()),
            deadline: Cell::new(None),
            ring_due: Cell::new(true),
        }
    }
}

impl LogTasks {
    /// Time until buffered commits of the worker have to be written.
    pub(crate) fn until_deadline(&self, worker: &Worker) -> Option<Duration> {
        let deadline = self.own.of(worker).deadline.get()?;
        Some(deadline.saturating_duration_since(clock::now()))
    }

    /// Wakes the workers on which a task waits for what is durable now, and streams.
    fn wake_durable(&self, except: usize) {
        let durable = self.log.durable().0;
        if !canary::is_on(Canary::StreamUnwoken) {
            self.streams.wake(durable);
        }
        for (index, awaited) in self.awaited.iter().enumerate() {
            if index != except && awaited.0.load(Ordering::SeqCst) < durable {
                self.workers.notify(index);
            }
        }
    }

    // ---- waiting ------------------------------------------------------------

    /// Waits until what was given `lsn` is durable, and sees to it that it is
    /// written. The caller holds no latch, guard or borrow.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if a write failed before it was.
    pub(crate) fn wait_durable(&self, worker: &Worker, lsn: Lsn) -> Result<(), Error> {
        while !self.log.is_durable(lsn) {
            self.shared.writable()?;
            self.log.request_flush(lsn);
            let waiter = Reverse((lsn, worker.task_id()));
            let own = self.own.of(worker);
            own.waiters.borrow_mut().push(waiter);
            self.publish_awaited(worker, own);
            // `poll` compares with the durable end after this, before the
            // worker sleeps; the worker that moves that end looks at what is published.
            worker.suspend();
        }
        Ok(())
    }

    /// Waits until all that is in the log now is durable; see [`LogTasks::wait_durable`].
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] if a write failed before it was.
    pub(crate) fn wait_all_durable(&self, worker: &Worker) -> Result<(), Error> {
        self.wait_durable(worker, self.log.newest_record())
    }

    /// Has `lsn`, a commit's, made durable as `durability` says: waits, or sees
    /// to it that it is written in time.
    ///
    /// # Errors
    ///
    /// As for [`LogTasks::wait_durable`].
    pub(crate) fn make_durable(
        &self,
        worker: &Worker,
        lsn: Lsn,
        durability: Durability,
    ) -> Result<(), Error> {
        if canary::is_on(Canary::AcknowledgeEarly) {
            return Ok(());
        }
        match durability {
            Durability::Synced => {
                #[cfg(feature = "tracing")]
                let since = clock::now();
                let waited = self.wait_durable(worker, lsn);
                #[cfg(feature = "tracing")]
                tell_slow(lsn, clock::now() - since);
                waited
            }
            Durability::Buffered { window_ms } => {
                let deadline = clock::now() + Duration::from_millis(u64::from(window_ms));
                let own = &self.own.of(worker).deadline;
                let earlier = own.get().is_none_or(|set| deadline < set);
                if self.log.is_on() && earlier {
                    own.set(Some(deadline));
                }
                Ok(())
            }
            Durability::None => Ok(()),
        }
    }

    fn publish_awaited(&self, worker: &Worker, own: &Own) {
        let waiters = own.waiters.borrow();
        let least = waiters.peek().map_or(NO_WAITER, |Reverse((lsn, _))| lsn.0);
        self.awaited[worker.index].0.store(least, Ordering::SeqCst);
    }

    // ---- reservations --------------------------------------------------------

    /// Reserves log space for a record of `bytes` bytes and, for a commit, for what applying
    /// it causes; waits until there is some. Called before the first latch. Release
    /// it (drop it) once everything is appended and applied, and before
    /// waiting for anything of unknown length, such as durability.
    ///
    /// # Errors
    ///
    /// [`Error::Poisoned`] or [`Error::ReadOnly`].
    pub(crate) fn reserve(
        &self,
        worker: &Worker,
        bytes: u64,
        class: ReservationClass,
    ) -> Result<LogReservation<'_>, Error> {
        self.reserve_records(worker, ReservationRequest::records(bytes, class))
    }

    /// As [`LogTasks::reserve`], for a commit that may split so many leaves. One that frees log
    /// neither is delayed nor waits where others do, for which that may be.
    ///
    /// # Errors
    ///
    /// As for [`LogTasks::reserve`].
    pub(crate) fn reserve_commit(
        &self,
        worker: &Worker,
        bytes: u64,
        splits: u64,
        frees_log: bool,
    ) -> Result<LogReservation<'_>, Error> {
        let class = match frees_log {
            true => ReservationClass::Structure,
            false => ReservationClass::Commit,
        };
        let request = ReservationRequest::records(bytes, ReservationClass::Commit);
        self.reserve_records(worker, request.with_splits(splits).of_class(class))
    }

    fn reserve_records(
        &self,
        worker: &Worker,
        request: ReservationRequest,
    ) -> Result<LogReservation<'_>, Error> {
        if !self.log.is_on() {
            return Ok(LogReservation::none());
        }
        if request.is_delayed()
            && let Some(delay) = self.log.commit_delay()
        {
            worker.sleep_until(clock::now() + delay);
            self.shared.counters.stalled(delay);
        }
        self.wait_for_reservation(worker, request)
    }

    /// Reserves space in the ring for one structure modification; see [`LogTasks::reserve`].
    pub(crate) fn reserve_for_structure(
        &self,
        worker: &Worker,
    ) -> Result<LogReservation<'_>, Error> {
        if !self.log.is_on() {
            return Ok(LogReservation::none());
        }
        self.wait_for_reservation(worker, ReservationRequest::structure())
    }

    fn wait_for_reservation(
        &self,
        worker: &Worker,
        request: ReservationRequest,
    ) -> Result<LogReservation<'_>, Error> {
        self.shared.writable()?;
        if self.log.ring_is_filling() {
            self.log.request_flush_of_all();
        }
        if let Some(room) = self.log.try_reserve(request) {
            return Ok(room);
        }
        let Some(task) = worker.current_task() else {
            return Err(Error::Closed);
        };
        let since = clock::now();
        let waker = Waker::from(Arc::new(task));
        let waiter = self.log.queue_for_reservation(request, waker);
        self.shared.watch_for_space();
        // After the waiter is listed: the log does not become smaller while a task waits.
        let wanted = request.area_bytes();
        if wanted > self.log.area_bytes() {
            self.growth.request(wanted);
        }
        if self.log.area_is_short_for_system() {
            // After the waiter is listed: a checkpoint that waits for pages to be written sees it,
            // or is woken.
            self.flush_waiters.wake_all();
        }
        if self.log.area_is_short() {
            // The checkpointer's worker may sleep.
            self.workers.notify_all();
        }
        loop {
            if let Some(room) = self.log.granted(&waiter) {
                self.shared.counters.stalled(clock::now() - since);
                return Ok(room);
            }
            if let Err(error) = self.shared.writable() {
                self.log.leave_queue(&waiter);
                return Err(error);
            }
            worker.park();
        }
    }

    // ---- writing ------------------------------------------------------------

    /// A log writer's life: writes what is contiguous while a flush of it is requested. It ends
    /// once `has_ended` says that no task is left on the worker that could request one.
    pub(crate) fn run_writer(&self, worker: &Worker, has_ended: impl Fn() -> bool) {
        loop {
            match self.log.claim(worker.index) {
                Claim::Flush(flush) => self.flush_log(worker, flush),
                Claim::Later => worker.yield_now(),
                Claim::Overrun => self.shared.poison(Error::LogOverrun),
                Claim::Nothing if has_ended() => return,
                Claim::Nothing => {
                    self.own.of(worker).idle.borrow_mut().push(worker.task_id());
                    worker.suspend();
                }
            }
        }
    }

    fn flush_log(&self, worker: &Worker, flush: Flush) {
        self.register_ring(worker);
        let since = clock::now();
        for (offset, memory, length) in self.log.writes(flush) {
            let io = Io::write(offset, memory, length, 0);
            let io = if canary::is_on(Canary::SkipLogFlush) {
                io
            } else {
                io.durable()
            };
            // SAFETY: the log's ring outlives every worker of its engine, and what a flush
            // covers is not overwritten before it is durable.
            unsafe { worker.start_io(io) };
        }
        // The writes of the chunks that its records name had ended before these were appended. So a
        // flush of all devices of the volume that begins now makes them durable.
        if self.log.flushes_volume(flush) && !canary::is_on(Canary::FlushLogAlone) {
            // SAFETY: a flush has no buffer.
            unsafe { worker.start_io(Io::flush(0)) };
        }
        let result = worker.wait_io();
        let bytes = flush.end - flush.start;
        Counters::add(&self.shared.counters.bytes_written, bytes);
        let took = clock::now() - since;
        if self.log.flushed(flush, result.is_ok(), took) {
            self.wake_durable(worker.index);
            self.wake_durable_waiters(worker, self.own.of(worker));
        }
        if let Err(error) = result {
            self.shared.poison(Error::Io(error));
        }
        // Tasks whose commits are durable now run first: what they commit next
        // shares the flush that begins now, instead of waiting for its end.
        worker.yield_now();
    }

    /// Registers the ring with the kernel, once all of it was used.
    #[inline]
    fn register_ring(&self, worker: &Worker) {
        let due = &self.own.of(worker).ring_due;
        if due.get()
            && let Some(region) = self.log.region()
        {
            due.set(false);
            // SAFETY: the log's ring outlives every worker of its engine. A refusal costs time
            // alone.
            let _ = unsafe { worker.register_more(region) };
        }
    }

    // ---- the log's part of a worker's step -------------------------------------------------------

    /// Readies the tasks that wait for the log; part of each step while there is a log. For
    /// `has_ended` see [`LogTasks::run_writer`].
    pub(crate) fn poll(&self, worker: &Worker, has_ended: impl FnOnce() -> bool) -> bool {
        let own = self.own.of(worker);
        let mut woke = self.wake_durable_waiters(worker, own);
        if let Some(deadline) = own.deadline.get()
            && deadline <= clock::now()
        {
            own.deadline.set(None);
            self.log.request_flush_of_all();
        }
        let mut idle = own.idle.borrow_mut();
        if !idle.is_empty() && (self.log.flush_is_due() || has_ended()) {
            // One at a time: if that is not enough, the next step sees it.
            if let Some(task) = idle.pop() {
                worker.make_ready(task);
                woke = true;
            }
        }
        woke
    }

    fn wake_durable_waiters(&self, worker: &Worker, own: &Own) -> bool {
        if own.waiters.borrow().is_empty() {
            return false;
        }
        let mut woke = false;
        loop {
            let durable = self.log.durable();
            let poisoned = self.shared.is_poisoned();
            let mut changed = false;
            let mut waiters = own.waiters.borrow_mut();
            while let Some(&Reverse((lsn, task))) = waiters.peek()
                && (lsn < durable || poisoned)
            {
                waiters.pop();
                worker.make_ready(task);
                changed = true;
            }
            drop(waiters);
            if !changed {
                return woke;
            }
            woke = true;
            // The next one waits for something that may have become durable
            // before this was published: look again.
            self.publish_awaited(worker, own);
        }
    }
}
