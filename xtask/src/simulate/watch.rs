//! Whether a round goes on, or its store stands still.
//!
//! A round may take any number of steps: each client has a number of operations, and where all of
//! them merge whole trees a long round takes tens of millions. So what counts are steps since a
//! client has begun an operation. A client that waits permanently is found when the others are
//! done: none begins any more then.

/// Steps in which no client begins an operation, after which a round counts as stuck: 200 s of
/// simulated time at least.
const MAX_STEPS: u64 = 20_000_000;
/// Steps between two looks at the clients.
const LOOK_EVERY: u64 = 1_000_000;
/// Steps in a row that did nothing, after which it counts as stuck, too: 40 s of simulated time.
const MAX_IDLE_STEPS: u64 = 4_000_000;

/// Watches one round.
#[derive(Default)]
pub(super) struct Watch {
    steps: u64,
    idle: u64,
    /// The step and the operations at the last look that found new ones.
    seen: (u64, usize),
}

impl Watch {
    /// After each step, which did something or nothing; `begun` says how many operations have begun
    /// so far. Whether the round is stuck.
    pub(super) fn is_stuck(&mut self, did_something: bool, begun: impl FnOnce() -> usize) -> bool {
        self.steps += 1;
        self.idle = if did_something { 0 } else { self.idle + 1 };
        if self.steps.is_multiple_of(LOOK_EVERY) {
            let now = begun();
            if now != self.seen.1 {
                self.seen = (self.steps, now);
            }
        }
        self.idle == MAX_IDLE_STEPS || self.steps - self.seen.0 == MAX_STEPS
    }

    /// Steps of the round so far.
    pub(super) fn steps(&self) -> u64 {
        self.steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The step after which a round of `steps` steps counts as stuck; in the n-th one `begun(n)`
    /// operations have begun.
    fn stuck_after(steps: u64, idle_from: u64, begun: impl Fn(u64) -> usize) -> Option<u64> {
        let mut watch = Watch::default();
        (1..=steps).find(|&step| watch.is_stuck(step < idle_from, || begun(step)))
    }

    #[test]
    fn a_round_is_as_long_as_its_clients_begin_operations() {
        let slowly = |step| (step / (MAX_STEPS / 2)) as usize;
        assert_eq!(stuck_after(3 * MAX_STEPS, u64::MAX, slowly), None);
        // All but one have ended after this many steps.
        let last = MAX_STEPS + 1;
        let ends = |step: u64| step.min(last) as usize;
        let found = last.next_multiple_of(LOOK_EVERY) + MAX_STEPS;
        assert_eq!(stuck_after(3 * MAX_STEPS, u64::MAX, ends), Some(found));
        assert_eq!(stuck_after(3 * MAX_STEPS, u64::MAX, |_| 0), Some(MAX_STEPS));
    }

    #[test]
    fn a_round_in_which_nothing_happens_is_stuck_sooner() {
        let begun = |step| step as usize;
        let found = stuck_after(MAX_STEPS, 7, begun);
        assert_eq!(found, Some(6 + MAX_IDLE_STEPS));
    }
}
