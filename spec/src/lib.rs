//! The protocol by which nothing is lost, as a model that is explored in full.
//!
//! One key lives in a leaf that a root names; three pages, three segments of two places each, a log, a
//! drive with a volatile cache, and everything that the engine does with them: commits, structure
//! modifications, bulk loads, write-back, cleaning, checkpoints, crashes and recovery, each in the steps
//! between which others may run. [`Rule`] lists what the order of these steps rests on. The model with all
//! rules holds in every reachable state; without any one of them a counterexample exists, so none is idle
//! (`cargo test -p isobath-spec --release`).
//!
//! Each step names the function of the crate `isobath` that takes it; a test checks that they exist.
//! Sizes are tiny on purpose. What bytes look like, torn writes and corruption are the simulator's
//! subject (docs/reliability.md), not this model's.

mod recovery;

use recovery::recover;
use stateright::{Model, Property};

pub(crate) const ROOT: usize = 0;
pub(crate) const PAGES: usize = 3;
const SEGMENTS: usize = 3;
const SEGMENT_PLACES: usize = 2;
pub(crate) const PLACES: usize = SEGMENTS * SEGMENT_PLACES;

/// A position in the log: the index of a record.
pub(crate) type Lsn = u8;

/// A rule of the protocol; a model without it must lose something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A page is written only when the log is durable up to its version (`wait_durable` in `write_placed`).
    WriteAhead,
    /// Pages are flushed before the mapping record that names them (`flush_volume` in `write_out`).
    FlushBeforeMapping,
    /// An address is reused only when the record that replaces it is durable (`settle_graves`).
    ReuseAfterDurable,
    /// A checkpoint starts the log at or before the oldest change of every dirty page (`oldest_unsettled`).
    DirtyPages,
    /// The same for pages that are being written (`hold`).
    PagesBeingWritten,
    /// The same for written pages whose mapping record is not durable (`release`).
    RecordsInFlight,
    /// These three are read in this order, in which changes move through them (`oldest_unsettled`).
    OrderOfReads,
    /// The same for commits that were logged and not yet applied (`oldest_commit`).
    UnappliedCommits,
    /// The log never starts between the record that frees a page and a later mapping record of that page
    /// (`before_late_records`).
    OutOfOrderRecords,
    /// A page is marked as freed before the record that frees it can be read back.
    FreedBeforeRecord,
    /// The change bit of a mapping word is set before its record counts as complete (`log_copies`).
    MarkBeforeComplete,
    /// A superblock is written when the log is durable up to the end of the checkpoint's scan (`flush_log`).
    LogBeforeSuperblock,
    /// Provisional allocations are listed for checkpoints (`promise`).
    ProvisionalListed,
    /// What confirms a provisional allocation removes it from that list (`settle_promises`).
    ConfirmedRemoved,
    /// What recovery frees, it logs as freed before its ids are used again (`give_up`).
    FreedByRecoveryLogged,
    /// A change that is older than its page takes a new version (`changed`).
    VersionsGrow,
    /// The cleaner installs an address only over the one that it copied from (`relocate`).
    CompareAndSwap,
    /// The first checkpoint after a recovery covers all that was recovered (`run`).
    RecoveredCovered,
}

/// All of them.
pub const RULES: [Rule; 18] = [
    Rule::WriteAhead,
    Rule::FlushBeforeMapping,
    Rule::ReuseAfterDurable,
    Rule::DirtyPages,
    Rule::PagesBeingWritten,
    Rule::RecordsInFlight,
    Rule::OrderOfReads,
    Rule::UnappliedCommits,
    Rule::OutOfOrderRecords,
    Rule::FreedBeforeRecord,
    Rule::MarkBeforeComplete,
    Rule::LogBeforeSuperblock,
    Rule::ProvisionalListed,
    Rule::ConfirmedRemoved,
    Rule::FreedByRecoveryLogged,
    Rule::VersionsGrow,
    Rule::CompareAndSwap,
    Rule::RecoveredCovered,
];

/// How often each thing may happen in one history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bounds {
    /// Commits of a new value.
    pub commits: u8,
    /// Structure modifications that move the key to another leaf.
    pub moves: u8,
    /// Bulk loads of a leaf, linked or abandoned.
    pub loads: u8,
    /// Write-backs of dirty pages.
    pub writes: u8,
    /// Relocations of clean pages.
    pub relocations: u8,
    /// Checkpoints.
    pub checkpoints: u8,
    /// Crashes after which work goes on; that one more may follow any state is always checked.
    pub crashes: u8,
}

/// The protocol, perhaps without one rule.
#[derive(Clone, Debug)]
pub struct Protocol {
    /// What the histories contain.
    pub bounds: Bounds,
    /// The rule that is broken.
    pub broken: Option<Rule>,
}

/// A place on the volume, with the sequence number that its segment had when it was given out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    pub(crate) place: u8,
    pub(crate) seq: u8,
}

/// A page as it lies on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Image {
    pub(crate) page: u8,
    pub(crate) version: Lsn,
    pub(crate) content: u8,
    pub(crate) seq: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) durable: Option<Image>,
    pub(crate) cached: Option<Image>,
    in_use: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Record {
    /// A version without a record.
    Stamp,
    /// The key's value is this record's LSN.
    Commit,
    /// The root names `leaf`, whose image this is unless it was loaded; `freed` is no more.
    Structure {
        leaf: u8,
        image: Option<u8>,
        freed: u8,
        token: Option<Lsn>,
    },
    Mapping {
        page: u8,
        version: Lsn,
        address: Address,
    },
    /// `page` belongs to this record's LSN, as a token, until something confirms that.
    Provisional {
        page: u8,
    },
    Free {
        page: u8,
        token: Lsn,
    },
}

/// A page in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Page {
    pub(crate) exists: bool,
    pub(crate) version: Lsn,
    /// Of the root the leaf, of a leaf the value.
    pub(crate) content: u8,
    /// The oldest change that no write has taken; none in a clean page.
    pub(crate) oldest: Option<Lsn>,
    pub(crate) address: Option<Address>,
    /// It is being freed, or was; see [`Rule::FreedBeforeRecord`].
    freed: bool,
    writing: bool,
    /// Which of the pages with this id it is.
    life: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Issued,
    Flushed,
    Logged(Lsn),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Purpose {
    WriteBack,
    Relocation,
    Load { token: Lsn },
}

/// A write of one page, from its copy to the end of its bookkeeping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Batch {
    purpose: Purpose,
    page: u8,
    life: u8,
    version: Lsn,
    content: u8,
    to: Address,
    from: Option<Address>,
    oldest: Option<Lsn>,
    claimed_at: Lsn,
    stage: Stage,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Checkpoint {
    /// How many of its steps are done.
    done: u8,
    start: Lsn,
    words: [Option<Address>; PAGES],
    provisional: Vec<(Lsn, u8)>,
}

/// What the superblock names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Superblock {
    pub(crate) words: [Option<Address>; PAGES],
    pub(crate) provisional: Vec<(Lsn, u8)>,
    pub(crate) start: Lsn,
    pub(crate) next_seq: u8,
}

/// Memory and drive.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    left: Bounds,
    // Memory.
    pub(crate) pages: [Page; PAGES],
    /// The log; the first `durable` records are.
    pub(crate) log: Vec<Record>,
    pub(crate) durable: Lsn,
    log_start: Lsn,
    unapplied: Option<Lsn>,
    /// A structure modification between its record and the end of the page that it frees.
    freeing: Option<(u8, Lsn)>,
    batches: [Option<Batch>; 2],
    records_in_flight: Vec<(Lsn, Lsn)>,
    out_of_order: Vec<(Lsn, Lsn)>,
    pending_frees: Vec<(Lsn, Address)>,
    provisional: Vec<(Lsn, u8)>,
    changed: [bool; PAGES],
    /// Bits that a broken rule sets late.
    unmarked: Vec<u8>,
    open: Option<(u8, u8)>,
    next_seq: u8,
    checkpoint: Option<Checkpoint>,
    /// Where the log ended when the store was recovered, until a checkpoint covers that.
    recovered: Option<Lsn>,
    // The drive.
    pub(crate) places: [Place; PLACES],
    pub(crate) superblock: Superblock,
}

/// One step of somebody.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the method of the same name")]
pub enum Action {
    Commit,
    Apply,
    Move,
    Free,
    Load,
    Link,
    Abandon,
    WriteBack(u8),
    Relocate(u8),
    FlushVolume,
    LogBatch(usize),
    Release(usize),
    MarkLate,
    FlushLog,
    ReleaseAddress,
    Checkpoint,
    Crash { records: Lsn, survivors: u8 },
}

impl State {
    fn append(&mut self, record: Record) -> Lsn {
        self.log.push(record);
        self.log.len() as Lsn - 1
    }

    pub(crate) fn end(&self) -> Lsn {
        self.log.len() as Lsn
    }

    fn leaf(&self) -> usize {
        usize::from(self.pages[ROOT].content)
    }

    fn spare_leaf(&self) -> Option<usize> {
        let spare = 3 - self.leaf();
        let taken =
            self.pages[spare].exists || self.provisional.iter().any(|p| usize::from(p.1) == spare);
        (!taken).then_some(spare)
    }

    /// Changes a page by the record at `lsn` (`PageWriteGuard::changed`).
    fn change(&mut self, page: usize, lsn: Lsn, content: u8, broken: Option<Rule>) {
        let older = lsn <= self.pages[page].version;
        let version = if older && broken != Some(Rule::VersionsGrow) {
            self.append(Record::Stamp)
        } else {
            lsn
        };
        let page = &mut self.pages[page];
        page.version = version;
        page.content = content;
        page.oldest = Some(page.oldest.map_or(lsn, |oldest| oldest.min(lsn)));
    }

    /// Gives a place to a page (`Space::place`); in another segment than `not_in`.
    fn place(&mut self, not_in: Option<Address>) -> Option<Address> {
        if self
            .open
            .is_none_or(|(_, used)| usize::from(used) == SEGMENT_PLACES)
        {
            let is_free = |segment: &usize| {
                let places = &self.places[segment * SEGMENT_PLACES..][..SEGMENT_PLACES];
                places.iter().all(|place| !place.in_use)
            };
            let segment = (0..SEGMENTS).find(is_free)?;
            self.open = Some((segment as u8, 0));
            self.next_seq += 1;
        }
        let (segment, used) = self.open?;
        let place = segment * SEGMENT_PLACES as u8 + used;
        if not_in.is_some_and(|address| address.place / SEGMENT_PLACES as u8 == segment) {
            return None;
        }
        self.open = Some((segment, used + 1));
        self.places[usize::from(place)].in_use = true;
        Some(Address {
            place,
            seq: self.next_seq - 1,
        })
    }

    /// Frees `address` once the record at `record` is durable (`Engine::bury`).
    fn free_after(&mut self, record: Lsn, address: Option<Address>) {
        self.pending_frees
            .extend(address.map(|address| (record, address)));
    }

    fn mark(&mut self, page: usize, broken: Option<Rule>) {
        if broken == Some(Rule::MarkBeforeComplete) {
            self.unmarked.push(page as u8);
        } else {
            self.changed[page] = true;
        }
    }

    fn confirm(&mut self, token: Lsn, broken: Option<Rule>) {
        if broken != Some(Rule::ConfirmedRemoved) {
            self.provisional.retain(|entry| entry.0 != token);
        }
    }

    /// What a checkpoint stores for `page` (`stored_word`).
    fn word(&self, page: usize) -> Option<Address> {
        self.pages[page].address.filter(|_| self.pages[page].exists)
    }

    /// What a read of `address` finds while the drive has power.
    fn read(&self, address: Address) -> Option<Image> {
        let place = &self.places[usize::from(address.place)];
        place.cached.or(place.durable)
    }

    fn issue(&mut self, purpose: Purpose, page: usize, from: Option<Address>) -> Option<()> {
        let not_in = from.filter(|_| purpose == Purpose::Relocation);
        let to = self.place(not_in)?;
        let Page {
            life,
            version,
            content,
            oldest,
            ..
        } = self.pages[page];
        let image = Image {
            page: page as u8,
            version,
            content,
            seq: to.seq,
        };
        self.places[usize::from(to.place)].cached = Some(image);
        let batch = usize::from(purpose != Purpose::WriteBack);
        self.batches[batch] = Some(Batch {
            purpose,
            page: page as u8,
            life,
            version,
            content,
            to,
            from,
            oldest,
            claimed_at: self.end(),
            stage: Stage::Issued,
        });
        Some(())
    }

    // ---- commits and structure modifications ---------------------------------------------------------

    /// A commit's record is appended (`Commit::append`).
    fn commit(&mut self) -> Option<()> {
        self.left.commits = self.left.commits.checked_sub(1)?;
        if self.unapplied.is_some() {
            return None;
        }
        self.unapplied = Some(self.append(Record::Commit));
        Some(())
    }

    /// The commit changes its page (`Commit::apply`).
    fn apply(&mut self, broken: Option<Rule>) -> Option<()> {
        let lsn = self.unapplied.filter(|_| self.freeing.is_none())?;
        self.change(self.leaf(), lsn, lsn, broken);
        self.unapplied = None;
        Some(())
    }

    /// The record of a structure modification is appended, its pages latched (`smo`).
    fn structure(
        &mut self,
        to: usize,
        image: Option<u8>,
        token: Option<Lsn>,
        broken: Option<Rule>,
    ) {
        let from = self.leaf();
        let record = Record::Structure {
            leaf: to as u8,
            image,
            freed: from as u8,
            token,
        };
        let lsn = self.append(record);
        if broken != Some(Rule::FreedBeforeRecord) {
            self.pages[from].freed = true;
        }
        if let Some(content) = image {
            let life = self.pages[to].life + 1;
            self.pages[to] = Page {
                exists: true,
                version: lsn,
                content,
                oldest: Some(lsn),
                life,
                ..Page::default()
            };
        }
        self.change(ROOT, lsn, to as u8, broken);
        self.freeing = Some((from as u8, lsn));
    }

    fn move_leaf(&mut self, broken: Option<Rule>) -> Option<()> {
        self.left.moves = self.left.moves.checked_sub(1)?;
        let to = self.spare_leaf().filter(|_| self.freeing.is_none())?;
        let content = self.pages[self.leaf()].content;
        self.structure(to, Some(content), None, broken);
        Some(())
    }

    /// The page that a structure modification frees is gone (`free_page`).
    fn free(&mut self, broken: Option<Rule>) -> Option<()> {
        let (page, lsn) = self.freeing.take()?;
        let old = self.pages[usize::from(page)];
        // A page that is being written leaves its addresses to that write.
        if !old.writing {
            self.free_after(lsn, old.address);
        }
        self.pages[usize::from(page)] = Page {
            life: old.life,
            freed: true,
            ..Page::default()
        };
        self.mark(usize::from(page), broken);
        Some(())
    }

    // ---- bulk loads ----------------------------------------------------------------------------------

    /// A leaf is written before anything names it (`promise_pages`, `write_chunk`).
    fn load(&mut self, broken: Option<Rule>) -> Option<()> {
        self.left.loads = self.left.loads.checked_sub(1)?;
        let free = self.batches[1].is_none() && self.freeing.is_none();
        let page = self.spare_leaf().filter(|_| free)?;
        let token = self.append(Record::Provisional { page: page as u8 });
        if broken != Some(Rule::ProvisionalListed) {
            self.provisional.push((token, page as u8));
        }
        let (content, life) = (self.pages[self.leaf()].content, self.pages[page].life + 1);
        self.pages[page] = Page {
            version: token,
            content,
            life,
            ..Page::default()
        };
        self.issue(Purpose::Load { token }, page, None)
    }

    fn loaded(&self) -> Option<(Batch, Lsn)> {
        let batch = self.batches[1].filter(|batch| matches!(batch.stage, Stage::Logged(_)))?;
        match batch.purpose {
            Purpose::Load { token } => Some((batch, token)),
            _ => None,
        }
    }

    /// The loaded leaf replaces the one whose value it has (`link`).
    fn link(&mut self, broken: Option<Rule>) -> Option<()> {
        let (batch, token) = self.loaded()?;
        let current = self.pages[self.leaf()];
        let busy = self.freeing.is_some() || self.unapplied.is_some();
        if busy || current.content != batch.content {
            return None;
        }
        self.structure(usize::from(batch.page), None, Some(token), broken);
        self.confirm(token, broken);
        self.batches[1] = None;
        Some(())
    }

    /// The load is given up (`log_free`).
    fn abandon(&mut self, broken: Option<Rule>) -> Option<()> {
        let (batch, token) = self.loaded()?;
        let page = usize::from(batch.page);
        let record = self.append(Record::Free {
            page: batch.page,
            token,
        });
        self.confirm(token, broken);
        self.free_after(record, self.pages[page].address);
        self.pages[page] = Page {
            life: batch.life,
            ..Page::default()
        };
        self.mark(page, broken);
        self.batches[1] = None;
        Some(())
    }

    // ---- writing -------------------------------------------------------------------------------------

    /// A dirty page is copied and its write begins (`copy_for_write`, `write_placed`).
    fn write_back(&mut self, page: usize, broken: Option<Rule>) -> Option<()> {
        self.left.writes = self.left.writes.checked_sub(1)?;
        let current = self.pages[page];
        let may_write = current.version < self.durable || broken == Some(Rule::WriteAhead);
        let ready =
            current.exists && current.oldest.is_some() && !current.freed && !current.writing;
        if self.batches[0].is_some() || !ready || !may_write {
            return None;
        }
        self.issue(Purpose::WriteBack, page, current.address)?;
        self.pages[page].oldest = None;
        self.pages[page].writing = true;
        Some(())
    }

    /// A clean page is copied out of its segment (`relocate`).
    fn relocate(&mut self, page: usize) -> Option<()> {
        self.left.relocations = self.left.relocations.checked_sub(1)?;
        let current = self.pages[page];
        let clean =
            current.exists && current.oldest.is_none() && !current.freed && !current.writing;
        let from = current
            .address
            .filter(|_| clean && self.batches[1].is_none())?;
        self.issue(Purpose::Relocation, page, Some(from))
    }

    /// The volume's cache is flushed (`flush_volume`).
    fn flush_volume(&mut self) -> Option<()> {
        let mut any = false;
        for batch in self.batches.iter_mut().flatten() {
            any |= batch.stage == Stage::Issued;
            if batch.stage == Stage::Issued {
                batch.stage = Stage::Flushed;
            }
        }
        for place in &mut self.places {
            place.durable = place.cached.take().or(place.durable);
        }
        any.then_some(())
    }

    /// The copy is installed and its mapping record appended (`install_copies`, `log_copies`).
    fn log_batch(&mut self, at: usize, broken: Option<Rule>) -> Option<()> {
        let mut batch = self.batches[at]?;
        let flushed = batch.stage == Stage::Flushed
            || batch.stage == Stage::Issued && broken == Some(Rule::FlushBeforeMapping);
        if !flushed {
            return None;
        }
        let page = usize::from(batch.page);
        let current = self.pages[page];
        let same = current.life == batch.life && !current.freed;
        let unchanged =
            same && current.address == batch.from && current.oldest.is_none() && !current.writing;
        if batch.purpose == Purpose::Relocation
            && !unchanged
            && broken != Some(Rule::CompareAndSwap)
        {
            self.places[usize::from(batch.to.place)].in_use = false;
            self.batches[at] = None;
            return Some(());
        }
        let Batch {
            version,
            to: address,
            ..
        } = batch;
        let record = self.append(Record::Mapping {
            page: batch.page,
            version,
            address,
        });
        if same {
            self.pages[page].exists = true;
            self.pages[page].address = Some(address);
            self.free_after(record, batch.from);
            self.mark(page, broken);
        } else {
            self.free_after(record, batch.from);
            self.free_after(record, Some(address));
            if broken != Some(Rule::OutOfOrderRecords) {
                self.out_of_order.push((batch.claimed_at, record));
            }
        }
        if batch.purpose == Purpose::WriteBack && current.life == batch.life {
            self.pages[page].writing = false;
            // The page is freed by this write, not by who ended it.
            if current.freed {
                self.pages[page].address = None;
            }
        }
        batch.stage = Stage::Logged(record);
        self.batches[at] = Some(batch);
        Some(())
    }

    /// The batch no longer holds back the log's start; its record does until it is durable (`release`).
    fn release(&mut self, at: usize, broken: Option<Rule>) -> Option<()> {
        let batch = self.batches[at]?;
        let Stage::Logged(record) = batch.stage else {
            return None;
        };
        if matches!(batch.purpose, Purpose::Load { .. }) {
            return None;
        }
        if let Some(oldest) = batch
            .oldest
            .filter(|_| broken != Some(Rule::RecordsInFlight))
        {
            self.records_in_flight.push((oldest, record));
        }
        self.batches[at] = None;
        Some(())
    }

    /// The log is flushed up to its end (`log_writer`).
    fn flush_log(&mut self) -> Option<()> {
        let more = self.durable < self.end();
        self.durable = self.end();
        more.then_some(())
    }

    /// Addresses whose records are durable are free (`settle_graves`).
    fn release_address(&mut self, broken: Option<Rule>) -> Option<()> {
        let durable = self.durable;
        let may = |record: Lsn| record < durable || broken == Some(Rule::ReuseAfterDurable);
        let at = self.pending_frees.iter().position(|entry| may(entry.0))?;
        let (_, address) = self.pending_frees.remove(at);
        self.places[usize::from(address.place)].in_use = false;
        Some(())
    }

    // ---- checkpoints ---------------------------------------------------------------------------------

    /// The next step of the checkpoint that is being written (`Local::checkpoint`, `checkpoint::write`).
    fn checkpoint(&mut self, broken: Option<Rule>) -> Option<()> {
        let Some(mut checkpoint) = self.checkpoint.take() else {
            self.left.checkpoints = self.left.checkpoints.checked_sub(1)?;
            let (start, words) = (self.end(), self.superblock.words);
            self.checkpoint = Some(Checkpoint {
                done: 0,
                start,
                words,
                provisional: Vec::new(),
            });
            return Some(());
        };
        let step = match (checkpoint.done, broken == Some(Rule::OrderOfReads)) {
            (1, true) => 3,
            (3, true) => 1,
            (done, _) => done,
        };
        match step {
            0 => self.start_at(
                &mut checkpoint,
                self.unapplied,
                broken == Some(Rule::UnappliedCommits),
            ),
            1 => {
                let dirty = self.pages.iter().filter(|page| page.exists && !page.freed);
                let oldest = dirty.filter_map(|page| page.oldest).min();
                self.start_at(&mut checkpoint, oldest, broken == Some(Rule::DirtyPages));
            }
            2 => {
                let oldest = self
                    .batches
                    .iter()
                    .flatten()
                    .filter_map(|batch| batch.oldest)
                    .min();
                self.start_at(
                    &mut checkpoint,
                    oldest,
                    broken == Some(Rule::PagesBeingWritten),
                );
            }
            3 => {
                let durable = self.durable;
                self.records_in_flight.retain(|entry| entry.1 >= durable);
                let oldest = self.records_in_flight.iter().map(|entry| entry.0).min();
                self.start_at(&mut checkpoint, oldest, false);
            }
            4 => {
                // A structure modification frees pages before it releases its latches; the log does
                // not start behind one that has not (`oldest_structure`).
                self.start_at(&mut checkpoint, self.freeing.map(|entry| entry.1), false);
                self.before_out_of_order(&mut checkpoint);
                let early = self.recovered.is_some_and(|end| checkpoint.start < end);
                if early && broken != Some(Rule::RecoveredCovered) {
                    return Some(());
                }
            }
            5 => checkpoint.provisional = self.provisional.clone(),
            6..=8 => {
                let page = usize::from(step - 6);
                if std::mem::take(&mut self.changed[page]) {
                    checkpoint.words[page] = self.word(page);
                }
            }
            _ => {
                if self.durable < self.end() && broken != Some(Rule::LogBeforeSuperblock) {
                    return None;
                }
                let Checkpoint {
                    start,
                    words,
                    provisional,
                    ..
                } = checkpoint;
                self.superblock = Superblock {
                    words,
                    provisional,
                    start,
                    next_seq: self.next_seq,
                };
                self.log_start = start;
                self.recovered = None;
                return Some(());
            }
        }
        checkpoint.done += 1;
        self.checkpoint = Some(checkpoint);
        Some(())
    }

    fn start_at(&self, checkpoint: &mut Checkpoint, oldest: Option<Lsn>, is_broken: bool) {
        if !is_broken {
            checkpoint.start = oldest.map_or(checkpoint.start, |lsn| lsn.min(checkpoint.start));
        }
    }

    /// Moves the start before the frees that out-of-order records came behind (`before_late_records`).
    fn before_out_of_order(&mut self, checkpoint: &mut Checkpoint) {
        let log_start = self.log_start;
        self.out_of_order.retain(|entry| entry.1 >= log_start);
        while let Some(since) = self
            .out_of_order
            .iter()
            .filter(|entry| entry.1 >= checkpoint.start && entry.0 < checkpoint.start)
            .map(|entry| entry.0)
            .min()
        {
            checkpoint.start = since;
        }
    }

    // ---- crashes -------------------------------------------------------------------------------------

    /// The store after a crash that kept `records` of the log and, of the writes in the drive's cache, those
    /// whose bit is set, and after recovery (`Scan::read`, `Scan::apply`, `Plan::run`).
    fn crash(&self, records: Lsn, survivors: u8, broken: Option<Rule>) -> Option<State> {
        let mut left = self.left;
        left.crashes = left.crashes.checked_sub(1)?;
        let recovered = recover(self, records, survivors).ok()?;
        let mut state = State {
            left,
            log: self.log[..usize::from(records)].to_vec(),
            durable: records,
            log_start: self.superblock.start,
            superblock: self.superblock.clone(),
            places: recovered.places,
            pages: [Page::default(); PAGES],
            changed: recovered.touched,
            next_seq: recovered.next_seq,
            recovered: Some(0),
            unapplied: None,
            freeing: None,
            batches: [None; 2],
            records_in_flight: Vec::new(),
            out_of_order: Vec::new(),
            pending_frees: Vec::new(),
            provisional: Vec::new(),
            unmarked: Vec::new(),
            open: None,
            checkpoint: None,
        };
        for (page, found) in recovered.pages.iter().enumerate() {
            let Some(found) = found else { continue };
            state.pages[page] = *found;
            if let Some(address) = found.address {
                state.places[usize::from(address.place)].in_use = true;
            }
        }
        for (page, token) in recovered.given_up {
            if broken != Some(Rule::FreedByRecoveryLogged) {
                state.append(Record::Free { page, token });
            }
        }
        for lsn in recovered.commits {
            state.change(state.leaf(), lsn, lsn, broken);
        }
        state.recovered = Some(state.end());
        Some(state)
    }

    /// How many different subsets of the drive's cache may survive.
    fn cached_subsets(&self) -> u8 {
        1 << self
            .places
            .iter()
            .filter(|place| place.cached.is_some())
            .count()
    }

    /// Whether every crash now leaves a store with all that was committed, and nothing else.
    fn survives_every_crash(&self) -> bool {
        (self.durable..=self.end()).all(|records| {
            (0..self.cached_subsets()).all(|survivors| recover(self, records, survivors).is_ok())
        })
    }

    /// Whether each clean page can be read where its mapping word says, and no place has two owners.
    fn is_readable(&self) -> bool {
        let clean =
            |page: &&Page| page.exists && page.oldest.is_none() && !page.writing && !page.freed;
        let sound = |page: &Page| {
            let image = page.address.and_then(|address| self.read(address));
            image
                .is_some_and(|image| image.version == page.version && image.content == page.content)
        };
        let mut owned: Vec<u8> = (0..PAGES)
            .filter_map(|page| self.word(page))
            .map(|address| address.place)
            .collect();
        owned.sort_unstable();
        self.pages.iter().filter(clean).all(sound)
            && owned.windows(2).all(|pair| pair[0] != pair[1])
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let at = |place| Some(Address { place, seq: 0 });
        let image = |page: u8, content| Image {
            page,
            version: 0,
            content,
            seq: 0,
        };
        let mut places = [Place::default(); PLACES];
        places[0] = Place {
            durable: Some(image(0, 1)),
            cached: None,
            in_use: true,
        };
        places[1] = Place {
            durable: Some(image(1, 0)),
            cached: None,
            in_use: true,
        };
        let mut pages = [Page::default(); PAGES];
        pages[0] = Page {
            exists: true,
            content: 1,
            address: at(0),
            ..Page::default()
        };
        pages[1] = Page {
            exists: true,
            content: 0,
            address: at(1),
            ..Page::default()
        };
        let words = [at(0), at(1), None];
        vec![State {
            left: self.bounds,
            pages,
            log: vec![Record::Stamp],
            durable: 1,
            log_start: 1,
            unapplied: None,
            freeing: None,
            batches: [None; 2],
            records_in_flight: Vec::new(),
            out_of_order: Vec::new(),
            pending_frees: Vec::new(),
            provisional: Vec::new(),
            changed: [false; PAGES],
            unmarked: Vec::new(),
            open: None,
            next_seq: 1,
            checkpoint: None,
            recovered: None,
            places,
            superblock: Superblock {
                words,
                provisional: Vec::new(),
                start: 1,
                next_seq: 1,
            },
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        use Action::{
            Abandon, Apply, Checkpoint, Commit, Crash, FlushLog, FlushVolume, Free, Link, Load,
            LogBatch, MarkLate, Move, Release, ReleaseAddress, Relocate, WriteBack,
        };
        actions.extend([
            Commit,
            Apply,
            Move,
            Free,
            Load,
            Link,
            Abandon,
            FlushVolume,
            FlushLog,
        ]);
        actions.extend([ReleaseAddress, Checkpoint, MarkLate]);
        actions.extend((0..2).flat_map(|batch| [LogBatch(batch), Release(batch)]));
        actions.extend((0..PAGES as u8).flat_map(|page| [WriteBack(page), Relocate(page)]));
        if state.left.crashes > 0 {
            for records in state.durable..=state.end() {
                actions.extend(
                    (0..state.cached_subsets()).map(|survivors| Crash { records, survivors }),
                );
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let broken = self.broken;
        let mut state = last.clone();
        match action {
            Action::Commit => state.commit(),
            Action::Apply => state.apply(broken),
            Action::Move => state.move_leaf(broken),
            Action::Free => state.free(broken),
            Action::Load => state.load(broken),
            Action::Link => state.link(broken),
            Action::Abandon => state.abandon(broken),
            Action::WriteBack(page) => state.write_back(usize::from(page), broken),
            Action::Relocate(page) => state.relocate(usize::from(page)),
            Action::FlushVolume => state.flush_volume(),
            Action::LogBatch(at) => state.log_batch(at, broken),
            Action::Release(at) => state.release(at, broken),
            Action::MarkLate => state
                .unmarked
                .pop()
                .map(|page| state.changed[usize::from(page)] = true),
            Action::FlushLog => state.flush_log(),
            Action::ReleaseAddress => state.release_address(broken),
            Action::Checkpoint => state.checkpoint(broken),
            Action::Crash { records, survivors } => return last.crash(records, survivors, broken),
        }?;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is lost in a crash", |_, state: &State| {
                state.survives_every_crash()
            }),
            Property::always(
                "pages are where the mapping table says",
                |_, state: &State| state.is_readable(),
            ),
            Property::sometimes(
                "two checkpoints end",
                |protocol: &Protocol, state: &State| {
                    protocol.bounds.checkpoints < 2
                        || state.left.checkpoints == 0 && state.checkpoint.is_none()
                },
            ),
            Property::sometimes("a segment is used again", |_, state: &State| {
                state.next_seq > SEGMENTS as u8
            }),
        ]
    }
}

#[cfg(test)]
mod tests;
