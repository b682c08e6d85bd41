//! Snapshots: what is sent, what a crash leaves, and what must not be believed.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use isobath_raft::{Error, Piece, SnapshotFiles, SnapshotReceiver};
use openraft::storage::{RaftLogStorage, RaftStateMachine};
use openraft::{Membership, RaftSnapshotBuilder, Snapshot, StoredMembership, Vote};
use support::{Machine, Map, Types, id, names, open, options, put, records};
use tempfile::TempDir;

/// Sends a snapshot as a network does; returns the files that were sent, and their receiver.
fn filled(snapshot: &Snapshot<Types>, to: &Machine) -> (Vec<Piece>, SnapshotReceiver<Types>) {
    let receiver = to.receive(&snapshot.snapshot.pieces()).unwrap();
    let missing = receiver.missing();
    for piece in &missing {
        let mut offset = 0;
        while offset < piece.bytes {
            let bytes = snapshot
                .snapshot
                .read_at(&piece.name, offset, 10_000)
                .unwrap();
            receiver.write_at(&piece.name, offset, &bytes).unwrap();
            offset += bytes.len() as u64;
        }
    }
    (missing, receiver)
}

/// The same; what came of them.
fn receive(snapshot: &Snapshot<Types>, to: &Machine) -> (Vec<Piece>, SnapshotFiles) {
    let (missing, receiver) = filled(snapshot, to);
    (missing, receiver.finish(&snapshot.meta).unwrap())
}

/// Sends a snapshot and installs it; returns the files that were sent.
async fn send(snapshot: &Snapshot<Types>, to: &mut Machine) -> Vec<Piece> {
    let (missing, files) = receive(snapshot, to);
    to.install_snapshot(&snapshot.meta, Box::new(files))
        .await
        .unwrap();
    missing
}

async fn fill(machine: &mut Machine, indexes: std::ops::Range<u64>) {
    let value = "v".repeat(200);
    let entries = indexes.map(|index| put(index, &format!("key {index:06}"), &value));
    machine.apply(entries.collect::<Vec<_>>()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_gets_only_the_backups_that_it_lacks() {
    let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ((_log, mut leader), (_log2, mut follower)) = (open(here.path()), open(there.path()));
    fill(&mut leader, 1..5_000).await;
    let first = leader.build_snapshot().await.unwrap();
    assert_eq!(send(&first, &mut follower).await, first.snapshot.pieces());

    fill(&mut leader, 5_000..5_050).await;
    let second = leader.build_snapshot().await.unwrap();
    let sent = send(&second, &mut follower).await;
    let bytes = |pieces: &[Piece]| pieces.iter().map(|piece| piece.bytes).sum::<u64>();
    assert!(
        bytes(&sent) * 4 < bytes(&first.snapshot.pieces()),
        "{sent:?} after {:?}",
        first.snapshot.pieces()
    );
    assert!(
        second
            .snapshot
            .pieces()
            .starts_with(&first.snapshot.pieces())
    );
    assert_eq!(records(&follower), records(&leader));
    assert_eq!(records(&follower).len(), 5_049);
    assert_eq!(
        follower.applied_state().await.unwrap().0,
        second.meta.last_log_id
    );

    // The follower's own snapshot begins anew: its store is another one.
    let own = follower.build_snapshot().await.unwrap();
    assert!(!own.snapshot.pieces().contains(&first.snapshot.pieces()[0]));
    // One file per piece, one state, the log.
    let files = own.snapshot.pieces().len() + 2;
    assert_eq!(
        names(there.path()).len(),
        files,
        "{:?}",
        names(there.path())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chain_does_not_grow_without_end_and_old_files_are_readable_until_they_are_dropped() {
    let here = TempDir::new().unwrap();
    let (_log, mut machine) = open(here.path());
    fill(&mut machine, 1..100).await;
    let first = machine.build_snapshot().await.unwrap();
    let mut lengths = Vec::new();
    for round in 0..20 {
        fill(&mut machine, 100 + round..101 + round).await;
        lengths.push(
            machine
                .build_snapshot()
                .await
                .unwrap()
                .snapshot
                .pieces()
                .len(),
        );
    }
    assert!(lengths.iter().all(|&length| length <= 16), "{lengths:?}");
    assert!(
        lengths.iter().filter(|&&length| length == 2).count() >= 1,
        "{lengths:?}"
    );
    assert!(lengths.iter().any(|&length| length > 2), "{lengths:?}");
    let old = &first.snapshot.pieces()[0];
    assert!(!here.path().join(format!("{}.backup", old.name)).exists());
    // Another node can still get and install it, although its files have no names any more.
    let there = TempDir::new().unwrap();
    let (_log2, mut follower) = open(there.path());
    send(&first, &mut follower).await;
    assert_eq!(records(&follower).len(), 99);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_says_exactly_what_it_holds_while_entries_are_applied() {
    let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ((_log, mut leader), (_log2, mut follower)) = (open(here.path()), open(there.path()));
    fill(&mut leader, 1..2_000).await;
    let mut builder = leader.get_snapshot_builder().await;
    let building = tokio::spawn(async move { builder.build_snapshot().await.unwrap() });
    let mut index = 2_000;
    while !building.is_finished() {
        fill(&mut leader, index..index + 1).await;
        index += 1;
    }
    let snapshot = building.await.unwrap();
    let last = snapshot.meta.last_log_id.unwrap().index;
    assert!(
        (2_000..index).contains(&last),
        "{last} of {index}: nothing was concurrent"
    );
    send(&snapshot, &mut follower).await;
    assert_eq!(records(&follower).len() as u64, last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_installed_is_there_after_opening_and_nothing_else() {
    let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let (_log, mut leader) = open(here.path());
    fill(&mut leader, 1..500).await;
    let snapshot = leader.build_snapshot().await.unwrap();
    {
        let (_log, mut follower) = open(there.path());
        send(&snapshot, &mut follower).await;
    }
    // What a crash in the middle of the next installation leaves.
    for name in [
        "state-2.iso",
        "0-f.backup",
        "0-e.incoming",
        "0-d.backup.partial",
        "0-c.restored",
    ] {
        fs::write(there.path().join(name), "cut off").unwrap();
    }
    fs::write(there.path().join("notes.txt"), "the user's").unwrap();
    let (_log, mut follower) = open(there.path());
    assert_eq!(records(&follower), records(&leader));
    let current = follower.get_current_snapshot().await.unwrap().unwrap();
    assert_eq!(current.meta, snapshot.meta);
    let mut expected: Vec<String> = snapshot
        .snapshot
        .pieces()
        .iter()
        .map(|piece| format!("{}.backup", piece.name))
        .chain(["log.iso", "notes.txt", "state-1.iso"].map(str::to_owned))
        .collect();
    expected.sort();
    assert_eq!(names(there.path()), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_sent_wrongly_is_refused_and_leaves_nothing() {
    let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ((_log, mut leader), (_log2, mut follower)) = (open(here.path()), open(there.path()));
    fill(&mut leader, 1..100).await;
    fill(&mut follower, 1..50).await;
    let before = (names(there.path()), records(&follower));
    for name in ["", "../x", "a/b", "A"] {
        let piece = Piece {
            name: name.to_owned(),
            bytes: 1,
        };
        let refused = follower.receive(&[piece]);
        assert!(matches!(refused, Err(Error::Snapshot { .. })), "{name}");
    }
    let piece = |name: &str| Piece {
        name: name.to_owned(),
        bytes: 10,
    };
    let receiver = follower.receive(&[piece("0-a")]).unwrap();
    assert!(receiver.write_at("0-b", 0, b"x").is_err());
    assert!(receiver.write_at("0-a", 8, b"xyz").is_err());
    receiver.write_at("0-a", 0, b"short").unwrap();
    let snapshot = leader.build_snapshot().await.unwrap();
    assert!(receiver.finish(&snapshot.meta).is_err());

    // A file that is not what it says, and one whose name promises other entries.
    let receiver = follower.receive(&[piece("0-c")]).unwrap();
    receiver.write_at("0-c", 0, b"0123456789").unwrap();
    let told = receiver.finish(&snapshot.meta).unwrap_err().to_string();
    assert!(told.contains(".incoming"), "{told}");
    // One byte of the real file is another: it is refused, and the same file can be sent again.
    let receiver = follower.receive(&snapshot.snapshot.pieces()).unwrap();
    for piece in receiver.missing() {
        let bytes = snapshot
            .snapshot
            .read_at(&piece.name, 0, piece.bytes as usize);
        let mut bytes = bytes.unwrap();
        bytes[piece.bytes as usize / 2] ^= 1;
        receiver.write_at(&piece.name, 0, &bytes).unwrap();
    }
    assert!(receiver.finish(&snapshot.meta).is_err());
    assert_eq!(names(there.path()), before.0);
    // openraft drops one that it does not need any more.
    drop(receive(&snapshot, &follower));
    assert_eq!(names(there.path()), before.0);
    let mut meta = snapshot.meta.clone();
    meta.last_log_id = Some(id(98));
    let installed = follower
        .install_snapshot(&meta, snapshot.snapshot.clone())
        .await;
    let told = installed.unwrap_err().to_string();
    assert!(told.contains("another entry than it says"), "{told}");
    assert_eq!(records(&follower), before.1);
    drop((_log2, follower));
    let (_log2, follower) = open(there.path());
    assert_eq!((names(there.path()), records(&follower)), before);
}

/// A snapshot that came with the id of another one is refused before openraft hears of it, and
/// taken once it comes with its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_id_is_refused_before_the_installation_and_can_be_sent_again() {
    let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ((_log, mut leader), (mut log, mut follower)) = (open(here.path()), open(there.path()));
    fill(&mut leader, 1..100).await;
    fill(&mut follower, 1..50).await;
    let before = (names(there.path()), records(&follower));
    let snapshot = leader.build_snapshot().await.unwrap();
    let mut other_entry = snapshot.meta.clone();
    other_entry.last_log_id = Some(id(98));
    let mut other_members = snapshot.meta.clone();
    let members = Membership::new(vec![BTreeSet::from([1])], BTreeSet::from([1]));
    other_members.last_membership = StoredMembership::new(Some(id(1)), members);
    for (meta, reason) in [
        (other_entry, "another entry than it says"),
        (other_members, "other members than it says"),
    ] {
        let told = filled(&snapshot, &follower).1.finish(&meta);
        assert!(matches!(told, Err(Error::Snapshot { .. })), "{told:?}");
        assert!(told.unwrap_err().to_string().contains(reason));
        assert_eq!((names(there.path()), records(&follower)), before);
    }
    // What was refused holds no purge back.
    log.purge(id(10)).await.unwrap();
    send(&snapshot, &mut follower).await;
    assert_eq!(records(&follower), records(&leader));
}

/// openraft purges what a snapshot covers while that is still installed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_waits_for_the_snapshot_that_it_relies_on() {
    let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ((_log, mut leader), (log, mut follower)) = (open(here.path()), open(there.path()));
    fill(&mut leader, 1..100).await;
    let snapshot = leader.build_snapshot().await.unwrap();
    fill(&mut follower, 1..50).await;
    follower.build_snapshot().await.unwrap();
    let purge = |upto: u64| {
        let mut log = log.clone();
        tokio::spawn(async move { log.purge(id(upto)).await })
    };

    let (_, files) = receive(&snapshot, &follower);
    purge(49).await.unwrap().unwrap();
    let purging = purge(99);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!purging.is_finished());
    // A crash now: the directory as it is opens, with all that was applied. Purges are not synced,
    // so a vote that is follows them.
    log.clone().save_vote(&Vote::new(1, 1)).await.unwrap();
    let copy = TempDir::new().unwrap();
    for name in names(there.path()) {
        fs::copy(there.path().join(&name), copy.path().join(&name)).unwrap();
    }
    let (mut log2, crashed) = open(copy.path());
    assert_eq!(records(&crashed).len(), 49);
    let purged = log2.get_log_state().await.unwrap().last_purged_log_id;
    assert_eq!(purged, Some(id(49)));

    let meta = snapshot.meta.clone();
    follower
        .install_snapshot(&meta, Box::new(files))
        .await
        .unwrap();
    purging.await.unwrap().unwrap();
    assert_eq!(records(&follower).len(), 99);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_is_refused_if_the_snapshot_is_not_installed() {
    let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let ((_log, mut leader), (mut log, mut follower)) = (open(here.path()), open(there.path()));
    fill(&mut leader, 1..100).await;
    let snapshot = leader.build_snapshot().await.unwrap();
    // It is dropped while the purge waits.
    let (_, files) = receive(&snapshot, &follower);
    let mut purger = log.clone();
    let purging = tokio::spawn(async move { purger.purge(id(99)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!purging.is_finished());
    drop(files);
    let told = purging.await.unwrap().unwrap_err().to_string();
    assert!(told.contains("was not purged up to entry 99"), "{told}");

    // Its installation fails before the purge begins.
    let (_, files) = receive(&snapshot, &follower);
    let mut meta = snapshot.meta.clone();
    meta.last_log_id = Some(id(98));
    let installed = follower.install_snapshot(&meta, Box::new(files)).await;
    assert!(installed.is_err());
    assert!(log.purge(id(98)).await.is_err());
    let purged = log.get_log_state().await.unwrap().last_purged_log_id;
    assert_eq!(purged, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_snapshot_is_there_for_others_while_the_next_is_built() {
    let here = TempDir::new().unwrap();
    let (_log, mut machine) = open(here.path());
    fill(&mut machine, 1..50).await;
    let first = machine.build_snapshot().await.unwrap();
    fill(&mut machine, 50..20_000).await;
    let mut builder = machine.get_snapshot_builder().await;
    let building = tokio::spawn(async move { builder.build_snapshot().await.unwrap() });
    let mut during = 0;
    loop {
        let current = machine.get_current_snapshot().await.unwrap().unwrap();
        if current.meta != first.meta {
            break;
        }
        during += 1;
    }
    assert!(during > 3, "{during}: each waited for the build");
    building.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_is_gone_is_not_made_anew() {
    let here = TempDir::new().unwrap();
    {
        let (_log, mut machine) = open(here.path());
        fill(&mut machine, 1..50).await;
        machine.build_snapshot().await.unwrap();
    }
    fs::remove_file(here.path().join("state-0.iso")).unwrap();
    let opened = isobath_raft::open::<Types, Map>(here.path(), &options(), &options());
    let told = opened.unwrap_err().to_string();
    assert!(told.contains("state-0.iso"), "{told}");
    assert!(!here.path().join("state-0.iso").exists());
}
