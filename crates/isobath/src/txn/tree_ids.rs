//! Numbers of trees, and changes of the catalog, for all that makes trees.

use super::commit::Change;
use super::{Transactions, key_hash};
use crate::btree::{TreeId, ValueRef};
use crate::context::TaskWorker;
use crate::error::TransactionError as Error;
use crate::page::get_u32;
use crate::types::CATALOG;

/// The catalog's key of the last number that a tree got.
const LAST_ID: &[u8] = b"i";

/// A change of one entry of the catalog.
pub(crate) fn catalog_change<'a>(key: &'a [u8], value: Option<&'a [u8]>) -> Change<'a> {
    Change {
        tree: CATALOG,
        name: "the catalog",
        status: None,
        key,
        number: key_hash(CATALOG.id, key),
        value: value.map(ValueRef::inline),
        confirms: None,
    }
}

impl Transactions {
    /// A number that no tree has had.
    ///
    /// # Errors
    ///
    /// As for any commit.
    pub(crate) fn next_tree_id(&self, local: &TaskWorker) -> Result<TreeId, Error> {
        let mut last = 0;
        // Compare and set: the value to put must be known before the attempt.
        // Bound: each round is another tree made by another task, but for the first.
        loop {
            let next = (last + 1u32).to_le_bytes();
            let mut seen = 0;
            let change = catalog_change(LAST_ID, Some(&next));
            let done = self.change_one(local, change, |old| {
                let old = old.filter(|old| old.bytes.len() == 4);
                seen = old.map_or(0, |old| get_u32(old.bytes, 0));
                seen == last
            })?;
            if done {
                return Ok(TreeId(last + 1));
            }
            last = seen;
        }
    }
}
