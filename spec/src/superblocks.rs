//! The two superblocks, and a log that leaves segments, as a model of their own.
//!
//! A store logs records, has its log go on in another area and leave the one before, writes
//! checkpoints, becomes shorter, and is closed and opened (`CheckpointIo::superblock`,
//! `Checkpoints::relay_log`, `Checkpoints::cut`, `Checkpoints::mark_open`). A crash may come
//! between any two steps, and the newest superblock may be corrupt afterwards. The older one then
//! leads to all that was logged, or to something that is plainly not there; never to less.

use stateright::{Model, Property};

/// A rule of this model; without it something is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SuperblockRule {
    /// Records go to the log's new area once superblocks name it (`relay_log`).
    AreaNamedFirst,
    /// Both of them do (`relay_log`).
    BothNameArea,
    /// The log leaves the old area once a checkpoint starts behind it (`try_to_leave`).
    OldAreaKept,
    /// Both superblocks say that the volume is shorter before it is (`cut`).
    BothBeforeCut,
    /// Both say that the store is open before something changes (`mark_open`).
    BothSayOpen,
    /// Closing writes both (`last_checkpoint`).
    BothSayClosed,
}

/// All of them.
pub const SUPERBLOCK_RULES: [SuperblockRule; 6] = [
    SuperblockRule::AreaNamedFirst,
    SuperblockRule::BothNameArea,
    SuperblockRule::OldAreaKept,
    SuperblockRule::BothBeforeCut,
    SuperblockRule::BothSayOpen,
    SuperblockRule::BothSayClosed,
];

/// The model, perhaps without one rule.
#[derive(Clone, Debug)]
pub struct TwoSuperblocks {
    /// Whether changes are logged; else only closing keeps them.
    pub logs: bool,
    /// The rule that is broken.
    pub broken: Option<SuperblockRule>,
}

/// Steps of each kind in one history.
const MAX_RECORDS: u8 = 3;
const MAX_SUPERBLOCKS: u8 = 11;
/// Bytes of the volume at first, in steps by which it becomes shorter.
const LENGTH: u8 = 2;

/// One superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Superblock {
    number: u8,
    is_open: bool,
    /// The area of the log, where the records begin that lie there, and whether those before lie in
    /// the other one.
    area: u8,
    switch: u8,
    has_old: bool,
    /// A recovery reads the log from here; it reaches up to there at least.
    start: u8,
    durable: u8,
    length: u8,
    /// Without a log: the changes that its checkpoint has.
    changes: u8,
}

/// The operation under way, in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Doing {
    Nothing,
    /// Superblocks are written, so many more.
    Moving(u8),
    Leaving(u8),
    Cutting(u8),
    Opening(u8),
    Closing(u8),
}

/// Drive and memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TwoState {
    slots: [Option<Superblock>; 2],
    /// The newest, as memory has it.
    current: Superblock,
    /// The area that each record lies in; none if that was used again.
    records: Vec<Option<u8>>,
    /// The area of the next record.
    area: u8,
    length: u8,
    /// Changes of a store without a log, and those of its pages that a later opening has
    /// overwritten.
    changes: u8,
    doing: Doing,
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each says what it does")]
pub enum TwoAction {
    Change,
    Checkpoint,
    Move,
    Leave,
    Cut,
    Close,
    Open,
    Step,
}

impl TwoState {
    fn write(&mut self) -> Option<()> {
        self.current.number += 1;
        self.current.durable = self.records.len() as u8;
        self.slots[usize::from(self.current.number % 2)] = Some(self.current);
        (self.current.number <= MAX_SUPERBLOCKS).then_some(())
    }

    fn is_open(&self) -> bool {
        self.current.is_open && self.doing == Doing::Nothing
    }

    /// The next step of the operation, which writes this many superblocks more.
    fn step(&mut self, broken: Option<SuperblockRule>) -> Option<()> {
        match self.doing {
            Doing::Nothing => return None,
            Doing::Moving(0) => {
                self.area = self.current.area;
                self.doing = Doing::Nothing;
            }
            Doing::Leaving(0) => {
                // Its segments are used again.
                let old = 1 - self.current.area;
                for record in &mut self.records {
                    *record = record.filter(|area| *area != old);
                }
                self.doing = Doing::Nothing;
            }
            Doing::Leaving(left) => {
                self.write()?;
                self.doing = Doing::Leaving(left - 1);
            }
            Doing::Cutting(0) => {
                self.length = self.current.length;
                self.doing = Doing::Nothing;
            }
            Doing::Opening(0) | Doing::Closing(0) => self.doing = Doing::Nothing,
            Doing::Moving(left) => {
                if broken == Some(SuperblockRule::AreaNamedFirst) && left == 2 {
                    self.area = self.current.area;
                }
                self.write()?;
                self.doing = Doing::Moving(left - 1);
            }
            Doing::Cutting(left) => {
                self.write()?;
                self.doing = Doing::Cutting(left - 1);
            }
            Doing::Opening(left) => {
                self.write()?;
                self.doing = Doing::Opening(left - 1);
            }
            Doing::Closing(left) => {
                self.write()?;
                self.doing = Doing::Closing(left - 1);
            }
        }
        Some(())
    }

    /// What a recovery by this superblock finds; none if that says that something is corrupt.
    fn recovered(&self, superblock: &Superblock, logs: bool) -> Option<Result<u8, &'static str>> {
        if superblock.length > self.length {
            return Some(Err("the volume is shorter than its superblock says"));
        }
        if !logs {
            return Some(match superblock.is_open {
                true => Err("it was not closed"),
                false => Ok(superblock.changes),
            });
        }
        let lies_in = |lsn: u8| match lsn < superblock.switch {
            true => superblock.has_old.then_some(1 - superblock.area),
            false => Some(superblock.area),
        };
        let there = (superblock.start..self.records.len() as u8).take_while(|&lsn| {
            let record = self.records[usize::from(lsn)];
            record.is_some() && record == lies_in(lsn)
        });
        let end = superblock.start + there.count() as u8;
        (end >= superblock.durable).then_some(Ok(end))
    }

    /// Whether a crash now leaves all there is, also without its newest superblock.
    fn survives(&self, logs: bool) -> bool {
        let by_number = |slot: &&Superblock| slot.number;
        let newest = self.slots.iter().flatten().max_by_key(by_number);
        let oldest = self.slots.iter().flatten().min_by_key(by_number);
        let is_whole = |found: Option<Result<u8, _>>, is_newest: bool| match found {
            // Only what a corrupt superblock hides may be called corrupt.
            None => !is_newest,
            Some(Ok(found)) if logs => found == self.records.len() as u8,
            // Pages are overwritten once the store is open again.
            Some(Ok(found)) => found == self.changes,
            Some(Err("it was not closed")) => self.current.is_open || self.doing != Doing::Nothing,
            Some(Err(_)) => false,
        };
        let of = |slot: Option<&Superblock>| slot.map(|slot| self.recovered(slot, logs));
        of(newest).is_some_and(|found| is_whole(found, true))
            && of(oldest).is_none_or(|found| is_whole(found, false))
    }
}

impl Model for TwoSuperblocks {
    type State = TwoState;
    type Action = TwoAction;

    fn init_states(&self) -> Vec<TwoState> {
        let first = Superblock {
            number: 1,
            is_open: true,
            area: 0,
            switch: 0,
            has_old: false,
            start: 0,
            durable: 0,
            length: LENGTH,
            changes: 0,
        };
        let second = Superblock { number: 2, ..first };
        vec![TwoState {
            slots: [Some(second), Some(first)],
            current: second,
            records: Vec::new(),
            area: 0,
            length: LENGTH,
            changes: 0,
            doing: Doing::Nothing,
        }]
    }

    fn actions(&self, _: &TwoState, actions: &mut Vec<TwoAction>) {
        use TwoAction::{Change, Checkpoint, Close, Cut, Leave, Move, Open, Step};
        actions.extend([Change, Checkpoint, Move, Leave, Cut, Close, Open, Step]);
    }

    fn next_state(&self, last: &TwoState, action: TwoAction) -> Option<TwoState> {
        let mut state = last.clone();
        let breaks = |rule| self.broken == Some(rule);
        let both = |rule| if breaks(rule) { 1 } else { 2 };
        match action {
            TwoAction::Change => {
                let early = breaks(SuperblockRule::AreaNamedFirst);
                let moves = early && matches!(state.doing, Doing::Moving(_));
                let (count, may) = (state.records.len() as u8, state.is_open() || moves);
                if !may || count.max(state.changes) == MAX_RECORDS {
                    return None;
                }
                match self.logs {
                    true => state.records.push(Some(state.area)),
                    false => state.changes += 1,
                }
            }
            TwoAction::Checkpoint => {
                if !state.is_open() || !self.logs {
                    return None;
                }
                // Some logged changes are in no page yet.
                let end = state.records.len() as u8;
                state.current.start = state.current.start.max(end.saturating_sub(1));
                state.write()?;
            }
            TwoAction::Move => {
                if !state.is_open() || !self.logs || state.current.has_old {
                    return None;
                }
                state.current.area = 1 - state.current.area;
                state.current.switch = state.records.len() as u8;
                state.current.has_old = true;
                state.doing = Doing::Moving(both(SuperblockRule::BothNameArea));
            }
            TwoAction::Leave => {
                let Superblock { start, switch, .. } = state.current;
                let is_read = start < switch && !breaks(SuperblockRule::OldAreaKept);
                if !state.is_open() || !self.logs || !state.current.has_old || is_read {
                    return None;
                }
                state.current.has_old = false;
                state.doing = Doing::Leaving(2);
            }
            TwoAction::Cut => {
                if !state.is_open() || !self.logs || state.current.length == 1 {
                    return None;
                }
                state.current.length -= 1;
                state.doing = Doing::Cutting(both(SuperblockRule::BothBeforeCut));
            }
            TwoAction::Close => {
                if !state.is_open() || self.logs {
                    return None;
                }
                state.current.is_open = false;
                state.current.changes = state.changes;
                state.doing = Doing::Closing(both(SuperblockRule::BothSayClosed));
            }
            TwoAction::Open => {
                if state.current.is_open || state.doing != Doing::Nothing {
                    return None;
                }
                state.current.is_open = true;
                state.doing = Doing::Opening(both(SuperblockRule::BothSayOpen));
            }
            TwoAction::Step => state.step(self.broken)?,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![Property::always(
            "either superblock leads to all there is",
            |model: &TwoSuperblocks, state: &TwoState| state.survives(model.logs),
        )]
    }
}

#[cfg(test)]
mod tests {
    use stateright::Checker;

    use super::*;

    /// The steps that lead to a loss, and how many states there are.
    fn loss(logs: bool, broken: Option<SuperblockRule>) -> (Option<Vec<TwoAction>>, usize) {
        let checker = TwoSuperblocks { logs, broken }.checker().spawn_bfs().join();
        let lost = checker.discovery("either superblock leads to all there is");
        (
            lost.map(|path| path.into_actions()),
            checker.unique_state_count(),
        )
    }

    #[test]
    fn either_superblock_leads_to_all_there_is() {
        for logs in [true, false] {
            let (lost, states) = loss(logs, None);
            assert_eq!(lost, None);
            assert!(states > 50, "{states}");
        }
    }

    #[test]
    fn every_superblock_rule_is_needed() {
        for rule in SUPERBLOCK_RULES {
            let lost = [true, false].map(|logs| loss(logs, Some(rule)).0);
            assert!(
                lost.iter().any(Option::is_some),
                "nothing is lost without {rule:?}"
            );
            println!("without {rule:?}: {lost:?}");
        }
    }
}
