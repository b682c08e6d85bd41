//! The protocol by which nothing is lost, as a model that is explored in full.
//!
//! One key lives in a leaf that a root names; three pages, three segments of two places each, a
//! log, a drive with a volatile cache, and everything that the engine does with them: commits,
//! structure modifications, bulk loads, write-back, cleaning, checkpoints, crashes and recovery,
//! each in the steps between which others may run. [`Rule`] lists what the order of these steps
//! rests on. The model with all rules holds in every reachable state; without any one of them a
//! counterexample exists, so none is idle (`cargo test -p isobath-spec --release`).
//!
//! Each step names the function of the crate `isobath` that takes it; a test checks that they
//! exist. Sizes are tiny on purpose. What bytes look like, torn writes and corruption are the
//! simulator's subject (docs/reliability.md), not this model's.

mod changes;
mod checkpoint;
mod crash;
mod recovery;
mod rules;
mod superblocks;
mod writing;

pub use rules::{RULES, Rule};
use stateright::{Model, Property};
pub use superblocks::{SUPERBLOCK_RULES, SuperblockRule, TwoAction, TwoState, TwoSuperblocks};

pub(crate) const ROOT: usize = 0;
pub(crate) const PAGES: usize = 3;
const SEGMENTS: usize = 3;
const SEGMENT_PLACES: usize = 2;
pub(crate) const PLACES: usize = SEGMENTS * SEGMENT_PLACES;

/// A position in the log: the index of a record.
pub(crate) type Lsn = u8;

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
    /// Bounds of the histories.
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
    /// `unflushed`: the copy was written, and is flushed with this record.
    Mapping {
        page: u8,
        version: Lsn,
        address: Address,
        unflushed: bool,
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

/// The superblock.
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
    /// The log's end when the store was recovered, until a checkpoint covers that.
    recovered: Option<Lsn>,
    // The drive.
    pub(crate) places: [Place; PLACES],
    pub(crate) superblock: Superblock,
}

/// One step of a commit, a writer, a checkpoint, the drive or a crash.
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

    /// Changes a page by the record at `lsn` (`Exclusive::changed`).
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

    /// Frees `address` once the record at `record` is durable (`Engine::defer_free`).
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

    /// The word that a checkpoint stores for `page` (`stored_word`).
    fn word(&self, page: usize) -> Option<Address> {
        self.pages[page].address.filter(|_| self.pages[page].exists)
    }

    /// Reads `address` while the drive has power.
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
        // A step that its own first condition refuses is not offered: trying it copies the state.
        let mut offer = |action, may_be: bool| {
            if may_be {
                actions.push(action);
            }
        };
        let (left, is_loaded) = (&state.left, state.loaded().is_some());
        let is_written = |batch: usize| state.batches[batch].is_some();
        offer(Commit, left.commits > 0);
        offer(Apply, state.unapplied.is_some());
        offer(Move, left.moves > 0);
        offer(Free, state.freeing.is_some());
        offer(Load, left.loads > 0);
        offer(Link, is_loaded);
        offer(Abandon, is_loaded);
        offer(FlushVolume, is_written(0) || is_written(1));
        offer(FlushLog, state.durable < state.end());
        offer(ReleaseAddress, !state.pending_frees.is_empty());
        offer(
            Checkpoint,
            left.checkpoints > 0 || state.checkpoint.is_some(),
        );
        offer(MarkLate, !state.unmarked.is_empty());
        for batch in 0..2 {
            offer(LogBatch(batch), is_written(batch));
            offer(Release(batch), is_written(batch));
        }
        for page in 0..PAGES as u8 {
            offer(WriteBack(page), left.writes > 0 && !is_written(0));
            offer(Relocate(page), left.relocations > 0 && !is_written(1));
        }
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
            Action::FlushLog => state.flush_log(broken),
            Action::ReleaseAddress => state.release_address(broken),
            Action::Checkpoint => state.checkpoint(broken),
            Action::Crash { records, survivors } => return last.crash(records, survivors, broken),
        }?;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(
                "nothing is lost in a crash",
                |protocol: &Protocol, state: &State| state.survives_every_crash(protocol.broken),
            ),
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
