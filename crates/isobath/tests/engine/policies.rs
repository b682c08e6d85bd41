//! Every cleaning policy that a store can have, under updates that keep its cleaner busy; and what
//! a trace receives.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use common::{Random, assert_sound, key, tiny, value};
use isobath::{PageTrace, PolicyKind, Store, Volume};

const RECORDS: u64 = 20_000;

/// Loads, then updates `count` records, most of them among the first tenth, and keeps `model` in
/// step.
fn update(store: &Store, model: &mut BTreeMap<u64, u64>, count: u64, seed: u64) {
    let tree = store.open_or_create_tree("t").unwrap();
    let mut random = Random::new(seed);
    for n in 0..count {
        let range = if random.below(10) < 8 {
            RECORDS / 10
        } else {
            RECORDS
        };
        let (id, tag) = (random.below(range), seed << 32 | n);
        tree.insert(&key(id), &value(tag, 100)).unwrap();
        model.insert(id, tag);
    }
}

fn assert_holds(store: &Store, model: &BTreeMap<u64, u64>) {
    let tree = store.tree("t").unwrap();
    for (&id, &tag) in model {
        assert_eq!(tree.get(&key(id)).unwrap(), Some(value(tag, 100)), "{id}");
    }
    assert_sound(store, None);
}

#[test]
fn every_policy_without_an_oracle_keeps_the_data() {
    for policy in PolicyKind::ALL.into_iter().filter(|p| !p.needs_rates()) {
        let volume = Volume::in_memory(0, Some(7 << 20));
        let options = tiny(2, 8).cleaning_policy(policy);
        let store = Store::create_on_volume(volume.clone(), &options).unwrap();
        let mut model = BTreeMap::new();
        update(&store, &mut model, 30_000, 1);
        let stats = store.stats();
        assert!(stats.segments_cleaned > 100, "{policy}: {stats:?}");
        let sealed = stats.segment_emptiness.iter().sum::<u64>();
        assert!(sealed > 0 && sealed + stats.free_segments <= stats.segments);
        assert_holds(&store, &model);
        store.close().unwrap();
        // The statistics of pages are gone; the data is not.
        let store = Store::open_on_volume(volume, &options).unwrap();
        update(&store, &mut model, 10_000, 2);
        assert_holds(&store, &model);
        store.close().unwrap();
    }
}

#[derive(Default)]
struct Heard {
    writes: u64,
    live: BTreeSet<u64>,
}

struct Listener(Arc<Mutex<Heard>>);

impl PageTrace for Listener {
    fn written(&mut self, page: u64) {
        let mut heard = self.0.lock().unwrap();
        heard.writes += 1;
        heard.live.insert(page);
    }
    fn freed(&mut self, page: u64) {
        self.0.lock().unwrap().live.remove(&page);
    }
}

#[test]
fn a_trace_receives_every_page_write_and_every_page_that_there_was() {
    let volume = Volume::in_memory(0, None);
    let store = Store::create_on_volume(volume.clone(), &tiny(2, 8)).unwrap();
    let heard = Arc::new(Mutex::new(Heard::default()));
    store.trace_pages(Some(Box::new(Listener(heard.clone()))));
    let before = store.stats().page_writes + heard.lock().unwrap().writes;
    let mut model = BTreeMap::new();
    update(&store, &mut model, 40_000, 3);
    store.create_tree("other").unwrap();
    store.drop_tree("other").unwrap();
    // A page that is freed while it is being written counts as a write and the trace does not
    // receive it.
    let (writes, told) = (store.stats().page_writes, heard.lock().unwrap().writes);
    assert!(
        told > 1000 && told + 50 > writes - before && told <= writes,
        "{told} of {writes}"
    );
    store.close().unwrap();
    let live = heard.lock().unwrap().live.len() as u64;

    // A trace that begins later first receives all pages that are stored.
    let store = Store::open_on_volume(volume, &tiny(2, 8)).unwrap();
    let later = Arc::new(Mutex::new(Heard::default()));
    store.trace_pages(Some(Box::new(Listener(later.clone()))));
    let stored = later.lock().unwrap().live.len() as u64;
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(stored, report.pages);
    assert_eq!(live, stored);
    store.trace_pages(None);
    update(&store, &mut model, 5_000, 4);
    assert_eq!(later.lock().unwrap().writes, stored);
    store.close().unwrap();
}
