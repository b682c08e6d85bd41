//! Other threads' handle of a worker: its inbox, and the means to wake it.

use std::collections::VecDeque;
use std::sync::Arc;

use super::spin::{self, Spin};
use super::task::TaskId;
use crate::canary::{self, Canary};
use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
use crate::sync::{Condvar, Mutex, OnceLock};

/// Work for a task of a worker. Its waiters hold it, too.
pub(crate) trait Work: Send + Sync {
    /// Runs it, unless it has begun already, and sends its result.
    fn run(&self);

    /// It is not to begin any more, and if it has, it never goes on: its waiters get an error.
    fn give_up(&self);
}

/// What work need not wait for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Urgency {
    /// It waits until one of the tasks that there may be has ended.
    Ordinary,
    /// All tasks that there may be could wait for what this does: each worker has a slot that is
    /// kept for such work.
    Urgent,
    /// Otherwise ordinary, it is accepted while the store is closing: closing waits for what it is
    /// a part of, or does it.
    Closing,
}

/// Work that may wait in an inbox before senders are made to wait.
const INBOX_LIMIT: usize = 1 << 16;

/// A message to a worker.
pub(crate) enum Message {
    /// Run this as a task.
    Run(Arc<dyn Work>, Urgency),
    /// Resume this parked task.
    Unpark(TaskId),
}

/// Messages to a worker that it has not taken yet.
struct Inbox {
    messages: VecDeque<Message>,
    /// The worker has ended, or never started: it would take no message.
    closed: bool,
}

/// One worker as other threads see it.
pub(crate) struct WorkerHandle {
    inbox: Mutex<Inbox>,
    drained: Condvar,
    has_messages: AtomicBool,
    sleeping: AtomicBool,
    /// Its worker exists, or has existed; and exists no longer.
    claimed: AtomicBool,
    ended: AtomicBool,
    waker: OnceLock<isobath_io::Waker>,
    /// Of the worker, before it sleeps.
    spin: Spin,
    /// Threads that wait for work which they have handed to it.
    callers: AtomicU32,
}

/// A thread waits for work that it has handed to a worker.
pub(crate) struct Call<'w>(&'w WorkerHandle);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.callers.fetch_sub(1, Ordering::Relaxed);
    }
}

impl WorkerHandle {
    pub(crate) fn new() -> WorkerHandle {
        WorkerHandle {
            inbox: Mutex::new(Inbox {
                messages: VecDeque::new(),
                closed: false,
            }),
            drained: Condvar::new(),
            has_messages: AtomicBool::new(false),
            sleeping: AtomicBool::new(false),
            claimed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            waker: OnceLock::new(),
            spin: Spin::new(spin::FOR_WORK),
            callers: AtomicU32::new(0),
        }
    }

    /// The worker of this handle comes into being.
    ///
    /// # Panics
    ///
    /// If there is one, or was: [`PerWorker`](super::PerWorker) relies on that.
    pub(super) fn claim(&self) {
        let first = !self.claimed.swap(true, Ordering::AcqRel);
        assert!(first, "one worker for each handle");
    }

    /// The worker is gone, with its channel.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether the worker has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Gives the worker's own waker; once, when its channel exists.
    pub(crate) fn set_waker(&self, waker: isobath_io::Waker) {
        // A second call would come from a second worker of the same index; the
        // first waker stays, as the first channel does.
        let _ = self.waker.set(waker);
    }

    /// Hands `work` to the worker, which runs it as a task; waits while the inbox is full,
    /// unless the caller must not block. Work for a worker that has ended is cancelled.
    pub(crate) fn run(&self, work: Arc<dyn Work>, urgency: Urgency, may_block: bool) {
        let mut inbox = self.inbox.lock();
        while may_block && !inbox.closed && inbox.messages.len() >= INBOX_LIMIT {
            self.drained.wait(&mut inbox);
        }
        if inbox.closed {
            // Without the lock: it may wake others.
            drop(inbox);
            work.give_up();
            return;
        }
        inbox.messages.push_back(Message::Run(work, urgency));
        drop(inbox);
        self.notify();
    }

    /// The worker takes no more messages; work among those that it left is cancelled.
    pub(crate) fn close(&self) {
        let mut inbox = self.inbox.lock();
        inbox.closed = true;
        let left = std::mem::take(&mut inbox.messages);
        drop(inbox);
        self.drained.notify_all();
        for message in left {
            if let Message::Run(work, _) = message {
                work.give_up();
            }
        }
    }

    /// Asks the worker to resume a parked task.
    pub(crate) fn unpark(&self, task: TaskId) {
        let mut inbox = self.inbox.lock();
        if inbox.closed {
            return;
        }
        inbox.messages.push_back(Message::Unpark(task));
        drop(inbox);
        self.notify();
    }

    /// Makes the worker run one more step even if it sleeps.
    pub(crate) fn notify(&self) {
        self.has_messages.store(true, Ordering::Release);
        // Pairs with the fence in `may_sleep`: either the worker sees the messages,
        // or this sees that it sleeps.
        fence(Ordering::SeqCst);
        if self.sleeping.load(Ordering::Relaxed)
            && self.sleeping.swap(false, Ordering::AcqRel)
            && let Some(waker) = self.waker.get()
        {
            waker.wake();
        }
    }

    /// Moves all messages into `into`, if there is any.
    pub(super) fn take_messages(&self, into: &mut VecDeque<Message>) -> bool {
        if !self.has_messages.load(Ordering::Relaxed) {
            return false;
        }
        // Before the messages are taken: a sender that comes from now on sets it again.
        let late = canary::is_on(Canary::ClearInboxFlagLate);
        if !late && !self.has_messages.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut inbox = self.inbox.lock();
        into.append(&mut inbox.messages);
        drop(inbox);
        if late {
            self.has_messages.store(false, Ordering::Release);
        }
        self.drained.notify_all();
        true
    }

    /// Looks for messages for a moment before the worker sleeps, or until `is_other` says that
    /// there is something else to do.
    pub(super) fn look_for_messages(&self, is_other: impl FnMut() -> bool) -> bool {
        // If several threads wait, they need the processors, and messages come often enough for
        // a worker that sleeps, too.
        self.callers.load(Ordering::Relaxed) <= 1
            && self
                .spin
                .until(|| self.has_messages.load(Ordering::Relaxed), is_other)
    }

    /// Whether a thread waits for work that it has handed to the worker.
    pub(crate) fn is_called(&self) -> bool {
        self.callers.load(Ordering::Relaxed) > 0
    }

    /// A thread waits for work that it hands to the worker, as long as the answer lives; whether it
    /// is the only one.
    pub(crate) fn call(&self) -> (Call<'_>, bool) {
        let before = self.callers.fetch_add(1, Ordering::Relaxed);
        (Call(self), before == 0)
    }

    /// Announces that the worker is about to sleep; `false` if a message came first.
    pub(super) fn may_sleep(&self) -> bool {
        self.sleeping.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.has_messages.load(Ordering::Relaxed) {
            self.sleeping.store(false, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// The worker is awake again.
    pub(super) fn awake(&self) {
        self.sleeping.store(false, Ordering::Relaxed);
    }
}
