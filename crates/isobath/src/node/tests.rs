use std::collections::BTreeMap;

use proptest::prelude::*;

use super::edit::next_run;
use super::*;
use crate::btree::ValueRef;
use crate::types::{MAX_INLINE_RECORD, MAX_INLINE_VALUE};

const TREE: TreeId = TreeId(7);

fn put_image(words: &Words, image: &Image) {
    words.store_all(&image.0);
}

fn leaf(lower: &[u8], upper: Option<&[u8]>) -> Box<Words> {
    let words = Words::zeroed();
    put_image(&words, &Builder::new(TREE, 0, lower, upper).finish());
    words
}

fn insert(words: &Words, key: &[u8], value: ValueRef<'_>) -> Edit {
    let mut edit = LeafEdit::open(words, TREE).unwrap();
    let suffix = edit.node().suffix_of(key).unwrap();
    let (position, found) = edit.node().search(suffix).unwrap();
    edit.put(position, found, suffix, value).unwrap()
}

fn remove(words: &Words, key: &[u8]) -> bool {
    let mut edit = LeafEdit::open(words, TREE).unwrap();
    let (position, found) = edit
        .node()
        .search(edit.node().suffix_of(key).unwrap())
        .unwrap();
    if found {
        edit.remove(position).unwrap();
    }
    found
}

fn contents<S: Source>(node: Node<'_, S>) -> Vec<(Vec<u8>, Vec<u8>)> {
    (0..node.count())
        .map(|position| {
            let (mut key, mut value) = (Vec::new(), Vec::new());
            node.key(position, &mut key).unwrap();
            let at = node.value(position).unwrap();
            node.append(at.at, at.len, &mut value).unwrap();
            (key, value)
        })
        .collect()
}

/// Keys that all lie in ["kk", "kl"), with equal heads and short ones among them.
fn key_strategy() -> impl Strategy<Value = Vec<u8>> {
    let tail = prop_oneof![
        prop::collection::vec(prop_oneof![Just(0u8), Just(1u8), Just(255u8)], 0..8),
        prop::collection::vec(any::<u8>(), 0..40),
        prop::collection::vec(Just(9u8), 0..900),
    ];
    tail.prop_map(|tail| [b"kk", &tail[..]].concat())
}

fn value_strategy() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..60),
        1 => prop::collection::vec(Just(3u8), 0..370),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]

    #[test]
    fn leaf_behaves_like_a_map(
        ops in prop::collection::vec((key_strategy(), value_strategy(), 0..4u8), 1..if cfg!(miri) { 12 } else { 120 }),
        bounded in any::<bool>(),
    ) {
        let words = if bounded { leaf(b"kk", Some(b"kl")) } else { leaf(b"", None) };
        let mut model = BTreeMap::new();
        for (key, value, op) in ops {
            if op == 0 {
                prop_assert_eq!(remove(&words, &key), model.remove(&key).is_some());
            } else {
                let before = contents(Node::open(&*words, TREE).unwrap());
                match insert(&words, &key, ValueRef::inline(&value)) {
                    Edit::Done => { model.insert(key, value); }
                    Edit::Full => {
                        // Really full, and untouched.
                        let node = Node::open(&*words, TREE).unwrap();
                        let freed = model.get(&key).map_or(0, |old| {
                            leaf_cost(key.len() - node.prefix_len(), old.len())
                        });
                        prop_assert!(node.free() + freed < leaf_cost(key.len() - node.prefix_len(), value.len()));
                        prop_assert_eq!(before, contents(node));
                    }
                }
            }
            let node = Node::open(&*words, TREE).unwrap();
            node.check().unwrap();
            let used: usize = model.iter().map(|(key, value)| leaf_cost(key.len() - node.prefix_len(), value.len())).sum();
            prop_assert_eq!(node.used(), used + node.fence_len());
            let expected: Vec<_> = model.clone().into_iter().collect();
            prop_assert_eq!(contents(node), expected);
        }
    }

    #[test]
    fn a_full_leaf_splits_so_that_the_record_fits(
        records in prop::collection::btree_map(key_strategy(), value_strategy(), 1..80),
        key in key_strategy(),
        value_len in 0..=MAX_INLINE_VALUE,
        bounded in any::<bool>(),
    ) {
        let value_len = value_len.min(MAX_INLINE_RECORD - key.len());
        let words = if bounded { leaf(b"kk", Some(b"kl")) } else { leaf(b"", None) };
        for (key, value) in &records {
            if insert(&words, key, ValueRef::inline(value)) == Edit::Full {
                break;
            }
        }
        let value = vec![1; value_len];
        if insert(&words, &key, ValueRef::inline(&value)) == Edit::Full {
            let image = Image::copy_of(&words);
            let node = Node::open(&*image, TREE).unwrap();
            let before = contents(node);
            let split = LeafSplit::choose(node, Pending { key: &key, value_len }).unwrap();
            let lower: &[u8] = if bounded { b"kk" } else { b"" };
            let (left, right) = split.build(node, TREE, lower).unwrap();
            let (left, right) = (Node::open(&*left, TREE).unwrap(), Node::open(&*right, TREE).unwrap());
            left.check().unwrap();
            right.check().unwrap();
            let (left_records, right_records) = (contents(left), contents(right));
            prop_assert!(left_records.iter().all(|(key, _)| &key[..] < split.separator()));
            prop_assert!(right_records.iter().all(|(key, _)| &key[..] >= split.separator()));
            let (goes, image) = if &key[..] < split.separator() { (left, left.source) } else { (right, right.source) };
            prop_assert!(goes.prefix_len() <= key.len());
            put_image(&words, image);
            prop_assert_eq!(insert(&words, &key, ValueRef::inline(&value)), Edit::Done);
            prop_assert_eq!([left_records, right_records].concat(), before);
        }
    }

    #[test]
    fn torn_nodes_never_panic(bytes in prop::collection::vec(any::<u8>(), PAGE_SIZE), level in 0..2u8, key in key_strategy()) {
        let mut builder = Builder::new(TREE, level, b"", Some(b"zz"));
        if level > 0 {
            builder.set_leftmost(PageId(9));
        }
        let mut image = builder.finish();
        image.0[field::COUNT + 2..].copy_from_slice(&bytes[field::COUNT + 2..]);
        for count in [0u16, 3, 300, 503] {
            image.0[field::COUNT..field::COUNT + 2].copy_from_slice(&count.to_le_bytes());
            image.0[field::HEAP..field::HEAP + 2].copy_from_slice(&4090u16.to_le_bytes());
            let words = Words::zeroed();
            put_image(&words, &image);
            exercise(Node::open(&*words, TREE), &key);
            exercise(Node::open(&*image, TREE), &key);
        }
    }
}

/// Calls everything that an optimistic reader may call on torn bytes.
fn exercise<S: Source>(node: Result<Node<'_, S>, MalformedNode>, key: &[u8]) {
    let Ok(node) = node else { return };
    let mut out = Vec::new();
    let _ = node
        .child_position(key)
        .and_then(|position| node.child(position));
    let _ = node
        .child_position_below(key)
        .and_then(|position| node.child(position));
    let _ = node.upper(&mut out);
    for position in 0..node.count() {
        let _ = node.key(position, &mut out);
        let _ = node.record_len(position);
        if let Ok(value) = node.value(position) {
            node.append(value.at, value.len, &mut out).unwrap();
        }
    }
    let _ = (node.used(), node.check());
}

#[test]
fn torn_nodes_cannot_be_split_or_edited_into_a_panic() {
    let mut image = Builder::new(TREE, 0, b"a", Some(b"b")).finish();
    for at in field::COUNT..SLOTS {
        for byte in [0, 1, 17, 255] {
            let old = std::mem::replace(&mut image.0[at], byte);
            let words = Words::zeroed();
            put_image(&words, &image);
            if let Ok(mut edit) = LeafEdit::open(&words, TREE)
                && let Ok(suffix) = edit.node().suffix_of(b"abcdef")
                && let Ok((position, found)) = edit.node().search(suffix)
            {
                let _ = edit.put(position, found, suffix, ValueRef::inline(&[1; 1000]));
            }
            if let Ok(node) = Node::open(&*image, TREE) {
                let pending = Pending {
                    key: b"abcdef",
                    value_len: 1000,
                };
                let _ = LeafSplit::choose(node, pending)
                    .and_then(|split| split.build(node, TREE, b"a"));
                let _ = InnerSplit::choose(node, 0).and_then(|split| split.build(node, TREE, b"a"));
                let _ = with_child(node, TREE, node.count(), b"ab", PageId(3));
            }
            image.0[at] = old;
        }
    }
}

#[test]
fn heads_compare_like_keys() {
    let keys: [&[u8]; 9] = [
        b"",
        b"\0",
        b"\0\0\0\0",
        b"\0\0\0\0\0",
        b"\0\0\x01",
        b"a",
        b"a\0",
        b"ab",
        b"\xff\xff\xff\xff\xff",
    ];
    for two in keys.windows(2) {
        assert!(
            two[0] < two[1] && head_of(two[0]) <= head_of(two[1]),
            "{two:?}"
        );
    }
    assert_eq!(head_of(b"abcd"), 0x6162_6364);
    assert_eq!(head_of(b"ab"), 0x6162_0000);
}

#[test]
fn inner_nodes_route_and_split() {
    let mut builder = Builder::new(TREE, 1, b"", None);
    builder.set_leftmost(PageId(100));
    let key = |number: u64| format!("key{number:06}").into_bytes();
    let mut count = 0;
    while builder.free() > 64 {
        count += 1;
        builder
            .push_child(&key(count * 2), PageId(100 + count))
            .unwrap();
    }
    let image = builder.finish();
    let node = Node::open(&*image, TREE).unwrap();
    node.check().unwrap();
    for number in 0..=count {
        let position = node.child_position(&key(number * 2 + 1)).unwrap();
        assert_eq!(node.child(position).unwrap(), PageId(100 + number));
        let below = node.child_position_below(&key(number * 2)).unwrap();
        assert_eq!(below as u64, number.saturating_sub(1));
    }
    for position in [0, 1, count as usize / 2, count as usize] {
        let split = InnerSplit::choose(node, position).unwrap();
        let (left, right) = split.build(node, TREE, b"key").unwrap();
        let (left, right) = (
            Node::open(&*left, TREE).unwrap(),
            Node::open(&*right, TREE).unwrap(),
        );
        left.check().unwrap();
        right.check().unwrap();
        assert_eq!(left.count() + right.count() + 1, node.count());
        assert_eq!(
            right.child(0).unwrap(),
            node.child(left.count() + 1).unwrap()
        );
        assert!(left.prefix_len() >= 3);
    }
}

#[test]
fn runs_are_noticed() {
    let (mut last, mut run) = (0, 0);
    for position in 0..5 {
        run = next_run(last, run, position);
        last = position;
    }
    assert_eq!(run, 4);
    for expected in -3..0i16 {
        run = next_run(last, run, last);
        assert_eq!(run, -(expected + 4));
    }
    assert_eq!(next_run(last, run, 9), 0);
    assert_eq!(next_run(usize::from(u16::MAX), 5, 0), 6);
}

#[test]
fn separators_are_short_and_between() {
    for (left, right, expected) in [
        (&b"abc"[..], &b"abd"[..], &b"abd"[..]),
        (b"abc", b"b", b"b"),
        (b"ab", b"abc", b"abc"),
        (b"a", b"abcdef", b"ab"),
        (b"", b"xyz", b"x"),
        (b"commonpart1zzzz", b"commonpart2aaaaaaa", b"commonpart2"),
    ] {
        assert_eq!(separator(left, right), expected);
        assert!(left < expected && expected <= right);
    }
}
