//! What keys had before the commits that some open snapshot must not see.
//!
//! A version is added, *pending*, before its commit has a record, and gets the
//! commit's LSN once that is applied. A snapshot that begins at `S` has of a key what
//! the first version at or above `S` says, pending ones included; if there is
//! none, what the leaf says. A reader reads the leaf first and asks here
//! afterwards, while writers do the opposite, so it finds what it needs in one of the two.
//!
//! Most versions are needed only until their commit is durable. They stay in a short list,
//! from which their commit takes them ([`Versions::release`]); those that a snapshot needs
//! longer, and those beyond the list's length, go to ordered chains.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use super::key_hash;
use crate::btree::{Descriptor, TreeId, ValueKind};
use crate::extent::Extent;
use crate::log::record::Token;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 32;
/// Bytes that a version takes beside key and value: its place in the maps and
/// queues, and what the allocator adds.
const OVERHEAD: usize = 160;
/// Set in the stamp of a version whose commit has no LSN yet; the rest is the
/// commit's number.
const PENDING: u64 = 1 << 63;
const NONE: u64 = u64::MAX;

/// Bounds of a range of keys, as the maps take them.
pub(crate) type Bounds<'k> = (Bound<&'k [u8]>, Bound<&'k [u8]>);

/// What a key had.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OldValue {
    /// Nothing.
    Absent,
    /// A value in the leaf.
    Inline(Box<[u8]>),
    /// A large value; it is freed when its version is collected.
    Extent(Descriptor),
}

impl OldValue {
    /// What a read of a leaf has found: `kind`, and in `bytes` the value or its descriptor.
    pub(crate) fn from_read(kind: Option<ValueKind>, bytes: &mut Vec<u8>) -> OldValue {
        match kind {
            None => OldValue::Absent,
            Some(ValueKind::Inline) => OldValue::Inline(std::mem::take(bytes).into_boxed_slice()),
            Some(ValueKind::Extent) => OldValue::Extent(Descriptor::new(bytes)),
        }
    }

    /// What a read of the leaf would have given: the kind, and the bytes or the descriptor in `into`.
    pub(crate) fn take(self, into: &mut Vec<u8>) -> Option<ValueKind> {
        into.clear();
        match self {
            OldValue::Absent => None,
            OldValue::Inline(bytes) => {
                into.extend_from_slice(&bytes);
                Some(ValueKind::Inline)
            }
            OldValue::Extent(descriptor) => {
                into.extend_from_slice(descriptor.bytes());
                Some(ValueKind::Extent)
            }
        }
    }

    fn bytes(&self) -> usize {
        match self {
            OldValue::Absent => 0,
            OldValue::Inline(bytes) => bytes.len(),
            OldValue::Extent(_) => size_of::<Descriptor>(),
        }
    }

    /// Bytes that it takes on the volume.
    fn volume_bytes(&self) -> u64 {
        match self {
            OldValue::Absent | OldValue::Inline(_) => 0,
            OldValue::Extent(descriptor) => {
                Extent::decode(descriptor.bytes()).map_or(0, |extent| extent.length)
            }
        }
    }
}

#[derive(Debug)]
struct Version {
    /// The LSN of the commit that replaced the value, or [`PENDING`] and its number.
    stamp: u64,
    old: OldValue,
    /// What the chunks of a large value belong to from the commit until they are freed.
    token: Token,
}

impl Version {
    /// The large value that it names, and what its chunks belong to.
    fn large(&self) -> Option<(Descriptor, Token)> {
        match &self.old {
            OldValue::Extent(descriptor) => Some((*descriptor, self.token)),
            OldValue::Absent | OldValue::Inline(_) => None,
        }
    }

    /// Whether it is of a commit other than `own`, at or after `at`.
    fn is_change(&self, at: u64, own: Option<CommitNumber>) -> bool {
        self.stamp >= at && own.is_none_or(|own| self.stamp != own.0)
    }
}

/// A version whose commit is in flight.
#[derive(Debug)]
struct Recent {
    /// The key's number, by which it is searched.
    number: u64,
    tree: TreeId,
    key: Vec<u8>,
    version: Version,
}

/// Most recent versions of a shard: a search looks at all of them.
const RECENT_MAX: usize = 32;
/// Most buffers of keys, and bytes of each, that a shard keeps for the next versions.
const SPARE_MAX: usize = 4;
const SPARE_KEY_BYTES: usize = 64;

/// Versions of one key, oldest first: their stamps ascend, as the key is locked from
/// [`Versions::add`] to [`Versions::stamp_commit_lsn`], and readers rely on it.
type Chain = Vec<Version>;
type Keys = BTreeMap<Arc<[u8]>, Chain>;

#[derive(Default)]
struct Inner {
    recent: Vec<Recent>,
    /// Empty buffers for keys of recent versions.
    spare: Vec<Vec<u8>>,
    trees: BTreeMap<TreeId, Keys>,
    /// Versions that have an LSN, about in its order.
    queue: VecDeque<(u64, TreeId, Arc<[u8]>)>,
}

/// A key of a tree, and its number.
#[derive(Clone, Copy)]
pub(crate) struct KeyRef<'k> {
    pub(crate) tree: TreeId,
    pub(crate) key: &'k [u8],
    pub(crate) number: u64,
}

impl<'k> KeyRef<'k> {
    pub(crate) fn new(tree: TreeId, key: &'k [u8]) -> KeyRef<'k> {
        KeyRef {
            tree,
            key,
            number: key_hash(tree, key),
        }
    }
}

impl Inner {
    /// The key's versions that are recent, in no order.
    fn recent<'i>(&'i self, of: KeyRef<'i>) -> impl Iterator<Item = &'i Version> {
        let is_its = move |recent: &&Recent| recent.is_of(of);
        self.recent
            .iter()
            .filter(is_its)
            .map(|recent| &recent.version)
    }

    fn recent_at(&self, of: KeyRef<'_>, stamp: u64) -> Option<usize> {
        self.recent
            .iter()
            .position(|recent| recent.version.stamp == stamp && recent.is_of(of))
    }

    fn add_recent(&mut self, of: KeyRef<'_>, version: Version) {
        let mut key = self.spare.pop().unwrap_or_default();
        key.extend_from_slice(of.key);
        self.recent.push(Recent {
            number: of.number,
            tree: of.tree,
            key,
            version,
        });
    }

    fn remove_recent(&mut self, at: usize) -> Version {
        let Recent {
            mut key, version, ..
        } = self.recent.swap_remove(at);
        if self.spare.len() < SPARE_MAX && key.capacity() <= SPARE_KEY_BYTES {
            key.clear();
            self.spare.push(key);
        }
        version
    }

    /// Adds to the ordered chains.
    fn chain(&mut self, tree: TreeId, key: &[u8], version: Version) {
        let keys = self.trees.entry(tree).or_default();
        match keys.get_mut(key) {
            Some(chain) => {
                // A later commit's version may have come first.
                let at = chain.partition_point(|other| other.stamp < version.stamp);
                chain.insert(at, version);
            }
            None => {
                keys.insert(key.into(), vec![version]);
            }
        }
    }

    /// Versions of `key` in the ordered chains.
    fn chained(&self, of: KeyRef<'_>) -> &[Version] {
        let chain = self.trees.get(&of.tree).and_then(|keys| keys.get(of.key));
        chain.map_or(&[], Vec::as_slice)
    }
}

impl Recent {
    #[inline]
    fn is_of(&self, of: KeyRef<'_>) -> bool {
        self.number == of.number && self.tree == of.tree && self.key == of.key
    }

    fn is_within(&self, tree: TreeId, bounds: Bounds<'_>) -> bool {
        self.tree == tree && RangeBounds::<[u8]>::contains(&bounds, &self.key[..])
    }
}

#[repr(align(128))]
struct Shard {
    /// LSN at the queue's front.
    front: AtomicU64,
    inner: Mutex<Inner>,
}

/// The version store of all trees.
pub(crate) struct Versions {
    shards: Box<[Shard]>,
    count: AtomicU64,
    bytes: AtomicU64,
    /// Bytes of large values that only versions name.
    volume_bytes: AtomicU64,
    limit: u64,
    commits: AtomicU64,
    next_shard: AtomicU64,
    /// Versions in the shards' queues.
    queued: AtomicU64,
}

/// The number of a commit, by which it knows its own pending versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct CommitNumber(u64);

impl Versions {
    /// A store that is full at `limit` bytes.
    pub(crate) fn new(limit: u64) -> Versions {
        Versions {
            shards: (0..SHARDS)
                .map(|_| Shard {
                    front: AtomicU64::new(NONE),
                    inner: Mutex::default(),
                })
                .collect(),
            count: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            volume_bytes: AtomicU64::new(0),
            limit,
            commits: AtomicU64::new(1),
            next_shard: AtomicU64::new(0),
            queued: AtomicU64::new(0),
        }
    }

    /// A number for a commit's pending versions.
    pub(crate) fn commit_number(&self) -> CommitNumber {
        CommitNumber(PENDING | self.commits.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether there is no version at all. A reader of a changed leaf sees
    /// the versions that were added before.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// Whether [`Versions::collect`] could find any.
    #[inline]
    pub(crate) fn has_queued(&self) -> bool {
        self.queued.load(Ordering::Relaxed) > 0
    }

    /// Versions held now.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes that they may take.
    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that they keep on the volume: large values that nothing else names.
    pub(crate) fn volume_bytes(&self) -> u64 {
        self.volume_bytes.load(Ordering::Relaxed)
    }

    /// Whether they take more than they may: of memory, or more than `volume_limit` of the volume.
    #[inline]
    pub(crate) fn is_full(&self, volume_limit: u64) -> bool {
        self.bytes() > self.limit || self.volume_bytes() > volume_limit
    }

    fn shard(&self, of: KeyRef<'_>) -> &Shard {
        &self.shards[of.number as usize % SHARDS]
    }

    // ---- writers ----------------------------------------------------------------

    /// Adds what the key has, before the commit `by` replaces it. The chunks of a
    /// large value belong to `token` once that has happened.
    pub(crate) fn add(&self, of: KeyRef<'_>, (old, token): (OldValue, Token), by: CommitNumber) {
        let bytes = of.key.len() + old.bytes() + OVERHEAD;
        let volume_bytes = old.volume_bytes();
        let version = Version {
            stamp: by.0,
            old,
            token,
        };
        let mut inner = self.shard(of).inner.lock();
        if inner.recent.len() < RECENT_MAX {
            inner.add_recent(of, version);
        } else {
            inner.chain(of.tree, of.key, version);
        }
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if volume_bytes > 0 {
            self.volume_bytes.fetch_add(volume_bytes, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Release);
    }

    /// The commit `by` is applied, and `lsn` is its LSN.
    pub(crate) fn stamp_commit_lsn(&self, of: KeyRef<'_>, by: CommitNumber, lsn: u64) {
        let shard = self.shard(of);
        let mut inner = shard.inner.lock();
        if let Some(at) = inner.recent_at(of, by.0) {
            inner.recent[at].version.stamp = lsn;
            return;
        }
        let keys = inner.trees.get_mut(&of.tree);
        let chain = keys.and_then(|keys| keys.get_mut(of.key));
        // A pending stamp is above all others.
        if let Some([before @ .., version]) = chain.map(Vec::as_mut_slice)
            && version.stamp == by.0
        {
            assert!(
                before.last().is_none_or(|before| before.stamp < lsn),
                "two commits to a key at a time"
            );
            version.stamp = lsn;
            self.enqueue(shard, &mut inner, of, lsn);
        }
    }

    /// Queues a version in the ordered chains for collection once it is below the horizon.
    fn enqueue(&self, shard: &Shard, inner: &mut Inner, of: KeyRef<'_>, lsn: u64) {
        let keys = inner.trees.get(&of.tree);
        let Some((shared, _)) = keys.and_then(|keys| keys.get_key_value(of.key)) else {
            return;
        };
        let shared = Arc::clone(shared);
        if inner.queue.is_empty() {
            shard.front.store(lsn, Ordering::Relaxed);
        }
        inner.queue.push_back((lsn, of.tree, shared));
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// The commit at `lsn` is to be seen: drops its version of the key if that is below `horizon`, else keeps it
    /// until [`Versions::collect`]. A large value that only it named.
    pub(crate) fn release(
        &self,
        of: KeyRef<'_>,
        lsn: u64,
        horizon: u64,
    ) -> Option<(Descriptor, Token)> {
        let shard = self.shard(of);
        let mut inner = shard.inner.lock();
        let at = inner.recent_at(of, lsn)?;
        let version = inner.remove_recent(at);
        if lsn >= horizon {
            inner.chain(of.tree, of.key, version);
            self.enqueue(shard, &mut inner, of, lsn);
            return None;
        }
        drop(inner);
        self.forget(of.key, &version);
        version.large()
    }

    /// The version of a key has been taken out.
    fn forget(&self, key: &[u8], version: &Version) {
        let bytes = key.len() + version.old.bytes() + OVERHEAD;
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        let volume_bytes = version.old.volume_bytes();
        if volume_bytes > 0 {
            self.volume_bytes.fetch_sub(volume_bytes, Ordering::Relaxed);
        }
        self.count.fetch_sub(1, Ordering::Release);
    }

    /// The commit `by` was cancelled before it changed anything.
    pub(crate) fn cancel(&self, of: KeyRef<'_>, by: CommitNumber) {
        let mut inner = self.shard(of).inner.lock();
        if let Some(at) = inner.recent_at(of, by.0) {
            let version = inner.remove_recent(at);
            self.forget(of.key, &version);
            return;
        }
        self.shorten(&mut inner, of.tree, of.key, |chain| {
            let mine = chain.last().is_some_and(|version| version.stamp == by.0);
            if mine {
                chain.pop().into_iter().collect()
            } else {
                Vec::new()
            }
        });
    }

    /// Has `take` take versions of a key out; what it took.
    fn shorten(
        &self,
        inner: &mut Inner,
        tree: TreeId,
        key: &[u8],
        take: impl FnOnce(&mut Chain) -> Vec<Version>,
    ) -> Vec<Version> {
        let Some(keys) = inner.trees.get_mut(&tree) else {
            return Vec::new();
        };
        let Some(chain) = keys.get_mut(key) else {
            return Vec::new();
        };
        let taken = take(chain);
        if chain.is_empty() {
            keys.remove(key);
            if keys.is_empty() {
                inner.trees.remove(&tree);
            }
        }
        taken.iter().for_each(|version| self.forget(key, version));
        taken
    }

    // ---- readers ----------------------------------------------------------------

    /// What `key` had at the snapshot `at`, if the leaf may say something newer.
    #[inline]
    pub(crate) fn find(&self, tree: TreeId, key: &[u8], at: u64) -> Option<OldValue> {
        if self.is_empty() {
            return None;
        }
        self.find_of(KeyRef::new(tree, key), at)
    }

    /// As [`Versions::find`].
    pub(crate) fn find_of(&self, of: KeyRef<'_>, at: u64) -> Option<OldValue> {
        let inner = self.shard(of).inner.lock();
        let recent = inner.recent(of).filter(|version| version.stamp >= at);
        // Pending stamps are above every LSN.
        let first = recent.chain(first_from(inner.chained(of), at));
        let first = first.min_by_key(|version| version.stamp);
        first.map(|version| version.old.clone())
    }

    /// What the keys within `bounds` had at the snapshot `at`, by key, as far as
    /// the leaves may say something newer.
    pub(crate) fn within(
        &self,
        tree: TreeId,
        bounds: Bounds<'_>,
        at: u64,
    ) -> Vec<(Arc<[u8]>, OldValue)> {
        let mut found: Vec<(Arc<[u8]>, u64, OldValue)> = Vec::new();
        if self.is_empty() || !is_range(bounds) {
            return Vec::new();
        }
        for shard in &self.shards {
            let inner = shard.inner.lock();
            for recent in &inner.recent {
                let version = &recent.version;
                if version.stamp >= at && recent.is_within(tree, bounds) {
                    found.push((recent.key[..].into(), version.stamp, version.old.clone()));
                }
            }
            let Some(keys) = inner.trees.get(&tree) else {
                continue;
            };
            for (key, chain) in keys.range::<[u8], _>(bounds) {
                if let Some(version) = first_from(chain, at) {
                    found.push((Arc::clone(key), version.stamp, version.old.clone()));
                }
            }
        }
        found.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        found.dedup_by(|later, first| later.0 == first.0);
        let found = found.into_iter();
        found.map(|(key, _, old)| (key, old)).collect()
    }

    /// Whether a commit other than `own` changes `key`, at or after `at`.
    #[inline]
    pub(crate) fn is_changed(
        &self,
        tree: TreeId,
        key: &[u8],
        at: u64,
        own: Option<CommitNumber>,
    ) -> bool {
        if self.is_empty() {
            return false;
        }
        let of = KeyRef::new(tree, key);
        let inner = self.shard(of).inner.lock();
        inner.recent(of).any(|version| version.is_change(at, own))
            || is_changed(inner.chained(of), at, own)
    }

    /// A key within `bounds` that a commit other than `own` changes, at or after `at`.
    pub(crate) fn changed_within(
        &self,
        tree: TreeId,
        bounds: Bounds<'_>,
        at: u64,
        own: Option<CommitNumber>,
    ) -> Option<Vec<u8>> {
        if self.is_empty() || !is_range(bounds) {
            return None;
        }
        self.shards.iter().find_map(|shard| {
            let inner = shard.inner.lock();
            let is_one = |recent: &&Recent| {
                recent.version.is_change(at, own) && recent.is_within(tree, bounds)
            };
            if let Some(recent) = inner.recent.iter().find(is_one) {
                return Some(recent.key.clone());
            }
            let mut keys = inner.trees.get(&tree)?.range::<[u8], _>(bounds);
            let changed = keys.find(|(_, chain)| is_changed(chain, at, own));
            changed.map(|(key, _)| key.to_vec())
        })
    }

    /// The large values that only versions name.
    pub(crate) fn large_values(&self) -> Vec<Descriptor> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let inner = shard.inner.lock();
            let chains = inner.trees.values().flat_map(BTreeMap::values);
            let recent = inner.recent.iter().map(|recent| &recent.version);
            let versions = chains.flatten().chain(recent);
            found.extend(versions.filter_map(|version| Some(version.large()?.0)));
        }
        found
    }

    // ---- collection -------------------------------------------------------------

    /// Takes the recent versions below `horizon` before their commits do: there is no space for them. Large values
    /// that only they named go to `dead`.
    pub(crate) fn collect_recent(&self, horizon: u64, dead: &mut Vec<(Descriptor, Token)>) {
        for shard in &self.shards {
            let mut inner = shard.inner.lock();
            let mut at = 0;
            while at < inner.recent.len() {
                if inner.recent[at].version.stamp >= horizon {
                    at += 1;
                    continue;
                }
                let key = std::mem::take(&mut inner.recent[at].key);
                let version = inner.remove_recent(at);
                self.forget(&key, &version);
                dead.extend(version.large());
            }
        }
    }

    /// Drops versions below `horizon` that their commits have left, at most `most`; large values that only
    /// they named go to `dead`. Whether more are left.
    pub(crate) fn gc(
        &self,
        horizon: u64,
        most: usize,
        dead: &mut Vec<(Descriptor, Token)>,
    ) -> bool {
        let start = self.next_shard.fetch_add(1, Ordering::Relaxed) as usize;
        let mut left = most;
        for step in 0..SHARDS {
            let shard = &self.shards[(start + step) % SHARDS];
            if shard.front.load(Ordering::Relaxed) >= horizon {
                continue;
            }
            if left == 0 {
                return true;
            }
            let mut inner = shard.inner.lock();
            while left > 0 && inner.queue.front().is_some_and(|front| front.0 < horizon) {
                let Some((_, tree, key)) = inner.queue.pop_front() else {
                    break;
                };
                left -= 1;
                self.queued.fetch_sub(1, Ordering::Relaxed);
                let gone = self.shorten(&mut inner, tree, &key, |chain| {
                    let old = chain.iter().take_while(|v| v.stamp < horizon).count();
                    chain.drain(..old).collect()
                });
                dead.extend(gone.iter().filter_map(Version::large));
            }
            let front = inner.queue.front().map_or(NONE, |front| front.0);
            shard.front.store(front, Ordering::Relaxed);
        }
        left == 0
    }
}

fn first_from(chain: &[Version], at: u64) -> Option<&Version> {
    chain.iter().find(|version| version.stamp >= at)
}

fn is_changed(chain: &[Version], at: u64, own: Option<CommitNumber>) -> bool {
    let mut later = chain.iter().rev().take_while(|version| version.stamp >= at);
    later.any(|version| version.is_change(at, own))
}

/// Whether a map takes these bounds; a range that cannot hold a key panics there.
pub(crate) fn is_range(bounds: Bounds<'_>) -> bool {
    match bounds {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => true,
        (Bound::Included(lower), Bound::Included(upper)) => lower <= upper,
        (Bound::Included(lower) | Bound::Excluded(lower), Bound::Excluded(upper))
        | (Bound::Excluded(lower), Bound::Included(upper)) => lower < upper,
    }
}

#[cfg(test)]
#[path = "versions_tests.rs"]
mod tests;
