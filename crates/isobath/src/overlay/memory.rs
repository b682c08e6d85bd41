//! The overlay in memory: the newest put or tombstone of each key.

use std::ops::Bound;

use crate::error::StorageError as Error;
use crate::node::{Block, Leaves, Record};
use crate::page::Lsn;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::types::{ValueKind, ValueRef};

/// Bytes of a record beside its key and its value, about.
const OVERHEAD: u64 = 72;

/// What a change leaves of its key: a value, or nothing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Put(pub(crate) Option<(ValueKind, Box<[u8]>)>);

impl Put {
    pub(crate) fn of(value: Option<ValueRef<'_>>) -> Put {
        Put(value.map(|value| (value.kind, value.bytes.into())))
    }

    /// What a record of an overlay says.
    pub(crate) fn stored(value: ValueRef<'_>) -> Put {
        Put::of((!value.is_tombstone()).then_some(value))
    }

    /// The value, if it is one.
    pub(crate) fn value(&self) -> Option<ValueRef<'_>> {
        self.0
            .as_ref()
            .map(|(kind, bytes)| ValueRef { kind: *kind, bytes })
    }
}

/// An ordered map of the newest records.
pub(crate) struct Memory {
    records: Mutex<Leaves>,
    /// Bytes that it takes.
    bytes: AtomicU64,
    /// Bytes of its records.
    record_bytes: AtomicU64,
    /// The LSN of the oldest record.
    first: AtomicU64,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory {
            records: Mutex::default(),
            bytes: AtomicU64::new(0),
            record_bytes: AtomicU64::new(0),
            first: AtomicU64::new(u64::MAX),
        }
    }
}

impl Memory {
    /// Bytes that it takes: whole blocks.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes of all that was put into it, which blocks share.
    pub(crate) fn record_bytes(&self) -> u64 {
        self.record_bytes.load(Ordering::Relaxed)
    }

    /// The LSN of the oldest commit with a record in it; `u64::MAX` without one.
    pub(crate) fn first(&self) -> u64 {
        self.first.load(Ordering::SeqCst)
    }

    pub(crate) fn count(&self) -> u64 {
        self.records.lock().records()
    }

    /// Gives `key` this value, or a tombstone, as the record at `lsn` says, in blocks of `lend`.
    /// The caller has the key's lock, and is in its slot.
    ///
    /// # Errors
    ///
    /// Memory has changed by itself.
    pub(crate) fn put(
        &self,
        key: &[u8],
        value: Option<ValueRef<'_>>,
        lsn: Option<Lsn>,
        lend: impl FnMut() -> Block,
    ) -> Result<(), Error> {
        if let Some(lsn) = lsn {
            self.first.fetch_min(lsn.0, Ordering::SeqCst);
        }
        let value = value.unwrap_or(ValueRef::TOMBSTONE);
        let mut records = self.records.lock();
        let before = records.records();
        records.put(key, value, lend)?;
        self.bytes.store(records.bytes(), Ordering::Relaxed);
        if records.records() > before {
            let bytes = OVERHEAD + (key.len() + value.bytes.len()) as u64;
            self.record_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Whether it has a value of `key`, or a tombstone.
    ///
    /// # Errors
    ///
    /// Memory has changed by itself.
    pub(crate) fn has(&self, key: &[u8]) -> Result<bool, Error> {
        self.records.lock().has(key)
    }

    /// Replaces `into` by the newest value of `key`; `Some(None)` if it was removed.
    ///
    /// # Errors
    ///
    /// Memory has changed by itself.
    pub(crate) fn read(
        &self,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Option<Option<ValueKind>>, Error> {
        into.clear();
        let kind = self.records.lock().read(key, into)?;
        let value = |kind| ValueRef { kind, bytes: into };
        Ok(kind.map(|kind| (!value(kind).is_tombstone()).then_some(kind)))
    }

    /// Up to `most` records within `bounds`, from their start or from their end on.
    ///
    /// # Errors
    ///
    /// Memory has changed by itself.
    pub(crate) fn within(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        is_forward: bool,
        most: usize,
    ) -> Result<Vec<Record>, Error> {
        self.records.lock().within(bounds, is_forward, most)
    }
}
