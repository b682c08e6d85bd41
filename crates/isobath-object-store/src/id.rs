//! Ids of contents: no two are equal, in any process.

use std::hash::{BuildHasher, RandomState};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use isobath::{EncodeKey, Error, Key};

/// Contents of an object, written once and never changed. Those of one process follow each other in
/// the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    /// A random number of the process that has made it.
    process: u64,
    number: u64,
}

impl Id {
    pub(crate) fn new() -> Id {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        Id {
            process: process(),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
        }
    }

    pub(crate) fn e_tag(self) -> String {
        format!("\"{self}\"")
    }

    /// The id of an upload's name.
    pub(crate) fn parse(text: &str) -> Option<Id> {
        let (process, number) = text.split_once('-')?;
        Some(Id {
            process: u64::from_str_radix(process, 16).ok()?,
            number: u64::from_str_radix(number, 16).ok()?,
        })
    }

    /// The prefix of the keys of its parts, and the key of its upload.
    pub(crate) fn key(self) -> Vec<u8> {
        let mut key = Vec::new();
        (self.process, self.number).encode_key(&mut key);
        key
    }

    pub(crate) fn of_key(mut key: &[u8]) -> Result<Id, Error> {
        let (process, number) = Key::decode_key(&mut key)?;
        Ok(Id { process, number })
    }

    pub(crate) fn part_key(self, part: u32) -> Vec<u8> {
        let mut key = self.key();
        part.encode_key(&mut key);
        key
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}-{:x}", self.process, self.number)
    }
}

/// A number that no other process has.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    // Hashers of the standard library begin with random keys.
    *PROCESS.get_or_init(|| RandomState::new().hash_one(std::process::id()))
}
