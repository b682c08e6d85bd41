//! Whether answers are linearizable: each operation as if it happened at one moment between its
//! call and its answer, on one register per key.
//!
//! All values that are written differ. So it is known which operations happened next to each other:
//! a *chain* is a put, the reads of its value, the swap from it, the reads of that one's value, and
//! so on; no other operation is between. One more chain begins without a value. [`check`] follows
//! each chain: no operation may be answered before one that precedes it is called. It remains to
//! put the chains in an order (Gibbons and Korach, Testing Shared Memories, 1997). One must precede
//! another if its first answer is before the other's last call. There is an order unless two must
//! precede each other. This takes the time of sorting.
//!
//! An operation without an answer happened if a read or swap that happened has met its value, and
//! before that one's answer; else it may as well never happen.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// A value; each is written once.
pub type Value = u64;

/// What was asked, and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the fields are the register's values")]
pub enum Action {
    /// A read that saw this value.
    Get(Option<Value>),
    /// A write.
    Put(Value),
    /// A write because the value was `old`. One that found another value is a read.
    Swap { old: Option<Value>, new: Value },
}

/// An operation on one key. Times are of one clock.
#[derive(Debug, Clone, Copy)]
pub struct Operation {
    /// When it was asked for.
    pub call: u64,
    /// When it was answered, if it was.
    pub answer: Option<u64>,
    /// What it did.
    pub action: Action,
}

impl Action {
    /// The value that this leaves, if it writes.
    #[must_use]
    pub fn written(self) -> Option<Value> {
        match self {
            Action::Get(_) => None,
            Action::Put(value) | Action::Swap { new: value, .. } => Some(value),
        }
    }

    /// The value that this met, if it happened.
    fn met(self) -> Option<Value> {
        match self {
            Action::Get(seen) => seen,
            Action::Put(_) => None,
            Action::Swap { old, .. } => old,
        }
    }
}

/// Gives operations without an answer their latest moment, and leaves out those that may never have
/// happened.
fn bounded(operations: &[Operation]) -> Vec<Operation> {
    let open = operations.iter().filter(|one| one.answer.is_none());
    let open: BTreeMap<Value, Action> = open
        .filter_map(|one| Some((one.action.written()?, one.action)))
        .collect();
    let meetings = operations.iter();
    let mut meetings: Vec<(u64, Value)> = meetings
        .filter_map(|one| Some((one.answer?, one.action.met()?)))
        .collect();
    meetings.sort_unstable();
    // When each value was there at the latest.
    let mut met: BTreeMap<Value, u64> = BTreeMap::new();
    for (at, mut value) in meetings {
        // Bound: each value once.
        while let Entry::Vacant(first) = met.entry(value) {
            first.insert(at);
            // A swap without an answer has met a value, too.
            match open.get(&value).and_then(|action| action.met()) {
                Some(old) => value = old,
                None => break,
            }
        }
    }
    let bounded = operations.iter().filter_map(|one| {
        let answer = one.answer.or_else(|| {
            let written = one.action.written()?;
            met.get(&written).copied()
        })?;
        Some(Operation {
            answer: Some(answer),
            ..*one
        })
    });
    bounded.collect()
}

/// The times of a chain, as far as it has been followed.
#[derive(Debug, Clone, Copy)]
struct Chain {
    /// The first answer, and whose it is.
    answered: u64,
    first: Option<Operation>,
    /// The last call.
    called: u64,
}

impl Chain {
    const EMPTY: Chain = Chain {
        answered: u64::MAX,
        first: None,
        called: 0,
    };

    /// Adds operations that happened in any order among themselves, after those before.
    fn add(&mut self, group: &[Operation]) -> Result<(), Operation> {
        let before = self.called;
        for one in group {
            let answer = one.answer.unwrap_or(u64::MAX);
            if answer < before {
                return Err(*one);
            }
            self.called = self.called.max(one.call);
            if answer < self.answered {
                (self.answered, self.first) = (answer, Some(*one));
            }
        }
        Ok(())
    }

    fn must_precede(&self, other: &Chain) -> bool {
        self.answered < other.called
    }
}

/// Reads and swaps that are in no chain yet, by the value that they met.
#[derive(Default)]
struct Rest {
    reads: BTreeMap<Option<Value>, Vec<Operation>>,
    swaps: BTreeMap<Option<Value>, Operation>,
}

impl Rest {
    /// The chain that begins with `put`, or without a value.
    fn chain(&mut self, put: Option<Operation>) -> Result<Chain, Operation> {
        let mut chain = Chain::EMPTY;
        chain.add(put.as_slice())?;
        let mut value = put.and_then(|put| put.action.written());
        // Bound: each swap once.
        loop {
            chain.add(&self.reads.remove(&value).unwrap_or_default())?;
            let Some(swap) = self.swaps.remove(&value) else {
                return Ok(chain);
            };
            chain.add(&[swap])?;
            value = swap.action.written();
        }
    }
}

/// Whether some order of the operations on one key, which has no value at first, fits all answers.
///
/// # Errors
///
/// An operation that fits no order with the others.
pub fn check(operations: &[Operation]) -> Result<(), Operation> {
    let (mut puts, mut rest) = (Vec::new(), Rest::default());
    for one in bounded(operations) {
        match one.action {
            Action::Put(_) => puts.push(one),
            Action::Get(seen) => rest.reads.entry(seen).or_default().push(one),
            // A value is there once, until it is swapped.
            Action::Swap { old, .. } => {
                if rest.swaps.insert(old, one).is_some() {
                    return Err(one);
                }
            }
        }
    }
    let beginning = rest.chain(None)?;
    let chains = puts.into_iter().map(|put| rest.chain(Some(put)));
    let chains = chains.collect::<Result<Vec<_>, _>>()?;
    // What is left met a value that was not written.
    let left = rest
        .reads
        .into_values()
        .flatten()
        .chain(rest.swaps.into_values())
        .next();
    left.map_or(Ok(()), Err)?;
    match conflict(&beginning, chains) {
        Some(chain) => chain.first.map_or(Ok(()), Err),
        None => Ok(()),
    }
}

/// A chain that must precede one that must precede it.
fn conflict(beginning: &Chain, chains: Vec<Chain>) -> Option<Chain> {
    if let Some(early) = chains.iter().find(|chain| chain.must_precede(beginning)) {
        return Some(*early);
    }
    // Two conflict if they must precede each other. Those that must precede themselves, so to say,
    // take a time of their own, from the first answer to the last call.
    let (mut long, short): (Vec<Chain>, Vec<Chain>) = chains
        .into_iter()
        .partition(|chain| chain.must_precede(chain));
    long.sort_unstable_by_key(|chain| chain.answered);
    let mut pairs = long.windows(2);
    if let Some(pair) = pairs.find(|pair| pair[1].must_precede(&pair[0])) {
        return Some(pair[1]);
    }
    // All operations of the others overlap. Two of these never conflict; one conflicts with a long
    // one if it lies inside. Only the last that has begun can have it inside.
    short.into_iter().find(|chain| {
        let begun = long.partition_point(|long| long.must_precede(chain));
        begun > 0 && chain.must_precede(&long[begun - 1])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(call: u64, answer: u64, action: Action) -> Operation {
        Operation {
            call,
            answer: (answer != 0).then_some(answer),
            action,
        }
    }

    fn swap(old: Option<Value>, new: Value) -> Action {
        Action::Swap { old, new }
    }

    #[test]
    fn orders_that_fit_are_found() {
        use Action::{Get, Put};
        for history in [
            vec![],
            // Overlapping writes, in the order that later reads show.
            vec![
                operation(1, 9, Put(1)),
                operation(2, 8, Put(2)),
                operation(10, 11, Get(Some(1))),
            ],
            vec![
                operation(1, 9, Put(1)),
                operation(2, 3, Get(None)),
                operation(4, 5, Get(Some(1))),
            ],
            // Without an answer: long after its call, or never.
            vec![
                operation(1, 0, Put(1)),
                operation(2, 3, Put(2)),
                operation(4, 5, Get(Some(2))),
                operation(6, 7, Get(Some(1))),
            ],
            vec![operation(1, 0, Put(1)), operation(2, 3, Get(None))],
            // Two swaps without an answer, of which the second was seen.
            vec![
                operation(1, 0, Put(1)),
                operation(2, 0, swap(Some(1), 2)),
                operation(3, 0, swap(Some(2), 3)),
                operation(4, 5, Get(Some(3))),
            ],
            vec![
                operation(1, 2, Put(1)),
                operation(3, 6, swap(Some(1), 2)),
                operation(4, 7, Get(Some(2))),
                operation(8, 0, swap(Some(2), 4)),
                operation(9, 10, Get(Some(4))),
            ],
        ] {
            assert!(check(&history).is_ok(), "{history:?}");
        }
    }

    #[test]
    fn answers_that_fit_no_order_are_found() {
        use Action::{Get, Put};
        for history in [
            // A value that was not written, a stale read, an acknowledged write that is lost.
            vec![operation(1, 2, Get(Some(1)))],
            vec![
                operation(1, 2, Put(1)),
                operation(3, 4, Put(2)),
                operation(5, 6, Get(Some(1))),
            ],
            vec![operation(1, 2, Put(1)), operation(3, 4, Get(None))],
            // Two readers disagree about the order.
            vec![
                operation(1, 9, Put(1)),
                operation(2, 3, Get(Some(1))),
                operation(4, 5, Get(None)),
            ],
            // Both swaps took the same value.
            vec![
                operation(1, 2, Put(1)),
                operation(3, 6, swap(Some(1), 2)),
                operation(4, 7, swap(Some(1), 3)),
            ],
            vec![operation(1, 2, Put(1)), operation(3, 4, swap(None, 2))],
            // A write without an answer that is seen, and unseen again.
            vec![
                operation(1, 0, Put(1)),
                operation(2, 3, Get(Some(1))),
                operation(4, 5, Get(None)),
            ],
        ] {
            assert!(check(&history).is_err(), "{history:?}");
        }
    }

    /// The checker agrees with trying all orders.
    #[test]
    fn random_histories_are_judged_as_by_trying_all_orders() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut counts = [0; 2];
        for _ in 0..40_000 {
            let length = random.u64(2..8);
            let history: Vec<Operation> = (1..=length)
                .map(|value| {
                    let call = random.u64(1..16);
                    let answer = match random.u8(0..5) {
                        0 => 0,
                        _ => call + random.u64(1..10),
                    };
                    // Values of the history, few of others, or none.
                    let old = Some(random.u64(0..=length)).filter(|&old| old > 0);
                    let action = match random.u8(0..3) {
                        0 => Action::Get(old),
                        1 => Action::Put(value),
                        _ => swap(old, value),
                    };
                    operation(call, answer, action)
                })
                .collect();
            let fits = some_order_fits(&history, None);
            counts[usize::from(fits)] += 1;
            assert_eq!(check(&history).is_ok(), fits, "{history:?}");
        }
        assert!(counts[0] > 1_000 && counts[1] > 1_000, "{counts:?}");
    }

    /// Takes time that grows with the number of orders.
    fn some_order_fits(rest: &[Operation], state: Option<Value>) -> bool {
        // Operations without an answer may never happen.
        let Some(first_answer) = rest.iter().filter_map(|one| one.answer).min() else {
            return true;
        };
        (0..rest.len()).any(|at| {
            let mut rest = rest.to_vec();
            let one = rest.remove(at);
            let after = on(state, one.action);
            one.call <= first_answer && after.is_some_and(|state| some_order_fits(&rest, state))
        })
    }

    /// The register after this, if this may happen to it.
    fn on(state: Option<Value>, action: Action) -> Option<Option<Value>> {
        match action {
            Action::Get(seen) => (seen == state).then_some(state),
            Action::Put(value) => Some(Some(value)),
            Action::Swap { old, new } => (old == state).then_some(Some(new)),
        }
    }

    #[test]
    fn many_overlapping_operations_are_judged() {
        let value = |number: u64| number / 2 + 1;
        let action = |number: u64| match number % 2 {
            0 => Action::Put(value(number)),
            _ => Action::Get(Some(value(number))),
        };
        let all = (0..100_000).map(|number| operation(1, 2, action(number)));
        assert!(check(&all.collect::<Vec<_>>()).is_ok());
    }
}
