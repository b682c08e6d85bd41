//! Each kind of error has the variants that it should, and loses nothing of them.

use std::collections::BTreeSet;
use std::io;

use isobath_io::{IoError, IoErrorKind, Op};

use super::kinds::Kind;
use super::*;

/// One error of each variant.
fn all() -> Vec<Error> {
    let paths = || vec![PathBuf::from("a.iso"), PathBuf::from("b.iso")];
    let path = || PathBuf::from("c");
    let name = || "fruit".to_owned();
    let system = || Arc::new(io::Error::other("no"));
    let io = || IoError::new(IoErrorKind::Media, Op::Read, 4096, 512);
    let volume = || {
        Arc::new(VolumeError::Limit {
            limit: 1 << 20,
            asked: 2 << 20,
        })
    };
    vec![
        Error::ValueReplaced,
        Error::KeyTooLong {
            length: 2000,
            limit: 1024,
        },
        Error::ValueTooLong {
            length: 1 << 31,
            limit: 1 << 30,
        },
        Error::BadTreeName {
            length: 0,
            limit: 255,
        },
        Error::VolumeFull {
            used: 1,
            limit: 2,
            reason: volume(),
        },
        Error::TooManyPages,
        Error::TransactionTooLarge { bytes: 9, limit: 8 },
        Error::LogOverrun,
        Error::LogCorrupt {
            position: 1,
            durable: 2,
        },
        Error::LogMissing {
            paths: paths(),
            path: path(),
        },
        Error::NoSeparateLog {
            paths: paths(),
            path: path(),
        },
        Error::NotALog {
            paths: paths(),
            path: path(),
        },
        Error::LogOfOtherStore {
            paths: paths(),
            path: path(),
        },
        Error::LogOutOfStep {
            paths: paths(),
            path: path(),
            log: 1,
            store: 2,
        },
        Error::LogHeaderCorrupt { path: path() },
        Error::LogTruncated {
            path: path(),
            found: 1,
            expected: 2,
        },
        Error::UnknownLogRecord {
            position: 1,
            kind: 99,
        },
        Error::CorruptPage {
            page: 7,
            offset: 8,
            corruption: PageCorruption::Checksum {
                stored: 1,
                computed: 2,
            },
        },
        Error::LoadOrder {
            record: 3,
            reason: "its key is not above the one before",
        },
        Error::Structure {
            page: 7,
            reason: "it is wrong",
        },
        Error::ReadOnly,
        Error::Poisoned {
            cause: Arc::new(Error::Io(io())),
        },
        Error::Closed,
        Error::Forked,
        Error::CloseInTask,
        Error::PageRead {
            page: 7,
            offset: 8,
            tree: Some(Arc::from("fruit")),
            source: io(),
        },
        Error::Sort {
            directory: path(),
            source: system(),
        },
        Error::Io(io()),
        Error::Volume(volume()),
        Error::NotAStore { paths: paths() },
        Error::NewerFormat {
            paths: paths(),
            found: 99,
            known: 1,
        },
        Error::OlderFormat {
            paths: paths(),
            found: 3,
            known: 4,
        },
        Error::SuperblockCorrupt { paths: paths() },
        Error::Truncated {
            paths: paths(),
            found: 1,
            expected: 2,
        },
        Error::NeedsRecovery { paths: paths() },
        Error::ReaderOverrun { paths: paths() },
        Error::NotClosedCleanly { paths: paths() },
        Error::BadOption {
            option: "workers",
            reason: "at least 1".to_owned(),
        },
        Error::Memory {
            what: "frames",
            source: system(),
        },
        Error::NoSuchTree { name: name() },
        Error::TreeExists { name: name() },
        Error::TreeDropped { name: name() },
        Error::NotPublished {
            path: path(),
            reason: "it is closed",
        },
        Error::Conflict {
            tree: name(),
            key: b"apple".to_vec(),
        },
        Error::SnapshotTooOld,
        Error::ReadOnlyTransaction,
        Error::NoSuchSavepoint,
        Error::TooManySavepoints { limit: 9 },
        Error::OtherStore { name: name() },
        Error::BackupNeedsLog,
        Error::NeedsLog { what: "shrink" },
        Error::BadEncoding { what: "a key" },
        Error::BackupRunning,
        Error::BadBackup {
            path: path(),
            offset: 1,
            error: BackupFileError::Foreign,
        },
        Error::BackupChain {
            path: path(),
            reason: "it is of another store",
        },
        Error::FileExists { path: path() },
        Error::OutputIsStore { path: path() },
        Error::File {
            action: "write",
            path: path(),
            source: system(),
        },
        Error::Interrupted,
        Error::TaskPanicked {
            message: "oh".to_owned(),
        },
    ]
}

const STORAGE: &[&str] = &[
    "storage",
    "open",
    "transaction",
    "load",
    "backup",
    "restore",
];
const OPEN: &[&str] = &["open", "restore"];

/// The kinds that have a variant. The compiler asks here for each new one.
fn kinds_with(error: &Error) -> &'static [&'static str] {
    match error {
        Error::VolumeFull { .. }
        | Error::TooManyPages
        | Error::LogOverrun
        | Error::LogCorrupt { .. }
        | Error::UnknownLogRecord { .. }
        | Error::CorruptPage { .. }
        | Error::Structure { .. }
        | Error::Poisoned { .. }
        | Error::Closed
        | Error::Forked
        | Error::PageRead { .. }
        | Error::Io(_)
        | Error::Volume(_)
        | Error::ReaderOverrun { .. }
        | Error::Memory { .. }
        | Error::TaskPanicked { .. } => STORAGE,
        Error::LogMissing { .. }
        | Error::NoSeparateLog { .. }
        | Error::NotALog { .. }
        | Error::LogOfOtherStore { .. }
        | Error::LogOutOfStep { .. }
        | Error::LogHeaderCorrupt { .. }
        | Error::LogTruncated { .. }
        | Error::NotAStore { .. }
        | Error::NewerFormat { .. }
        | Error::OlderFormat { .. }
        | Error::SuperblockCorrupt { .. }
        | Error::Truncated { .. }
        | Error::NeedsRecovery { .. }
        | Error::NotClosedCleanly { .. } => OPEN,
        Error::ReadOnly => &["open", "restore", "transaction", "load"],
        Error::BadOption { .. } => &["open", "restore", "backup"],
        Error::TransactionTooLarge { .. } | Error::SnapshotTooOld | Error::TreeDropped { .. } => {
            &["transaction", "load"]
        }
        Error::Conflict { .. } => &["transaction"],
        Error::LoadOrder { .. } | Error::KeyTooLong { .. } | Error::ValueTooLong { .. } => {
            &["load"]
        }
        Error::Sort { .. } => &["transaction", "load"],
        Error::Interrupted => &["load", "backup", "restore"],
        Error::BadBackup { .. } | Error::BackupChain { .. } | Error::File { .. } => {
            &["backup", "restore"]
        }
        Error::BackupNeedsLog
        | Error::BackupRunning
        | Error::FileExists { .. }
        | Error::OutputIsStore { .. } => &["backup"],
        // Reading, writing, and what else returns the one error of all.
        Error::BadTreeName { .. }
        | Error::CloseInTask
        | Error::NoSuchTree { .. }
        | Error::TreeExists { .. }
        | Error::NotPublished { .. }
        | Error::ReadOnlyTransaction
        | Error::NoSuchSavepoint
        | Error::TooManySavepoints { .. }
        | Error::OtherStore { .. }
        | Error::NeedsLog { .. }
        | Error::ValueReplaced
        | Error::BadEncoding { .. } => &[],
    }
}

fn variant(error: &Error) -> String {
    let shown = format!("{error:?}");
    shown
        .chars()
        .take_while(|c| c.is_alphanumeric())
        .collect::<String>()
}

fn cause(error: &dyn std::error::Error) -> Option<String> {
    error.source().map(ToString::to_string)
}

/// Every error becomes one of the kind `name` and itself again; only those that belong to it are
/// known to it.
fn check<K: Kind + Clone + std::error::Error + Into<Error>>(name: &str) {
    for error in all() {
        let kind = K::of(error.clone());
        let is_known = kinds_with(&error).contains(&name);
        assert_eq!(!kind.is_unexpected(), is_known, "{name}: {error:?}");
        assert_eq!(kind.to_string(), error.to_string(), "{name}");
        assert_eq!(cause(&kind), cause(&error), "{name}: {error:?}");
        assert!(format!("{kind:?}").contains(&variant(&error)), "{kind:?}");
        let back: Error = kind.into();
        assert_eq!(format!("{back:?}"), format!("{error:?}"), "{name}");
        assert_eq!(back.is_retryable(), error.is_retryable());
    }
}

#[test]
fn errors_of_a_kind_are_the_same_errors() {
    check::<StorageError>("storage");
    check::<OpenError>("open");
    check::<TransactionError>("transaction");
    check::<LoadError>("load");
    check::<BackupError>("backup");
    check::<RestoreError>("restore");
}

#[test]
fn these_are_all_errors() {
    let source = include_str!("../error.rs");
    let (_, after) = source.split_once("pub enum Error {").unwrap();
    let (variants, _) = after.split_once("\n}\n").unwrap();
    let variants: BTreeSet<String> = variants
        .lines()
        .filter_map(|line| line.strip_prefix("    "))
        .filter(|line| line.starts_with(char::is_uppercase))
        .map(|line| line.chars().take_while(|c| c.is_alphanumeric()).collect())
        .collect();
    let shown: BTreeSet<String> = all().iter().map(variant).collect();
    assert_eq!(shown, variants);
    assert_eq!(all().len(), variants.len());
}

#[test]
fn a_transaction_is_run_again_after_the_same_errors() {
    for error in all() {
        let kind = TransactionError::of(error.clone());
        assert_eq!(kind.is_retryable(), error.is_retryable(), "{error:?}");
    }
}

#[test]
fn question_marks_make_one_error_of_all_kinds() {
    fn one<K: Into<Error>>(kind: K) -> Result<(), Error> {
        Err(kind.into())
    }
    fn of_all(number: u32) -> Result<(), Error> {
        match number {
            0 => Err(StorageError::Closed)?,
            1 => Err(OpenError::ReadOnly)?,
            2 => Err(TransactionError::SnapshotTooOld)?,
            3 => Err(LoadError::Interrupted)?,
            4 => Err(BackupError::BackupRunning)?,
            5 => Err(RestoreError::from(OpenError::from(StorageError::Forked)))?,
            _ => {}
        }
        Ok(())
    }
    fn boxed(number: u32) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match number {
            0 => Err(StorageError::Closed)?,
            1 => Err(OpenError::ReadOnly)?,
            2 => Err(TransactionError::SnapshotTooOld)?,
            3 => Err(LoadError::Interrupted)?,
            4 => Err(BackupError::BackupRunning)?,
            5 => Err(RestoreError::from(OpenError::from(StorageError::Forked)))?,
            _ => {}
        }
        Ok(())
    }
    let names: Vec<String> = (0..6).map(|n| variant(&of_all(n).unwrap_err())).collect();
    assert_eq!(
        names,
        [
            "Closed",
            "ReadOnly",
            "SnapshotTooOld",
            "Interrupted",
            "BackupRunning",
            "Forked"
        ]
    );
    for number in 0..6 {
        let (one, boxed) = (of_all(number).unwrap_err(), boxed(number).unwrap_err());
        assert_eq!(one.to_string(), boxed.to_string());
    }
    assert!(one(LoadError::Interrupted).is_err());
}

#[test]
fn what_does_not_belong_to_a_kind_is_seen_in_tests() {
    let odd = || of_kind::<LoadError>(Error::BackupRunning);
    let panic = std::panic::catch_unwind(odd).unwrap_err();
    let message = panic_message(&*panic);
    assert!(
        message.contains("LoadError does not list Storage(Unexpected(BackupRunning))"),
        "{message}"
    );
}
