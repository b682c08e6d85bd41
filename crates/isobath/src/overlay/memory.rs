//! The overlay in memory: the newest put or tombstone of each key.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::page::Lsn;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::{ValueKind, ValueRef};

/// Bytes that a record takes beside its key and its value, about.
const OVERHEAD: u64 = 72;

/// What a change leaves of its key: a value, or nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Put(pub(crate) Option<(ValueKind, Box<[u8]>)>);

impl Put {
    pub(crate) fn of(value: Option<ValueRef<'_>>) -> Put {
        Put(value.map(|value| (value.kind, value.bytes.into())))
    }

    /// The value, if it is one.
    pub(crate) fn value(&self) -> Option<ValueRef<'_>> {
        self.0
            .as_ref()
            .map(|(kind, bytes)| ValueRef { kind: *kind, bytes })
    }

    fn bytes(&self) -> u64 {
        self.0.as_ref().map_or(0, |(_, bytes)| bytes.len() as u64)
    }
}

/// An ordered map of the newest records.
pub(crate) struct Memory {
    records: Mutex<BTreeMap<Box<[u8]>, Put>>,
    bytes: AtomicU64,
    /// The LSN of the oldest record.
    first: AtomicU64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            records: Mutex::default(),
            bytes: AtomicU64::new(0),
            first: AtomicU64::new(u64::MAX),
        }
    }
}

impl Memory {
    /// Bytes that it takes, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The LSN of the oldest commit with a record in it; `u64::MAX` without one.
    pub(crate) fn first(&self) -> u64 {
        self.first.load(Ordering::SeqCst)
    }

    pub(crate) fn count(&self) -> u64 {
        self.records.lock().len() as u64
    }

    /// Gives `key` this value or tombstone, as the record at `lsn` says. The caller has the key's
    /// lock, and is in its slot.
    pub(crate) fn put(&self, key: &[u8], put: Put, lsn: Option<Lsn>) {
        if let Some(lsn) = lsn {
            self.first.fetch_min(lsn.0, Ordering::SeqCst);
        }
        let new = put.bytes();
        let mut records = self.records.lock();
        match records.get_mut(key) {
            Some(old) => {
                let before = std::mem::replace(old, put).bytes();
                drop(records);
                if new >= before {
                    self.bytes.fetch_add(new - before, Ordering::Relaxed);
                } else {
                    self.bytes.fetch_sub(before - new, Ordering::Relaxed);
                }
            }
            None => {
                records.insert(key.into(), put);
                drop(records);
                let bytes = OVERHEAD + key.len() as u64 + new;
                self.bytes.fetch_add(bytes, Ordering::Relaxed);
            }
        }
    }

    /// Lets `read` look at what it has of `key`.
    pub(crate) fn read<R>(&self, key: &[u8], read: impl FnOnce(&Put) -> R) -> Option<R> {
        self.records.lock().get(key).map(read)
    }

    /// Up to `most` records within `bounds`, from their start or from their end on.
    pub(crate) fn within(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        is_forward: bool,
        most: usize,
    ) -> Vec<(Vec<u8>, Put)> {
        if is_empty(bounds) {
            return Vec::new();
        }
        let records = self.records.lock();
        let range = records.range::<[u8], _>(bounds);
        let range = range.map(|(key, put)| (key.to_vec(), put.clone()));
        match is_forward {
            true => range.take(most).collect(),
            false => range.rev().take(most).collect(),
        }
    }
}

/// Whether no key lies within the bounds; a map refuses some of those.
fn is_empty(bounds: (Bound<&[u8]>, Bound<&[u8]>)) -> bool {
    match bounds {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(lower), Bound::Included(upper)) => lower > upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
        | (Bound::Excluded(lower), Bound::Included(upper)) => lower >= upper,
    }
}
