//! A follower of a simulated store: what its stream of changes makes of a copy is what the store
//! has, across power cuts, too.

use std::collections::BTreeMap;
use std::time::Duration;

use isobath::{Change, Changes, Committed, Error, LogPosition, Simulation, Store};
use isobath_io::FaultDevice;

use super::run::{Failure, Run};
use crate::clients::data::version_of;
use crate::random::Steps;

/// Steps between two looks, at most.
const WITHIN: u64 = 300;
/// Times that a stream is opened again because of what its state was overtaken by.
const MAX_ATTEMPTS: usize = 20;

type Trees = BTreeMap<String, BTreeMap<Vec<u8>, Vec<u8>>>;

/// The copy of one run, and where its stream goes on.
#[derive(Default)]
pub(super) struct Copy {
    trees: Trees,
    position: Option<LogPosition>,
}

/// When a round looks at its stream.
pub(super) struct Looks {
    steps: Steps,
    /// The stream, if it stays open between two looks.
    open: Option<Changes>,
}

impl Looks {
    pub(super) fn new(seed: u64, round: u64) -> Looks {
        Looks {
            steps: Steps::new(seed ^ 0x7374_7265, round, WITHIN),
            open: None,
        }
    }

    pub(super) fn are_due(&mut self, step: u64) -> bool {
        let are_due = self.steps.are_due(step);
        self.steps.at += u64::from(are_due);
        if are_due && self.steps.random.chance(30) {
            self.open = None;
        }
        are_due
    }
}

/// What a store has, by scans.
fn all_of(store: &Store) -> Result<Trees, Error> {
    let mut trees = Trees::new();
    for tree in store.trees()? {
        let records = store.tree(&tree.name)?.iter().collect::<Result<_, _>>()?;
        trees.insert(tree.name, records);
    }
    Ok(trees)
}

/// Why a copy cannot go on.
enum Stopped {
    /// The stream is to be opened again.
    Again,
    Behind,
    Wrong(String),
    Error(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Stopped {
        match error {
            Error::ChangesOverrun { .. } => Stopped::Behind,
            Error::SnapshotTooOld | Error::TreeDropped { .. } => Stopped::Again,
            error => Stopped::Error(error),
        }
    }
}

impl Copy {
    /// Applies all that there is.
    fn go_on(&mut self, store: &Store, looks: &mut Looks) -> Result<(), Stopped> {
        let mut changes = match looks.open.take() {
            Some(open) => open,
            None => store.changes(self.position)?,
        };
        while let Some(committed) = changes.next_within(Duration::ZERO)? {
            let before = self.position.map_or(0, |position| position.lsn());
            if committed.position.lsn() <= before || changes.position() != committed.position {
                let what = format!(
                    "the stream goes from {before} to {} and says {}",
                    committed.position,
                    changes.position()
                );
                return Err(Stopped::Wrong(what));
            }
            self.apply(&committed)?;
            self.position = Some(committed.position);
        }
        // Not before the stream has given out what is before that.
        if self.position.is_some() {
            self.position = Some(changes.position());
        }
        looks.open = Some(changes);
        Ok(())
    }

    fn apply(&mut self, committed: &Committed) -> Result<(), Stopped> {
        let mut replaced = Vec::new();
        for change in &committed.changes {
            if let Change::Replace { tree, .. } = change {
                let records = committed.records(tree)?;
                let records = records.collect::<Result<BTreeMap<_, _>, Error>>()?;
                replaced.push((tree.to_string(), records));
            }
        }
        if committed.is_whole {
            self.trees.clear();
        }
        let mut replaced = replaced.into_iter();
        for change in &committed.changes {
            match change {
                Change::Put { tree, key, value } => {
                    if version_of(value).is_none() {
                        let what =
                            format!("the stream gives {key:?} of {tree} what was never written");
                        return Err(Stopped::Wrong(what));
                    }
                    let tree = self.trees.entry(tree.to_string()).or_default();
                    tree.insert(key.clone(), value.clone());
                }
                Change::Remove { tree, key } => {
                    let tree = self.trees.entry(tree.to_string()).or_default();
                    tree.remove(key);
                }
                Change::Create { tree } => drop(self.trees.entry(tree.to_string()).or_default()),
                Change::Drop { tree } => drop(self.trees.remove(&**tree)),
                Change::Replace { tree, from } => {
                    let (_, records) = replaced.next().unwrap_or_default();
                    let tree = self.trees.entry(tree.to_string()).or_default();
                    tree.split_off(from);
                    tree.extend(records);
                }
                other => return Err(Stopped::Wrong(format!("an unknown change {other:?}"))),
            }
        }
        Ok(())
    }

    /// The first difference.
    fn difference(&self, store: &Trees) -> Option<String> {
        let names = store.keys().chain(self.trees.keys());
        for name in names {
            let (Some(there), Some(here)) = (store.get(name), self.trees.get(name)) else {
                return Some(format!("only one of store and copy has the tree {name}"));
            };
            let keys = there.keys().chain(here.keys());
            let mut differing = keys.filter(|key| there.get(*key) != here.get(*key));
            if let Some(key) = differing.next() {
                let version = |of: &BTreeMap<Vec<u8>, Vec<u8>>| of.get(key).map(|v| version_of(v));
                return Some(format!(
                    "of {name}/{:?} the store has {:?} and its copy {:?}",
                    String::from_utf8_lossy(&key[..key.len().min(8)]),
                    version(there),
                    version(here)
                ));
            }
        }
        None
    }
}

impl Run {
    /// Applies what the stream of changes has by now to the copy.
    pub(super) fn follow(
        &mut self,
        simulation: &Simulation,
        device: &FaultDevice,
        looks: &mut Looks,
    ) -> Result<(), Failure> {
        for _ in 0..MAX_ATTEMPTS {
            match self.copy.go_on(simulation.store(), looks) {
                Ok(()) => {
                    self.report.counts.looks += 1;
                    return Ok(());
                }
                Err(_) if device.is_off() => {
                    looks.open = None;
                    return Ok(());
                }
                Err(Stopped::Again) => {}
                Err(Stopped::Behind) => {
                    self.report.counts.overruns += 1;
                    self.copy = Copy::default();
                }
                Err(Stopped::Wrong(what)) => return Err(Failure::of(what)),
                Err(Stopped::Error(error)) => {
                    return Err(Failure::of(format!("the stream: {error}")));
                }
            }
        }
        Ok(())
    }

    /// The same of a store at which no client works, which has to be equal to its copy.
    pub(super) fn compare_copy(
        &mut self,
        simulation: &mut Simulation,
        device: &FaultDevice,
        looks: &mut Looks,
    ) -> Result<(), Failure> {
        let rested = simulation.come_to_rest();
        if device.is_off() {
            return Ok(());
        }
        rested.map_err(|error| Failure::of(error.to_string()))?;
        self.follow(simulation, device, looks)?;
        let there = match all_of(simulation.store()) {
            Ok(there) => there,
            Err(_) if device.is_off() => return Ok(()),
            Err(error) => return Err(Failure::of(error.to_string())),
        };
        if device.is_off() {
            return Ok(());
        }
        match self.copy.difference(&there) {
            Some(difference) => {
                let stream = format!("{:?}", looks.open);
                let durable = simulation.store().log_position();
                let overruns = self.report.counts.overruns;
                Err(Failure::of(format!(
                    "{difference}; {stream}, durable {durable:?}, {overruns} overruns"
                )))
            }
            None => Ok(()),
        }
    }
}
