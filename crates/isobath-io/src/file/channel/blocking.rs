//! Durable writes by blocking calls.
//!
//! Neither io_uring nor libaio makes a durable write or a flush without blocking: a thread of the kernel does, and wakes the
//! worker at its end. A worker that has nothing else to do and is about to sleep until then makes the call itself, which spares
//! it the way to that thread and back (docs/decisions/0098). What completes is the same, only before the sleep.
#![allow(unsafe_code)]

use std::time::{Duration, Instant};

use super::{FileChannel, WHOLE};
use crate::file::queue::{Done, Queue};
use crate::io::{Completion, Op};

/// The longest write that is made in this way. What takes a drive longer is left to the kernel.
const MAX_BYTES: u64 = 256 << 10;
/// How long the calls may block on the average: so long nothing else can run on the worker.
const MAX_AVERAGE: Duration = Duration::from_micros(500);
/// The last call's part of the average is one in so many.
const AVERAGE_OF: u32 = 8;
/// After so many calls in a row during each of which someone had woken the worker, it is taken to have other work.
const MAX_DISTURBED: u32 = 3;
/// Opportunities that pass unused after that, or where calls are slow: at first, and at most. Each time twice as many.
const MIN_PAUSE: u32 = 64;
const MAX_PAUSE: u32 = 4096;
/// After so many calls without a reason to stop, the next pause is a short one again.
const GOOD_RUN: u32 = 64;

/// Whether durable writes are made by blocking calls: as long as these are short, and no other thread needs the worker at that time.
pub(super) struct BlockingCalls {
    /// Moving average of how long they block; `None` before the first one since the last pause.
    average: Option<Duration>,
    /// Calls in a row during which the worker was woken.
    disturbed: u32,
    /// Calls since the last pause.
    calls: u32,
    /// Opportunities that are still to pass unused.
    pause: u32,
    /// Length of the next pause.
    next_pause: u32,
}

impl BlockingCalls {
    pub(super) fn new() -> BlockingCalls {
        BlockingCalls {
            average: None,
            disturbed: 0,
            calls: 0,
            pause: 0,
            next_pause: MIN_PAUSE,
        }
    }

    /// Whether the opportunity that there is now is to be used.
    fn may_call(&mut self) -> bool {
        let paused = self.pause > 0;
        self.pause = self.pause.saturating_sub(1);
        !paused
    }

    /// A call has blocked for `took`, and the worker was woken during it or not.
    fn ended(&mut self, took: Duration, woken: bool) {
        let average = match self.average {
            Some(average) => (average * (AVERAGE_OF - 1) + took) / AVERAGE_OF,
            None => took,
        };
        self.average = Some(average);
        self.disturbed = if woken { self.disturbed + 1 } else { 0 };
        self.calls += 1;
        if average > MAX_AVERAGE || self.disturbed >= MAX_DISTURBED {
            *self = BlockingCalls {
                pause: self.next_pause,
                next_pause: (self.next_pause * 2).min(MAX_PAUSE),
                ..BlockingCalls::new()
            };
        } else if self.calls >= GOOD_RUN {
            self.calls = 0;
            self.next_pause = MIN_PAUSE;
        }
    }
}

impl<Q: Queue> FileChannel<Q> {
    /// Whether a slot is kept back until it is known whether the worker sleeps for it.
    pub(super) fn is_held_back(&self, op: Op, durable: bool) -> bool {
        self.blocking.is_some() && (op == Op::Flush || durable)
    }

    /// Whether to make what is held back by blocking calls, before a sleep that lasts at most for `left`.
    pub(super) fn calls_instead(&mut self, left: Option<Duration>) -> bool {
        let is_alone = self.pushed == 0 && self.backlog.is_empty();
        if !is_alone
            || !self.holds_one_write()
            || left.is_some_and(|left| left < MAX_AVERAGE)
            || self.wake.is_signalled()
        {
            return false;
        }
        self.blocking.as_mut().is_some_and(BlockingCalls::may_call)
    }

    /// Whether what is held back is one durable write, alone or with one flush of the member that it goes to. Several would be
    /// under way at the same time; and a flush alone covers writes of any length.
    fn holds_one_write(&self) -> bool {
        let slot = |token: u32| &self.slots[token as usize];
        let fits = |token: u32| slot(token).durable && slot(token).len <= MAX_BYTES;
        match *self.held.as_slice() {
            [write] => fits(write),
            [one, other] => {
                let (write, flush) = match slot(one).op {
                    Op::Flush => (other, one),
                    _ => (one, other),
                };
                fits(write)
                    && slot(flush).op == Op::Flush
                    && slot(flush).parent == WHOLE
                    && slot(flush).member == slot(write).member
            }
            _ => false,
        }
    }

    /// Makes what is held back by blocking calls, and completes it; whether the worker was woken during that.
    pub(super) fn call_held(&mut self, out: &mut Vec<Completion>) -> bool {
        let mut held = std::mem::take(&mut self.held);
        self.unstamped.extend(&held);
        self.stamp();
        // The write first: a flush that begins after it makes it durable, too.
        held.sort_by_key(|token| self.slots[*token as usize].op == Op::Flush);
        let is_flushed = held.len() == 2;
        let before = Instant::now();
        for &token in &held {
            let mut request = self.request(token);
            request.durable &= !is_flushed;
            // SAFETY: as in `push`; the call returns before the completion is given.
            let result = unsafe { self.queue.call(&request) };
            self.done.push(Done { token, result });
        }
        let took = before.elapsed();
        if let [.., write, flush] = self.done.as_mut_slice()
            && is_flushed
            && flush.result < 0
            && write.result >= 0
        {
            // What was written is not durable.
            write.result = flush.result;
        }
        let count = held.len() as u32;
        held.clear();
        self.held = held;
        self.pushed += count;
        self.stats.device_requests += u64::from(count);
        self.stats.system_calls += u64::from(count);
        self.stats.blocking_calls += u64::from(count);
        let woken = self.wake.take();
        if let Some(blocking) = &mut self.blocking {
            blocking.ended(took, woken);
        }
        self.reap(out);
        woken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(100);
    const LONG: Duration = Duration::from_millis(2);

    /// Calls made at `count` opportunities, each of which takes `took`.
    fn calls(calls: &mut BlockingCalls, count: u32, took: Duration, woken: bool) -> u32 {
        let mut made = 0;
        for _ in 0..count {
            if calls.may_call() {
                calls.ended(took, woken);
                made += 1;
            }
        }
        made
    }

    #[test]
    fn short_calls_are_always_made() {
        let mut policy = BlockingCalls::new();
        assert_eq!(calls(&mut policy, 10_000, SHORT, false), 10_000);
    }

    #[test]
    fn one_slow_call_among_short_ones_changes_nothing() {
        let mut policy = BlockingCalls::new();
        for _ in 0..100 {
            assert_eq!(calls(&mut policy, 40, SHORT, false), 40);
            assert_eq!(calls(&mut policy, 1, LONG, false), 1);
        }
    }

    #[test]
    fn a_drive_that_becomes_slow_is_found_within_some_calls() {
        let mut policy = BlockingCalls::new();
        calls(&mut policy, 1000, SHORT, false);
        let made = calls(&mut policy, 60, LONG, false);
        assert!((2..8).contains(&made), "{made}");
    }

    #[test]
    fn what_was_slow_once_is_tried_again_at_least_every_4096_times() {
        let mut policy = BlockingCalls::new();
        calls(&mut policy, 1 << 20, LONG, false);
        assert_eq!(calls(&mut policy, 4097, LONG, false), 1);
        // Now it is fast: the pause ends, and after a good run the next one is short.
        calls(&mut policy, 4097, SHORT, false);
        assert_eq!(calls(&mut policy, 100, SHORT, false), 100);
        assert_eq!(calls(&mut policy, 3, SHORT, true), 3);
        assert_eq!(calls(&mut policy, 65, SHORT, false), 1);
    }

    #[test]
    fn only_disturbances_in_a_row_count() {
        let mut policy = BlockingCalls::new();
        for _ in 0..100 {
            assert_eq!(calls(&mut policy, 2, SHORT, true), 2);
            assert_eq!(calls(&mut policy, 1, SHORT, false), 1);
        }
    }
}
