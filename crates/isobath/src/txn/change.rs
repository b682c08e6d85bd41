//! One key's change by a commit.

use super::TreeStatus;
use super::tree_status::Access;
use super::versions::KeyRef;
use crate::btree::{Decision, Tree, ValueKind, ValueRef};
use crate::canary::{self, Canary};
use crate::context::TaskWorker;
use crate::error::TransactionError;
use crate::extent::Extent;
use crate::log::record::Token;
use crate::runtime::Patience;

/// One key's change.
#[derive(Clone, Copy)]
pub(crate) struct Change<'a> {
    pub(crate) tree: Tree,
    /// The tree's name, for errors.
    pub(crate) name: &'a str,
    /// `None` for the catalog, which is never dropped.
    pub(crate) status: Option<&'a TreeStatus>,
    pub(crate) key: &'a [u8],
    /// By [`key_hash`].
    pub(crate) number: u64,
    /// Its new value; `None` if none.
    pub(crate) value: Option<ValueRef<'a>>,
    /// The token that this confirms, other than a large value's.
    pub(crate) confirms: Option<Token>,
}

impl Change<'_> {
    /// Bytes of its record.
    pub(super) fn bytes(&self) -> u64 {
        let value = self.value.map_or(0, |value| value.bytes.len());
        (self.key.len() + value) as u64
    }

    pub(super) fn conflict(&self) -> TransactionError {
        TransactionError::Conflict {
            tree: self.name.to_owned(),
            key: self.key.to_vec(),
        }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn at(&self) -> KeyRef<'_> {
        KeyRef {
            tree: self.tree.id,
            key: self.key,
            number: self.number,
        }
    }

    /// Whether the tree may be changed now. A commit that has occupied its slot
    /// keeps the answer true.
    pub(super) fn may_change(&self) -> Result<bool, TransactionError> {
        match self.status.map_or(Access::Granted, TreeStatus::access) {
            Access::Granted => Ok(true),
            Access::Later => Ok(canary::is_on(Canary::LoadBesideCommits)),
            Access::Never => Err(TransactionError::TreeDropped {
                name: self.name.to_owned(),
            }),
        }
    }

    /// Waits while a bulk load of the tree is being linked, or a large commit has closed it. The
    /// caller has no slot.
    pub(super) fn await_load(&self, local: &TaskWorker) -> Result<(), TransactionError> {
        let mut patience = Patience::default();
        while !self.may_change()? {
            local.parts.shared.writable()?;
            patience.wait(&local.worker);
        }
        Ok(())
    }

    /// The serial number of the tree's overlays, 0 without some; `None` while it is about to have
    /// none, and commits have to wait. A commit that has occupied its slot keeps the answer true.
    pub(super) fn overlays(&self, local: &TaskWorker) -> Option<u64> {
        local.pool.overlays.state(self.tree.id)
    }

    /// Waits while the tree is about to have no overlays; see [`Change::overlays`]. The caller has
    /// no slot.
    pub(super) fn await_overlays(&self, local: &TaskWorker) -> Result<u64, TransactionError> {
        let mut patience = Patience::default();
        loop {
            if let Some(serial) = self.overlays(local) {
                return Ok(serial);
            }
            local.parts.shared.writable()?;
            patience.wait(&local.worker);
        }
    }

    /// Whether overlays take the change, and no record of the tree has a large value that would go.
    pub(super) fn takes_blindly(&self, local: &TaskWorker) -> bool {
        let overlaid = local.pool.overlays.of(self.tree.id);
        overlaid.is_some_and(|overlaid| !overlaid.has_large())
    }

    /// The LSN below which snapshots do not see what was loaded into the tree.
    pub(super) fn loaded(&self) -> u64 {
        self.status.map_or(0, TreeStatus::loaded)
    }

    pub(super) fn decision(&self) -> Decision<'_> {
        self.value.map_or(Decision::Remove, Decision::Put)
    }

    /// The tokens of what this makes reachable.
    pub(super) fn tokens(&self) -> impl Iterator<Item = Token> + use<> {
        let large = self.value.filter(|v| v.kind == ValueKind::Extent);
        let value = large.and_then(|value| Extent::decode(value.bytes));
        let value = value.map(|extent| extent.token());
        value.into_iter().chain(self.confirms)
    }
}
