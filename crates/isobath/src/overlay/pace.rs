//! How fast commits may come to a tree: as fast as merges and sealing take their changes away.
//!
//! The *use* of what is limited, the records that are to be merged and the bytes of the memory,
//! goes from 0, where nobody is delayed, to 1, where commits wait. Between them each change takes
//! [`CHANGE`] · use / (1 − use) of a clock that all commits of the tree share. So the delay grows
//! until the changes come at the rate of the work, whatever that is, however many tasks there are.

use std::time::{Duration, Instant};

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Time of one change at a use of one half.
const CHANGE: Duration = Duration::from_micros(4);
/// The longest delay of a commit at a use of one half, and at any.
const LONGEST: Duration = Duration::from_millis(4);
const MAX_DELAY: Duration = Duration::from_millis(50);
/// Uses beyond this count as this.
const MAX_USE: f64 = 0.99;
/// Shorter ones are not worth a timer; the changes that come next wait for them.
const SHORTEST: Duration = Duration::from_micros(200);
/// The use in parts of which so many are 1.
const PARTS: f64 = 65_536.0;

/// The clock of a tree's commits.
#[derive(Default)]
pub(crate) struct Pace {
    /// Of the records that may be to be merged, those that are, in [`PARTS`].
    backlog: AtomicU64,
    /// When the next change may come.
    next: Mutex<Option<Instant>>,
}

impl Pace {
    /// So much of what may be to be merged is.
    pub(crate) fn set_backlog(&self, used: f64) {
        let parts = used.clamp(0.0, 1.0) * PARTS;
        self.backlog.store(parts as u64, Ordering::Relaxed);
    }

    /// The use that the records make that are to be merged.
    pub(crate) fn backlog(&self) -> f64 {
        self.backlog.load(Ordering::Relaxed) as f64 / PARTS
    }

    /// When a commit of so many changes may begin, at this use, if not now.
    pub(crate) fn begin(&self, changes: u64, used: f64, now: Instant) -> Option<Instant> {
        if used <= 0.0 {
            return None;
        }
        let used = used.min(MAX_USE);
        let ratio = used / (1.0 - used);
        let latest = now + LONGEST.mul_f64(ratio).min(MAX_DELAY);
        let mut next = self.next.lock();
        let begins = next.unwrap_or(now).clamp(now, latest);
        *next = Some(begins + CHANGE.mul_f64(ratio * changes as f64));
        (begins - now >= SHORTEST).then_some(begins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Changes per second of so many tasks, each of which goes on once it may.
    fn rate(tasks: usize, used: f64) -> f64 {
        let (pace, start) = (Pace::default(), Instant::now());
        let mut next = vec![start; tasks];
        let mut changes = 0;
        let end = start + Duration::from_secs(1);
        loop {
            let Some(first) = next.iter_mut().min() else {
                return 0.0;
            };
            if *first > end {
                return f64::from(changes);
            }
            // One takes a microsecond of its own.
            let now = *first + Duration::from_micros(1);
            *first = pace.begin(1, used, now).unwrap_or(now);
            changes += 1;
        }
    }

    #[test]
    fn changes_come_at_the_pace_of_the_use_however_many_tasks_there_are() {
        for tasks in [1, 8, 128] {
            for (used, expected) in [(0.5, 250_000.0), (0.8, 62_500.0), (0.95, 13_158.0)] {
                let share = rate(tasks, used) / expected;
                assert!(
                    (0.9..1.1).contains(&share),
                    "{tasks} tasks at {used}: {share}"
                );
            }
        }
    }

    #[test]
    fn nobody_waits_while_nothing_is_used() {
        let pace = Pace::default();
        let now = Instant::now();
        assert!((0..1000).all(|_| pace.begin(1000, 0.0, now).is_none()));
    }

    #[test]
    fn a_delay_has_a_limit() {
        let pace = Pace::default();
        let now = Instant::now();
        pace.begin(1_000_000, 0.5, now);
        let begins = pace.begin(1, 0.5, now);
        assert_eq!(begins, Some(now + LONGEST));
    }
}
