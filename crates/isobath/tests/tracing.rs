//! What a store sends to `tracing`: opening, recovery, checkpoints, growth, cleaning, backups,
//! failures.

#![allow(
    clippy::disallowed_methods,
    reason = "tests have threads and clocks of their own"
)]
#![allow(
    clippy::big_endian_bytes,
    reason = "keys that compare as their numbers do"
)]
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use isobath::{BackupOptions, Durability, Options, Store, TransactionOptions, Volume};
use isobath_io::{Fault, FaultDevice, FaultPlan, FaultRule, IoErrorKind, Op, Survivors, Trigger};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Counts messages and names of spans.
#[derive(Clone, Default)]
struct Listener(Arc<Mutex<BTreeMap<String, u64>>>, Arc<AtomicU64>);

impl Listener {
    fn heard(&self, what: &str) -> u64 {
        let all = self.0.lock().unwrap();
        all.iter()
            .filter(|(text, _)| text.contains(what))
            .map(|(_, count)| count)
            .sum()
    }

    fn add(&self, what: String) {
        *self.0.lock().unwrap().entry(what).or_insert(0) += 1;
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0 += &format!("{}={value:?} ", field.name());
    }
}

impl Subscriber for Listener {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "isobath"
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.add(format!("span {}", span.metadata().name()));
        Id::from_u64(1 + self.1.fetch_add(1, Ordering::Relaxed))
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        let mut text = Text(format!("{} ", event.metadata().level()));
        event.record(&mut text);
        self.add(text.0);
    }
    fn enter(&self, _: &Id) {
        self.add("entered".into());
    }
    fn exit(&self, _: &Id) {}
}

fn options() -> Options {
    Options::new()
        .pool_bytes(8 << 20)
        .workers(1)
        .segment_bytes(128 << 10)
        .durability(Durability::None)
}

/// One test, because a process has one subscriber for all threads.
#[test]
fn rare_events_are_traced() {
    let listener = Listener::default();
    tracing::subscriber::set_global_default(listener.clone()).unwrap();
    let device = FaultDevice::new(0, FaultPlan::new(1));
    let volume = Volume::from_device(device.clone());
    let store = Store::create_on_volume(volume, &options()).unwrap();
    let tree = store.create_tree("t").unwrap();
    for number in 0..40_000u32 {
        let key = number.wrapping_mul(0x9e37_79b9).to_be_bytes();
        tree.insert(key, [7; 300]).unwrap();
    }
    assert!(listener.heard("the volume has grown") > 0);
    store.checkpoint().unwrap();
    assert!(listener.heard("span checkpoint") > 0);
    assert!(listener.heard("a checkpoint is written") > 0);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("backup");
    store
        .backup(&file, &BackupOptions::default(), &mut |_, _, _| {
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(listener.heard("span backup"), 1);
    tree.remove_range(..).unwrap();
    store.compact().unwrap();
    assert_eq!(listener.heard("span compact"), 1);
    assert!(listener.heard("a segment is clean") > 0);
    assert!(listener.heard("the volume is shorter") > 0);
    let synced = TransactionOptions::new().durability(Durability::Synced);
    let mut transaction = store.begin_with(synced).unwrap();
    transaction.insert(&tree, "later", "v").unwrap();
    transaction.commit().unwrap();
    // A power cut, then recovery.
    let image = device.crash_image(Survivors::Executed, 0);
    let recovered = Store::open_on_volume(Volume::from_device(image.clone()), &options()).unwrap();
    assert_eq!(listener.heard("span recovery"), 1);
    assert_eq!(listener.heard("span open"), 1);
    assert_eq!(listener.heard("recovered from the log"), 1);
    // A failed write.
    let fails = FaultRule::new(Fault::Error(IoErrorKind::Media), Trigger::From(0));
    image.add_rule(fails.ops(&[Op::Write]));
    let tree = recovered.tree("t").unwrap();
    let _ = tree.insert("more", "v");
    assert!(recovered.checkpoint().is_err());
    assert!(listener.heard("ERROR message=a write failed") > 0);
    assert!(recovered.close().is_err());
    drop(tree);
    store.close().unwrap();
    // A span that a task enters would be the span of whichever task runs next on its thread.
    assert_eq!(listener.heard("entered"), 0);
}
