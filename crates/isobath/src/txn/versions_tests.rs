//! Tests of the version store.

use super::*;
use crate::txn::key_ranges::KeyRanges;
use proptest::prelude::*;

const TREE: TreeId = TreeId(5);

fn value(of: u64) -> Option<Vec<u8>> {
    (!of.is_multiple_of(5)).then(|| of.to_le_bytes().to_vec())
}

fn as_old(of: &Option<Vec<u8>>) -> OldValue {
    let kind = of.as_ref().map(|_| ValueKind::Inline);
    OldValue::from_read(kind, &mut of.clone().unwrap_or_default())
}

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// The store beside whole copies of the map at every moment.
struct Model {
    versions: Versions,
    leaf: Map,
    snapshots: Vec<(u64, Map)>,
    next: u64,
    /// Versions that their commits have not released: key and LSN.
    unreleased: Vec<(u8, u64)>,
}

impl Model {
    fn commit(&mut self, keys: &[u8], given_up: bool) {
        let by = self.versions.commit_number();
        let mut keys = keys.to_vec();
        keys.sort_unstable();
        keys.dedup();
        for key in &keys {
            let old = as_old(&self.leaf.get(&vec![*key]).cloned());
            self.versions.add(KeyRef::new(TREE, &[*key]), (old, 0), by);
        }
        if given_up {
            keys.iter()
                .for_each(|key| self.versions.cancel(KeyRef::new(TREE, &[*key]), by));
            return;
        }
        let lsn = self.next;
        self.next += 8;
        for key in &keys {
            self.versions
                .stamp_commit_lsn(KeyRef::new(TREE, &[*key]), by, lsn);
            self.unreleased.push((*key, lsn));
            match value(lsn / 8 + u64::from(*key)) {
                Some(value) => self.leaf.insert(vec![*key], value),
                None => self.leaf.remove(&vec![*key]),
            };
        }
    }

    fn horizon(&self) -> u64 {
        let oldest = self.snapshots.iter().map(|s| s.0).min();
        oldest.unwrap_or(self.next)
    }

    fn release(&mut self, at: usize) {
        let (key, lsn) = self.unreleased.swap_remove(at);
        let of = KeyRef::new(TREE, std::slice::from_ref(&key));
        self.versions.release(of, lsn, self.horizon());
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
            for (key, old) in within(&self.versions, bounds, *at) {
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

/// Older values of a range's keys, in as many looks as it takes, from both ends.
fn within(versions: &Versions, bounds: Bounds<'_>, at: u64) -> Vec<(Arc<[u8]>, OldValue)> {
    let look = |direction| {
        let mut all = Vec::new();
        let (mut lower, mut upper) = (bounds.0.map(Arc::from), bounds.1.map(Arc::from));
        loop {
            let rest = (
                lower.as_ref().map(|key: &Arc<[u8]>| &key[..]),
                upper.as_ref().map(|key: &Arc<[u8]>| &key[..]),
            );
            let older = versions.within(TREE, rest, (at, direction, 0));
            assert!(older.cut.is_none() || !older.found.is_empty());
            all.extend(older.found);
            match (older.cut, direction) {
                (None, _) => break,
                (Some(cut), Direction::Forward) => lower = Bound::Excluded(cut),
                (Some(cut), Direction::Reverse) => upper = Bound::Excluded(cut),
            }
        }
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    };
    let all = look(Direction::Forward);
    assert_eq!(all, look(Direction::Reverse));
    all
}

proptest! {
    #[test]
    fn snapshots_see_their_moment(
        steps in prop::collection::vec((0u8..14, prop::collection::vec(0u8..20, 1..6), any::<prop::sample::Index>()), 1..120)
    ) {
        let mut model = Model {
            versions: Versions::new(1 << 30),
            leaf: BTreeMap::new(),
            snapshots: Vec::new(),
            next: 8,
            unreleased: Vec::new(),
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
                9..=11 if !model.unreleased.is_empty() => {
                    let at = pick.index(model.unreleased.len());
                    model.release(at);
                }
                12 => model.versions.collect_recent(model.horizon(), &mut Vec::new()),
                _ => {
                    model.versions.gc(model.horizon(), keys.len(), &mut Vec::new());
                }
            }
            model.check();
        }
        // Nothing is left once nothing is needed.
        while !model.unreleased.is_empty() {
            model.release(0);
        }
        while model.versions.gc(model.next, 3, &mut Vec::new()) {}
        prop_assert!(model.versions.is_empty());
        prop_assert_eq!(model.versions.bytes(), 0);
        prop_assert_eq!(model.versions.volume_bytes(), 0);
        for shard in &model.versions.shards {
            let inner = shard.inner.lock();
            prop_assert!(inner.trees.is_empty() && inner.queue.is_empty() && inner.recent.is_empty());
        }
    }
}

#[test]
fn pending_changes_of_others_conflict_and_own_ones_do_not() {
    let versions = Versions::new(1 << 20);
    let (mine, other) = (versions.commit_number(), versions.commit_number());
    versions.add(KeyRef::new(TREE, b"k"), (OldValue::Absent, 0), mine);
    assert!(versions.is_changed(TREE, b"k", 8, None));
    assert!(versions.is_changed(TREE, b"k", 8, Some(other)));
    assert!(!versions.is_changed(TREE, b"k", 8, Some(mine)));
    let mut all = KeyRanges::default();
    all.add(Bound::Unbounded, Bound::Unbounded);
    let changed = |own| versions.changed_within(TREE, &all.sorted(), (8, own), &mut || ());
    assert_eq!(changed(Some(mine)), None);
    assert_eq!(changed(Some(other)), Some(b"k".to_vec()));
    versions.stamp_commit_lsn(KeyRef::new(TREE, b"k"), mine, 80);
    assert!(versions.is_changed(TREE, b"k", 80, None));
    assert!(!versions.is_changed(TREE, b"k", 88, None));
}

#[test]
fn a_large_value_is_freed_with_its_version() {
    let versions = Versions::new(1 << 20);
    let by = versions.commit_number();
    let descriptor = Descriptor::new(&[7; 32]);
    versions.add(
        KeyRef::new(TREE, b"k"),
        (OldValue::Extent(descriptor), 9),
        by,
    );
    versions.stamp_commit_lsn(KeyRef::new(TREE, b"k"), by, 16);
    let mut dead = Vec::new();
    assert_eq!(versions.release(KeyRef::new(TREE, b"k"), 16, 16), None);
    assert!(!versions.gc(16, 10, &mut dead));
    assert!(dead.is_empty() && versions.count() == 1);
    versions.gc(17, 10, &mut dead);
    assert_eq!(dead, [(descriptor, 9)]);
}

/// Readers rely on chains that ascend: a commit that would break that is a commit without its lock.
#[test]
#[should_panic(expected = "two commits to a key at a time")]
fn a_chain_takes_no_commit_that_is_older_than_its_last() {
    let versions = Versions::new(1 << 20);
    let of = KeyRef::new(TREE, b"k");
    let add = || {
        let by = versions.commit_number();
        versions.add(of, (OldValue::Absent, 0), by);
        by
    };
    versions.stamp_commit_lsn(of, add(), 16);
    versions.release(of, 16, 0);
    // The next version finds no place among the recent ones.
    (0..RECENT_MAX).for_each(|_| {
        let _ = add();
    });
    versions.stamp_commit_lsn(of, add(), 8);
}

/// A change of each key from `keys`, which stays in the chains.
fn change(versions: &Versions, keys: std::ops::Range<u32>, next: &mut u64) {
    for key in keys {
        let (key, by) = (key.to_be_bytes(), versions.commit_number());
        let of = KeyRef::new(TREE, &key);
        versions.add(of, (OldValue::Absent, 0), by);
        versions.stamp_commit_lsn(of, by, *next);
        versions.release(of, *next, 0);
        *next += 8;
    }
}

#[test]
fn what_a_reader_does_not_need_costs_it_nothing() {
    let (versions, mut next) = (Versions::new(1 << 40), 8);
    let all = (Bound::Unbounded, Bound::Unbounded);
    let cost = |at, expected: &[u32]| {
        let before = versions.visited();
        let older = versions.within(TREE, all, (at, Direction::Forward, 16));
        let found: Vec<_> = older.found.iter().map(|(key, _)| key.to_vec()).collect();
        let expected: Vec<_> = expected.iter().map(|key| key.to_be_bytes()).collect();
        assert!(found.len() >= expected.len() && found.iter().zip(expected).all(|(a, b)| *a == b));
        versions.visited() - before
    };
    // Each shard's root.
    let roots = (SHARDS * 32) as u64;
    change(&versions, 0..50_000, &mut next);
    let begun = next;
    assert!(cost(begun, &[]) <= roots);
    // A key that is new to the reader, behind all these.
    change(&versions, 60_000..60_001, &mut next);
    assert!(cost(begun, &[60_000]) <= roots + 4 * 32);
    // Very many that are new: it takes some of them at a time.
    change(&versions, 70_000..120_000, &mut next);
    assert!(cost(begun, &[60_000, 70_000, 70_001, 70_002]) <= 8 * roots);
    let needed = within(&versions, all, begun);
    let needed = needed.iter().map(|(key, _)| key.to_vec());
    let expected = (60_000..60_001_u32)
        .chain(70_000..120_000)
        .map(u32::to_be_bytes);
    assert!(needed.eq(expected));
    // One record that has changed very often.
    (0..50_000).for_each(|_| change(&versions, 0..1, &mut next));
    assert!(cost(next - 8, &[0]) <= roots + 4 * 32);
}
