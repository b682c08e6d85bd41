//! Values that were read: a bounded part of memory above the engine, whose pool keeps no chunks of
//! large values.
//!
//! Of a value there are two states, that it is here (and the same as the store's: *shared*, in
//! MOESI's words) or that it is not (*invalid*). None is ever *modified*, *owned* or *exclusive*
//! here, because a thread that changes a value changes the store: before that the value is taken
//! out, and none comes in until it has ended. What a reader brings is kept only if no change has
//! begun since it began to read, which the key's version says.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use parking_lot::Mutex;

/// Parts with a lock each; a key belongs to one of them.
const SHARDS: usize = 16;
/// Versions of a part, which keys share by their hashes.
const VERSIONS: usize = 64;
/// Bytes that an entry takes at most beyond its value and its key, which it has twice: places in
/// the map and in the queue, where tables that have just doubled are half empty, and what an
/// allocator adds to each of three allocations.
const ENTRY_BYTES: usize = 320;
/// Values that the engine keeps in its pool need no second place.
const LEAST_BYTES: usize = 1024;

/// Which value: the number of its key space's tree, and the key.
type Name = (u64, Box<[u8]>);

/// Bytes that are counted for a value of `value` bytes and its key.
fn entry_bytes(key: &[u8], value: &[u8]) -> usize {
    value.len() + 2 * key.len() + ENTRY_BYTES
}

/// Values, or none at all if it has no memory.
pub(crate) struct Cache {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// Bytes that a part may have.
    share: usize,
}

#[derive(Default)]
struct Shard {
    values: HashMap<Name, Entry>,
    /// In the order in which they came.
    order: VecDeque<Name>,
    bytes: usize,
    versions: Box<[Version]>,
    /// Of changes of many keys.
    all: Version,
}

struct Entry {
    value: Arc<[u8]>,
    /// It was read since it came, or since it was last spared.
    was_used: bool,
}

#[derive(Clone, Copy, Default)]
struct Version {
    number: u64,
    /// Changes that have begun and not ended.
    changes: u32,
}

impl Version {
    fn begin(&mut self) {
        self.number += 1;
        self.changes += 1;
    }
}

/// A reader's result without a value: whether it may bring one.
#[derive(Clone, Copy)]
pub(crate) struct Missed {
    hash: u64,
    numbers: Option<(u64, u64)>,
}

/// A change of one key, or of all, that goes on: until it is dropped.
pub(crate) struct Change<'c> {
    cache: &'c Cache,
    /// `None`: all keys.
    hash: Option<u64>,
}

impl Cache {
    /// A cache of this many bytes.
    pub(crate) fn new(bytes: u64) -> Cache {
        let shards = match bytes {
            0 => 0,
            _ => SHARDS,
        };
        let shard = || Shard {
            versions: vec![Version::default(); VERSIONS].into(),
            ..Shard::default()
        };
        Cache {
            shards: (0..shards).map(|_| Mutex::new(shard())).collect(),
            hasher: RandomState::new(),
            share: usize::try_from(bytes).unwrap_or(usize::MAX) / SHARDS,
        }
    }

    /// Whether there is one.
    pub(crate) fn is_on(&self) -> bool {
        !self.shards.is_empty()
    }

    /// Bytes that it may take and has not taken.
    pub(crate) fn unused_bytes(&self) -> u64 {
        let free = |shard: &Mutex<Shard>| self.share.saturating_sub(shard.lock().bytes) as u64;
        self.shards.iter().map(free).sum()
    }

    fn hash(&self, space: u64, key: &[u8]) -> u64 {
        self.hasher.hash_one((space, key))
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        &self.shards[hash as usize % SHARDS]
    }

    /// The value, or what to give to [`Cache::add`]. Only if it is on.
    pub(crate) fn get(&self, space: u64, key: &[u8]) -> Result<Arc<[u8]>, Missed> {
        let hash = self.hash(space, key);
        let mut shard = self.shard(hash).lock();
        // The map's key owns its bytes: one is made for each question.
        if let Some(entry) = shard.values.get_mut(&(space, Box::from(key))) {
            entry.was_used = true;
            return Ok(Arc::clone(&entry.value));
        }
        let (one, all) = (*shard.version(hash), shard.all);
        let is_calm = one.changes == 0 && all.changes == 0;
        Err(Missed {
            hash,
            numbers: is_calm.then_some((one.number, all.number)),
        })
    }

    /// Keeps a value that was read from the store after it was missed, unless a change has begun
    /// since.
    pub(crate) fn add(&self, space: u64, key: &[u8], missed: Missed, value: &[u8]) {
        let bytes = entry_bytes(key, value);
        let Some(numbers) = missed.numbers else {
            return;
        };
        if value.len() <= LEAST_BYTES || bytes > self.share {
            return;
        }
        let value: Arc<[u8]> = value.into();
        let mut gone = Vec::new();
        let mut shard = self.shard(missed.hash).lock();
        let now = (shard.version(missed.hash).number, shard.all.number);
        let name: Name = (space, key.into());
        if now != numbers || shard.values.contains_key(&name) {
            return;
        }
        shard.make_room(self.share - bytes, &mut gone);
        shard.bytes += bytes;
        shard.order.push_back(name.clone());
        let was_used = false;
        shard.values.insert(name, Entry { value, was_used });
        // Their memory is freed without the lock.
        drop(shard);
    }

    /// A change of a key begins.
    pub(crate) fn change(&self, space: u64, key: &[u8]) -> Option<Change<'_>> {
        if !self.is_on() {
            return None;
        }
        let hash = self.hash(space, key);
        let mut shard = self.shard(hash).lock();
        shard.version(hash).begin();
        shard.remove(&(space, key.into()));
        Some(Change {
            cache: self,
            hash: Some(hash),
        })
    }

    /// A change of any number of keys of a key space begins.
    pub(crate) fn change_many(&self, space: u64) -> Option<Change<'_>> {
        if !self.is_on() {
            return None;
        }
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.all.begin();
            let Shard { values, bytes, .. } = &mut *shard;
            values.retain(|name, entry| {
                let stays = name.0 != space;
                if !stays {
                    *bytes -= entry_bytes(&name.1, &entry.value);
                }
                stays
            });
        }
        Some(Change {
            cache: self,
            hash: None,
        })
    }
}

impl Shard {
    fn version(&mut self, hash: u64) -> &mut Version {
        &mut self.versions[(hash as usize / SHARDS) % VERSIONS]
    }

    fn remove(&mut self, name: &Name) -> Option<Arc<[u8]>> {
        let entry = self.values.remove(name)?;
        self.bytes -= entry_bytes(&name.1, &entry.value);
        Some(entry.value)
    }

    /// Lets values go until at most `bytes` are left: the oldest first, but those that were used
    /// since they came once more.
    fn make_room(&mut self, bytes: usize, gone: &mut Vec<Arc<[u8]>>) {
        // Names whose values were taken out by changes.
        if self.order.len() > 2 * self.values.len() + SHARDS {
            let Shard { values, order, .. } = self;
            let mut seen = std::collections::HashSet::new();
            order.retain(|name| values.contains_key(name) && seen.insert(name.clone()));
        }
        // Bound: each round takes a value out, or marks one that is spared once, or drops a name.
        while self.bytes > bytes
            && let Some(name) = self.order.pop_front()
        {
            match self.values.get_mut(&name) {
                None => {}
                Some(entry) if entry.was_used => {
                    entry.was_used = false;
                    self.order.push_back(name);
                }
                Some(_) => gone.extend(self.remove(&name)),
            }
        }
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        match self.hash {
            Some(hash) => self.cache.shard(hash).lock().version(hash).changes -= 1,
            None => {
                for shard in &self.cache.shards {
                    shard.lock().all.changes -= 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VALUE: [u8; 4096] = [7; 4096];

    fn missed(cache: &Cache, key: &[u8]) -> Missed {
        cache.get(1, key).err().unwrap()
    }

    #[test]
    fn what_was_read_is_kept_until_it_changes() {
        let cache = Cache::new(1 << 20);
        let before = missed(&cache, b"key1");
        cache.add(1, b"key1", before, &VALUE);
        assert_eq!(&*cache.get(1, b"key1").ok().unwrap(), VALUE);
        assert!(cache.get(2, b"key1").is_err());
        drop(cache.change(1, b"key1"));
        assert!(cache.get(1, b"key1").is_err());
    }

    /// A reader that had begun before a change must not bring what it has read, whether the change
    /// has ended or not.
    #[test]
    fn nothing_comes_in_that_was_read_before_a_change() {
        let cache = Cache::new(1 << 20);
        for many in [false, true] {
            drop(cache.change(1, b"key1"));
            let early = missed(&cache, b"key1");
            let change = match many {
                false => cache.change(1, b"key1"),
                true => cache.change_many(1),
            };
            let during = missed(&cache, b"key1");
            cache.add(1, b"key1", early, &VALUE);
            cache.add(1, b"key1", during, &VALUE);
            assert!(cache.get(1, b"key1").is_err());
            drop(change);
            cache.add(1, b"key1", early, &VALUE);
            cache.add(1, b"key1", during, &VALUE);
            assert!(cache.get(1, b"key1").is_err());
            let after = missed(&cache, b"key1");
            cache.add(1, b"key1", after, &VALUE);
            assert!(cache.get(1, b"key1").is_ok());
        }
    }

    /// Of two changes of a key at once the first to end does not let readers in.
    #[test]
    fn changes_of_one_key_overlap() {
        let cache = Cache::new(1 << 20);
        let (one, two) = (cache.change(1, b"key1"), cache.change(1, b"key1"));
        drop(one);
        let during = missed(&cache, b"key1");
        drop(two);
        cache.add(1, b"key1", during, &VALUE);
        assert!(cache.get(1, b"key1").is_err());
    }

    #[test]
    fn memory_is_bounded_and_what_is_used_stays_longer() {
        let limit = 1 << 20;
        let cache = Cache::new(limit);
        let key = |n: u32| n.to_le_bytes();
        let mut found = 0;
        for n in 0..4000u32 {
            let before = cache.get(1, &key(n)).err().unwrap();
            cache.add(1, &key(n), before, &VALUE);
            // One in sixteen is used again and again.
            for used in (0..n.min(64)).step_by(16) {
                found += u32::from(cache.get(1, &key(used)).is_ok());
            }
            let used = |shard: &Mutex<Shard>| shard.lock().bytes as u64;
            assert!(cache.shards.iter().map(used).sum::<u64>() <= limit);
        }
        let there = |n: &u32| cache.get(1, &key(*n)).is_ok();
        assert!((0..64).step_by(16).all(|n| there(&n)), "{found}");
        let others = (0..3000).filter(|n| n % 16 != 0).filter(there).count();
        assert_eq!(others, 0);
        // Changes take names out of the map, not out of the queue: that stays bounded.
        for n in 0..100_000u32 {
            let before = cache.get(1, &key(n % 7)).err();
            if let Some(before) = before {
                cache.add(1, &key(n % 7), before, &VALUE);
            }
            drop(cache.change(1, &key(n % 7)));
        }
        let longest = cache.shards.iter().map(|shard| shard.lock().order.len());
        assert!(longest.max().unwrap() < 1000);
    }

    /// What is counted is no less than what the entries take, as the C library's allocator rounds
    /// it: of long and of short keys, and right after the tables have doubled.
    #[test]
    fn what_is_counted_is_what_is_taken() {
        let allocation = |bytes: usize| (bytes + 8).next_multiple_of(16).max(32);
        for key_bytes in [4, 16, 200, 255] {
            let cache = Cache::new(64 << 20);
            for n in 0..60_000u32 {
                let mut key = vec![0; key_bytes];
                key[..4].copy_from_slice(&n.to_le_bytes());
                let before = missed(&cache, &key);
                cache.add(1, &key, before, &[1; LEAST_BYTES + 1]);
                let shard = cache.shards[n as usize % SHARDS].lock();
                let slots = shard.values.capacity() * 8 / 7 * (size_of::<(Name, Entry)>() + 1);
                let names = shard.order.capacity() * size_of::<Name>();
                // The value with its two counts, and the key in the map and in the queue.
                let each = allocation(LEAST_BYTES + 1 + 16) + allocation(key_bytes);
                let queued = shard.order.len() * allocation(key_bytes);
                let taken = slots + names + shard.values.len() * each + queued;
                // Of a few entries the tables' first sizes are the larger part.
                assert!(
                    taken <= shard.bytes || shard.values.len() < 8,
                    "{taken} of {} bytes, {} entries",
                    shard.bytes,
                    shard.values.len()
                );
            }
        }
    }

    #[test]
    fn small_and_huge_values_and_no_memory() {
        let cache = Cache::new(1 << 20);
        for length in [1024, 1 << 20] {
            let before = missed(&cache, b"key1");
            cache.add(1, b"key1", before, &vec![0; length]);
            assert!(cache.get(1, b"key1").is_err());
        }
        assert_eq!(cache.unused_bytes(), 1 << 20);
        let none = Cache::new(0);
        assert!(!none.is_on() && none.change(1, b"key1").is_none());
        assert_eq!(none.unused_bytes(), 0);
    }
}
