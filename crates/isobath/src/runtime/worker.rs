//! The worker: ready tasks, I/O in flight, and the step that advances both.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corosensei::CoroutineResult;
use corosensei::stack::{DefaultStack, Stack};
use isobath_io::{Channel, Completion, Io, IoError};

mod waiting;

use super::clock;
use super::overflow;
use super::task::{Fiber, TaskId, TaskRef, TaskSlot};
use super::worker_handle::{Message, Urgency, Work, WorkerHandle};

/// Set in an I/O's user data where its completion belongs to the worker's
/// background handler and not to a task.
const BACKGROUND: u64 = 1 << 63;

/// Completions that a sleeping worker lets gather, as a share of the I/Os in
/// flight, and at most.
const GATHER_SHARE: u32 = 8;
const MAX_GATHER: u32 = 16;

/// Bounds of one worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most tasks that run user work at a time.
    pub(crate) tasks: usize,
    /// Most tasks that run background work.
    pub(crate) system_tasks: usize,
    /// Bytes of address space of a task's stack; memory is used as it is touched.
    pub(crate) stack_bytes: usize,
}

/// Slots of each worker that are kept for urgent work. A store has one backup at a time, which does
/// one thing at a time.
const URGENT_TASKS: usize = 1;

impl Limits {
    /// Slots for user work, urgent or not.
    fn user_slots(&self) -> usize {
        self.tasks + URGENT_TASKS
    }

    fn slots(&self) -> usize {
        self.user_slots() + self.system_tasks
    }
}

/// User work that has not begun.
#[derive(Default)]
struct WaitingWork {
    ordinary: VecDeque<Arc<dyn Work>>,
    urgent: VecDeque<Arc<dyn Work>>,
}

impl WaitingWork {
    fn is_empty(&self) -> bool {
        self.ordinary.is_empty() && self.urgent.is_empty()
    }

    fn push(&mut self, work: Arc<dyn Work>, urgency: Urgency) {
        match urgency {
            Urgency::Ordinary | Urgency::Closing => self.ordinary.push_back(work),
            Urgency::Urgent => self.urgent.push_back(work),
        }
    }

    /// The work that begins next where `free` user slots are free; stays where it is.
    fn next(&mut self, free: usize) -> Option<&mut VecDeque<Arc<dyn Work>>> {
        if !self.urgent.is_empty() {
            return (free > 0).then_some(&mut self.urgent);
        }
        (!self.ordinary.is_empty() && free > URGENT_TASKS).then_some(&mut self.ordinary)
    }
}

/// A worker's work between tasks and I/O. Nothing here may yield.
pub(crate) trait BackgroundHandler {
    /// An I/O submitted with [`Worker::submit_background`] has completed.
    fn completed(&self, worker: &Worker, token: u64, result: Result<(), IoError>);

    /// Called once a step, between tasks and I/O; returns whether it did anything.
    fn poll_background(&self, worker: &Worker) -> bool;

    /// The longest sleep that is safe now; `None` if whatever ends the need to
    /// sleep also wakes the worker.
    fn max_wait(&self) -> Option<Duration>;
}

/// Operations in memory that a task does in a row before it yields, at most: some 0.1 ms.
const OPERATIONS_PER_TURN: u32 = 128;
/// Those that the tasks which are ready share: they wait for one another, for messages, I/O and
/// timers for about a millisecond. A clock would cost a tenth of a lookup for each reading.
const OPERATIONS_PER_STEP: u32 = 1024;

/// Counters of one worker since it started.
#[derive(Default, Debug)]
pub(crate) struct WorkerCounters {
    pub(crate) steps: Cell<u64>,
    pub(crate) tasks: Cell<u64>,
    pub(crate) resumes: Cell<u64>,
    pub(crate) sleeps: Cell<u64>,
}

/// One worker: everything here belongs to the thread that steps it.
pub(crate) struct Worker {
    pub(crate) index: usize,
    limits: Limits,
    handle: Arc<WorkerHandle>,
    channel: RefCell<Box<dyn Channel>>,
    slots: Vec<TaskSlot>,
    free_slots: RefCell<Vec<u32>>,
    free_system_slots: RefCell<Vec<u32>>,
    /// Stacks that are free. There is one for every system task and at least one for user work.
    stacks: RefCell<Vec<DefaultStack>>,
    /// There was no memory for another stack; until a task ends, none is asked for.
    starved: Cell<bool>,
    /// The kernel has refused to register memory; it is not asked again.
    refused: Cell<bool>,
    ready: RefCell<VecDeque<TaskId>>,
    waiting_work: RefCell<WaitingWork>,
    backlog: RefCell<VecDeque<Io>>,
    inbox: RefCell<VecDeque<Message>>,
    completions: RefCell<Vec<Completion>>,
    /// Sleeping tasks, the next to wake first.
    timers: RefCell<BinaryHeap<Reverse<(Instant, TaskId)>>>,
    /// Parked tasks that are not to wait longer, the next one first.
    alarms: RefCell<BinaryHeap<Reverse<(Instant, TaskId)>>>,
    running: Cell<Option<TaskId>>,
    /// Operations that the running task may still do before others run.
    turn: Cell<u32>,
    /// Those of a task in this step.
    turn_length: Cell<u32>,
    live_user_tasks: Cell<usize>,
    /// State of the generator that orders ready tasks; 0 takes them in turn.
    order: Cell<u64>,
    pub(crate) counters: WorkerCounters,
    /// Dropped last.
    _end: End,
}

/// Says that a worker is gone.
struct End(Arc<WorkerHandle>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

fn new_stack(bytes: usize) -> std::io::Result<DefaultStack> {
    #[cfg(test)]
    if NO_STACKS.get() {
        return Err(std::io::ErrorKind::OutOfMemory.into());
    }
    DefaultStack::new(bytes)
}

#[cfg(test)]
thread_local! {
    /// Pretends on this thread that there is no memory for stacks.
    pub(crate) static NO_STACKS: Cell<bool> = const { Cell::new(false) };
}

thread_local! {
    static CURRENT: Cell<*const Worker> = const { Cell::new(std::ptr::null()) };
}

/// The worker that is being stepped, while a simulation interrupts it.
#[cfg(any(test, feature = "simulation"))]
pub(crate) struct Stepped(*const Worker);

#[cfg(any(test, feature = "simulation"))]
impl Stepped {
    /// From now on no worker is being stepped on this thread.
    pub(crate) fn leave() -> Stepped {
        Stepped(CURRENT.replace(std::ptr::null()))
    }

    /// The worker goes on with its step.
    pub(crate) fn go_on(self) {
        CURRENT.set(self.0);
    }
}

/// A fiber that has not ended is never unwound: what its stack lends to other tasks, and to I/O in
/// flight, would go before they do. It is leaked, which only happens where a worker's thread ends
/// by a panic.
impl Drop for Worker {
    fn drop(&mut self) {
        for slot in &self.slots {
            std::mem::forget(slot.fiber.take());
        }
    }
}

impl Worker {
    /// A worker on `channel`; call it on the thread that will step it.
    ///
    /// # Errors
    ///
    /// There is no memory for the stacks of the system tasks and of one that runs user work.
    pub(crate) fn new(
        index: usize,
        limits: Limits,
        handle: Arc<WorkerHandle>,
        channel: Box<dyn Channel>,
    ) -> std::io::Result<Worker> {
        let stacks = (0..=limits.system_tasks).map(|_| new_stack(limits.stack_bytes));
        let stacks = stacks.collect::<std::io::Result<Vec<_>>>()?;
        handle.claim();
        let end = End(Arc::clone(&handle));
        handle.set_waker(channel.waker());
        let (user, all) = (limits.user_slots(), limits.slots());
        Ok(Worker {
            index,
            limits,
            handle,
            channel: RefCell::new(channel),
            slots: (0..all).map(|_| TaskSlot::new()).collect(),
            free_slots: RefCell::new((0..user as u32).rev().collect()),
            free_system_slots: RefCell::new((user as u32..all as u32).rev().collect()),
            stacks: RefCell::new(stacks),
            starved: Cell::new(false),
            refused: Cell::new(false),
            ready: RefCell::new(VecDeque::with_capacity(all)),
            waiting_work: RefCell::default(),
            backlog: RefCell::new(VecDeque::new()),
            inbox: RefCell::new(VecDeque::new()),
            completions: RefCell::new(Vec::new()),
            timers: RefCell::new(BinaryHeap::new()),
            alarms: RefCell::new(BinaryHeap::new()),
            running: Cell::new(None),
            turn: Cell::new(0),
            turn_length: Cell::new(OPERATIONS_PER_TURN),
            live_user_tasks: Cell::new(0),
            order: Cell::new(0),
            counters: WorkerCounters::default(),
            _end: end,
        })
    }

    /// Calls `with` with the worker that is being stepped on this thread.
    #[inline]
    pub(crate) fn with_current<R>(with: impl FnOnce(Option<&Worker>) -> R) -> R {
        let current = CURRENT.get();
        // SAFETY: non-null only during `step`, which borrows the worker.
        with(unsafe { current.as_ref() })
    }

    /// Whether a task is running now, as opposed to the step itself.
    pub(crate) fn in_task(&self) -> bool {
        self.running.get().is_some()
    }

    /// A handle on the running task.
    pub(crate) fn current_task(&self) -> Option<TaskRef> {
        let task = self.running.get()?;
        Some(TaskRef {
            handle: Arc::clone(&self.handle),
            task,
        })
    }

    /// Whether a task runs and has half of its stack before it.
    pub(crate) fn has_stack(&self) -> bool {
        let here = 0_u8;
        self.running.get().is_some_and(|task| {
            let limit = self.slots[task.slot as usize].stack_limit.get();
            (&raw const here).addr() - limit > self.limits.stack_bytes / 2
        })
    }

    /// The running task's id.
    ///
    /// # Panics
    ///
    /// Outside a task.
    #[inline]
    pub(crate) fn task_id(&self) -> TaskId {
        #[expect(
            clippy::expect_used,
            reason = "only tasks wait; the step itself never does"
        )]
        self.running.get().expect("waiting is for tasks")
    }

    /// The slot of the task that is running, if one is.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn running_slot(&self) -> Option<u32> {
        self.running.get().map(|task| task.slot)
    }

    /// The worker as other threads see it.
    pub(crate) fn handle(&self) -> &Arc<WorkerHandle> {
        &self.handle
    }

    /// Whether no task exists and no I/O is in flight.
    pub(crate) fn is_quiescent(&self) -> bool {
        self.live_user_tasks.get() == 0
            && self.waiting_work.borrow().is_empty()
            && self.backlog.borrow().is_empty()
            && self.channel.borrow().in_flight() == 0
    }

    /// Whether no user work runs or waits to.
    pub(crate) fn has_no_user_tasks(&self) -> bool {
        self.live_user_tasks.get() == 0 && self.waiting_work.borrow().is_empty()
    }

    /// I/Os in flight or waiting for a free entry of the queue.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn in_flight(&self) -> u32 {
        self.channel.borrow().in_flight() + self.backlog.borrow().len() as u32
    }

    /// The places at which all tasks last yielded, for debugging a standstill.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn tasks_suspended_at(&self) -> Vec<String> {
        let waiting = |slot: &TaskSlot| {
            let fiber = slot.fiber.take();
            let lives = fiber.is_some();
            slot.fiber.set(fiber);
            slot.suspended_at.get().filter(|_| lives)
        };
        let places = self.slots.iter().filter_map(waiting);
        places
            .map(|at| format!("{}:{}", at.file(), at.line()))
            .collect()
    }

    /// Registers memory with the kernel, which saves time; whether it did.
    ///
    /// # Safety
    ///
    /// The region stays mapped as long as the worker lives.
    pub(crate) unsafe fn register_more(&self, region: (*mut u8, usize)) -> bool {
        // SAFETY: by contract. A refusal is in the backend's report.
        let registers =
            !self.refused.get() && unsafe { self.channel.borrow_mut().register_more(region) };
        self.refused.set(!registers);
        registers
    }

    /// Most I/Os that the channel takes.
    pub(crate) fn depth(&self) -> u32 {
        self.channel.borrow().depth()
    }

    // ---- starting tasks -----------------------------------------------------

    /// Runs background work as a system task; `false` if all their slots are taken.
    pub(crate) fn spawn_system(&self, work: Box<dyn FnOnce()>) -> bool {
        let slot = self.free_system_slots.borrow_mut().pop();
        slot.is_some_and(|slot| {
            let stack = self.stacks.borrow_mut().pop();
            let starts = stack.is_some();
            match stack {
                Some(stack) => self.start(slot, stack, work),
                None => self.free_system_slots.borrow_mut().push(slot),
            }
            starts
        })
    }

    /// A stack for user work, if there is memory for it.
    fn user_stack(&self) -> Option<DefaultStack> {
        let mut stacks = self.stacks.borrow_mut();
        // The system tasks' are theirs.
        if stacks.len() > self.free_system_slots.borrow().len() {
            return stacks.pop();
        }
        let stack = new_stack(self.limits.stack_bytes).ok();
        self.starved.set(stack.is_none());
        stack
    }

    fn start(&self, slot: u32, stack: DefaultStack, work: impl FnOnce() + 'static) {
        let yielder_cell = std::ptr::from_ref(&self.slots[slot as usize].yielder);
        self.slots[slot as usize]
            .stack_limit
            .set(stack.limit().get());
        let fiber: Fiber = Fiber::with_stack(stack, move |yielder, ()| {
            // SAFETY: the slot outlives its fiber: both belong to the worker,
            // which drains its tasks before it is dropped.
            unsafe { (*yielder_cell).set(std::ptr::from_ref(yielder)) };
            // The work carries its own result; a panic that gets here was the
            // work's to report, and must not cross the fiber's end.
            let _ = catch_unwind(AssertUnwindSafe(work));
        });
        let cell = &self.slots[slot as usize];
        cell.fiber.set(Some(fiber));
        self.counters.tasks.set(self.counters.tasks.get() + 1);
        if (slot as usize) < self.limits.user_slots() {
            self.live_user_tasks.set(self.live_user_tasks.get() + 1);
        }
        self.ready.borrow_mut().push_back(TaskId {
            slot,
            generation: cell.generation.get(),
        });
    }

    // ---- the step -----------------------------------------------------------

    /// Advances the worker once: takes messages, runs every ready task until it
    /// waits, runs the background handler, hands I/O to the kernel and reaps it.
    ///
    /// With `block`, and nothing else to do, sleeps until an I/O completes or
    /// another thread calls. Returns whether anything happened.
    pub(crate) fn step(&self, handler: &dyn BackgroundHandler, block: bool) -> bool {
        let outer = CURRENT.replace(self);
        let progress = self.step_inner(handler, block);
        CURRENT.set(outer);
        progress
    }

    fn step_inner(&self, handler: &dyn BackgroundHandler, block: bool) -> bool {
        self.counters.steps.set(self.counters.steps.get() + 1);
        let mut progress = self.read_inbox();
        self.wake_sleepers();
        self.start_waiting_work();
        progress |= self.run_ready();
        progress |= handler.poll_background(self);
        self.push_backlog();
        // Tasks that ended in this very step have freed slots for work that waits.
        let can_start = !self.starved.get()
            && self
                .waiting_work
                .borrow_mut()
                .next(self.free_slots.borrow().len())
                .is_some();
        let sleep = block && self.ready.borrow().is_empty() && !can_start;
        let reaped = self.poll(sleep.then(|| handler.max_wait()));
        progress |= reaped > 0;
        self.dispatch(handler);
        progress
    }

    fn read_inbox(&self) -> bool {
        let mut messages = self.inbox.borrow_mut();
        if !self.handle.take_messages(&mut messages) {
            return false;
        }
        // One by one: should this panic, `give_up` finds the others.
        while let Some(message) = messages.pop_front() {
            match message {
                Message::Run(work, urgency) => self.waiting_work.borrow_mut().push(work, urgency),
                Message::Unpark(task) => self.unpark(task),
            }
        }
        true
    }

    fn unpark(&self, task: TaskId) {
        let slot = &self.slots[task.slot as usize];
        if slot.generation.get() != task.generation {
            return;
        }
        if slot.parked.replace(false) {
            self.ready.borrow_mut().push_back(task);
        } else {
            slot.unparked.set(true);
        }
    }

    fn start_waiting_work(&self) {
        loop {
            if self.starved.get() {
                return;
            }
            let mut waiting = self.waiting_work.borrow_mut();
            let Some(queue) = waiting.next(self.free_slots.borrow().len()) else {
                return;
            };
            let Some(work) = queue.pop_front() else {
                return;
            };
            let Some(stack) = self.user_stack() else {
                // Some task runs user work: while none did, there was its stack. It goes on when
                // that ends.
                queue.push_front(work);
                return;
            };
            drop(waiting);
            let slot = self.free_slots.borrow_mut().pop();
            if let Some(slot) = slot {
                self.slots[slot as usize].work.set(Some(Arc::clone(&work)));
                self.start(slot, stack, move || work.run());
            }
        }
    }

    /// Cancels all user work: begun tasks, too, are never resumed. The worker is not to be
    /// stepped any more, nor to be dropped: its tasks stay where they are, with all that they hold.
    pub(crate) fn give_up(&self) {
        self.handle.close();
        for message in self.inbox.take() {
            if let Message::Run(work, _) = message {
                work.give_up();
            }
        }
        let WaitingWork { ordinary, urgent } = self.waiting_work.take();
        let running = self.slots.iter().filter_map(|slot| slot.work.take());
        for work in ordinary.into_iter().chain(urgent).chain(running) {
            work.give_up();
        }
    }

    fn run_ready(&self) -> bool {
        // Tasks that become ready during this loop run in the next step, after I/O.
        let count = self.ready.borrow().len();
        let turn = OPERATIONS_PER_STEP / count.max(1) as u32;
        self.turn_length.set(turn.clamp(1, OPERATIONS_PER_TURN));
        for _ in 0..count {
            let task = self.next_ready();
            if let Some(task) = task {
                self.resume(task);
            }
        }
        count > 0
    }

    fn next_ready(&self) -> Option<TaskId> {
        let mut ready = self.ready.borrow_mut();
        let state = self.order.get();
        if state != 0 && ready.len() > 1 {
            // Any order is allowed; a simulation tries many.
            let at = (self.draw() % ready.len() as u64) as usize;
            ready.swap(0, at);
        }
        ready.pop_front()
    }

    /// Makes ready tasks run in an order drawn from `seed` instead of in turn.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn shuffle(&self, seed: u64) {
        self.order.set(seed.max(1));
    }

    /// Tasks that run user work.
    #[cfg(any(test, feature = "simulation"))]
    pub(crate) fn live_user_tasks(&self) -> usize {
        self.live_user_tasks.get()
    }

    fn resume(&self, task: TaskId) {
        let slot = &self.slots[task.slot as usize];
        if slot.generation.get() != task.generation {
            return;
        }
        let Some(mut fiber) = slot.fiber.take() else {
            return;
        };
        self.counters.resumes.set(self.counters.resumes.get() + 1);
        self.running.set(Some(task));
        self.turn.set(self.turn_length.get());
        overflow::enter(slot.stack_limit.get());
        let result = fiber.resume(());
        overflow::leave();
        self.running.set(None);
        match result {
            CoroutineResult::Yield(()) => slot.fiber.set(Some(fiber)),
            CoroutineResult::Return(()) => self.finish(task, fiber),
        }
    }

    fn finish(&self, task: TaskId, fiber: Fiber) {
        let slot = &self.slots[task.slot as usize];
        assert_eq!(slot.pending.get(), 0, "a task ended with I/O in flight");
        slot.generation.set(task.generation.wrapping_add(1));
        slot.parked.set(false);
        slot.unparked.set(false);
        *slot.error.borrow_mut() = None;
        slot.work.set(None);
        self.starved.set(false);
        self.stacks.borrow_mut().push(fiber.into_stack());
        if (task.slot as usize) < self.limits.user_slots() {
            self.free_slots.borrow_mut().push(task.slot);
            self.live_user_tasks.set(self.live_user_tasks.get() - 1);
        } else {
            self.free_system_slots.borrow_mut().push(task.slot);
        }
    }

    fn push_backlog(&self) {
        let mut backlog = self.backlog.borrow_mut();
        let mut channel = self.channel.borrow_mut();
        while let Some(io) = backlog.pop_front() {
            // SAFETY: as in `submit`.
            if unsafe { channel.submit(io) }.is_err() {
                backlog.push_front(io);
                return;
            }
        }
    }

    /// Hands queued I/Os to the kernel and reaps; sleeps, at most as long as
    /// `sleep` says, if it says anything and no wake-up came.
    fn poll(&self, sleep: Option<Option<Duration>>) -> usize {
        let mut channel = self.channel.borrow_mut();
        let mut completions = self.completions.borrow_mut();
        let mut polled = Ok(0);
        // If much I/O is in flight its completions are gathered in one sleep.
        let gathers = channel.in_flight() / GATHER_SHARE > 1;
        let sleep = sleep.filter(|_| {
            gathers
                || !self.handle.look_for_messages(|| {
                    polled = channel.poll(&mut completions);
                    !matches!(polled, Ok(0))
                })
        });
        if !matches!(polled, Ok(0)) {
            return self.reaped(polled);
        }
        let outcome = if let Some(longest) = sleep
            && self.handle.may_sleep()
        {
            let longest = longest.into_iter().chain(self.until_next_timer()).min();
            self.counters.sleeps.set(self.counters.sleeps.get() + 1);
            let gather = (channel.in_flight() / GATHER_SHARE).clamp(1, MAX_GATHER);
            let outcome = channel.wait(gather, longest, &mut completions);
            self.handle.awake();
            outcome
        } else {
            channel.poll(&mut completions)
        };
        self.reaped(outcome)
    }

    fn reaped(&self, outcome: Result<usize, isobath_io::ChannelError>) -> usize {
        match outcome {
            Ok(reaped) => reaped,
            // Without its channel a worker cannot finish a single task; there is
            // nothing to fall back to, and waiting without end would hide it.
            Err(error) => panic!("the I/O channel of worker {} failed: {error}", self.index),
        }
    }

    fn dispatch(&self, handler: &dyn BackgroundHandler) {
        // Taken out, because the handler may submit I/O but never polls.
        let mut completions = self.completions.take();
        for completion in completions.drain(..) {
            if completion.user_data & BACKGROUND != 0 {
                handler.completed(self, completion.user_data & !BACKGROUND, completion.result);
                continue;
            }
            let slot_index = completion.user_data as u32;
            let slot = &self.slots[slot_index as usize];
            if let Err(error) = completion.result {
                slot.error.borrow_mut().get_or_insert(error);
            }
            slot.pending.set(slot.pending.get() - 1);
            if slot.pending.get() == 0 && slot.waits_for_io.replace(false) {
                self.ready.borrow_mut().push_back(TaskId {
                    slot: slot_index,
                    generation: slot.generation.get(),
                });
            }
        }
        self.completions.replace(completions);
    }
}
