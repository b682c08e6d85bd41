//! Installations of a snapshot that are killed, at each step.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]
#![allow(
    clippy::disallowed_methods,
    reason = "a test starts itself again, as a process that ends"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::Command;

use openraft::storage::RaftStateMachine;
use openraft::{RaftSnapshotBuilder, Snapshot};
use support::{Machine, Types, names, open, put, records};
use tempfile::TempDir;

use super::PLACE;

/// Where the process that is killed finds its nodes.
const NODES: &str = "ISOBATH_RAFT_CUT_NODES";
/// The steps, in order, up to which the old state is the node's.
const BEFORE: [&str; 6] = [
    "verified", "begun", "adopted", "moved", "restored", "synced",
];
/// Those behind.
const AFTER: [&str; 3] = ["current", "replaced", "removed"];
/// SIGABRT.
const ABORTED: i32 = 6;

async fn fill(machine: &mut Machine, indexes: std::ops::Range<u64>) {
    let entries = indexes.map(|index| put(index, &format!("key {index:06}"), "value"));
    machine.apply(entries.collect::<Vec<_>>()).await.unwrap();
}

async fn install(snapshot: &Snapshot<Types>, to: &mut Machine) {
    let receiver = to.receive(&snapshot.snapshot.pieces()).unwrap();
    for piece in receiver.missing() {
        let bytes = piece.bytes as usize;
        let bytes = snapshot.snapshot.read_at(&piece.name, 0, bytes).unwrap();
        receiver.write_at(&piece.name, 0, &bytes).unwrap();
    }
    let files = receiver.finish(&snapshot.meta).unwrap();
    let installed = to.install_snapshot(&snapshot.meta, Box::new(files));
    installed.await.unwrap();
}

/// The files of a node with this snapshot, and no others.
fn expected(snapshot: &Snapshot<Types>, generation: u64) -> Vec<String> {
    let pieces = snapshot.snapshot.pieces();
    let backups = pieces.iter().map(|piece| format!("{}.backup", piece.name));
    let stores = ["log.iso".to_owned(), format!("state-{generation}.iso")];
    let mut names: Vec<String> = backups.chain(stores).collect();
    names.sort();
    names
}

/// What the process does that is killed: its node has entries of its own and a snapshot, and
/// installs the leader's, which it does not come to the end of. Alone it does nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn install_and_be_killed() {
    let Some(nodes) = std::env::var_os(NODES).map(PathBuf::from) else {
        return;
    };
    let (_log, mut leader) = open(&nodes.join("leader"));
    let (_log2, mut follower) = open(&nodes.join("follower"));
    let snapshot = leader.get_current_snapshot().await.unwrap().unwrap();
    install(&snapshot, &mut follower).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installation_that_is_killed_leaves_the_old_state_or_the_new_one() {
    for (place, is_new) in BEFORE
        .map(|place| (place, false))
        .into_iter()
        .chain(AFTER.map(|place| (place, true)))
    {
        let nodes = TempDir::new().unwrap();
        let at = |name: &str| nodes.path().join(name);
        {
            let (_log, mut leader) = open(&at("leader"));
            fill(&mut leader, 1..100).await;
            leader.build_snapshot().await.unwrap();
            let (_log2, mut follower) = open(&at("follower"));
            fill(&mut follower, 1..50).await;
            follower.build_snapshot().await.unwrap();
        }
        let mut killed = Command::new(std::env::current_exe().unwrap());
        killed.args(["--exact", "cut::tests::install_and_be_killed"]);
        killed.env(PLACE, place).env(NODES, nodes.path());
        let killed = killed.output().unwrap();
        assert_eq!(killed.status.signal(), Some(ABORTED), "{place}: {killed:?}");

        let (_log, mut leader) = open(&at("leader"));
        let (_log2, mut follower) = open(&at("follower"));
        let count = if is_new { 99 } else { 49 };
        assert_eq!(records(&follower).len(), count, "{place}");
        let applied = follower.applied_state().await.unwrap();
        assert_eq!(applied.0.unwrap().index, count as u64, "{place}");
        let own = follower.get_current_snapshot().await.unwrap().unwrap();
        assert_eq!(own.meta.last_log_id, applied.0, "{place}");
        let found = names(&at("follower"));
        assert_eq!(found, expected(&own, u64::from(is_new)), "{place}");

        // It is sent again.
        let snapshot = leader.get_current_snapshot().await.unwrap().unwrap();
        install(&snapshot, &mut follower).await;
        assert_eq!(records(&follower), records(&leader), "{place}");
        let found = names(&at("follower"));
        assert_eq!(found, expected(&snapshot, 1 + u64::from(is_new)), "{place}");
    }
}
