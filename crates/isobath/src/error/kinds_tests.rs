//! An error of a kind is the same error as the [`Error`] that it becomes.

use std::io;

use isobath_io::{IoErrorKind, Op};

use super::*;

fn io() -> IoError {
    IoError::new(IoErrorKind::Media, Op::Read, 4096, 512)
}

fn system() -> Arc<io::Error> {
    Arc::new(io::Error::other("no"))
}

fn path() -> PathBuf {
    PathBuf::from("c")
}

fn limit() -> VolumeError {
    VolumeError::Limit {
        limit: 1 << 20,
        asked: 2 << 20,
    }
}

fn cause(error: &dyn std::error::Error) -> Option<String> {
    error.source().map(ToString::to_string)
}

fn variant(error: &impl std::fmt::Debug) -> String {
    let shown = format!("{error:?}");
    // The innermost name: groups stand before it.
    let mut names = shown.split(|c: char| !c.is_alphanumeric());
    let is_group = |name: &&str| ["Storage", "Open", "Unexpected"].contains(name);
    names.find(|name| !is_group(name)).unwrap().to_owned()
}

/// The kind, and all that it is part of, have the name, sentence and cause of the [`Error`].
fn check<K>(kind: K) -> Error
where
    K: Clone + std::error::Error + Into<Error>,
{
    let error: Error = kind.clone().into();
    assert_eq!(kind.to_string(), error.to_string());
    assert_eq!(cause(&kind), cause(&error), "{error:?}");
    assert_eq!(variant(&kind), variant(&error));
    error
}

fn storage() -> Vec<StorageError> {
    vec![
        StorageError::VolumeFull {
            used: 1,
            limit: 2,
            reason: Arc::new(limit()),
        },
        StorageError::TooManyPages,
        StorageError::Poisoned {
            cause: Arc::new(Error::Io(io())),
        },
        StorageError::Closed,
        StorageError::PageRead {
            page: 7,
            offset: 8,
            tree: Some(Arc::from("fruit")),
            source: io(),
        },
        StorageError::Io(io()),
        StorageError::Volume(Arc::new(limit())),
        StorageError::Memory {
            what: "frames",
            source: system(),
        },
        StorageError::Unexpected(Arc::new(Error::SnapshotTooOld)),
    ]
}

#[test]
fn errors_of_a_kind_are_the_same_errors() {
    for error in storage() {
        let same = variant(&check(error.clone()));
        let in_kinds = [
            check(OpenError::from(error.clone())),
            check(TransactionError::from(error.clone())),
            check(LoadError::from(error.clone())),
            check(BackupError::from(error.clone())),
            check(RestoreError::from(error.clone())),
        ];
        assert!(in_kinds.iter().all(|error| variant(error) == same));
    }
    check(OpenError::NotAStore {
        paths: vec![path()],
    });
    check(TransactionError::Conflict {
        tree: "fruit".to_owned(),
        key: b"apple".to_vec(),
    });
    check(TransactionError::Sort {
        directory: path(),
        source: system(),
    });
    check(LoadError::LoadOrder {
        record: 3,
        reason: "its key is not above the one before",
    });
    check(BackupError::File {
        action: "write",
        path: path(),
        source: system(),
    });
    check(RestoreError::BadBackup {
        path: path(),
        offset: 1,
        error: BackupFileError::Foreign,
    });
}

/// Programs match on the variant that a kind has itself.
#[test]
fn a_store_for_reading_only_is_a_variant_of_each_kind_that_has_it() {
    let refused = || StorageError::ReadOnly;
    assert!(matches!(refused().into(), OpenError::ReadOnly));
    assert!(matches!(refused().into(), TransactionError::ReadOnly));
    assert!(matches!(refused().into(), LoadError::ReadOnly));
    let restored: RestoreError = refused().into();
    assert!(matches!(restored, RestoreError::Open(OpenError::ReadOnly)));
}

#[test]
fn a_transaction_is_run_again_after_the_same_errors() {
    let conflict = TransactionError::Conflict {
        tree: "fruit".to_owned(),
        key: b"apple".to_vec(),
    };
    let errors = [
        (conflict, true),
        (TransactionError::SnapshotTooOld, true),
        (TransactionError::ReadOnly, false),
        (StorageError::Closed.into(), false),
    ];
    for (error, may_retry) in errors {
        assert_eq!(error.is_retryable(), may_retry, "{error:?}");
        assert_eq!(Error::from(error).is_retryable(), may_retry);
    }
}

#[test]
fn what_a_load_shares_with_transactions_keeps_its_name() {
    let too_large = TransactionError::TransactionTooLarge { bytes: 9, limit: 8 };
    assert_eq!(
        variant(&check(LoadError::from(too_large))),
        "TransactionTooLarge"
    );
    let dropped = TransactionError::TreeDropped {
        name: "fruit".to_owned(),
    };
    assert!(matches!(dropped.into(), LoadError::TreeDropped { .. }));
    let closed = TransactionError::from(StorageError::Closed);
    assert!(matches!(closed.of_own_work(), StorageError::Closed));
}

#[test]
fn question_marks_make_one_error_of_all_kinds() {
    fn of_all(number: u32) -> Result<(), Error> {
        match number {
            0 => Err(StorageError::Closed)?,
            1 => Err(OpenError::ReadOnly)?,
            2 => Err(TransactionError::SnapshotTooOld)?,
            3 => Err(LoadError::Interrupted)?,
            4 => Err(BackupError::BackupRunning)?,
            _ => Err(RestoreError::from(OpenError::from(StorageError::Forked)))?,
        }
        Ok(())
    }
    fn boxed(number: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(of_all(number)?)
    }
    let names: Vec<String> = (0..6).map(|n| variant(&of_all(n).unwrap_err())).collect();
    let right = [
        "Closed",
        "ReadOnly",
        "SnapshotTooOld",
        "Interrupted",
        "BackupRunning",
        "Forked",
    ];
    assert_eq!(names, right);
    for number in 0..6 {
        let (one, boxed) = (of_all(number).unwrap_err(), boxed(number).unwrap_err());
        assert_eq!(one.to_string(), boxed.to_string());
    }
}
