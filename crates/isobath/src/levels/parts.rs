//! The records of a tree's overlays in key order, the newest of each key.

use std::collections::VecDeque;
use std::ops::Bound;
use std::sync::Arc;

use crate::btree::{self, Direction, OwnedBounds, ValueKind, ValueRef};
use crate::context::ReadContext;
use crate::overlay::{Levels, Memory, Put, Run};

/// Records that are copied from a memory under one lock.
const COPIED_AT_ONCE: usize = 64;

enum Source {
    Memory(Arc<Memory>, VecDeque<(Vec<u8>, Put)>),
    Run(Box<btree::Cursor>),
}

struct Part {
    source: Source,
    /// What is still to be read of it.
    rest: OwnedBounds,
    /// Its next record.
    next: Option<(Vec<u8>, Put)>,
    has_ended: bool,
}

impl Part {
    fn of_memory(memory: &Arc<Memory>, rest: OwnedBounds) -> Part {
        Part {
            source: Source::Memory(Arc::clone(memory), VecDeque::new()),
            rest,
            next: None,
            has_ended: false,
        }
    }

    fn of_run(run: &Run, rest: OwnedBounds, direction: Direction) -> Part {
        let (lower, upper) = as_slices(&rest);
        let cursor = btree::Cursor::new(run.tree, lower, upper, direction);
        Part {
            source: Source::Run(Box::new(cursor)),
            rest,
            next: None,
            has_ended: false,
        }
    }

    /// Has `next` be its next record, if it has more.
    fn fill<C: ReadContext>(&mut self, ctx: &C, direction: Direction) -> Result<(), C::Error> {
        if self.next.is_some() || self.has_ended {
            return Ok(());
        }
        self.next = match &mut self.source {
            Source::Memory(memory, batch) => {
                if batch.is_empty() {
                    let forward = direction == Direction::Forward;
                    let bounds = as_slices(&self.rest);
                    batch.extend(memory.within(bounds, forward, COPIED_AT_ONCE));
                    if let Some((last, _)) = batch.back() {
                        pass(&mut self.rest, last, direction);
                    }
                }
                batch.pop_front()
            }
            Source::Run(cursor) => cursor.next(ctx)?.map(|entry| {
                let is_tombstone = is_tombstone(entry.value);
                let put = Put::of((!is_tombstone).then_some(entry.value));
                (entry.key.to_vec(), put)
            }),
        };
        self.has_ended = self.next.is_none();
        Ok(())
    }
}

/// Whether a run's value stands for none.
pub(crate) fn is_tombstone(value: ValueRef<'_>) -> bool {
    value.kind == ValueKind::Extent && value.bytes.is_empty()
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
        if let Some((key, _)) = &found {
            // What older parts have of the key.
            for part in &mut self.parts[first + 1..] {
                part.next.take_if(|(other, _)| other == key);
            }
        }
        Ok(found)
    }

    /// The newest part that has the next key.
    fn first<C: ReadContext>(&mut self, ctx: &C) -> Result<Option<usize>, C::Error> {
        for part in &mut self.parts {
            part.fill(ctx, self.direction)?;
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
