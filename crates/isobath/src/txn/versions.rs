//! What keys had before the commits that some open snapshot must not see.
//!
//! A version is added, *pending*, before its commit has a record, and gets the
//! commit's LSN once that is applied. A snapshot that begins at `S` has of a key what
//! the first version at or above `S` says, pending ones included; if there is
//! none, what the leaf says. A reader reads the leaf first and asks here
//! afterwards, while writers do the opposite, so one of the two tells it.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::key_number;
use crate::btree::{Descriptor, TreeId, ValueKind, ValueRef};
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
    /// A copy of what a leaf has.
    pub(crate) fn of(value: Option<ValueRef<'_>>) -> OldValue {
        match value {
            None => OldValue::Absent,
            Some(value) if value.kind == ValueKind::Inline => OldValue::Inline(value.bytes.into()),
            Some(value) => OldValue::Extent(Descriptor::new(value.bytes)),
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
    /// What the chunks of a large value belong to from the commit to their end.
    token: Token,
}

/// Versions of one key, oldest first: their stamps ascend, as the key is locked from
/// [`Versions::add`] to [`Versions::settle`], and readers rely on it.
type Chain = Vec<Version>;
type Keys = BTreeMap<Arc<[u8]>, Chain>;

#[derive(Default)]
struct Inner {
    trees: BTreeMap<TreeId, Keys>,
    /// Versions that have an LSN, about in its order.
    queue: VecDeque<(u64, TreeId, Arc<[u8]>)>,
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
        }
    }

    /// A number for a commit's pending versions.
    pub(crate) fn commit_number(&self) -> CommitNumber {
        CommitNumber(PENDING | self.commits.fetch_add(1, Ordering::Relaxed))
    }

    /// Whether there is no version at all. Whoever has seen a changed leaf sees
    /// the versions that were added before.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
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

    fn shard(&self, tree: TreeId, key: &[u8]) -> &Shard {
        &self.shards[key_number(tree, key) as usize % SHARDS]
    }

    // ---- writers ----------------------------------------------------------------

    /// Adds what `key` has, before the commit `by` replaces it. The chunks of a
    /// large value belong to `token` once that has happened.
    pub(crate) fn add(
        &self,
        tree: TreeId,
        key: &[u8],
        (old, token): (OldValue, Token),
        by: CommitNumber,
    ) {
        let bytes = key.len() + old.bytes() + OVERHEAD;
        let volume_bytes = old.volume_bytes();
        let version = Version {
            stamp: by.0,
            old,
            token,
        };
        let mut inner = self.shard(tree, key).inner.lock();
        let keys = inner.trees.entry(tree).or_default();
        match keys.get_mut(key) {
            Some(chain) => chain.push(version),
            None => {
                keys.insert(key.into(), vec![version]);
            }
        }
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if volume_bytes > 0 {
            self.volume_bytes.fetch_add(volume_bytes, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Release);
    }

    /// The commit `by` is applied, and `lsn` is its LSN.
    pub(crate) fn settle(&self, tree: TreeId, key: &[u8], by: CommitNumber, lsn: u64) {
        let shard = self.shard(tree, key);
        let mut inner = shard.inner.lock();
        let Inner { trees, queue } = &mut *inner;
        let keys = trees.get_mut(&tree);
        let shared = keys.as_ref().and_then(|keys| keys.get_key_value(key));
        let Some(shared) = shared.map(|(shared, _)| Arc::clone(shared)) else {
            return;
        };
        let chain = keys.and_then(|keys| keys.get_mut(key));
        if let Some([before @ .., version]) = chain.map(Vec::as_mut_slice)
            && version.stamp == by.0
        {
            debug_assert!(
                before.last().is_none_or(|before| before.stamp < lsn),
                "two commits to a key at a time"
            );
            version.stamp = lsn;
            if queue.is_empty() {
                shard.front.store(lsn, Ordering::Relaxed);
            }
            queue.push_back((lsn, tree, shared));
        }
    }

    /// The commit `by` was given up before it changed anything.
    pub(crate) fn cancel(&self, tree: TreeId, key: &[u8], by: CommitNumber) {
        let mut inner = self.shard(tree, key).inner.lock();
        self.shorten(&mut inner, tree, key, |chain| {
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
        let bytes: usize = taken
            .iter()
            .map(|version| key.len() + version.old.bytes() + OVERHEAD)
            .sum();
        self.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
        let volume_bytes: u64 = taken.iter().map(|version| version.old.volume_bytes()).sum();
        if volume_bytes > 0 {
            self.volume_bytes.fetch_sub(volume_bytes, Ordering::Relaxed);
        }
        self.count.fetch_sub(taken.len() as u64, Ordering::Release);
        taken
    }

    // ---- readers ----------------------------------------------------------------

    /// What `key` had at the snapshot `at`, if the leaf may say something newer.
    #[inline]
    pub(crate) fn find(&self, tree: TreeId, key: &[u8], at: u64) -> Option<OldValue> {
        if self.is_empty() {
            return None;
        }
        let inner = self.shard(tree, key).inner.lock();
        let chain = inner.trees.get(&tree)?.get(key)?;
        Some(first_from(chain, at)?.old.clone())
    }

    /// What the keys within `bounds` had at the snapshot `at`, by key, as far as
    /// the leaves may say something newer.
    pub(crate) fn within(
        &self,
        tree: TreeId,
        bounds: Bounds<'_>,
        at: u64,
    ) -> Vec<(Arc<[u8]>, OldValue)> {
        let mut found = Vec::new();
        if self.is_empty() || !is_range(bounds) {
            return found;
        }
        for shard in &self.shards {
            let inner = shard.inner.lock();
            let Some(keys) = inner.trees.get(&tree) else {
                continue;
            };
            for (key, chain) in keys.range::<[u8], _>(bounds) {
                if let Some(version) = first_from(chain, at) {
                    found.push((Arc::clone(key), version.old.clone()));
                }
            }
        }
        found.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        found
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
        let inner = self.shard(tree, key).inner.lock();
        let chain = inner.trees.get(&tree).and_then(|keys| keys.get(key));
        chain.is_some_and(|chain| is_changed(chain, at, own))
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
            found.extend(chains.flatten().filter_map(|version| match &version.old {
                OldValue::Extent(descriptor) => Some(*descriptor),
                OldValue::Absent | OldValue::Inline(_) => None,
            }));
        }
        found
    }

    // ---- collection -------------------------------------------------------------

    /// Drops versions below `horizon`, at most `most`; large values that only
    /// they named go to `dead`. Whether more are left.
    pub(crate) fn collect(
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
                let gone = self.shorten(&mut inner, tree, &key, |chain| {
                    let old = chain.iter().take_while(|v| v.stamp < horizon).count();
                    chain.drain(..old).collect()
                });
                dead.extend(gone.iter().filter_map(|version| match &version.old {
                    OldValue::Extent(descriptor) => Some((*descriptor, version.token)),
                    OldValue::Absent | OldValue::Inline(_) => None,
                }));
            }
            let front = inner.queue.front().map_or(NONE, |front| front.0);
            shard.front.store(front, Ordering::Relaxed);
        }
        left == 0
    }
}

fn first_from(chain: &Chain, at: u64) -> Option<&Version> {
    // Pending stamps are above every LSN.
    chain.iter().find(|version| version.stamp >= at)
}

fn is_changed(chain: &Chain, at: u64, own: Option<CommitNumber>) -> bool {
    let mut later = chain.iter().rev().take_while(|version| version.stamp >= at);
    later.any(|version| own.is_none_or(|own| version.stamp != own.0))
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
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TREE: TreeId = TreeId(5);

    fn value(of: u64) -> Option<Vec<u8>> {
        (!of.is_multiple_of(5)).then(|| of.to_le_bytes().to_vec())
    }

    fn as_old(of: &Option<Vec<u8>>) -> OldValue {
        OldValue::of(of.as_deref().map(ValueRef::inline))
    }

    type Map = BTreeMap<Vec<u8>, Vec<u8>>;

    /// The store beside whole copies of the map at every moment.
    struct Model {
        versions: Versions,
        leaf: Map,
        snapshots: Vec<(u64, Map)>,
        next: u64,
    }

    impl Model {
        fn commit(&mut self, keys: &[u8], given_up: bool) {
            let by = self.versions.commit_number();
            let mut keys = keys.to_vec();
            keys.sort_unstable();
            keys.dedup();
            for key in &keys {
                let old = as_old(&self.leaf.get(&vec![*key]).cloned());
                self.versions.add(TREE, &[*key], (old, 0), by);
            }
            if given_up {
                keys.iter()
                    .for_each(|key| self.versions.cancel(TREE, &[*key], by));
                return;
            }
            let lsn = self.next;
            self.next += 8;
            for key in &keys {
                self.versions.settle(TREE, &[*key], by, lsn);
                match value(lsn / 8 + u64::from(*key)) {
                    Some(value) => self.leaf.insert(vec![*key], value),
                    None => self.leaf.remove(&vec![*key]),
                };
            }
        }

        fn check(&self) {
            for (at, map) in &self.snapshots {
                for key in 0..20u8 {
                    let key = vec![key];
                    let found = self.versions.find(TREE, &key, *at);
                    let expected = as_old(&map.get(&key).cloned());
                    let found = found.unwrap_or_else(|| as_old(&self.leaf.get(&key).cloned()));
                    assert_eq!(found, expected, "key {key:?} at {at}");
                }
                let mut whole = self.leaf.clone();
                let bounds = (Bound::Included(&[3u8][..]), Bound::Excluded(&[17u8][..]));
                for (key, old) in self.versions.within(TREE, bounds, *at) {
                    match old {
                        OldValue::Inline(bytes) => whole.insert(key.to_vec(), bytes.to_vec()),
                        _ => whole.remove(&key.to_vec()),
                    };
                }
                let keep = |map: &Map| -> Vec<_> {
                    map.iter()
                        .filter(|(k, _)| (3..17).contains(&k[0]))
                        .map(|(k, v)| (k.clone(), v.clone()))
                        .collect()
                };
                assert_eq!(keep(&whole), keep(map));
            }
        }
    }

    proptest! {
        #[test]
        fn snapshots_see_their_moment(
            steps in prop::collection::vec((0u8..10, prop::collection::vec(0u8..20, 1..6), any::<prop::sample::Index>()), 1..120)
        ) {
            let mut model = Model {
                versions: Versions::new(1 << 30),
                leaf: BTreeMap::new(),
                snapshots: Vec::new(),
                next: 8,
            };
            for (what, keys, pick) in steps {
                match what {
                    0..=4 => model.commit(&keys, false),
                    5 => model.commit(&keys, true),
                    6..=7 => {
                        let leaf = model.leaf.clone();
                        model.snapshots.push((model.next, leaf));
                    }
                    8 if !model.snapshots.is_empty() => {
                        let at = pick.index(model.snapshots.len());
                        model.snapshots.swap_remove(at);
                    }
                    _ => {
                        let oldest = model.snapshots.iter().map(|s| s.0).min();
                        model.versions.collect(oldest.unwrap_or(model.next), keys.len(), &mut Vec::new());
                    }
                }
                model.check();
            }
            // Nothing is left once nobody needs anything.
            while model.versions.collect(model.next, 3, &mut Vec::new()) {}
            prop_assert!(model.versions.is_empty());
            prop_assert_eq!(model.versions.bytes(), 0);
            prop_assert_eq!(model.versions.volume_bytes(), 0);
            for shard in &model.versions.shards {
                let inner = shard.inner.lock();
                prop_assert!(inner.trees.is_empty() && inner.queue.is_empty());
            }
        }
    }

    #[test]
    fn pending_changes_of_others_conflict_and_own_ones_do_not() {
        let versions = Versions::new(1 << 20);
        let (mine, other) = (versions.commit_number(), versions.commit_number());
        versions.add(TREE, b"k", (OldValue::Absent, 0), mine);
        assert!(versions.is_changed(TREE, b"k", 8, None));
        assert!(versions.is_changed(TREE, b"k", 8, Some(other)));
        assert!(!versions.is_changed(TREE, b"k", 8, Some(mine)));
        let all = (Bound::Unbounded, Bound::Unbounded);
        assert_eq!(versions.changed_within(TREE, all, 8, Some(mine)), None);
        assert_eq!(
            versions.changed_within(TREE, all, 8, Some(other)),
            Some(b"k".to_vec())
        );
        versions.settle(TREE, b"k", mine, 80);
        assert!(versions.is_changed(TREE, b"k", 80, None));
        assert!(!versions.is_changed(TREE, b"k", 88, None));
    }

    #[test]
    fn a_large_value_dies_with_its_version() {
        let versions = Versions::new(1 << 20);
        let by = versions.commit_number();
        let descriptor = Descriptor::new(&[7; 32]);
        versions.add(TREE, b"k", (OldValue::Extent(descriptor), 9), by);
        versions.settle(TREE, b"k", by, 16);
        let mut dead = Vec::new();
        assert!(!versions.collect(16, 10, &mut dead));
        assert!(dead.is_empty() && versions.count() == 1);
        versions.collect(17, 10, &mut dead);
        assert_eq!(dead, [(descriptor, 9)]);
    }
}
