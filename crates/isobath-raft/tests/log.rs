//! The log and the vote after opening again.

mod support;

use isobath_raft::Error;
use openraft::Vote;
use openraft::storage::{RaftLogStorage, RaftLogStorageExt, RaftStateMachine};
use openraft::{LogState, RaftLogReader};
use support::{Map, Types, id, open, options, put};
use tempfile::TempDir;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_restarts_has_to_be_elected_again() {
    let directory = TempDir::new().unwrap();
    {
        let (mut log, _machine) = open(directory.path());
        log.save_vote(&Vote::new_committed(7, 3)).await.unwrap();
        assert_eq!(
            log.read_vote().await.unwrap(),
            Some(Vote::new_committed(7, 3))
        );
    }
    let (mut log, _machine) = open(directory.path());
    assert_eq!(log.read_vote().await.unwrap(), Some(Vote::new(7, 3)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_purge_and_a_truncation_take_ranges_and_last() {
    let directory = TempDir::new().unwrap();
    {
        let (mut log, mut machine) = open(directory.path());
        machine.apply([put(299, "key", "299")]).await.unwrap();
        let entries = (0..1_000).map(|index| put(index, "key", &index.to_string()));
        log.blocking_append(entries.collect::<Vec<_>>())
            .await
            .unwrap();
        log.purge(id(299)).await.unwrap();
        log.truncate(id(700)).await.unwrap();
        log.save_committed(Some(id(650))).await.unwrap();
    }
    let (mut log, _machine) = open(directory.path());
    let state = LogState {
        last_purged_log_id: Some(id(299)),
        last_log_id: Some(id(699)),
    };
    assert_eq!(log.get_log_state().await.unwrap(), state);
    let entries = log.try_get_log_entries(..).await.unwrap();
    let indexes: Vec<u64> = entries.iter().map(|entry| entry.log_id.index).collect();
    assert_eq!(indexes, (300..700).collect::<Vec<_>>());
    assert_eq!(log.read_committed().await.unwrap(), Some(id(650)));
    // All gone: the last is the one that was purged.
    log.purge(id(699)).await.unwrap();
    let last = log.get_log_state().await.unwrap().last_log_id;
    assert_eq!(last, Some(id(699)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_that_begins_behind_the_state_is_not_opened() {
    let directory = TempDir::new().unwrap();
    {
        let (mut log, mut machine) = open(directory.path());
        machine.apply([put(4, "key", "4")]).await.unwrap();
        log.purge(id(5)).await.unwrap();
    }
    let opened = isobath_raft::open::<Types, Map>(directory.path(), &options(), &options());
    assert!(
        matches!(
            opened,
            Err(Error::Gap {
                purged: 5,
                applied: Some(4)
            })
        ),
        "{opened:?}"
    );
}
