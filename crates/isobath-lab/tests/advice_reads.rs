//! What advice predicts of page reads and their I/Os, against the counters of a store that is
//! opened as advised and of its device.
#![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]

use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use isobath::{Durability, Options, Store};
use isobath_flash::rng::Rng;
use isobath_io::{FaultDevice, FaultPlan, Volume};
use isobath_lab::drive_model::read_profile;
use isobath_model::advise::{Advice, Advisor};
use isobath_model::workload::Workload;

/// 230 MB of leaves, 3.5 times what the pool of 128 MiB of memory holds.
const RECORDS: u32 = 1_600_000;
const VALUE_BYTES: usize = 120;
const SCANS: u32 = 4_000;
const PAGES_ERROR: f64 = 0.04;
const IOS_ERROR: f64 = 0.10;

fn advice(advisor: &Advisor<'_>, order: &str, scan_records: usize) -> Advice {
    let text = format!(
        "[data]\nrecord_count = {RECORDS}\nkey_bytes = 8\nvalue_bytes = {VALUE_BYTES}\norder = \"{order}\"\n\
         [operations]\nscans = 1.0\nscan_records = {scan_records}\nclients = 8\n\
         [machine]\nmemory_bytes = 134_217_728\ncore_count = 1\n"
    );
    advisor
        .advise(&Workload::from_toml(&text).unwrap())
        .unwrap()
}

fn key_of(n: u32) -> [u8; 8] {
    let mut key = u64::from(n).to_le_bytes();
    key.reverse();
    key
}

/// Measured: pages within 3.1%, I/Os within 5.3 to 7.3% (of a loaded store the number of long reads
/// differs from run to run); the goal is 10%, and 15% for the advice as a whole. Under the default
/// policy, which writes a batch of pages in the order of their numbers: taken to lie anywhere,
/// 4,000 records of the store that was written again would take 99 I/Os, 16% more than they do.
/// Pages and I/Os per scan are what the engine's counters and its device say, short and long scans
/// over a store that was loaded, and over the same one after every leaf was written again, in no
/// order (`is_rewritten`).
fn compare(is_rewritten: bool) {
    let profile = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/profile.json");
    let profile = read_profile(&profile).unwrap();
    let advisor = Advisor::new(&profile).unwrap();
    let pool_bytes = advice(&advisor, "loaded", 100).isobath.settings.pool_bytes;
    // As a large store has them; without it a store begins with small ones. What is predicted is of
    // trees that change in their leaves.
    let options = Options::new()
        .segment_bytes(2 << 20)
        .overlays(false)
        .pool_bytes(pool_bytes as u64)
        .workers(1)
        .tasks_per_worker(8)
        .durability(Durability::None);
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let volume = || Volume::from_device(Arc::clone(&device) as _);
    let store = Store::create_on_volume(volume(), &options).unwrap();
    let tree = store.create_tree("scans").unwrap();
    tree.bulk_load((0..RECORDS).map(|n| (key_of(n), [0; VALUE_BYTES])))
        .unwrap();
    drop(tree);
    store.close().unwrap();
    let judge = |order: &str| {
        let store = Store::open_on_volume(volume(), &options).unwrap();
        let tree = store.tree("scans").unwrap();
        let mut rng = Rng::new(1);
        let mut scan = |records: usize, count: u32| {
            let before = (store.stats().page_reads, device.io_count());
            for _ in 0..count {
                let key = key_of(rng.below(RECORDS));
                let bounds = (Bound::Included(&key[..]), Bound::Unbounded);
                tree.scan_first(bounds, records, |_, _| {}).unwrap();
            }
            let since = |now: u64, before: u64| (now - before) as f64 / f64::from(count);
            let reads = since(store.stats().page_reads, before.0);
            (reads, since(device.io_count(), before.1))
        };
        for records in [10, 100, 400, 4000] {
            let count = SCANS * 100 / records.max(100) as u32;
            // The pool's first contents are no sample of its contents in use.
            scan(records, 3 * SCANS * 100 / records as u32);
            let (pages, ios) = scan(records, count);
            let predicted = advice(&advisor, order, records).isobath.predicted;
            let predicted_pages = predicted.page_reads_per_operation;
            let predicted_ios = predicted.read_ios_per_operation.unwrap();
            let text = format!(
                "{order}, {records} records: {predicted_pages:.3} pages predicted, {pages:.3} measured; \
                 {predicted_ios:.3} I/Os, {ios:.3}"
            );
            println!("{text}");
            assert!(
                (predicted_pages / pages - 1.0).abs() < PAGES_ERROR,
                "{text}"
            );
            assert!((predicted_ios / ios - 1.0).abs() < IOS_ERROR, "{text}");
        }
        drop(tree);
        store.close().unwrap();
    };
    if !is_rewritten {
        return judge("loaded");
    }
    let store = Store::open_on_volume(volume(), &options).unwrap();
    let tree = store.tree("scans").unwrap();
    // Each leaf some seven times, in no order.
    let mut rng = Rng::new(2);
    for _ in 0..RECORDS / 4 {
        tree.insert(key_of(rng.below(RECORDS)), [1; VALUE_BYTES])
            .unwrap();
    }
    drop(tree);
    store.close().unwrap();
    judge("rewritten");
}

#[test]
fn scans_of_a_loaded_store_read_as_many_pages_as_advised() {
    compare(false);
}

#[test]
fn scans_of_a_rewritten_store_read_as_many_pages_as_advised() {
    compare(true);
}
