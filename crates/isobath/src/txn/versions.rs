//! Older values of keys, for snapshots that must not see later commits.
//!
//! A version is added, *pending*, before its commit has a record, and gets the
//! commit's LSN once that is applied. A snapshot that begins at `S` has of a key what
//! the first version at or above `S` says, pending ones included; if there is
//! none, what the leaf says. A reader reads the leaf first and asks here
//! afterwards, while writers do the opposite, so it finds what it needs in one of the two.
//!
//! For example with keys a, b and c, all of which were 1 when the snapshot `S` began at 25:
//!
//! | event | leaves: a, b, c | versions |
//! | --- | --- | --- |
//! | a commit is about to change b | 1, 1, 1 | b: 1, pending |
//! | its record is at 30, the leaf is changed | 1, 2, 1 | b: 1, pending |
//! | it is applied | 1, 2, 1 | b: 1 at 30 |
//! | a commit at 40 removes c | 1, 2, none | b: 1 at 30; c: 1 at 40 |
//! | a commit at 50 changes b again | 1, 3, none | b: 1 at 30, 2 at 50; c: 1 at 40 |
//!
//! `S` reads a from the leaf, since a has no version, and b and c from their first versions at or
//! above 25, as 1. A snapshot that begins at 45 reads b as 2, and finds no c. Once `S` has ended,
//! the versions at 30 and 40 go.
//!
//! Most versions are needed only until their commit is durable. They stay in a short list,
//! from which their commit takes them ([`Versions::release`]); those that a snapshot needs
//! longer, and those beyond the list's length, go to ordered chains.
//!
//! What a reader pays depends on the versions that it needs, those at or above its snapshot, and
//! not on those that others keep: with `n` keys in chains, a search for one key is O(log n), and a
//! look at a range O(log n) for each key that it finds ([`StampedMap`]), of which a scan takes a
//! batch at a time. Each look also passes the short lists, whose length is bounded. A validation is
//! a look at ranges: O(log n) for each change since, or for each range if these are fewer.

use std::collections::{BTreeMap, VecDeque};
use std::ops::{Bound, ControlFlow, RangeBounds};
use std::sync::Arc;

use super::key_hash;
use super::key_ranges::{Position, SortedRanges};
use super::stamped_map::{Stamped, StampedMap};
use crate::btree::{Descriptor, Direction, TreeId, ValueKind};
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

/// A key's older value.
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
    /// The value that a read of a leaf has found: `kind`, and in `bytes` the value or its
    /// descriptor.
    pub(crate) fn from_read(kind: Option<ValueKind>, bytes: &mut Vec<u8>) -> OldValue {
        match kind {
            None => OldValue::Absent,
            Some(ValueKind::Inline) => OldValue::Inline(std::mem::take(bytes).into_boxed_slice()),
            Some(ValueKind::Extent) => OldValue::Extent(Descriptor::new(bytes)),
        }
    }

    /// The result as of a read of the leaf: the kind, and the bytes or the descriptor in `into`.
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
    /// The token of a large value's chunks from the commit until they are freed.
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
/// [`Versions::add`] to [`Versions::stamp_commit_lsn`], and readers rely on it. Pending stamps are
/// above all others.
#[derive(Default)]
struct Chain(VecDeque<Version>);

impl Chain {
    fn index_from(&self, at: u64) -> usize {
        self.0.partition_point(|version| version.stamp < at)
    }

    /// The first version at or above `at`.
    fn first_from(&self, at: u64) -> Option<&Version> {
        self.0.get(self.index_from(at))
    }

    /// Adds a version; a later commit's may have come first.
    fn insert(&mut self, version: Version) {
        self.0.insert(self.index_from(version.stamp), version);
    }

    /// Takes out the version of a commit that has no LSN yet.
    fn take_pending(&mut self, by: CommitNumber) -> Option<Version> {
        let is_its = self.newest() == by.0;
        is_its.then(|| self.0.pop_back()).flatten()
    }

    fn is_changed(&self, at: u64, own: Option<CommitNumber>) -> bool {
        // Of its own a commit has one at most, so this looks at two.
        let mut later = self
            .0
            .iter()
            .rev()
            .take_while(|version| version.stamp >= at);
        later.any(|version| version.is_change(at, own))
    }
}

impl Stamped for Chain {
    fn newest(&self) -> u64 {
        self.0.back().map_or(0, |version| version.stamp)
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

type Keys = StampedMap<Chain>;

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

    /// Has `change` change the versions that `key` has in the ordered chains.
    fn change<R>(
        &mut self,
        tree: TreeId,
        key: &[u8],
        change: impl FnOnce(&Arc<[u8]>, &mut Chain) -> R,
    ) -> R {
        let keys = self.trees.entry(tree).or_default();
        let result = keys.change(key, change);
        if keys.is_empty() {
            self.trees.remove(&tree);
        }
        result
    }

    /// The ordered chain of `key`.
    fn chained(&self, of: KeyRef<'_>) -> Option<&Chain> {
        self.trees.get(&of.tree)?.get(of.key)
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
            inner.change(of.tree, of.key, |_, chain| chain.insert(version));
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
        let stamped = inner.change(of.tree, of.key, |key, chain| {
            let version = chain.take_pending(by)?;
            assert!(chain.newest() < lsn, "two commits to a key at a time");
            chain.0.push_back(Version {
                stamp: lsn,
                ..version
            });
            Some(Arc::clone(key))
        });
        if let Some(key) = stamped {
            self.enqueue(shard, &mut inner, (lsn, of.tree, key));
        }
    }

    /// Queues a version in the ordered chains for collection once it is below the horizon.
    fn enqueue(&self, shard: &Shard, inner: &mut Inner, queued: (u64, TreeId, Arc<[u8]>)) {
        if inner.queue.is_empty() {
            shard.front.store(queued.0, Ordering::Relaxed);
        }
        inner.queue.push_back(queued);
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    /// The commit at `lsn` is to be seen: drops its version of the key if that is below `horizon`,
    /// else keeps it until [`Versions::collect`]. A large value that only it named.
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
            let key = inner.change(of.tree, of.key, |key, chain| {
                chain.insert(version);
                Arc::clone(key)
            });
            self.enqueue(shard, &mut inner, (lsn, of.tree, key));
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
        let mine = inner.change(of.tree, of.key, |_, chain| chain.take_pending(by));
        if let Some(version) = mine {
            self.forget(of.key, &version);
        }
    }

    // ---- readers ----------------------------------------------------------------

    /// The value of `key` at the snapshot `at`, if the leaf may be newer.
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
        let chained = inner.chained(of).and_then(|chain| chain.first_from(at));
        let first = recent.chain(chained);
        let first = first.min_by_key(|version| version.stamp);
        first.map(|version| version.old.clone())
    }

    /// The values of keys within `bounds` at the snapshot `at`, by key, if the leaves may be newer:
    /// in a scan's direction the first of them, at least some and about `most`.
    pub(crate) fn within(
        &self,
        tree: TreeId,
        bounds: Bounds<'_>,
        (at, direction, most): (u64, Direction, usize),
    ) -> Older {
        let mut older = Older::default();
        if self.is_empty() || !is_range(bounds) {
            return older;
        }
        let most = (most / SHARDS).max(MIN_OF_SHARD);
        let mut found: Vec<(Arc<[u8]>, u64, OldValue)> = Vec::new();
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
            let mut left = most;
            let cut = keys.visit(bounds, at, direction, &mut |key, chain| {
                if let Some(version) = chain.first_from(at) {
                    found.push((Arc::clone(key), version.stamp, version.old.clone()));
                    left -= 1;
                }
                match left {
                    0 => ControlFlow::Break(Arc::clone(key)),
                    _ => ControlFlow::Continue(()),
                }
            });
            if let ControlFlow::Break(key) = cut {
                older.cut_at(key, direction);
            }
        }
        if let Some(cut) = &older.cut {
            found.retain(|(key, ..)| is_passed(key, cut, direction));
        }
        found.sort_unstable_by(|a, b| (&a.0, a.1).cmp(&(&b.0, b.1)));
        found.dedup_by(|later, first| later.0 == first.0);
        older.found = found.into_iter().map(|(key, _, old)| (key, old)).collect();
        older
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
            || inner
                .chained(of)
                .is_some_and(|chain| chain.is_changed(at, own))
    }

    /// Whether a commit changes a key within `bounds`, at or after `at`.
    pub(crate) fn is_changed_within(&self, tree: TreeId, bounds: Bounds<'_>, at: u64) -> bool {
        if self.is_empty() || !is_range(bounds) {
            return false;
        }
        self.shards.iter().any(|shard| {
            let inner = shard.inner.lock();
            let is_one =
                |recent: &Recent| recent.version.stamp >= at && recent.is_within(tree, bounds);
            let look = |keys: &Keys| {
                let visitor = &mut |_: &Arc<[u8]>, _: &Chain| ControlFlow::Break(());
                keys.visit(bounds, at, Direction::Forward, visitor)
                    .is_break()
            };
            inner.recent.iter().any(is_one) || inner.trees.get(&tree).is_some_and(look)
        })
    }

    /// A key in `ranges` that a commit other than `own` changes, at or after `at`. Calls `pause`
    /// often.
    pub(crate) fn changed_within(
        &self,
        tree: TreeId,
        ranges: &SortedRanges<'_>,
        (at, own): (u64, Option<CommitNumber>),
        pause: &mut dyn FnMut(),
    ) -> Option<Vec<u8>> {
        if self.is_empty() {
            return None;
        }
        let is_one = |recent: &&Recent| {
            recent.tree == tree
                && recent.version.is_change(at, own)
                && ranges.position(&recent.key) == Position::Within
        };
        for shard in &self.shards {
            let mut inner = shard.inner.lock();
            if let Some(recent) = inner.recent.iter().find(is_one) {
                return Some(recent.key.clone());
            }
            let mut next = 0;
            // Bound: each round but the last passes a range.
            while let Some(bounds) = ranges.from(next) {
                let Some(keys) = inner.trees.get(&tree) else {
                    break;
                };
                let found = keys.visit(
                    bounds,
                    at,
                    Direction::Forward,
                    &mut |key, chain| match chain.is_changed(at, own) {
                        true => ControlFlow::Break((key.to_vec(), ranges.position(key))),
                        false => ControlFlow::Continue(()),
                    },
                );
                match found {
                    ControlFlow::Continue(()) => break,
                    ControlFlow::Break((key, Position::Within)) => return Some(key),
                    ControlFlow::Break((_, Position::Before(range))) => next = range,
                }
                drop(inner);
                pause();
                inner = shard.inner.lock();
            }
            drop(inner);
            pause();
        }
        None
    }

    /// Items of the ordered chains that looks at ranges have passed.
    #[cfg(test)]
    pub(crate) fn visited(&self) -> u64 {
        let of_shard = |shard: &Shard| -> u64 {
            let inner = shard.inner.lock();
            inner.trees.values().map(|keys| keys.visited.get()).sum()
        };
        self.shards.iter().map(of_shard).sum()
    }

    /// The large values that only versions name.
    pub(crate) fn large_values(&self) -> Vec<Descriptor> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let inner = shard.inner.lock();
            let mut add = |version: &Version| found.extend(version.large().map(|large| large.0));
            inner.recent.iter().for_each(|recent| add(&recent.version));
            for keys in inner.trees.values() {
                keys.for_each(|chain| chain.0.iter().for_each(&mut add));
            }
        }
        found
    }

    // ---- collection -------------------------------------------------------------

    /// Takes the recent versions below `horizon` before their commits do: there is no space for
    /// them. Large values that only they named go to `dead`.
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

    /// Drops versions below `horizon` that their commits have left, at most `most`; large values
    /// that only they named go to `dead`. Whether more are left.
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
                inner.change(tree, &key, |key, chain| {
                    for version in chain.0.drain(..chain.index_from(horizon)) {
                        self.forget(key, &version);
                        dead.extend(version.large());
                    }
                });
            }
            let front = inner.queue.front().map_or(NONE, |front| front.0);
            shard.front.store(front, Ordering::Relaxed);
        }
        left == 0
    }
}

/// Keys that a look at a range takes from a shard, at least.
const MIN_OF_SHARD: usize = 4;

/// Older values of a range's keys.
#[derive(Default)]
pub(crate) struct Older {
    /// By ascending keys.
    pub(crate) found: Vec<(Arc<[u8]>, OldValue)>,
    /// The last key looked at, if that was not all of the range.
    pub(crate) cut: Option<Arc<[u8]>>,
}

impl Older {
    fn cut_at(&mut self, key: Arc<[u8]>, direction: Direction) {
        let is_nearer = |cut: &Arc<[u8]>| !is_passed(&key, cut, direction);
        if !self.cut.as_ref().is_some_and(is_nearer) {
            self.cut = Some(key);
        }
    }
}

/// Whether a scan that ends with the key `last` comes across `key`.
pub(crate) fn is_passed(key: &[u8], last: &[u8], direction: Direction) -> bool {
    match direction {
        Direction::Forward => key <= last,
        Direction::Reverse => key >= last,
    }
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
#[allow(clippy::big_endian_bytes, reason = "keys in their order")]
#[path = "versions_tests.rs"]
mod tests;
