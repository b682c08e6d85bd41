//! Neighbouring pages are read with one I/O, and each of them is judged alone.

#![allow(missing_docs, clippy::unwrap_used, clippy::big_endian_bytes)]

use super::common;

use std::ops::Bound;
use std::sync::Arc;

use common::{Random, image, value};
use isobath::{Error, Options, Store, Tree, Volume};
use isobath_io::{Fault, FaultDevice, FaultPlan, FaultRule, IoErrorKind, Op, Trigger};

const RECORDS: u64 = 6000;
/// Three records fill a page.
const LENGTH: usize = 1000;
const PAGE: u64 = 4096;
/// Where a page says of what kind it is, and what a leaf says there.
const KIND_OFFSET: usize = 4;
const LEAF: u8 = 1;

fn options() -> Options {
    Options::new()
        .pool_bytes(4 << 20)
        .workers(1)
        .tasks_per_worker(16)
        .segment_bytes(256 << 10)
}

fn key(n: u64) -> [u8; 8] {
    n.to_be_bytes()
}

fn record(n: u64) -> (Vec<u8>, Vec<u8>) {
    (key(n).to_vec(), value(n, LENGTH))
}

/// A closed store of a tree that was loaded in the order of its keys.
fn build() -> Arc<FaultDevice> {
    let device = FaultDevice::new(0, FaultPlan::new(1).sleeps(true));
    let volume = Volume::from_device(device.clone());
    let store = Store::create_on_volume(volume, &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    tree.bulk_load((0..RECORDS).map(record)).unwrap();
    store.close().unwrap();
    device
}

/// A store of which nothing is in memory, and which writes nothing.
fn open(device: &Arc<FaultDevice>, options: &Options) -> (Store, Tree) {
    let volume = Volume::from_device(device.clone());
    let store = Store::open_on_volume(volume, &options.clone().read_only(true)).unwrap();
    let tree = store.tree("t").unwrap();
    (store, tree)
}

/// Pages and I/Os that `work` reads.
fn reads(device: &FaultDevice, store: &Store, work: impl FnOnce()) -> (u64, u64) {
    let before = (store.stats().page_reads, device.io_count());
    work();
    let pages = store.stats().page_reads - before.0;
    (pages, device.io_count() - before.1)
}

#[test]
fn a_scan_of_loaded_records_takes_few_reads() {
    let device = build();
    for is_reverse in [false, true] {
        let (store, tree) = open(&device, &options());
        let (pages, ios) = reads(&device, &store, || {
            let mut numbers: Vec<u64> = (0..RECORDS).collect();
            if is_reverse {
                numbers.reverse();
            }
            let mut expected = numbers.into_iter().map(record);
            let visit = |k: &[u8], v: &[u8]| {
                assert_eq!(Some((k.to_vec(), v.to_vec())), expected.next());
                true
            };
            match is_reverse {
                false => tree.scan(.., visit).unwrap(),
                true => tree.scan_reverse(.., visit).unwrap(),
            }
            assert!(expected.next().is_none());
        });
        println!("reverse {is_reverse}: {pages} pages, {ios} reads");
        assert!(pages >= RECORDS / 3);
        assert!(ios * 8 < pages, "{ios} reads of {pages} pages");
        store.close().unwrap();
    }
}

/// A scan that says how many records it takes reads its leaves together, and the first of them with
/// the others once it is known how many records leaves have.
#[test]
fn a_short_scan_takes_hardly_more_reads_than_one() {
    let device = build();
    let (store, tree) = open(&device, &options());
    let scan = |first: u64, count: u64| {
        let mut expected = (first..first + count).map(record);
        tree.scan_first(&key(first)[..].., count as usize, |k, v| {
            assert_eq!(Some((k.to_vec(), v.to_vec())), expected.next());
        })
        .unwrap();
        assert!(expected.next().is_none());
    };
    // The inner nodes come into memory.
    scan(0, RECORDS);
    let mut random = Random::new(3);
    let (mut pages, mut ios) = (0, 0);
    let scans = 50;
    for _ in 0..scans {
        tree.scan(&key(0)[..]..&key(1)[..], |_, _| true).unwrap();
        let first = random.below(RECORDS - 30);
        let read = reads(&device, &store, || scan(first, 30));
        (pages, ios) = (pages + read.0, ios + read.1);
    }
    println!("{pages} pages, {ios} reads");
    // What of the leaves is in the pool needs no read; runs end where a batch of the load's writers
    // does.
    assert!(
        ios * 3 < pages && ios < scans * 3,
        "{ios} reads of {pages} pages"
    );
    store.close().unwrap();
}

/// A range that ends soon is not read beyond its end, whatever number of records is wanted.
#[test]
fn nothing_is_read_beyond_the_end_of_a_range() {
    let device = build();
    let (store, tree) = open(&device, &options());
    let limit = RECORDS as usize;
    // Teaches how many records leaves have.
    tree.scan_first(&key(100)[..]..&key(200)[..], limit, |_, _| {})
        .unwrap();
    for (first, end) in [(1000, 1010), (3000, 3001), (4000, 4004)] {
        let range = (Bound::Included(key(first)), Bound::Excluded(key(end)));
        let (pages, _) = reads(&device, &store, || {
            let mut seen = 0;
            let bounds = (range.0.as_ref(), range.1.as_ref());
            let bounds = (bounds.0.map(|k| &k[..]), bounds.1.map(|k| &k[..]));
            tree.scan_first(bounds, limit, |_, _| seen += 1).unwrap();
            assert_eq!(seen, end - first);
        });
        // Inner nodes on the way, too.
        assert!(pages <= (end - first) / 3 + 4, "{pages} pages");
    }
    store.close().unwrap();
}

/// What a scan gives until it fails, and why it fails.
fn scan(tree: &Tree, is_reverse: bool) -> (Vec<u64>, Option<Error>) {
    let mut seen = Vec::new();
    let visit = |k: &[u8], v: &[u8]| {
        let n = u64::from_be_bytes(k.try_into().unwrap());
        assert!(v == value(n, LENGTH), "a wrong value of {n}");
        seen.push(n);
        true
    };
    let ended = match is_reverse {
        false => tree.scan(.., visit),
        true => tree.scan_reverse(.., visit),
    };
    (seen, ended.err())
}

/// Whether scans from both ends see all records but those of at most one page, and are told of
/// that.
fn misses_one_page(device: &Arc<FaultDevice>, is_right: impl Fn(&Error) -> bool) -> bool {
    let (store, tree) = open(device, &options());
    let (mut seen, error) = scan(&tree, false);
    let Some(error) = error else {
        assert_eq!(seen.len() as u64, RECORDS);
        return false;
    };
    assert!(is_right(&error), "{error}");
    let (others, error) = scan(&tree, true);
    match error {
        Some(error) => assert!(is_right(&error), "{error}"),
        // A place that fails was passed in the middle of a read.
        None => assert_eq!(others.len() as u64, RECORDS),
    }
    seen.extend(others);
    seen.sort_unstable();
    seen.dedup();
    assert!(seen.len() as u64 >= RECORDS - 4, "{} records", seen.len());
    for n in (0..RECORDS).filter(|n| seen.binary_search(n).is_err()) {
        assert!(tree.get(key(n)).is_err_and(|error| is_right(&error)));
    }
    store.close().unwrap();
    true
}

/// Places of some leaves, all over the volume.
fn leaves(device: &FaultDevice) -> Vec<u64> {
    let mut page = [0; PAGE as usize];
    let mut is_leaf = |at: u64| {
        device.peek(at, &mut page);
        page[KIND_OFFSET] == LEAF
    };
    let places = (0..device.bytes()).step_by(PAGE as usize);
    let places: Vec<u64> = places.filter(|&at| is_leaf(at)).collect();
    // No common factor with the number of pages that are written together; the first one is the
    // catalog's.
    let places: Vec<u64> = places.into_iter().skip(3).step_by(41).collect();
    assert!(places.len() >= 40, "{} leaves", places.len());
    places
}

#[test]
fn a_corrupt_page_among_neighbours_is_the_only_one_that_is_missed() {
    let pristine = build();
    let places = leaves(&pristine);
    let mut missed = 0;
    for &at in &places {
        let device = image(&pristine);
        device.corrupt(at + 2000..at + 2001, |byte| byte[0] ^= 1);
        let is_right = |error: &Error| matches!(error, Error::CorruptPage { .. });
        missed += usize::from(misses_one_page(&device, is_right));
    }
    // Some may be older copies.
    assert!(missed * 2 > places.len(), "{missed} of {}", places.len());
}

/// A place that cannot be read makes no neighbour unreadable.
#[test]
fn a_failing_page_among_neighbours_is_the_only_one_that_is_missed() {
    let device = build();
    for at in leaves(&device) {
        let fails = FaultRule::new(Fault::Error(IoErrorKind::Media), Trigger::From(0));
        device.add_rule(fails.ops(&[Op::Read]).region(at..at + PAGE));
        // A read that begins before it does not fail.
        misses_one_page(&device, |error| matches!(error, Error::PageRead { .. }));
        device.clear_rules();
    }
}

/// Scans of all records beside each other, in a pool that holds a few pages of each, are right.
#[test]
fn scans_in_a_small_pool_read_what_is_pushed_out_again() {
    let device = build();
    let options = common::tiny(2, 8).segment_bytes(256 << 10);
    let (store, tree) = open(&device, &options);
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let tree = &tree;
            scope.spawn(move || {
                let (mut seen, error) = scan(tree, thread % 2 == 1);
                assert!(error.is_none(), "{error:?}");
                if thread % 2 == 1 {
                    seen.reverse();
                }
                assert!(seen.into_iter().eq(0..RECORDS));
            });
        }
    });
    let report = store.check(&mut |_, _| {}).unwrap();
    assert_eq!(report.problems, Vec::<String>::new());
    store.close().unwrap();
}
