//! Large values written into a transaction as a stream.

use std::io;

use super::Transaction;
use super::write_set::Write;
use crate::Error;
use crate::api::tree::Tree;
use crate::api::value::{Finished, ValueWriter, as_io};

/// A value that is being written into a transaction, from
/// [`Transaction::writer`]. Dropping it without [`TransactionWriter::finish`]
/// leaves the transaction as it was.
pub struct TransactionWriter<'t> {
    transaction: &'t mut Transaction,
    tree: Tree,
    key: Vec<u8>,
    writer: ValueWriter,
}

impl std::fmt::Debug for TransactionWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TransactionWriter")
            .field("written", &self.writer.len())
            .finish_non_exhaustive()
    }
}

impl<'t> TransactionWriter<'t> {
    pub(super) fn new(
        transaction: &'t mut Transaction,
        tree: &Tree,
        key: &[u8],
    ) -> TransactionWriter<'t> {
        TransactionWriter {
            transaction,
            tree: tree.clone(),
            key: key.to_vec(),
            writer: ValueWriter::new(tree.clone(), key),
        }
    }

    /// Bytes written so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.writer.len()
    }

    /// Whether nothing was written yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writer.is_empty()
    }

    /// Appends `bytes` to the value.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::insert`].
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.writer.append(bytes)
    }

    /// Makes the value part of the transaction.
    ///
    /// # Errors
    ///
    /// As for [`Transaction::insert`]; the transaction is as before then.
    pub fn finish(mut self) -> Result<(), Error> {
        let write = match self.writer.take_finished()? {
            Finished::Inline(bytes) => Write::Inline(bytes.into()),
            Finished::Extent(extent) => Write::Extent(extent),
        };
        Ok(self.transaction.write(&self.tree, &self.key, write)?)
    }
}

impl io::Write for TransactionWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes).map_err(as_io)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
