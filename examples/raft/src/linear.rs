//! Whether answers are linearizable: each operation as if it happened at one moment between its
//! call and its answer, on one register per key.
//!
//! [`check`] follows the calls and answers in their order and keeps every state that the register
//! may be in, each with those of the open operations that have happened. At an answer it lets open
//! operations happen in all orders until the answered one has. If that fits in no state, no order
//! fits.
//!
//! All values that are written differ. So an operation without an answer is bounded: if a read or
//! swap has met its value, it happened before that one's answer; else it may as well never happen.

use std::collections::{BTreeMap, BTreeSet, HashSet};

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
    /// The register after this, if this may happen to it.
    fn on(self, state: Option<Value>) -> Option<Option<Value>> {
        match self {
            Action::Get(seen) => (seen == state).then_some(state),
            Action::Put(value) => Some(Some(value)),
            Action::Swap { old, new } => (old == state).then_some(Some(new)),
        }
    }

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
    let mut met: BTreeMap<Value, u64> = BTreeMap::new();
    for operation in operations {
        if let (Some(value), Some(at)) = (operation.action.met(), operation.answer) {
            let first = met.entry(value).or_insert(at);
            *first = at.min(*first);
        }
    }
    let bounded = operations.iter().filter_map(|operation| {
        let written = operation.action.written();
        let answer = operation.answer.or_else(|| met.get(&written?).copied())?;
        Some(Operation {
            answer: Some(answer),
            ..*operation
        })
    });
    bounded.collect()
}

/// Whether some order of the operations on one key, which has no value at first, fits all answers.
///
/// # Errors
///
/// The first operation whose answer fits no order.
pub fn check(operations: &[Operation]) -> Result<(), Operation> {
    let operations = bounded(operations);
    let mut events = BTreeSet::new();
    for (number, operation) in operations.iter().enumerate() {
        // Calls before answers of the same time: the two may overlap.
        events.insert((operation.call, false, number));
        events.insert((operation.answer.unwrap_or(u64::MAX), true, number));
    }
    let mut open = BTreeSet::new();
    let mut states = HashSet::from([(None, BTreeSet::new())]);
    for (_, is_answer, number) in events {
        if !is_answer {
            open.insert(number);
            continue;
        }
        states = after(&operations, &open, &states, number);
        open.remove(&number);
        if states.is_empty() {
            return Err(operations[number]);
        }
    }
    Ok(())
}

/// The register, and the open operations that have happened to it.
type State = (Option<Value>, BTreeSet<usize>);

/// The states in which the operation `answered` has happened.
fn after(
    operations: &[Operation],
    open: &BTreeSet<usize>,
    states: &HashSet<State>,
    answered: usize,
) -> HashSet<State> {
    let mut fitting = HashSet::new();
    let mut seen = states.clone();
    let mut pending: Vec<State> = states.iter().cloned().collect();
    // Bound: each state is pushed once.
    while let Some((value, mut happened)) = pending.pop() {
        if happened.remove(&answered) {
            fitting.insert((value, happened));
            continue;
        }
        for &next in open.difference(&happened) {
            if let Some(value) = operations[next].action.on(value) {
                let mut happened = happened.clone();
                happened.insert(next);
                if seen.insert((value, happened.clone())) {
                    pending.push((value, happened));
                }
            }
        }
    }
    fitting
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
        for _ in 0..3_000 {
            let history: Vec<Operation> = (1..=random.u64(2..6))
                .map(|value| {
                    let call = random.u64(1..12);
                    let answer = call + random.u64(1..6);
                    let old = Some(random.u64(0..5)).filter(|&old| old > 0);
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
        assert!(counts[0] > 100 && counts[1] > 100, "{counts:?}");
    }

    fn some_order_fits(rest: &[Operation], state: Option<Value>) -> bool {
        let first_answer = rest.iter().map(|o| o.answer.unwrap()).min();
        let Some(first_answer) = first_answer else {
            return true;
        };
        (0..rest.len()).any(|at| {
            let mut rest = rest.to_vec();
            let operation = rest.remove(at);
            let after = operation.action.on(state);
            operation.call <= first_answer
                && after.is_some_and(|state| some_order_fits(&rest, state))
        })
    }
}
