//! openraft's own suite for storage, over files that are newly made for each of its tests.

use std::sync::Arc;

use isobath::{Options, Store};
use isobath_example_raft::{Log, Machine, Types};
use openraft::testing::{StoreBuilder, Suite};
use openraft::{StorageError, StorageIOError};
use tempfile::TempDir;

struct Files;

impl StoreBuilder<Types, Log, Machine, TempDir> for Files {
    async fn build(&self) -> Result<(TempDir, Log, Machine), StorageError<u64>> {
        let folder = TempDir::new().map_err(|error| StorageIOError::write(&error))?;
        let open = || {
            let options = Options::new()
                .pool_bytes(8 << 20)
                .workers(1)
                .segment_bytes(64 << 10)
                .log_bytes(4 << 20);
            let store = Store::create(&[folder.path().join("raft.iso")], &options)?;
            let store = Arc::new(store);
            Ok((Log::open(Arc::clone(&store))?, Machine::open(store)?))
        };
        let opened: Result<_, isobath::Error> = open();
        let (log, machine) = opened.map_err(|error| StorageIOError::write(&error))?;
        Ok((folder, log, machine))
    }
}

#[test]
fn the_log_and_the_state_machine_do_what_raft_needs() {
    Suite::test_all(Files).unwrap();
}
