//! Backups beside tasks that wait for the log.

#![allow(missing_docs, clippy::unwrap_used)]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use isobath::{BackupOptions, Store};

use super::backup::{Place, Stops, options};
use super::common::{assert_sound, contents, key, value};

/// Tasks that wait for space in the log have every slot, and the backup that holds the log needs
/// one to go on.
#[test]
fn a_backup_goes_on_although_every_task_waits_for_the_log() {
    let place = Place::new();
    let options = options().tasks_per_worker(4);
    let store = Store::create(&[place.at("s")], &options).unwrap();
    let tree = store.create_tree("t").unwrap();
    for n in 0..500 {
        tree.insert(&key(n), &value(n, 900)).unwrap();
    }
    let (stop, written) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let _stops = Stops(&stop);
        let (tree, stop, written) = (&tree, &stop, &written);
        for thread in 0..16 {
            scope.spawn(move || {
                for n in (thread..).step_by(16) {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    tree.insert(&key(n % 500), &value(n, 900)).unwrap();
                    written.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // Goes on once nothing is written any more.
        let mut watch = |stage: &str, _, _| {
            let mut last = (0, Instant::now());
            while stage.starts_with("copying") && last.1.elapsed() < Duration::from_millis(500) {
                std::thread::sleep(Duration::from_millis(10));
                let now = written.load(Ordering::SeqCst);
                if now > last.0 {
                    last = (now, Instant::now());
                }
            }
            ControlFlow::Continue(())
        };
        let report = store.backup(&place.at("b"), &BackupOptions::new(), &mut watch);
        assert!(report.unwrap().rounds > 1);
    });
    store.close().unwrap();
    let restored = place.restore(&["b"], "r").unwrap();
    assert_eq!(contents(&restored.tree("t").unwrap()).len(), 500);
    assert_sound(&restored, None);
    restored.close().unwrap();
}
