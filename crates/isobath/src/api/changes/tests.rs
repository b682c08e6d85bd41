use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use isobath_io::Volume;

use super::Changes;
use crate::shared::Durability;
use crate::{Options, Store};

/// Between an opening's looks at the superblock and at the log a writer uses all of the log's space
/// again, twice.
#[test]
fn an_opening_that_a_writer_overtakes_begins_anew() {
    let options = Options::new()
        .pool_bytes(4 << 20)
        .workers(1)
        .segment_bytes(64 << 10)
        .log_bytes(4 << 20)
        .durability(Durability::Buffered { window_ms: 1 });
    let volume = Volume::in_memory(0, None);
    let store = Store::create_on_volume(volume.clone(), &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    let log_start = {
        let volume = volume.clone();
        move || {
            let superblock = crate::recovery::read_superblock(&volume, &[]);
            superblock.unwrap().log_start
        }
    };
    let opened = AtomicUsize::new(0);
    let writes = tree.clone();
    let reads = move || {
        // The second volume of an attempt is that of the state, which follows the superblock.
        if matches!(opened.fetch_add(1, Ordering::Relaxed), 1 | 3) {
            let before = log_start();
            let write_some = |value: u8| {
                for n in 0..1000 {
                    writes.insert(format!("{n:04}"), [value; 500]).unwrap();
                }
                log_start() > before + (8 << 20)
            };
            assert!((0..=u8::MAX).any(write_some), "the log stays where it was");
        }
        Ok(volume.clone())
    };
    let mut changes = Changes::beside(Vec::new(), reads, options.read_only(true), None).unwrap();
    let all = changes.next_within(Duration::ZERO).unwrap().unwrap();
    assert!(all.is_whole);
    assert_eq!(all.records("t").unwrap().count(), 1000);
    drop((all, changes, tree));
    store.close().unwrap();
}
