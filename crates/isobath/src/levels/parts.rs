//! The records of a tree's overlays in key order, the newest of each key.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use crate::btree::{self, Direction, OwnedBounds};
use crate::context::ReadContext;
use crate::node::Record;
use crate::overlay::{Levels, Memory, Position, Put, Run};

/// Records that are copied from a memory under one lock.
const COPIED_AT_ONCE: usize = 64;

enum Source {
    Memory(Arc<Memory>, VecDeque<Record>),
    Run(Arc<Run>, Box<btree::Cursor>),
}

struct Part {
    source: Source,
    /// What is still to be read of it.
    rest: OwnedBounds,
    /// Its next record.
    next: Option<(Vec<u8>, Put)>,
    has_ended: bool,
    /// Records that were taken from it.
    taken: u64,
}

impl Part {
    fn of_memory(memory: &Arc<Memory>, rest: OwnedBounds) -> Part {
        Part {
            source: Source::Memory(Arc::clone(memory), VecDeque::new()),
            rest,
            next: None,
            has_ended: false,
            taken: 0,
        }
    }

    fn of_run(run: &Arc<Run>, rest: OwnedBounds, direction: Direction) -> Part {
        let cursor = cursor_of(run, &rest, direction);
        Part {
            source: Source::Run(Arc::clone(run), Box::new(cursor)),
            rest,
            next: None,
            has_ended: false,
            taken: 0,
        }
    }

    /// Has `next` be its next record, if it has more that merges at `position` have not moved.
    fn fill<C: ReadContext>(
        &mut self,
        ctx: &C,
        position: &Position,
        direction: Direction,
    ) -> Result<(), C::Error> {
        if self.next.is_some() || self.has_ended {
            return Ok(());
        }
        let forward = direction == Direction::Forward;
        self.next = match &mut self.source {
            Source::Memory(memory, batch) => {
                if batch.is_empty() {
                    let bounds = as_slices(&self.rest);
                    batch.extend(memory.within(bounds, forward, COPIED_AT_ONCE)?);
                    if let Some(last) = batch.back() {
                        pass(&mut self.rest, &last.key, direction);
                    }
                }
                let record = batch.pop_front();
                record.map(|record| {
                    let put = Put::stored(record.value());
                    (record.key, put)
                })
            }
            // Bound: once behind what is merged, it meets none of that again.
            Source::Run(run, cursor) => loop {
                let Some(entry) = cursor.next(ctx)? else {
                    break None;
                };
                if !run.has_merged(entry.key, position) {
                    break Some((entry.key.to_vec(), Put::stored(entry.value)));
                }
                match (run.past_merged(entry.key, position, forward), direction) {
                    (None, _) => break None,
                    (Some(bound), Direction::Forward) => self.rest.0 = bound,
                    (Some(bound), Direction::Reverse) => self.rest.1 = bound,
                }
                **cursor = cursor_of(run, &self.rest, direction);
            },
        };
        self.has_ended = self.next.is_none();
        Ok(())
    }
}

fn cursor_of(run: &Run, rest: &OwnedBounds, direction: Direction) -> btree::Cursor {
    let (lower, upper) = as_slices(rest);
    btree::Cursor::new(run.tree, lower, upper, direction)
}

fn as_slices(bounds: &OwnedBounds) -> (Bound<&[u8]>, Bound<&[u8]>) {
    let slice = |bound| -> Bound<&[u8]> { Bound::map(bound, |key: &Vec<u8>| &key[..]) };
    (slice(bounds.0.as_ref()), slice(bounds.1.as_ref()))
}

/// What is behind `last`.
fn pass(rest: &mut OwnedBounds, last: &[u8], direction: Direction) {
    match direction {
        Direction::Forward => rest.0 = Bound::Excluded(last.to_vec()),
        Direction::Reverse => rest.1 = Bound::Excluded(last.to_vec()),
    }
}

/// The records of overlays within a range, in one direction, tombstones included.
pub(crate) struct Parts {
    direction: Direction,
    position: Arc<Position>,
    /// From new to old.
    parts: Vec<Part>,
}

impl Parts {
    /// Of `levels`, whose runs have to exist while this is used; without the memories unless
    /// `with_memories`.
    pub(crate) fn new(
        levels: &Levels,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        direction: Direction,
        with_memories: bool,
    ) -> Parts {
        let rest = || {
            let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
            (owned(bounds.0), owned(bounds.1))
        };
        let memories = [Some(&levels.memory), levels.sealing.as_ref()];
        let memories = memories.into_iter().flatten().filter(|_| with_memories);
        let memories = memories.map(|memory| Part::of_memory(memory, rest()));
        let runs = levels.runs.iter();
        let runs = runs.map(|run| Part::of_run(run, rest(), direction));
        Parts {
            direction,
            position: Arc::clone(&levels.position),
            parts: memories.chain(runs).collect(),
        }
    }

    /// The key of the next record.
    pub(crate) fn peek<C: ReadContext>(&mut self, ctx: &C) -> Result<Option<&[u8]>, C::Error> {
        Ok(self.first(ctx)?.and_then(|at| {
            let next = self.parts[at].next.as_ref();
            next.map(|(key, _)| &key[..])
        }))
    }

    /// The next record.
    pub(crate) fn next<C: ReadContext>(
        &mut self,
        ctx: &C,
    ) -> Result<Option<(Vec<u8>, Put)>, C::Error> {
        let Some(first) = self.first(ctx)? else {
            return Ok(None);
        };
        let found = self.parts[first].next.take();
        self.parts[first].taken += 1;
        if let Some((key, _)) = &found {
            // What older parts have of the key.
            for part in &mut self.parts[first + 1..] {
                let older = part.next.take_if(|(other, _)| other == key);
                part.taken += u64::from(older.is_some());
            }
        }
        Ok(found)
    }

    /// Notes that merges have passed the records that were taken from runs.
    pub(crate) fn pass(self) {
        for part in self.parts {
            if let Source::Run(run, _) = part.source {
                run.pass(part.taken);
            }
        }
    }

    /// The newest part that has the next key.
    fn first<C: ReadContext>(&mut self, ctx: &C) -> Result<Option<usize>, C::Error> {
        for part in &mut self.parts {
            part.fill(ctx, &self.position, self.direction)?;
        }
        let mut first: Option<(usize, &[u8])> = None;
        for (at, part) in self.parts.iter().enumerate() {
            let Some((key, _)) = &part.next else { continue };
            let is_before = first.is_none_or(|(_, other)| match self.direction {
                Direction::Forward => &key[..] < other,
                Direction::Reverse => &key[..] > other,
            });
            if is_before {
                first = Some((at, key));
            }
        }
        Ok(first.map(|(at, _)| at))
    }
}
