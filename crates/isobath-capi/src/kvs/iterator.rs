//! Iterators over key groups. Each call looks for the keys behind the last one: a pair that is
//! there during the whole iteration is found exactly once, and none is held between the calls.

use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::code::{self, Code};
use super::filter::Filter;
use super::space::Space;
use super::types::{kvs_result::*, limits::MAX_ITERATE_HANDLE};

/// How far an iterator is.
struct Iterator {
    filter: Filter,
    has_values: bool,
    last: Option<Vec<u8>>,
    has_ended: bool,
}

/// An open iterator.
struct Open {
    /// The handle of its key space.
    space: usize,
    filter: Filter,
    /// Which opening this is: the handle of an iterator that was closed is given out again.
    number: u64,
    /// `None` while a call iterates.
    state: Option<Iterator>,
}

/// The iterators of a device.
#[derive(Default)]
pub(crate) struct Iterators {
    slots: [Mutex<Option<Open>>; MAX_ITERATE_HANDLE],
    /// Held while one is opened: of two with the same filter one comes first.
    opening: Mutex<()>,
    opened: AtomicU64,
}

/// The result of one step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) entries: u32,
    pub(crate) bytes: u32,
    pub(crate) has_ended: bool,
}

impl Iterators {
    /// Opens an iterator; its handle.
    pub(crate) fn open(&self, space: &Space, filter: Filter, has_values: bool) -> Result<u8, Code> {
        let _opening = self.opening.lock();
        let mut free = None;
        for (at, slot) in self.slots.iter().enumerate() {
            match &*slot.lock() {
                None => free = free.or(Some(at)),
                Some(other) if other.space == space.handle && other.filter == filter => {
                    return Err(KVS_ERR_ITERATOR_OPEN);
                }
                Some(_) => {}
            }
        }
        // Only an opening takes a slot.
        let at = free.ok_or(KVS_ERR_ITERATOR_MAX)?;
        *self.slots[at].lock() = Some(Open {
            space: space.handle,
            filter,
            number: self.opened.fetch_add(1, Ordering::Relaxed),
            state: Some(Iterator {
                filter,
                has_values,
                last: None,
                has_ended: false,
            }),
        });
        // A key space that is closed at the same time either finds the iterator and closes it, or
        // is seen here as closed.
        if let Err(code) = space.check_open() {
            self.close_of(space.handle);
            return Err(code);
        }
        Ok(at as u8 + 1)
    }

    fn slot(&self, handle: u8) -> Result<&Mutex<Option<Open>>, Code> {
        let at = usize::from(handle).checked_sub(1);
        at.and_then(|at| self.slots.get(at))
            .ok_or(KVS_ERR_ITERATOR_NOT_EXIST)
    }

    /// Whether the key space has that iterator.
    pub(crate) fn check(&self, space: &Space, handle: u8) -> Result<(), Code> {
        let slot = self.slot(handle)?.lock();
        let is_there = slot.as_ref().is_some_and(|it| it.space == space.handle);
        is_there.then_some(()).ok_or(KVS_ERR_ITERATOR_NOT_EXIST)
    }

    /// Closes an iterator.
    pub(crate) fn close(&self, space: &Space, handle: u8) -> Result<(), Code> {
        let mut slot = self.slot(handle)?.lock();
        match &*slot {
            Some(open) if open.space == space.handle => {
                *slot = None;
                Ok(())
            }
            _ => Err(KVS_ERR_ITERATOR_NOT_EXIST),
        }
    }

    /// Closes all of a key space.
    pub(crate) fn close_of(&self, space: usize) {
        for slot in &self.slots {
            let mut slot = slot.lock();
            if slot.as_ref().is_some_and(|it| it.space == space) {
                *slot = None;
            }
        }
    }

    pub(crate) fn close_all(&self) {
        for slot in &self.slots {
            *slot.lock() = None;
        }
    }

    /// Fills `buffer` with the next entries. One that does not fit into an empty buffer stays the
    /// next one.
    pub(crate) fn next(&self, space: &Space, handle: u8, buffer: &mut [u8]) -> Result<Found, Code> {
        // The state is taken out, so that nothing is locked while the store is read: data tasks of
        // one worker take turns.
        let (number, mut state) = {
            let mut slot = self.slot(handle)?.lock();
            let open = slot.as_mut().filter(|open| open.space == space.handle);
            let open = open.ok_or(KVS_ERR_ITERATOR_NOT_EXIST)?;
            let reason = "another call is using the iterator";
            let state = open.state.take();
            (
                open.number,
                state.ok_or_else(|| code::because(KVS_ERR_SYS_IO, reason))?,
            )
        };
        let found = state.next(space, buffer);
        let mut slot = self.slot(handle)?.lock();
        // It may have been closed in between, and its handle given out again.
        if let Some(open) = slot.as_mut().filter(|open| open.number == number) {
            open.state = Some(state);
        }
        found
    }
}

impl Iterator {
    fn next(&mut self, space: &Space, buffer: &mut [u8]) -> Result<Found, Code> {
        let mut found = Found {
            has_ended: self.has_ended,
            ..Found::default()
        };
        if self.has_ended {
            return Ok(found);
        }
        let mut writer = Writer { buffer, used: 0 };
        // The offset of the last key in the buffer.
        let mut last = None;
        let mut is_full = false;
        let filter = self.filter;
        let (mut lower, mut upper) = filter.range();
        if let Some(last) = self.last.take() {
            let behind = Bound::Excluded(last.clone());
            match space.is_descending {
                false => lower = behind,
                true => upper = behind,
            }
            self.last = Some(last);
        }
        let mut visit = |key: &[u8], value: Option<&[u8]>| {
            if !filter.matches(key) {
                return true;
            }
            let at = writer.used + 4;
            if !writer.add(key, value) {
                is_full = true;
                return false;
            }
            last = Some(at..at + key.len());
            found.entries += 1;
            true
        };
        let bounds = (lower, upper);
        let scanned = match (self.has_values, space.is_descending) {
            (false, order) => space
                .tree
                .visit_keys(bounds, order, |key, _| visit(key, None)),
            (true, false) => space
                .tree
                .scan(bounds, |key, value| visit(key, Some(value))),
            (true, true) => space
                .tree
                .scan_reverse(bounds, |key, value| visit(key, Some(value))),
        };
        scanned.map_err(|error| code::of(&error))?;
        if is_full && found.entries == 0 {
            let reason = "the next entry does not fit into the buffer";
            return Err(code::because(KVS_ERR_BUFFER_SMALL, reason));
        }
        if let Some(at) = last {
            self.last = Some(writer.buffer[at].to_vec());
        }
        self.has_ended = !is_full;
        found.has_ended = self.has_ended;
        found.bytes = writer.used as u32;
        Ok(found)
    }
}

/// Entries in a buffer, without padding.
struct Writer<'b> {
    buffer: &'b mut [u8],
    used: usize,
}

impl Writer<'_> {
    /// Adds an entry, or nothing if it does not fit.
    fn add(&mut self, key: &[u8], value: Option<&[u8]>) -> bool {
        let needed = 4 + key.len() + value.map_or(0, |value| 4 + value.len());
        if self.buffer.len() - self.used < needed {
            return false;
        }
        for part in std::iter::once(key).chain(value) {
            self.put(&(part.len() as u32).to_le_bytes());
            self.put(part);
        }
        true
    }

    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.used..][..bytes.len()].copy_from_slice(bytes);
        self.used += bytes.len();
    }
}
