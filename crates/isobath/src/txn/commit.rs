//! The commit: how changes become visible, all or none, and lasting.
//!
//! 1. Lock the keys, in ascending order of their numbers.
//! 2. Validate: a key that was changed since the transaction's snapshot is a
//!    conflict; the first committer wins.
//! 3. Read what the keys have. This brings the leaves into memory, so that what
//!    follows is short, and gives the versions, and the large values that go.
//! 4. Reserve space on the volume and in the log.
//! 5. Register in the tracker; from here on the watermark waits.
//! 6. Unless no snapshot is open, publish the versions, pending.
//! 7. Validate what a serializable transaction has read. A commit that publishes at the same time
//!    waits for its record, so that the log has the two in the order that holds.
//! 8. Append one record.
//! 9. Apply, give the versions the LSN, unlock.
//! 10. Wait until the record is durable and the watermark has passed it.
//!
//! Where commits are seen once they are applied the slot is emptied at step 9, else at
//! the end. There the keys are noted before step 9, and that too is taken back at the end.

mod finish;
mod space;

use self::finish::Outcome;
use self::space::Splits;
use super::admission;
pub(crate) use super::change::Change;
use super::locks::Locked;
use super::reserved_task::ReservedTask;
use super::serializable::{ReadSet, Validation};
use super::snapshots::Registered;
use super::unseen::UnseenTrees;
use super::versions::{CommitNumber, OldValue};
use super::{COLLECT_STEP, Transactions};
use crate::btree::{Decision, Descriptor, Tree, TreeId, ValueKind, ValueRef};
use crate::canary::{self, Canary};
use crate::context::{TaskContext, TaskWorker, WriteContext};
use crate::error::{StorageError, TransactionError};
use crate::extent;
use crate::levels;
use crate::log::record::{CommitBody, Kind, Operation, Token, operation_bytes};
use crate::log::{LogReservation, Slot};
use crate::page::{Lsn, PageId};
use crate::shared::Durability;

/// Operations of a turn as which the work of a commit counts.
const OPERATIONS_PER_COMMIT: u32 = 8;

/// The context of a commit, without its changes.
#[derive(Clone, Copy, Default)]
pub(crate) struct CommitContext<'a> {
    /// The transaction's snapshot; a single operation has none.
    pub(crate) snapshot: Option<&'a Registered>,
    /// The reads of a serializable transaction.
    pub(crate) reads: Option<&'a ReadSet>,
    /// It frees space, and may take the little that it needs from the reserve.
    pub(crate) frees_space: bool,
    /// It lets go of log: other commits wait while the log is full, and may wait for this one.
    pub(crate) frees_log: bool,
    /// A tree that ends with this; nothing but its empty root is left of it.
    pub(crate) ends: Option<Tree>,
    /// Its precondition holds whatever the keys have: where overlays take the changes, and nothing
    /// else has to know what they replace, that is not read.
    pub(crate) is_blind: bool,
    /// What becomes visible with it beside its changes.
    pub(crate) installs: Option<&'a dyn Installs>,
}

/// What trees that the caller has closed are to have once a commit is durable. Snapshots that are
/// older cannot read these trees from then on.
pub(crate) trait Installs: Sync {
    /// The tokens of large values that it names.
    fn tokens(&self) -> &[Token];
    /// Chunks of large values that it replaces.
    fn chunks(&self) -> &[PageId];
    fn trees(&self) -> Vec<TreeId>;
    /// Keeps snapshots from the trees.
    fn begin(&self);
    /// Lets them read the trees as they were.
    fn cancel(&self);
    /// Gives the trees what they are to have by the commit at `lsn`, and lets newer snapshots read
    /// them.
    fn install(&self, lsn: Lsn);
}

/// A key's value, read under its lock.
struct CurrentValue {
    old: OldValue,
    /// Bytes of an inline value, whether `old` has them or not.
    length: usize,
    /// The tree's load watermark when this was read.
    loaded: u64,
    /// The serial number of the tree's overlays then; 0 without some.
    overlays: u64,
}

/// The result of reading what the keys have.
enum CurrentValues {
    Done(Vec<CurrentValue>),
    /// The precondition does not hold.
    Refused,
    /// Snapshots would need more than the version store may hold.
    TooMuch,
}

impl Transactions {
    /// Auto-commits one put or delete if `precondition`, which sees the key's current
    /// value, holds; it may be called several times, and its last answer is returned.
    pub(crate) fn change_one(
        &self,
        local: &TaskWorker,
        change: Change<'_>,
        precondition: impl FnMut(Option<ValueRef<'_>>) -> bool,
    ) -> Result<bool, TransactionError> {
        self.auto_commit(local, change, precondition, CommitContext::default())
    }

    /// Auto-commits one put or delete, whatever the key has.
    pub(crate) fn put_one(
        &self,
        local: &TaskWorker,
        change: Change<'_>,
    ) -> Result<(), TransactionError> {
        let context = CommitContext {
            is_blind: true,
            ..CommitContext::default()
        };
        self.auto_commit(local, change, |_| true, context).map(drop)
    }

    /// Waits until a commit may begin; nothing is held.
    fn admit(&self, local: &TaskWorker, changes: &[Change<'_>]) -> Result<(), TransactionError> {
        local.worker.count_operations(OPERATIONS_PER_COMMIT);
        TaskContext { local }.admit()?;
        self.await_version_space(local)?;
        Ok(admission::wait(local, changes)?)
    }

    fn auto_commit(
        &self,
        local: &TaskWorker,
        change: Change<'_>,
        mut precondition: impl FnMut(Option<ValueRef<'_>>) -> bool,
        context: CommitContext<'_>,
    ) -> Result<bool, TransactionError> {
        let parts = &local.parts;
        let durability = parts.shared.config.durability;
        self.admit(local, std::slice::from_ref(&change))?;
        let locked = self.locks.one(&local.worker, change.number());
        if !parts.log.is_on() && self.snapshots.active() == 0 {
            change.await_load(local)?;
            let slot = self.tracker.register(local.worker.index, &parts.log);
            local.worker.preemption_point();
            let may_change = change.may_change()? && change.overlays(local).is_some();
            if self.snapshots.active() == 0 && may_change {
                local.worker.preemption_point();
                let is_blind = context.is_blind;
                let (went, dead) = apply_unversioned(local, &change, is_blind, &mut precondition)?;
                // It has no LSN, but what it has replaced may have versions of later ones.
                slot.ends_at(parts.log.next().0);
                drop(slot);
                drop(locked);
                if let Some(dead) = dead {
                    self.free_large(local, &dead);
                }
                self.gc_after(local, 0);
                return Ok(went);
            }
        }
        let changes = [change];
        let mut precondition = |_, old: Option<ValueRef<'_>>| Ok(precondition(old));
        self.commit(
            local,
            &changes,
            context,
            durability,
            &mut precondition,
            locked,
        )
    }

    /// Where commits that are not visible yet fill the version store, waits for them.
    fn await_version_space(&self, local: &TaskWorker) -> Result<(), TransactionError> {
        if self.is_late && self.lacks_room(&local.parts) && self.unseen.is_any() {
            self.await_durable(local)?;
            self.collect_recent();
            self.gc_versions(COLLECT_STEP);
        }
        Ok(())
    }

    /// Changes all keys or none. `changes` are of distinct keys. `precondition` sees the current
    /// value of each, by its index, and says whether the commit may go on.
    pub(crate) fn change_all(
        &self,
        local: &TaskWorker,
        changes: &[Change<'_>],
        context: CommitContext<'_>,
        durability: Durability,
        precondition: &mut Precondition<'_>,
    ) -> Result<bool, TransactionError> {
        self.admit(local, changes)?;
        let numbers = changes.iter().map(Change::number).collect();
        let locked = self.locks.all(&local.worker, numbers);
        self.commit(local, changes, context, durability, precondition, locked)
    }

    /// Changes the keys that are `locked`.
    fn commit(
        &self,
        local: &TaskWorker,
        changes: &[Change<'_>],
        context: CommitContext<'_>,
        durability: Durability,
        precondition: &mut Precondition<'_>,
        locked: Locked<'_>,
    ) -> Result<bool, TransactionError> {
        let commit = Commit {
            transactions: self,
            local,
            changes,
            context,
            durability,
            precondition,
            has_met_snapshots: false,
            is_too_much: false,
        };
        let outcome = commit.run()?;
        self.finish(local, changes, locked, outcome, durability)
    }
}

/// Whether a commit may go on, given a key's current value and the index of its change.
pub(crate) type Precondition<'g> =
    dyn FnMut(usize, Option<ValueRef<'_>>) -> Result<bool, TransactionError> + 'g;

/// Without a log and without a snapshot no version is needed: the change is
/// one step of the tree. The slot keeps snapshots from beginning until it is done.
fn apply_unversioned(
    local: &TaskWorker,
    change: &Change<'_>,
    is_blind: bool,
    precondition: &mut impl FnMut(Option<ValueRef<'_>>) -> bool,
) -> Result<(bool, Option<Descriptor>), TransactionError> {
    let (mut went, mut dead) = (false, None);
    let ctx = TaskContext { local };
    levels::update(&change.tree, &ctx, change.key, is_blind, |old| {
        dead = old
            .filter(|old| old.kind == ValueKind::Extent)
            .map(|old| Descriptor::new(old.bytes));
        went = precondition(old);
        if went {
            change.decision()
        } else {
            Decision::Keep
        }
    })?;
    if went {
        let confirmed: Vec<Token> = change.tokens().collect();
        local.parts.pagestore.confirm_allocations(&confirmed, &[]);
    }
    Ok((went, dead.filter(|_| went)))
}

/// A commit's log record.
#[derive(Default)]
struct Record {
    body: CommitBody,
    /// Tokens of the large values that it names.
    confirmed: Vec<Token>,
    /// Chunks, and the root of a tree, that it frees.
    ended: Vec<PageId>,
    /// Large values that it takes out of their trees.
    replaced: Vec<Replaced>,
}

/// A large value that a commit takes out of its tree.
struct Replaced {
    /// The index of its change.
    at: usize,
    /// The token of the chunks while only snapshots can read them.
    token: Token,
    chunks: Vec<PageId>,
}

/// A commit whose keys are locked.
struct Commit<'a, 'g> {
    transactions: &'a Transactions,
    local: &'a TaskWorker,
    changes: &'a [Change<'a>],
    context: CommitContext<'a>,
    durability: Durability,
    precondition: &'a mut Precondition<'g>,
    /// A snapshot has begun while it went on without versions.
    has_met_snapshots: bool,
    /// The keys' values exceed the version store: the commit goes on without versions, and keeps
    /// snapshots out.
    is_too_much: bool,
}

impl<'a> Commit<'a, '_> {
    /// Whether single reads need versions, or some snapshot beside the transaction's own.
    fn must_publish(&self) -> bool {
        !self.is_too_much
            && (self.transactions.is_late || self.has_met_snapshots || self.has_others())
    }

    /// Whether a snapshot beside the transaction's own is open or being opened.
    fn has_others(&self) -> bool {
        self.transactions.snapshots.others(self.context.snapshot)
    }

    /// Whether a key's newest state is of a commit that is not visible yet. Asked after the keys
    /// were read, as by every reader: a commit is noted before its changes are in the leaves.
    fn has_read_early(&self) -> bool {
        let transactions = self.transactions;
        let unseen = &transactions.unseen;
        let is_early =
            |change: &Change<'_>| unseen.has(change.number()) || unseen.has_tree(change.tree.id);
        transactions.is_late && self.changes.iter().any(is_early)
    }

    fn run(mut self) -> Result<Outcome<'a>, TransactionError> {
        self.validate_writes()?;
        let reads = self.context.reads.zip(self.context.snapshot);
        let reads = reads.filter(|_| !canary::is_on(Canary::SkipReadValidation));
        let mut validation = reads.map(|(reads, snapshot)| reads.validation(snapshot));
        // Bound: each round but three has found that a load or a large commit has changed a tree.
        loop {
            let publish = self.must_publish();
            match self.read_current(publish)? {
                CurrentValues::Refused => {
                    return Ok(Outcome {
                        is_early: self.has_read_early(),
                        ..Outcome::default()
                    });
                }
                CurrentValues::TooMuch => self.is_too_much = true,
                CurrentValues::Done(peeked) => {
                    if let Some(outcome) = self.write(peeked, publish, validation.as_mut())? {
                        return Ok(outcome);
                    }
                }
            }
        }
    }

    /// First committer wins: no commit has changed these keys since the snapshot.
    /// As they are locked, no other commit will. What loads have changed is seen
    /// when the keys are read, and in the slot.
    fn validate_writes(&self) -> Result<(), TransactionError> {
        // Of one that installs something, the changes are the engine's own.
        let is_validated = self.context.installs.is_none();
        let Some(snapshot) = self.context.snapshot.filter(|_| is_validated) else {
            return Ok(());
        };
        let versions = &self.transactions.versions;
        for change in self.changes {
            let (tree, key) = (change.tree.id, change.key);
            if change.value.is_none() && canary::is_on(Canary::SkipDeleteValidation) {
                continue;
            }
            if versions.is_changed(tree, key, snapshot.lsn, None)
                && !canary::is_on(Canary::SkipWriteValidation)
            {
                return Err(change.conflict());
            }
        }
        snapshot.check()
    }

    /// Whether the trees may be changed now, and have what was read of them: no load
    /// was linked since. To be asked in the slot, for as long as that is occupied.
    fn may_change(&self, peeked: &[CurrentValue]) -> Result<bool, TransactionError> {
        for (change, peeked) in self.changes.iter().zip(peeked) {
            if !change.may_change()? {
                return Ok(false);
            }
            if change.loaded() != peeked.loaded && !canary::is_on(Canary::LoadBesideCommits) {
                return Ok(false);
            }
            if change.overlays(self.local) != Some(peeked.overlays) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads what the keys have, with the bytes of inline values if `publish`.
    fn read_current(&mut self, publish: bool) -> Result<CurrentValues, TransactionError> {
        let ctx = TaskContext { local: self.local };
        let mut peeked = Vec::with_capacity(self.changes.len());
        let mut bytes = Vec::new();
        let mut kept = 0;
        for (at, change) in self.changes.iter().enumerate() {
            change.await_load(self.local)?;
            let loaded = change.loaded();
            let overlays = change.await_overlays(self.local)?;
            if self.context.snapshot.is_some_and(|own| own.lsn < loaded) {
                return Err(change.conflict());
            }
            let is_blind = self.context.is_blind && !publish && change.takes_blindly(self.local);
            let kind = match is_blind {
                true => Ok(None),
                false => levels::get(&change.tree, &ctx, change.key, &mut bytes),
            };
            // A tree that is being dropped looks corrupt.
            let kind = kind.or_else(|error| change.may_change().and(Err(error.into())))?;
            let old = kind.map(|kind| ValueRef {
                kind,
                bytes: &bytes,
            });
            if !(self.precondition)(at, old)? {
                return Ok(CurrentValues::Refused);
            }
            let length = old.map_or(0, |old| old.bytes.len());
            kept += (change.key.len() + length) as u64;
            if publish && kept > self.transactions.versions.limit() {
                return Ok(CurrentValues::TooMuch);
            }
            let old = match kind {
                Some(ValueKind::Inline) if !publish => OldValue::Inline(Box::default()),
                kind => OldValue::from_read(kind, &mut bytes),
            };
            peeked.push(CurrentValue {
                old,
                length,
                loaded,
                overlays,
            });
        }
        Ok(CurrentValues::Done(peeked))
    }

    /// The commit's record; without a log, its confirmed allocations alone.
    fn record(&self, peeked: &[CurrentValue]) -> Result<Record, TransactionError> {
        let local = self.local;
        let mut record = Record {
            confirmed: self.changes.iter().flat_map(Change::tokens).collect(),
            ..Record::default()
        };
        let installs = self.context.installs;
        let installed = installs.map_or(&[][..], |installs| installs.tokens());
        record.confirmed.extend(installed);
        if !local.parts.log.is_on() {
            return Ok(record);
        }
        for (at, peeked) in peeked.iter().enumerate() {
            if let OldValue::Extent(descriptor) = &peeked.old {
                let extent = extent::decode(descriptor.bytes())?;
                record.replaced.push(Replaced {
                    at,
                    token: local.parts.log.stamp(local.worker.index).0,
                    chunks: extent::chunk_ids(local, extent)?,
                });
            }
        }
        let chunks = record.replaced.iter().flat_map(|old| &old.chunks);
        let root = self.context.ends.map(|tree| tree.root);
        let replaced = installs.map_or(&[][..], |installs| installs.chunks());
        record.ended = chunks.chain(replaced).copied().chain(root).collect();
        record.body = CommitBody::new(&record.confirmed, &record.ended);
        for change in self.changes {
            record.body.push(&Operation {
                tree: change.tree,
                key: change.key,
                value: change.value,
            });
        }
        Ok(record)
    }

    /// Steps 4 to 9; `None` if a snapshot has begun for which nothing was read, or
    /// what was read is out of date since a load.
    fn write(
        &mut self,
        peeked: Vec<CurrentValue>,
        publish: bool,
        mut validation: Option<&mut Validation<'_>>,
    ) -> Result<Option<Outcome<'a>>, TransactionError> {
        let local = self.local;
        let parts = &local.parts;
        self.advance(validation.as_deref_mut())?;
        let record = self.record(&peeked)?;
        let reserved = ReservedTask::reserve_from(
            local,
            self.pages_to_reserve(&peeked),
            self.context.frees_space,
            self.changes.len(),
        )?;
        let bytes = record.body.bytes().len() as u64;
        let log_tasks = &local.parts.log_tasks;
        let splits = self.splits(&peeked, bytes)?;
        match self.context.installs {
            None => log_tasks.wait_to_take(&local.worker, bytes)?,
            // It names large values of which each was written apart.
            Some(_) => log_tasks.wait_to_hold(&local.worker, bytes)?,
        }
        let mut reservation =
            log_tasks.reserve_commit(&local.worker, bytes, splits.count, self.context.frees_log)?;
        self.advance(validation.as_deref_mut())?;
        parts.shared.writable()?;
        let own = self.context.snapshot;
        let kept_out = match self.is_too_much {
            true => Some(self.transactions.keep_snapshots_out(local, own)?),
            false => None,
        };
        let slot = self
            .transactions
            .tracker
            .register(local.worker.index, &parts.log);
        local.worker.preemption_point();
        if !self.may_change(&peeked)? {
            return Ok(None);
        }
        if !publish && self.has_others() {
            self.has_met_snapshots = true;
            return Ok(None);
        }
        // Snapshots that begin from here on wait for the slot.
        drop(kept_out);
        let installs = self.context.installs;
        installs.inspect(|installs| installs.begin());
        let unlogged = !publish && !parts.log.is_on();
        let dead = if unlogged {
            extents_of(&peeked)
        } else {
            Vec::new()
        };
        let published = publish.then(|| self.publish(&slot, peeked, &record));
        local.worker.preemption_point();
        let tracker = &self.transactions.tracker;
        // Those that validate from here on see these versions.
        while publish && tracker.is_validating() && !canary::is_on(Canary::PassValidating) {
            local.worker.yield_now();
        }
        let validating = self.context.reads.map(|_| tracker.begin_validating());
        // Single reads could see one of several changes and not the others, or what
        // came behind a serializable commit and not that.
        let is_late = self.transactions.is_late;
        let in_parts = if is_late {
            !publish
        } else {
            self.changes.len() > 1 || self.context.reads.is_some()
        };
        let unseen = &self.transactions.unseen;
        let in_parts = in_parts.then(|| unseen.begin_parts());
        if let Err(error) = self.validate_reads(validation.as_deref(), published) {
            self.cancel(published);
            installs.inspect(|installs| installs.cancel());
            return Err(error);
        }
        local.worker.preemption_point();
        let lsn = self.append(&slot, &record, publish);
        drop(validating);
        let noted =
            (is_late && publish).then(|| unseen.note(self.changes.iter().map(Change::number)));
        local.worker.preemption_point();
        let applied = self.apply(&reserved, lsn, splits, &mut reservation);
        let applied = applied.and_then(|()| Ok(self.end_tree(lsn)?));
        drop((reserved, reservation));
        let swap = match applied.and_then(|()| self.install(&slot, lsn)) {
            Ok(swap) => swap,
            Err(error) => {
                installs.inspect(|installs| installs.cancel());
                self.fail(slot, published, &error);
                std::mem::forget(noted);
                return Err(error);
            }
        };
        match published {
            Some(number) => self.stamp_commit_lsn(number, lsn),
            // While the commit is registered no checkpoint can begin that would know
            // neither the record nor that they are gone.
            None => record
                .replaced
                .iter()
                .for_each(|old| extent::free_logged(local, lsn, &old.chunks)),
        }
        let lasts = is_late
            && parts.log.is_on()
            && self.durability == Durability::Synced
            && !canary::is_on(Canary::AcknowledgeEarly)
            && !canary::is_on(Canary::ShowEarly);
        let stays = lasts || self.context.reads.is_some() || installs.is_some();
        if lasts {
            slot.lasts(lsn);
        } else if stays {
            slot.is_applied(lsn);
        }
        Ok(Some(Outcome {
            lsn: Some(lsn),
            dead,
            has_versions: published.is_some(),
            slot: stays.then_some(slot),
            noted,
            in_parts: in_parts.filter(|_| is_late),
            swap,
            is_early: false,
        }))
    }

    fn append(&self, slot: &Slot<'_>, record: &Record, publish: bool) -> Lsn {
        let parts = &self.local.parts;
        let body = record.body.bytes();
        let writer = self.local.worker.index;
        parts.log.append(writer, Kind::Commit, &[body], |lsn| {
            // A serializable commit keeps the watermark where it was before its
            // validation. A commit that changes what it has read, and came too late
            // to be seen, may get a lower LSN: no snapshot may see only that one.
            if self.context.reads.is_none() {
                slot.is_at(lsn);
            }
            parts
                .pagestore
                .confirm_allocations(&record.confirmed, &record.ended);
            if publish {
                // A checkpoint that starts behind the record finds them in use.
                // Were the store to end before they are freed, the next opening
                // frees them.
                for old in &record.replaced {
                    parts.pagestore.add_provisional(old.token, &old.chunks);
                }
            }
        })
    }

    /// The published versions are those of the commit at `lsn`.
    fn stamp_commit_lsn(&self, number: CommitNumber, lsn: Lsn) {
        let versions = &self.transactions.versions;
        for change in self.changes {
            versions.stamp_commit_lsn(change.at(), number, lsn.0);
        }
    }

    fn publish(&self, slot: &Slot<'_>, peeked: Vec<CurrentValue>, record: &Record) -> CommitNumber {
        let versions = &self.transactions.versions;
        let number = versions.commit_number();
        let mut replaced = record.replaced.iter().peekable();
        for (at, (change, peeked)) in self.changes.iter().zip(peeked).enumerate() {
            let token = replaced
                .next_if(|old| old.at == at)
                .map_or(0, |old| old.token);
            let old = (peeked.old, token);
            versions.add(change.at(), old, number);
        }
        slot.adds_versions();
        number
    }

    fn cancel(&self, published: Option<CommitNumber>) {
        let versions = &self.transactions.versions;
        if let Some(number) = published {
            for change in self.changes {
                versions.cancel(change.at(), number);
            }
        }
    }

    /// The trees that it installs something in: these it keeps snapshots from itself.
    fn installed(&self) -> Vec<TreeId> {
        let installs = self.context.installs;
        installs.map_or_else(Vec::new, |installs| installs.trees())
    }

    /// Validates what it has read beside the commits of others.
    fn advance(&self, validation: Option<&mut Validation<'_>>) -> Result<(), TransactionError> {
        let versions = &self.transactions.versions;
        validation.map_or(Ok(()), |validation| {
            validation.advance(self.local, versions, &self.installed())
        })
    }

    fn validate_reads(
        &self,
        validation: Option<&Validation<'_>>,
        own: Option<CommitNumber>,
    ) -> Result<(), TransactionError> {
        if let Some(validation) = validation {
            validation.run(&self.transactions.versions, own, &self.installed())?;
        }
        // Versions that would have shown a conflict may be gone.
        self.context.snapshot.map_or(Ok(()), Registered::check)
    }

    fn apply(
        &self,
        ctx: &ReservedTask<'_>,
        lsn: Lsn,
        mut splits: Splits,
        reservation: &mut LogReservation<'_>,
    ) -> Result<(), TransactionError> {
        for (at, change) in self.changes.iter().enumerate() {
            levels::put(&change.tree, ctx, change.key, lsn, change.value)?;
            let left = self.changes.len() - 1 - at;
            reservation.release_splits(splits.applied(at, left));
            self.local.worker.preemption_point();
        }
        Ok(())
    }

    /// Once the commits before the one at `lsn` are applied, gives the trees what it installs.
    /// Readers outside transactions that come from then on wait until what this returns is dropped:
    /// they would see this commit, and not all before it.
    fn install(
        &self,
        slot: &Slot<'_>,
        lsn: Lsn,
    ) -> Result<Option<UnseenTrees<'a>>, TransactionError> {
        let Some(installs) = self.context.installs else {
            return Ok(None);
        };
        let (tracker, parts) = (&self.transactions.tracker, &self.local.parts);
        while parts.log.is_on()
            && tracker.waits_for_others(&parts.log, lsn, slot)
            && !canary::is_on(Canary::ShowRunsEarly)
        {
            parts.shared.writable()?;
            self.local.worker.yield_now();
        }
        let swap = self.transactions.begin_swap(installs.trees().into_iter());
        installs.install(lsn);
        extent::free_logged(self.local, lsn, installs.chunks());
        Ok(swap)
    }

    /// Frees the root of the tree that ends with the commit at `lsn`. The commit stays
    /// registered until then, as for chunks that go.
    fn end_tree(&self, lsn: Lsn) -> Result<(), StorageError> {
        let ctx = TaskContext { local: self.local };
        let ends = self.context.ends;
        ends.map_or(Ok(()), |tree| tree.free_root_logged(&ctx, lsn))
    }

    /// The record was appended, but the pages do not have all of it.
    fn fail(&self, slot: Slot<'_>, published: Option<CommitNumber>, error: &TransactionError) {
        let parts = &self.local.parts;
        if self.changes.len() == 1 && !parts.log.is_on() {
            // Nothing has changed, and no record says that it would.
            self.cancel(published);
            return;
        }
        // Where versions hide it from single reads, too, these find what the keys had.
        let is_hidden = self.transactions.is_late && published.is_some();
        if self.changes.len() > 1 && !is_hidden {
            let unseen = &self.transactions.unseen;
            unseen.fail(self.changes.iter().map(Change::number));
        }
        // The versions stay pending, so that no snapshot sees the part that is there.
        slot.abandon();
        parts.shared.poison(error.clone());
    }
}

fn extents_of(peeked: &[CurrentValue]) -> Vec<Descriptor> {
    let extent = |peeked: &CurrentValue| match &peeked.old {
        OldValue::Extent(descriptor) => Some(*descriptor),
        OldValue::Absent | OldValue::Inline(_) => None,
    };
    peeked.iter().filter_map(extent).collect()
}

/// Bytes that a change counts towards [`crate::MAX_TRANSACTION_BYTES`].
pub(crate) fn change_bytes(key: usize, value: usize) -> u64 {
    operation_bytes(key, value) as u64
}
