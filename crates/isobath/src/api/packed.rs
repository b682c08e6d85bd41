//! Records one behind the other in one piece of memory, on their way between a caller and a task.

use crate::btree::{ValueKind, ValueRef};

/// Packed records: what the key and the value of each are, then the bytes.
#[derive(Default)]
pub(crate) struct Packed {
    parts: Vec<(u32, u32, ValueKind)>,
    bytes: Vec<u8>,
}

impl Packed {
    pub(crate) fn push(&mut self, key: &[u8], value: ValueRef<'_>) {
        let lengths = (key.len() as u32, value.bytes.len() as u32);
        self.parts.push((lengths.0, lengths.1, value.kind));
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.bytes);
    }

    /// Bytes of all keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Records.
    pub(crate) fn count(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn records(&self) -> impl Iterator<Item = (&[u8], ValueRef<'_>)> {
        let mut rest = &self.bytes[..];
        self.parts.iter().map(move |&(key, value, kind)| {
            let (record, later) = rest.split_at((key + value) as usize);
            rest = later;
            let (key, bytes) = record.split_at(key as usize);
            (key, ValueRef { kind, bytes })
        })
    }

    pub(crate) fn clear(&mut self) {
        self.parts.clear();
        self.bytes.clear();
    }
}
