//! The records of a test store: all keys that can occur, and values that say
//! which write they come from.

use std::collections::BTreeMap;

use crate::history::{Key, Version};
use crate::random::Random;

/// Bytes of the shortest value: its version and its length.
pub(crate) const MIN_VALUE: usize = 12;

/// A value of at least [`MIN_VALUE`] bytes, every one of which follows from
/// the version and the length.
pub(crate) fn value(version: Version, length: usize) -> Vec<u8> {
    let length = length.max(MIN_VALUE);
    let mut bytes = Vec::with_capacity(length + 8);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&(length as u32).to_le_bytes());
    let mut word = version ^ (length as u64) << 40;
    while bytes.len() < length {
        word = word
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .wrapping_add(0x5851_f42d);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// The version of a value, if it is whole.
pub(crate) fn version_of(bytes: &[u8]) -> Option<Version> {
    let (version, _) = bytes.split_first_chunk::<8>()?;
    let version = Version::from_le_bytes(*version);
    (value(version, bytes.len()) == bytes).then_some(version)
}

/// All records that can exist, in several trees.
#[derive(Debug, Default)]
pub(crate) struct Universe {
    pub(crate) trees: Vec<TreeKeys>,
    records: Vec<(usize, Vec<u8>)>,
}

/// The records of one tree.
#[derive(Debug)]
pub(crate) struct TreeKeys {
    pub(crate) name: String,
    /// Stands for the tree itself: present while it exists.
    pub(crate) existence: Key,
    pub(crate) keys: BTreeMap<Vec<u8>, Key>,
}

impl Universe {
    /// Adds a tree; its index.
    pub(crate) fn add_tree(&mut self, name: &str) -> usize {
        let existence = self.add_record(self.trees.len(), Vec::new());
        self.trees.push(TreeKeys {
            name: name.to_owned(),
            existence,
            keys: BTreeMap::new(),
        });
        self.trees.len() - 1
    }

    /// Adds a record to a tree.
    pub(crate) fn add_key(&mut self, tree: usize, bytes: Vec<u8>) -> Key {
        let key = self.add_record(tree, bytes.clone());
        self.trees[tree].keys.insert(bytes, key);
        key
    }

    fn add_record(&mut self, tree: usize, bytes: Vec<u8>) -> Key {
        self.records.push((tree, bytes));
        // Some thousand records at most.
        Key(self.records.len() as u32 - 1)
    }

    /// The tree's index and the key's bytes.
    pub(crate) fn record(&self, key: Key) -> (usize, &[u8]) {
        let (tree, bytes) = &self.records[key.0 as usize];
        (*tree, bytes)
    }

    /// A record's key as a message names it.
    pub(crate) fn describe(&self, key: Key) -> String {
        let (tree, bytes) = self.record(key);
        let name = &self.trees[tree].name;
        if key == self.trees[tree].existence {
            format!("tree {name}")
        } else {
            let shown = bytes.len().min(8);
            let text = String::from_utf8_lossy(&bytes[..shown]);
            format!("{name}/{text:?} of {} bytes", bytes.len())
        }
    }

    /// Names records as the store does.
    pub(crate) fn translate(&self, story: &str) -> String {
        let mut out = String::new();
        let mut rest = story;
        while let Some(at) = rest.find("record ") {
            let (before, after) = rest.split_at(at + "record ".len());
            out.push_str(before);
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            match after[..digits].parse::<u32>() {
                Ok(number) => out.push_str(&self.describe(Key(number))),
                Err(_) => out.push_str(&after[..digits]),
            }
            rest = &after[digits..];
        }
        out + rest
    }
}

/// A key of the group `kind`, of an owner and with a number, of some length.
pub(crate) fn key_bytes(kind: u8, owner: u64, number: u64, random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![kind];
    // Short keys that sort by owner, then by number.
    bytes.extend_from_slice(format!("{owner:02}{number:03}").as_bytes());
    let padding = random.one_of(&[0, 0, 2, 9, 90, 500]);
    bytes.resize(bytes.len() + padding, b'-');
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_version_and_nothing_else_does() {
        for length in [0, 12, 13, 100, 5000] {
            let mut bytes = value(77, length);
            assert_eq!(version_of(&bytes), Some(77));
            for at in (0..bytes.len()).step_by(7) {
                bytes[at] ^= 1;
                // The shortest values are nothing but their version and length.
                assert_ne!(version_of(&bytes), Some(77), "byte {at}");
                bytes[at] ^= 1;
            }
            bytes.push(0);
            assert_eq!(version_of(&bytes), None);
        }
        assert_eq!(version_of(b""), None);
    }
}
