//! The end of a commit that was applied, step 10: it is durable, and every snapshot sees it.

use super::super::change::Change;
use super::super::locks::Locked;
use super::super::unseen::{InParts, Noted, UnseenTrees};
use super::super::{MIN_COLLECT, Transactions};
use crate::btree::Descriptor;
use crate::canary::{self, Canary};
use crate::context::TaskWorker;
use crate::error::{StorageError, TransactionError};
use crate::log::Slot;
use crate::page::Lsn;
use crate::shared::{Counters, Durability};

/// The rest of the work of an applied commit.
#[derive(Default)]
pub(super) struct Outcome<'a> {
    /// Its record; `None` if `precondition` refused.
    pub(super) lsn: Option<Lsn>,
    /// Large values that no reader can reach any more.
    pub(super) dead: Vec<Descriptor>,
    /// It has added a version of each key.
    pub(super) has_versions: bool,
    /// One that is seen late, or serializable, keeps its slot until the watermark has passed it.
    pub(super) slot: Option<Slot<'a>>,
    /// Its keys, until it is durable.
    pub(super) noted: Option<Noted<'a>>,
    /// It is to be seen late and has left no versions: its keys stay locked until then.
    pub(super) in_parts: Option<InParts<'a>>,
    /// Trees that it has installed something in, until every snapshot that begins sees that.
    pub(super) swap: Option<UnseenTrees<'a>>,
    /// The precondition refused a value whose commit is not visible yet.
    pub(super) is_early: bool,
}

impl Outcome<'_> {
    /// Whether it is durable is unknown, so it never becomes visible. `locked`, if it has left no
    /// versions.
    fn stays_unseen(self, transactions: &Transactions, locked: Option<&Locked<'_>>) {
        if let Some(slot) = self.slot {
            slot.abandon();
        }
        std::mem::forget((self.noted, self.swap));
        if let Some(locked) = locked {
            transactions.unseen.fail(locked.numbers().iter().copied());
        }
    }
}

impl Transactions {
    /// Ends a commit: frees what it leaves behind, and waits until it is as durable as it is to be,
    /// and seen. Whether the precondition held.
    pub(super) fn finish(
        &self,
        local: &TaskWorker,
        changes: &[Change<'_>],
        locked: Locked<'_>,
        mut outcome: Outcome<'_>,
        durability: Durability,
    ) -> Result<bool, TransactionError> {
        let is_late = self.is_late;
        let locked = outcome.in_parts.is_some().then_some(locked);
        for dead in &outcome.dead {
            self.free_large(local, dead);
        }
        let Some(lsn) = outcome.lsn else {
            self.gc_after(local, 0);
            if outcome.is_early {
                self.await_durable(local)?;
            }
            return Ok(false);
        };
        let has_versions = outcome.has_versions;
        let collect_garbage = || {
            if has_versions {
                self.release(changes.iter().map(Change::at), lsn);
            }
            self.gc_after(local, changes.len());
        };
        if !is_late {
            collect_garbage();
            if let Some(slot) = outcome.slot.take() {
                self.wait_for_watermark(local, lsn)?;
                drop(slot);
            }
        }
        let seen = local
            .parts
            .log_tasks
            .make_durable(&local.worker, lsn, durability)
            .and_then(|()| self.await_earlier(local, lsn, durability))
            .and_then(|()| self.wait_for_watermark(local, lsn));
        // One that is durable and that others may have seen has lasted, whatever has failed since.
        let log = &local.parts.log;
        let has_lasted = || is_late && lsn < log.durable() && lsn < self.watermark(log);
        if seen.is_err() && !has_lasted() {
            outcome.stays_unseen(self, locked.as_ref());
            seen?;
            return Ok(false);
        }
        drop(outcome);
        drop(locked);
        if is_late {
            collect_garbage();
        }
        Counters::add(&self.counters.commits, 1);
        Ok(true)
    }

    /// A commit that need not be durable is seen behind those before it, which may have to be.
    fn await_earlier(
        &self,
        local: &TaskWorker,
        lsn: Lsn,
        durability: Durability,
    ) -> Result<(), StorageError> {
        let waits = durability != Durability::Synced
            && self.is_late
            && self.watermark(&local.parts.log) <= lsn
            && !canary::is_on(Canary::AcknowledgeEarly);
        if waits {
            local.parts.log_tasks.wait_durable(&local.worker, lsn)
        } else {
            Ok(())
        }
    }

    /// Waits until every snapshot that begins sees the commit at `lsn`.
    pub(in crate::txn) fn wait_for_watermark(
        &self,
        local: &TaskWorker,
        lsn: Lsn,
    ) -> Result<(), StorageError> {
        let parts = &local.parts;
        if self.tracker.reported() > lsn.0 {
            return Ok(());
        }
        while self.watermark(&parts.log) <= lsn {
            parts.shared.writable()?;
            local.worker.yield_now();
        }
        Ok(())
    }

    /// A commit pays for the versions that it added by collecting some more.
    pub(super) fn gc_after(&self, local: &TaskWorker, added: usize) {
        if !self.versions.is_empty() {
            self.gc_versions(MIN_COLLECT + 2 * added);
            self.make_room(&local.parts);
        }
        self.free_dead(local);
    }
}
