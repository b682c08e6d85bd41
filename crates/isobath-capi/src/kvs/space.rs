//! A key space: one tree of the device's store.

use std::cell::Cell;
use std::io::Read;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use isobath::{Error, Tree, WriteBatch};

use super::code::{self, Code};
use super::device::Device;
use super::filter::Filter;
use super::types::kvs_result::*;

/// Keys that one commit of a group's deletion removes.
const DELETED_AT_ONCE: usize = 256;
/// Bytes of memory that a thread keeps for the next value it reads.
const KEPT_BYTES: usize = 64 << 10;

thread_local! {
    /// Memory for values. Taken while it is used: tasks of one worker take turns in the middle of a
    /// read.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const DELETED: u8 = 2;

/// How a value is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    Post,
    UpdateOnly,
    NoOverwrite,
    Append,
}

/// The retrieved part of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Retrieved {
    /// Bytes that were copied.
    pub(crate) copied: u32,
    /// Bytes of the whole value.
    pub(crate) whole: u32,
    /// The rest did not fit into the buffer.
    pub(crate) is_short: bool,
}

/// An open key space.
pub(crate) struct Space {
    pub(crate) device: Arc<Device>,
    /// The program's handle of it.
    pub(crate) handle: usize,
    /// The number of its tree, by whatever handle it is open.
    id: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) tree: Tree,
    /// Most bytes of keys and values; 0 without a limit.
    pub(crate) capacity: u64,
    pub(crate) is_descending: bool,
    /// Bytes of keys and values, counted if there is a limit.
    used: AtomicU64,
    state: AtomicU8,
}

impl Space {
    pub(crate) fn new(
        device: Arc<Device>,
        (handle, id): (usize, u64),
        name: Vec<u8>,
        tree: Tree,
        (capacity, is_descending): (u64, bool),
    ) -> Result<Space, Code> {
        let space = Space {
            device,
            handle,
            id,
            name,
            tree,
            capacity,
            is_descending,
            used: AtomicU64::new(0),
            state: AtomicU8::new(OPEN),
        };
        if capacity > 0 {
            space.used.store(space.count_bytes()?, Ordering::Relaxed);
        }
        Ok(space)
    }

    /// The code of calls on a handle that is not open any more.
    pub(crate) fn check_open(&self) -> Result<(), Code> {
        match self.state.load(Ordering::Acquire) {
            OPEN if self.device.is_open() => Ok(()),
            OPEN => Err(self.device.not_open(KVS_ERR_DEV_NOT_OPENED)),
            CLOSED => Err(KVS_ERR_KS_NOT_OPEN),
            _ => Err(KVS_ERR_KS_NOT_EXIST),
        }
    }

    pub(crate) fn set_closed(&self) {
        // A deleted one stays deleted.
        let _ = self
            .state
            .compare_exchange(OPEN, CLOSED, Ordering::AcqRel, Ordering::Relaxed);
    }

    pub(crate) fn set_deleted(&self) {
        self.state.store(DELETED, Ordering::Release);
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Bytes of all keys and values.
    pub(crate) fn count_bytes(&self) -> Result<u64, Code> {
        let stats = self.tree.stats().map_err(|error| code::of(&error))?;
        if stats.is_exact {
            return Ok(stats.key_bytes + stats.value_bytes);
        }
        let mut bytes = 0;
        let counted = self.tree.visit_keys(.., false, |key, value| {
            bytes += key.len() as u64 + value;
            true
        });
        counted.map_err(|error| code::of(&error))?;
        Ok(bytes)
    }

    /// Bytes of a key's value, of which a large one is not read.
    pub(crate) fn value_length(&self, key: &[u8]) -> Result<Option<u64>, Code> {
        let reader = self.tree.reader(key).map_err(|error| code::of(&error))?;
        Ok(reader.map(|reader| reader.len()))
    }

    /// Stores a value.
    pub(crate) fn store(&self, key: &[u8], value: &[u8], how: Store) -> Result<(), Code> {
        let _change = self.device.cache.change(self.id, key);
        if self.capacity > 0 || matches!(how, Store::UpdateOnly | Store::Append) {
            return self.store_by_old(key, value, how);
        }
        if how == Store::Post {
            return self
                .tree
                .insert(key, value)
                .map_err(|error| code::of(&error));
        }
        match self.tree.compare_and_swap(key, None, Some(value)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(KVS_ERR_VALUE_UPDATE_NOT_ALLOWED),
            Err(error) => Err(code::of(&error)),
        }
    }

    /// Stores a value where what the key has decides: the engine repeats the decision where another
    /// change came between, so that no change is lost.
    fn store_by_old(&self, key: &[u8], value: &[u8], how: Store) -> Result<(), Code> {
        let mut refused = None;
        let mut reserved = 0;
        let stored = self.tree.update(key, |old| {
            self.release(std::mem::take(&mut reserved));
            refused = None;
            let new = match (how, old) {
                (Store::UpdateOnly, None) => Err(KVS_ERR_KEY_NOT_EXIST),
                (Store::NoOverwrite, Some(_)) => Err(KVS_ERR_VALUE_UPDATE_NOT_ALLOWED),
                (Store::Append, Some(old)) => Ok([old, value].concat()),
                _ => Ok(value.to_vec()),
            };
            let new = new.and_then(|new| {
                if new.len() > self.device.max_value() as usize {
                    return Err(KVS_ERR_VALUE_LENGTH_INVALID);
                }
                let before = old.map_or(0, |old| key.len() + old.len());
                let delta = (key.len() + new.len()) as i64 - before as i64;
                self.reserve(delta)?;
                reserved = delta;
                Ok(new)
            });
            match new {
                Ok(new) => Some(new),
                Err(code) => {
                    refused = Some(code);
                    old.map(<[u8]>::to_vec)
                }
            }
        });
        if let Err(error) = stored {
            self.release(reserved);
            return Err(code::of(&error));
        }
        refused.map_or(Ok(()), Err)
    }

    /// Takes `delta` more bytes, if the key space may have them.
    fn reserve(&self, delta: i64) -> Result<(), Code> {
        if self.capacity == 0 {
            return Ok(());
        }
        let more = |used: u64| {
            let used = used.saturating_add_signed(delta);
            (delta <= 0 || used <= self.capacity).then_some(used)
        };
        let reserved = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        reserved
            .map(|_| ())
            .map_err(|_| code::because(KVS_ERR_KS_CAPACITY, "the key space is full"))
    }

    fn release(&self, delta: i64) {
        if self.capacity > 0 && delta != 0 {
            let back = |used: u64| Some(used.saturating_add_signed(-delta));
            let _ = self
                .used
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, back);
        }
    }

    /// A value that is kept in memory; `None` also if values are not kept.
    pub(crate) fn cached(&self, key: &[u8]) -> Option<Arc<[u8]>> {
        let cache = &self.device.cache;
        cache.is_on().then(|| cache.get(self.id, key).ok())?
    }

    /// Reads a whole value into `value`; whether there is one.
    pub(crate) fn read(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let cache = &self.device.cache;
        if !cache.is_on() {
            return self.tree.get_into(key, value);
        }
        let missed = match cache.get(self.id, key) {
            Ok(found) => {
                value.clear();
                value.extend_from_slice(&found);
                return Ok(true);
            }
            Err(missed) => missed,
        };
        let is_there = self.tree.get_into(key, value)?;
        if is_there {
            cache.add(self.id, key, missed, value);
        }
        Ok(is_there)
    }

    /// Copies a value from `offset` on, as much as fits into `into`; `None` without a value.
    pub(crate) fn retrieve(
        &self,
        key: &[u8],
        offset: u32,
        into: &mut [u8],
        deletes: bool,
    ) -> Result<Retrieved, Code> {
        if deletes {
            return self.retrieve_and_delete(key, offset, into);
        }
        if let Some(value) = self.cached(key) {
            return copy(&value, offset, into);
        }
        // For a part, a long value need not be read as a whole.
        if (offset > 0 || into.is_empty())
            && let Some(found) = self.retrieve_part(key, offset, into)?
        {
            return Ok(found);
        }
        let mut value = BUFFER.try_with(Cell::take).unwrap_or_default();
        let copied = match self.read(key, &mut value) {
            Ok(true) => copy(&value, offset, into),
            Ok(false) => Err(KVS_ERR_KEY_NOT_EXIST),
            Err(error) => Err(code::of(&error)),
        };
        if value.capacity() <= KEPT_BYTES {
            // The thread ends: its entries are gone.
            let _ = BUFFER.try_with(|buffer| buffer.set(value));
        }
        copied
    }

    /// As [`Space::retrieve`], reading no more than is requested. `None` if the value was
    /// replaced in between.
    fn retrieve_part(
        &self,
        key: &[u8],
        offset: u32,
        into: &mut [u8],
    ) -> Result<Option<Retrieved>, Code> {
        let reader = self.tree.reader(key).map_err(|error| code::of(&error))?;
        let mut reader = reader.ok_or(KVS_ERR_KEY_NOT_EXIST)?;
        let whole = reader.len();
        let skipped = u64::from(offset);
        let copied = rest_bytes(whole, offset)?.min(into.len() as u64);
        let read = std::io::copy(&mut reader.by_ref().take(skipped), &mut std::io::sink())
            .and_then(|_| reader.read_exact(&mut into[..copied as usize]));
        Ok(read.ok().map(|()| Retrieved {
            copied: copied as u32,
            whole: whole as u32,
            is_short: skipped + copied < whole,
        }))
    }

    /// As [`Space::retrieve`], and deletes the pair in the same step, unless the buffer was too
    /// short for all that was asked for.
    fn retrieve_and_delete(
        &self,
        key: &[u8],
        offset: u32,
        into: &mut [u8],
    ) -> Result<Retrieved, Code> {
        let _change = self.device.cache.change(self.id, key);
        let mut found = Err(KVS_ERR_KEY_NOT_EXIST);
        let mut freed = 0;
        let deleted = self.tree.update(key, |old| {
            // Called again if another thread was first: its last result counts.
            found = Err(KVS_ERR_KEY_NOT_EXIST);
            let old = old?;
            found = copy(old, offset, into);
            freed = (key.len() + old.len()) as i64;
            match found {
                Ok(found) if !found.is_short => None,
                _ => Some(old.to_vec()),
            }
        });
        match deleted {
            Ok(None) if found.is_ok() => self.release(freed),
            Ok(_) => {}
            Err(error) => return Err(code::of(&error)),
        }
        found
    }

    /// Deletes a pair; whether there was one.
    pub(crate) fn delete(&self, key: &[u8]) -> Result<bool, Code> {
        let _change = self.device.cache.change(self.id, key);
        if self.capacity == 0 {
            return self.tree.remove(key).map_err(|error| code::of(&error));
        }
        let mut freed = 0;
        let deleted = self.tree.update(key, |old| {
            freed = old.map_or(0, |old| key.len() + old.len()) as i64;
            None
        });
        deleted.map_err(|error| code::of(&error))?;
        self.release(freed);
        Ok(freed > 0)
    }

    /// Deletes the pairs of a group, some hundred in a commit.
    pub(crate) fn delete_group(&self, filter: &Filter) -> Result<(), Code> {
        let _change = self.device.cache.change_many(self.id);
        let (lower, upper) = filter.range();
        if filter.is_range() && self.capacity == 0 {
            let removed = self.tree.remove_range((lower, upper));
            return removed.map(|_| ()).map_err(|error| code::of(&error));
        }
        let mut lower = lower;
        // Bound: each round begins behind the keys of the one before.
        loop {
            let mut keys: Vec<Vec<u8>> = Vec::new();
            self.tree
                .visit_keys((lower.clone(), upper.clone()), false, |key, _| {
                    if filter.matches(key) {
                        keys.push(key.to_vec());
                    }
                    keys.len() < DELETED_AT_ONCE
                })
                .map_err(|error| code::of(&error))?;
            let Some(last) = keys.last().cloned() else {
                return Ok(());
            };
            if self.capacity > 0 {
                for key in &keys {
                    self.delete(key)?;
                }
            } else {
                let mut batch = WriteBatch::new();
                for key in &keys {
                    batch.remove(&self.tree, key);
                }
                let written = self.device.store().write(&batch);
                written.map_err(|error| code::of(&error))?;
            }
            lower = Bound::Excluded(last);
        }
    }
}

/// Bytes from `offset` to the end of a value of `whole` bytes. An offset names a byte of the value,
/// or is 0: a value without bytes can be retrieved, the end of another one is out of range.
fn rest_bytes(whole: u64, offset: u32) -> Result<u64, Code> {
    match u64::from(offset) {
        0 => Ok(whole),
        offset if offset < whole => Ok(whole - offset),
        _ => Err(KVS_ERR_VALUE_OFFSET_INVALID),
    }
}

/// Copies what of `value` lies behind `offset`, as far as it fits.
fn copy(value: &[u8], offset: u32, into: &mut [u8]) -> Result<Retrieved, Code> {
    rest_bytes(value.len() as u64, offset)?;
    let rest = &value[offset as usize..];
    let copied = rest.len().min(into.len());
    into[..copied].copy_from_slice(&rest[..copied]);
    Ok(Retrieved {
        copied: copied as u32,
        whole: value.len() as u32,
        is_short: copied < rest.len(),
    })
}
