//! openraft's own suite for storage, over a directory that is new for each of its tests.

mod support;

use openraft::testing::{StoreBuilder, Suite};
use openraft::{StorageError, StorageIOError};
use support::{Machine, Types};
use tempfile::TempDir;

struct Directories;

impl StoreBuilder<Types, isobath_raft::LogStore<Types>, Machine, TempDir> for Directories {
    async fn build(
        &self,
    ) -> Result<(TempDir, isobath_raft::LogStore<Types>, Machine), StorageError<u64>> {
        let directory = TempDir::new().map_err(|error| StorageIOError::write(&error))?;
        let options = support::options();
        let opened = isobath_raft::open(directory.path(), &options, &options);
        let (log, machine) = opened.map_err(|error| StorageIOError::write(&error))?;
        Ok((directory, log, machine))
    }
}

#[test]
fn the_log_and_the_state_machine_do_what_raft_needs() {
    Suite::test_all(Directories).unwrap();
}
