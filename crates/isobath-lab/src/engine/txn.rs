//! Transactions over the tables of an engine, as the TPC-C-derived workload uses them.

use crate::LabError;

/// How a transaction decides to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Its changes are to stay.
    Commit,
    /// Its changes are to go.
    RollBack,
}

/// The outcome of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// Its changes are visible to all.
    Committed,
    /// It asked for that; an engine without transactions keeps its changes all the same.
    RolledBack,
    /// The engine rolled it back because of another one. It may be run again from its beginning.
    Conflict,
}

/// The access of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// It only reads.
    Read,
    /// It reads and writes.
    Write,
}

/// A transaction's work, possibly run several times.
pub(crate) type Work<'w> = dyn FnMut(&mut dyn Tables) -> Result<Decision, LabError> + 'w;

/// Is told keys and values, until it answers `false`.
pub(crate) type Visit<'v> = dyn FnMut(&[u8], &[u8]) -> bool + Send + 'v;

/// Operations on the tables of an engine, which are numbers: places in the schema's list. Those of
/// an open transaction see its own changes; those of a session take effect one by one.
///
/// Each may fail with [`LabError::Conflict`]; the transaction must end then. A transaction that
/// only reads has no changes.
pub(crate) trait Tables {
    /// Reads a record into `value`; `false` if the key is absent.
    fn get(&mut self, table: usize, key: &[u8], value: &mut Vec<u8>) -> Result<bool, LabError>;

    /// Inserts or replaces a record.
    fn put(&mut self, _: usize, _: &[u8], _: &[u8]) -> Result<(), LabError> {
        Err(read_only())
    }

    /// Removes a record that is there.
    fn delete(&mut self, _: usize, _: &[u8]) -> Result<(), LabError> {
        Err(read_only())
    }

    /// Reads records in ascending order from `from` on, until `visit` returns `false` or there are
    /// no more.
    fn scan(&mut self, table: usize, from: &[u8], visit: &mut Visit<'_>) -> Result<(), LabError>;
}

fn read_only() -> LabError {
    LabError::Request("a transaction that only reads was asked to write".to_owned())
}

/// How `work` ended where every operation took effect alone: a conflict cannot be undone, only
/// reported.
pub(super) fn ended(decided: Result<Decision, LabError>) -> Result<Ended, LabError> {
    match decided {
        Ok(Decision::Commit) => Ok(Ended::Committed),
        Ok(Decision::RollBack) => Ok(Ended::RolledBack),
        Err(LabError::Conflict) => Ok(Ended::Conflict),
        Err(error) => Err(error),
    }
}
