//! The judgement of a history by the last state that was read.

use std::collections::{BTreeMap, BTreeSet};

use isobath::Error;

use super::data::Universe;
use super::plan::Faults;
use super::state::State;
use crate::history::{History, Key, Outcome, Transaction, Version, check};

/// The records of `state`, if a correct store may have them after `history`; `running` if nothing
/// happened in between that could have undone an acknowledgement.
///
/// # Errors
///
/// All that no correct store could have answered.
pub(crate) fn judge(
    universe: &Universe,
    faults: &Faults,
    state: State,
    history: &mut History,
    running: bool,
) -> Result<BTreeMap<Key, Version>, Vec<String>> {
    let mut problems = state.problems;
    let failing = faults.io.is_some();
    // Records that a failed write has left partially applied are refused until the next opening.
    let unknown = |t: &&Transaction| t.outcome == Outcome::Unknown && t.writes.len() > 1;
    let half = history.transactions.iter().filter(unknown);
    let partial: BTreeSet<Key> = half.flat_map(|t| t.writes.iter().map(|w| w.key)).collect();
    for (key, error) in &state.unreadable {
        let explained = match error {
            Error::Io(_) => failing,
            Error::Poisoned { .. } => failing && running && partial.contains(key),
            _ => false,
        };
        if faults.corruption.is_none() && !explained {
            let record = universe.describe(*key);
            problems.push(format!("{record} cannot be read: {error}"));
        }
    }
    if running {
        for transaction in &mut history.transactions {
            transaction.durable = true;
        }
    }
    history.unreadable = state.unreadable.iter().map(|(key, _)| *key).collect();
    history.last = Some(state.records.clone());
    let findings = check(history).into_iter();
    problems.extend(findings.map(|finding| universe.translate(&finding.to_string())));
    match problems.is_empty() {
        true => Ok(state.records),
        false => Err(problems),
    }
}
