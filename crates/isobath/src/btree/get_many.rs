//! Many lookups at once: their cache misses overlap.
//!
//! A ring of lookups is kept in flight (AMAC: Kocberber, Falsafi, Grot, VLDB
//! 2016). Each visit to one of them does what its data in cache allows, prefetches
//! what it needs next, and goes on to the next lookup. The nodes above the
//! parents of leaves are in cache anyway and are passed in one go.

use std::ops::Range;

use super::descend::{Hold, root};
use super::{AttemptError, Tree, ValueKind, ValueRef};
use crate::buffer::{BufferPool, Restart};
use crate::context::ReadContext;
use crate::node::{INNER_LINES, LEAF_LINES, MalformedNode};
use crate::page::PageId;

/// Lookups in flight; about what a core's line fill buffers can use.
const RING: usize = 16;

/// Times that a lookup starts over before it is left to [`Tree::get`].
const RESTARTS_MAX: u8 = 8;

/// Initial capacity of a batch, in bytes per key; longer values make it grow.
const VALUE_BYTES: usize = 64;

/// The result for one key of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lookup {
    /// Its value is these bytes of the batch's buffer.
    Found(ValueKind, Range<usize>),
    /// It has no record.
    Absent,
    /// This page has to be read first.
    NotResident(PageId),
    /// Others changed its pages; look again.
    Contended,
}

/// The results of many lookups; reused from batch to batch, it does not allocate.
#[derive(Default)]
pub(crate) struct Batch {
    bytes: Vec<u8>,
    lookups: Vec<Lookup>,
}

impl Batch {
    /// How each key fared, in the order of the keys.
    pub(crate) fn lookups(&self) -> &[Lookup] {
        &self.lookups
    }

    /// The value of key `index`, if it was found.
    pub(crate) fn value(&self, index: usize) -> Option<ValueRef<'_>> {
        match self.lookups.get(index)? {
            Lookup::Found(kind, range) => Some(ValueRef {
                kind: *kind,
                bytes: self.bytes.get(range.clone())?,
            }),
            _ => None,
        }
    }
}

/// A lookup's next step; the cache lines that it needs are on their way.
#[derive(Clone, Copy)]
enum Step {
    /// Nothing: the place in the ring is free.
    Idle,
    /// Begin at the root.
    Start,
    /// Search these slots of an inner node for the child.
    Search(usize, usize),
    /// Read this page's mapping word.
    Fetch(PageId),
    /// Open this page, a child of the node held.
    Open(PageId),
    /// Copy the value of this record.
    Value(usize),
}

/// A lookup in flight.
#[derive(Clone, Copy)]
struct Flight<'p> {
    index: usize,
    step: Step,
    /// The node that the lookup has come to.
    hold: Hold<'p>,
    level: u8,
    restarts: u8,
}

impl Tree {
    /// Looks `keys` up as far as their pages are in memory. Never waits.
    pub(crate) fn get_many_resident<K: AsRef<[u8]>>(
        &self,
        pool: &BufferPool,
        keys: &[K],
        batch: &mut Batch,
    ) {
        batch.bytes.clear();
        batch.lookups.clear();
        batch.lookups.resize(keys.len(), Lookup::Contended);
        batch.bytes.reserve(keys.len() * VALUE_BYTES);
        let root = match root(pool, self) {
            Ok(root) => root,
            Err(fail) => {
                batch.lookups.fill(unfinished(fail));
                return;
            }
        };
        let idle = Flight {
            index: 0,
            step: Step::Idle,
            hold: root,
            level: 0,
            restarts: 0,
        };
        let mut ring = [idle; RING];
        let (mut next, mut in_flight) = (0, 0);
        // Bound: a lookup is visited once for each step and level, and starts
        // over at most RESTARTS_MAX times.
        while next < keys.len() || in_flight > 0 {
            for flight in &mut ring {
                if let Step::Idle = flight.step {
                    if next == keys.len() {
                        continue;
                    }
                    *flight = Flight {
                        index: next,
                        step: Step::Start,
                        ..idle
                    };
                    (next, in_flight) = (next + 1, in_flight + 1);
                }
                let key = keys[flight.index].as_ref();
                let outcome = match flight.visit(self, pool, key, &mut batch.bytes) {
                    Ok(None) => continue,
                    Ok(Some(outcome)) => outcome,
                    Err(AttemptError::Restart(Restart::Changed | Restart::Latched))
                        if flight.restarts < RESTARTS_MAX =>
                    {
                        flight.restarts += 1;
                        flight.step = Step::Start;
                        continue;
                    }
                    Err(fail) => unfinished(fail),
                };
                batch.lookups[flight.index] = outcome;
                (flight.step, in_flight) = (Step::Idle, in_flight - 1);
            }
        }
    }

    /// Looks `key` up as [`Tree::get_many_resident`] does, but the lookups that go
    /// on while this one waits for memory are those of other tasks (CoroBase: He,
    /// Lu, Wang, VLDB 2021). `None` if a page is missing, corrupt or contended,
    /// for [`Tree::get`] to see to.
    pub(super) fn get_in_turns<C: ReadContext>(
        &self,
        ctx: &C,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Option<Option<ValueKind>> {
        into.clear();
        let mut flight = Flight {
            index: 0,
            step: Step::Start,
            hold: root(ctx.pool(), self).ok()?,
            level: 0,
            restarts: 0,
        };
        loop {
            match flight.visit(self, ctx.pool(), key, into) {
                Ok(None) => ctx.next_turn(),
                Ok(Some(Lookup::Found(kind, _))) => return Some(Some(kind)),
                Ok(Some(Lookup::Absent)) => return Some(None),
                Ok(Some(Lookup::NotResident(_) | Lookup::Contended)) | Err(_) => return None,
            }
        }
    }

    /// Looks `keys` up; the reads of all pages that are missing overlap.
    #[cfg(test)]
    pub(crate) fn get_many<C: ReadContext, K: AsRef<[u8]>>(
        &self,
        ctx: &C,
        keys: &[K],
        batch: &mut Batch,
    ) -> Result<(), C::Error> {
        self.get_many_resident(ctx.pool(), keys, batch);
        let missing: Vec<PageId> = batch
            .lookups
            .iter()
            .filter_map(|lookup| match lookup {
                Lookup::NotResident(id) => Some(*id),
                _ => None,
            })
            .collect();
        if !missing.is_empty() {
            ctx.read_ahead(&missing);
        }
        let mut value = Vec::new();
        for (index, key) in keys.iter().enumerate() {
            if !matches!(
                batch.lookups[index],
                Lookup::NotResident(_) | Lookup::Contended
            ) {
                continue;
            }
            let start = batch.bytes.len();
            batch.lookups[index] = match self.get(ctx, key.as_ref(), &mut value)? {
                Some(kind) => {
                    batch.bytes.extend_from_slice(&value);
                    Lookup::Found(kind, start..batch.bytes.len())
                }
                None => Lookup::Absent,
            };
        }
        Ok(())
    }
}

/// A caller that meets a corrupt page by [`Tree::get`] reports it.
#[cold]
fn unfinished(fail: AttemptError) -> Lookup {
    match fail {
        AttemptError::Restart(Restart::NotResident(id)) => Lookup::NotResident(id),
        _ => Lookup::Contended,
    }
}

impl<'p> Flight<'p> {
    /// Goes on by one step; the outcome if it was the last.
    #[inline(always)]
    fn visit(
        &mut self,
        tree: &Tree,
        pool: &'p BufferPool,
        key: &[u8],
        bytes: &mut Vec<u8>,
    ) -> Result<Option<Lookup>, AttemptError> {
        match self.step {
            Step::Idle => Ok(None),
            Step::Start => self.start(tree, pool, key),
            Step::Search(from, to) => {
                let node = self.hold.node(tree)?;
                let suffix = self.hold.checked(node.suffix_of(key))?;
                let (position, found) = self.hold.checked(node.search_part(suffix, from, to))?;
                let position = position + usize::from(found);
                let id = self.hold.checked(node.child(position))?;
                pool.mapping.prefetch(id);
                self.step = Step::Fetch(id);
                Ok(None)
            }
            Step::Fetch(id) => {
                let lines = if self.level == 1 {
                    LEAF_LINES
                } else {
                    INNER_LINES
                };
                pool.prefetch(id, 0..lines);
                self.step = Step::Open(id);
                Ok(None)
            }
            Step::Open(id) => {
                let child = self.hold.child(pool, id, true)?;
                self.enter(tree, key, child, Some(self.level))
            }
            Step::Value(position) => {
                let node = self.hold.node(tree)?;
                let value = self.hold.checked(node.value(position))?;
                let start = bytes.len();
                let copied = node.append(value.at, value.len, bytes);
                let valid = self
                    .hold
                    .checked(copied)
                    .and_then(|()| self.hold.validate());
                if let Err(fail) = valid {
                    bytes.truncate(start);
                    return Err(fail);
                }
                Ok(Some(Lookup::Found(value.kind, start..bytes.len())))
            }
        }
    }

    /// Begins at the root, and goes down to the lowest node that has inner
    /// nodes as children.
    #[inline(always)]
    fn start(
        &mut self,
        tree: &Tree,
        pool: &'p BufferPool,
        key: &[u8],
    ) -> Result<Option<Lookup>, AttemptError> {
        let mut hold = root(pool, tree)?;
        let mut above = None;
        // Bound: each round is one level lower.
        loop {
            let node = hold.node(tree)?;
            if node.level() < 2 {
                return self.enter(tree, key, hold, above);
            }
            if above.is_some_and(|above| above != node.level() + 1) {
                return Err(
                    hold.malformed(MalformedNode("its level is not one below its parent's"))
                );
            }
            let position = hold.checked(node.child_position(key))?;
            let id = hold.checked(node.child(position))?;
            if node.level() == 2 {
                pool.mapping.prefetch(id);
                (self.hold, self.level) = (hold, 2);
                self.step = Step::Fetch(id);
                return Ok(None);
            }
            above = Some(node.level());
            hold = hold.child(pool, id, true)?;
        }
    }

    /// Goes on at a node whose first lines are in cache.
    #[inline(always)]
    fn enter(
        &mut self,
        tree: &Tree,
        key: &[u8],
        hold: Hold<'p>,
        above: Option<u8>,
    ) -> Result<Option<Lookup>, AttemptError> {
        let node = hold.node(tree)?;
        if above.is_some_and(|above| above != node.level() + 1) {
            return Err(hold.malformed(MalformedNode("its level is not one below its parent's")));
        }
        (self.hold, self.level) = (hold, node.level());
        let suffix = hold.checked(node.suffix_of(key))?;
        if !node.is_leaf() {
            let (from, to) = node.part_of(suffix);
            node.prefetch_part(from, to);
            self.step = Step::Search(from, to);
            return Ok(None);
        }
        let (position, found) = hold.checked(node.search(suffix))?;
        if !found {
            hold.validate()?;
            return Ok(Some(Lookup::Absent));
        }
        node.prefetch_record(position);
        self.step = Step::Value(position);
        Ok(None)
    }
}
