//! Backups of trees with overlays.

use std::ops::ControlFlow;

use isobath::{BackupOptions, Store};

use super::common::{assert_sound, contents, key};
use super::{KEYS, fill, options, small, value_of};

/// A backup copies leaves, then these change, then their tree gets overlays whose memory is sealed:
/// the backup's log has the change, and what is restored too.
#[test]
fn a_backup_has_what_was_changed_before_the_tree_had_overlays() {
    small(4 << 10);
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let plain = options(16 << 20).overlays(false);
    let store = Store::create(at("s"), &plain).unwrap();
    let tree = store.create_tree("t").unwrap();
    let mut model = fill(&tree);
    drop(tree);
    store.close().unwrap();

    let store = Store::open(at("s"), &options(16 << 20)).unwrap();
    let tree = store.tree("t").unwrap();
    let mut changed = 0;
    let mut watch = |stage: &str, done: u64, total: u64| {
        if stage == "copying" && done == total && changed == 0 {
            while store.stats().sealed_runs == 0 && changed < 100_000 {
                let name = key(changed % KEYS);
                tree.insert(&name, value_of(changed)).unwrap();
                model.insert(name.to_vec(), value_of(changed));
                changed += 1;
            }
        }
        ControlFlow::Continue(())
    };
    let report = store.backup(&at("b"), &BackupOptions::new(), &mut watch);
    assert_eq!(report.unwrap().rounds, 1, "the copies are from before");
    assert!(store.stats().sealed_runs > 0, "{}", store.stats());
    drop(tree);
    store.close().unwrap();

    let paths = [at("r")];
    let mut on = |_: &str, _, _| ControlFlow::Continue(());
    Store::restore(&[at("b")], &paths, &options(16 << 20), &mut on).unwrap();
    let restored = Store::open(&paths, &options(16 << 20)).unwrap();
    let found = contents(&restored.tree("t").unwrap());
    assert!(found == model, "{changed} changes");
    assert_sound(&restored, Some(model.len() as u64));
    restored.close().unwrap();
}
