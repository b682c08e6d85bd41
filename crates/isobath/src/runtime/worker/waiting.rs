//! How tasks wait, and whom they let run.

#![allow(unsafe_code)]

use super::*;

impl Worker {
    /// Lets the step run; the caller has arranged for its resumption.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn suspend(&self) {
        let task = self.task_id();
        let slot = &self.slots[task.slot as usize];
        #[cfg(any(test, feature = "simulation"))]
        slot.suspended_at.set(Some(std::panic::Location::caller()));
        let yielder = slot.yielder.get();
        // SAFETY: the running fiber stored its own yielder, which lives as long
        // as the fiber does.
        unsafe { (*yielder).suspend(()) }
    }

    /// Tasks that could run now, beside the one that runs.
    #[inline]
    pub(crate) fn ready_tasks(&self) -> usize {
        self.ready.borrow().len()
    }

    /// Lets every other ready task run once.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn yield_now(&self) {
        self.ready.borrow_mut().push_back(self.task_id());
        self.suspend();
    }

    /// Counts operations of the running task. One that has done its share of a step without waiting
    /// lets the worker's other tasks, messages, timers and I/O have their turn.
    #[inline(always)]
    pub(crate) fn count_operations(&self, count: u32) {
        match self.turn.get().checked_sub(count) {
            Some(left) => self.turn.set(left),
            None => self.end_turn(),
        }
    }

    /// A task that unwinds keeps the thread: others would run as if they panicked.
    #[cold]
    fn end_turn(&self) {
        if !std::thread::panicking() {
            self.yield_now();
        }
    }

    /// In a simulation, if no task is ever interrupted, lets others run now and
    /// then, as they would on other threads; elsewhere does nothing.
    #[inline(always)]
    pub(crate) fn preemption_point(&self) {
        #[cfg(any(test, feature = "simulation"))]
        if self.order.get() != 0 && self.in_task() {
            let next = self.draw();
            for _ in 0..(next >> 20) % 6 / 3 * ((next >> 30) % 12) {
                self.yield_now();
            }
        }
    }

    /// In a simulation, a time up to `most`, drawn; elsewhere none.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn draw_time(&self, most: Duration) -> Option<Duration> {
        if self.order.get() == 0 {
            return None;
        }
        let (long, share) = (self.draw().is_multiple_of(3), (self.draw() >> 20) % 64);
        let most = if long { most } else { most / 32 };
        Some(most * share as u32 / 64)
    }

    /// The next number of the generator that orders ready tasks (xorshift64).
    pub(super) fn draw(&self) -> u64 {
        let state = self.order.get();
        let mut next = state ^ state << 13;
        next ^= next >> 7;
        next ^= next << 17;
        self.order.set(next);
        next
    }

    /// Makes a suspended task ready.
    pub(crate) fn make_ready(&self, task: TaskId) {
        if self.slots[task.slot as usize].generation.get() == task.generation {
            self.ready.borrow_mut().push_back(task);
        }
    }

    /// Suspends the running task until [`TaskRef::unpark`], which may have come first.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn park(&self) {
        let slot = &self.slots[self.task_id().slot as usize];
        if !slot.unparked.replace(false) {
            slot.parked.set(true);
            self.suspend();
        }
    }

    /// As [`Worker::park`], until `wake_at` at most, or a little later.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn park_until(&self, wake_at: Instant) {
        let task = self.task_id();
        self.alarms.borrow_mut().push(Reverse((wake_at, task)));
        self.park();
        let mut alarms = self.alarms.borrow_mut();
        alarms.retain(|Reverse((_, other))| *other != task);
    }

    /// Suspends the running task until `wake_at`, or a little later.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn sleep_until(&self, wake_at: Instant) {
        self.timers
            .borrow_mut()
            .push(Reverse((wake_at, self.task_id())));
        self.suspend();
    }

    /// Readies the tasks whose time has come.
    pub(super) fn wake_sleepers(&self) {
        let (mut timers, mut alarms) = (self.timers.borrow_mut(), self.alarms.borrow_mut());
        if timers.is_empty() && alarms.is_empty() {
            return;
        }
        let now = clock::now();
        while let Some(&Reverse((wake_at, task))) = timers.peek()
            && wake_at <= now
        {
            timers.pop();
            self.make_ready(task);
        }
        while let Some(&Reverse((wake_at, task))) = alarms.peek()
            && wake_at <= now
        {
            alarms.pop();
            // Not one that was unparked, and is ready already.
            if self.slots[task.slot as usize].parked.replace(false) {
                self.make_ready(task);
            }
        }
    }

    /// Time until the next sleeping task wakes.
    pub(super) fn until_next_timer(&self) -> Option<Duration> {
        let (timers, alarms) = (self.timers.borrow(), self.alarms.borrow());
        let next = timers.peek().into_iter().chain(alarms.peek()).max()?;
        Some(next.0.0.saturating_duration_since(clock::now()))
    }

    /// Starts an I/O of the running task, to be awaited with [`Worker::wait_io`].
    ///
    /// # Safety
    ///
    /// The I/O's buffer stays valid and in place until `wait_io` returned, and
    /// does not lie on the task's stack.
    pub(crate) unsafe fn start_io(&self, mut io: Io) {
        let task = self.task_id();
        let slot = &self.slots[task.slot as usize];
        slot.pending.set(slot.pending.get() + 1);
        io.user_data = u64::from(task.slot);
        self.submit(io);
    }

    /// Waits until every I/O that the running task started has completed; the
    /// first error of them.
    #[cfg_attr(any(test, feature = "simulation"), track_caller)]
    pub(crate) fn wait_io(&self) -> Result<(), IoError> {
        let slot = &self.slots[self.task_id().slot as usize];
        // However often the task is resumed for another reason: the kernel writes to the buffers
        // until then.
        while slot.pending.get() > 0 {
            slot.waits_for_io.set(true);
            self.suspend();
        }
        slot.error.borrow_mut().take().map_or(Ok(()), Err)
    }

    /// Starts an I/O whose completion goes to [`BackgroundHandler::completed`] with `token`.
    ///
    /// # Safety
    ///
    /// The I/O's buffer stays valid and in place until its completion.
    pub(crate) unsafe fn submit_background(&self, mut io: Io, token: u64) {
        io.user_data = BACKGROUND | token;
        self.submit(io);
    }

    fn submit(&self, io: Io) {
        let mut backlog = self.backlog.borrow_mut();
        if !backlog.is_empty() {
            backlog.push_back(io);
            return;
        }
        // SAFETY: the callers keep the buffer valid.
        if unsafe { self.channel.borrow_mut().submit(io) }.is_err() {
            backlog.push_back(io);
        }
    }
}
