//! The memory limit for values that are being loaded or stored, shared by all compute threads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that are taken for each byte of a value: the value, and what it is read into or written
/// from.
const COPIES: u64 = 2;

/// The memory that loads and stores may take together. Without a limit they take as much as they
/// need.
#[derive(Debug)]
pub(super) struct MemoryBudget {
    most: AtomicU64,
    taken: AtomicU64,
    /// Bytes of the largest value so far: what the next one may have.
    largest: AtomicU64,
}

impl MemoryBudget {
    pub(super) const fn new() -> MemoryBudget {
        MemoryBudget {
            most: AtomicU64::new(u64::MAX),
            taken: AtomicU64::new(0),
            largest: AtomicU64::new(0),
        }
    }

    /// Sets what there is, in bytes.
    pub(super) fn set(&self, bytes: u64) {
        self.most.store(bytes, Ordering::Relaxed);
    }

    fn cost(&self) -> u64 {
        self.largest.load(Ordering::Relaxed).saturating_mul(COPIES)
    }

    /// There is a value of this many bytes.
    pub(super) fn saw(&self, bytes: usize) {
        if bytes as u64 > self.largest.load(Ordering::Relaxed) {
            self.largest.fetch_max(bytes as u64, Ordering::Relaxed);
        }
    }

    fn take(&self, bytes: u64) -> bool {
        let most = self.most.load(Ordering::Relaxed);
        let more = |taken: u64| taken.checked_add(bytes).filter(|taken| *taken <= most);
        let taken = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.is_ok()
    }
}

/// The part of one load or store.
#[derive(Debug)]
pub(super) struct Share<'r> {
    budget: &'r MemoryBudget,
    values: usize,
    taken: u64,
}

impl<'r> Share<'r> {
    pub(super) fn new(budget: &'r MemoryBudget) -> Share<'r> {
        Share {
            budget,
            values: 0,
            taken: 0,
        }
    }

    /// How many values there is memory for.
    pub(super) fn values(&self) -> usize {
        self.values
    }

    /// Whether there may be memory for one more value. Each may have it for one, whatever the
    /// others take; how large values are has to be known before it has more.
    pub(super) fn grow(&mut self) -> bool {
        let cost = self.budget.cost();
        let is_limited = self.budget.most.load(Ordering::Relaxed) < u64::MAX;
        if is_limited && self.values > 0 {
            if cost == 0 || !self.budget.take(cost) {
                return false;
            }
            self.taken += cost;
        }
        self.values += 1;
        true
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        self.budget.taken.fetch_sub(self.taken, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grown(share: &mut Share<'_>) -> usize {
        (0..100).take_while(|_| share.grow()).count()
    }

    #[test]
    fn loads_share_what_there_is() {
        let budget = MemoryBudget::new();
        assert_eq!(grown(&mut Share::new(&budget)), 100);
        budget.set(1000);
        assert_eq!(grown(&mut Share::new(&budget)), 1);
        budget.saw(100);
        budget.saw(50);
        let (mut one, mut two) = (Share::new(&budget), Share::new(&budget));
        assert_eq!(grown(&mut one), 1 + 5);
        assert_eq!(grown(&mut two), 1);
        drop(one);
        assert_eq!(grown(&mut two), 5);
        drop(two);
        assert_eq!(budget.taken.into_inner(), 0);
    }
}
