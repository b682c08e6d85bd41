//! Trees of Rust types, beside maps of the same.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;

use isobath::{Error, Options, Store, TransactionOptions, TypedTree};

type Key = (String, Option<i64>);

#[test]
fn typed_trees_are_as_maps_are() {
    let options = Options::new().pool_bytes(8 << 20).workers(1);
    let store = Store::in_memory(&options).unwrap();
    let tree: TypedTree<Key, u32> = store.create_tree("t").unwrap().typed();
    let mut map: BTreeMap<Key, u32> = BTreeMap::new();
    let names = ["", "a", "a\0", "a\0\u{ff}", "ab", "b", "ß"];
    for (at, name) in names.iter().enumerate() {
        for number in [None, Some(i64::MIN), Some(-1), Some(0), Some(7)] {
            let key = (name.to_string(), number);
            tree.insert(&key, &(at as u32)).unwrap();
            map.insert(key, at as u32);
        }
    }
    assert!(tree.remove(&("b".to_owned(), None)).unwrap());
    map.remove(&("b".to_owned(), None));
    let all: Vec<(Key, u32)> = tree.range(..).map(Result::unwrap).collect();
    assert_eq!(all, map.clone().into_iter().collect::<Vec<_>>());
    assert!(tree.iter().map(Result::unwrap).eq(all));
    for (record, (key, value)) in (&tree).into_iter().zip(&map) {
        assert_eq!(record.unwrap(), (key.clone(), *value));
        assert!(tree.contains_key(key).unwrap());
    }
    let back: Vec<(Key, u32)> = tree.range(..).rev().map(Result::unwrap).collect();
    assert_eq!(back, map.clone().into_iter().rev().collect::<Vec<_>>());
    for from in map.keys() {
        let to = ("ab".to_owned(), Some(0));
        if *from <= to {
            let some: Vec<_> = tree
                .range(from.clone()..to.clone())
                .map(Result::unwrap)
                .collect();
            let expected: Vec<_> = map
                .range(from.clone()..to)
                .map(|(k, v)| (k.clone(), *v))
                .collect();
            assert_eq!(some, expected);
        }
    }
    let owned = |(key, value): (&Key, &u32)| (key.clone(), *value);
    assert_eq!(tree.first().unwrap(), map.first_key_value().map(owned));
    assert_eq!(tree.last().unwrap(), map.last_key_value().map(owned));
    assert_eq!(tree.clear().unwrap(), map.len() as u64);
    assert!(tree.iter().next().is_none());
    let counters: TypedTree<String, u64> = store.create_tree("counters").unwrap().typed();
    for _ in 0..3 {
        let counters = counters.clone();
        store
            .transact(TransactionOptions::new(), |transaction| {
                let now = counters.get_in(transaction, "visits")?.unwrap_or(0);
                counters.insert_in(transaction, "visits", &(now + 1))
            })
            .unwrap();
    }
    assert_eq!(counters.get("visits").unwrap(), Some(3));
    assert!(counters.contains("visits").unwrap() && !counters.contains("x").unwrap());
    // Another type than was written.
    let wrong: TypedTree<u8, u64> = counters.tree().typed();
    assert!(matches!(wrong.first(), Err(Error::BadEncoding { .. })));
    store.close().unwrap();
}
