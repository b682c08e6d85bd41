//! Reads the log from the checkpoint's start once: the newest image, copy or end of each page.

use std::sync::Arc;

use isobath_io::Volume;

use crate::buffer::PagePlace;
use crate::canary::{self, Canary};
use crate::checkpoint::Superblock;
use crate::error::{OpenError, StorageError};
use crate::log::record::{Body, Copied, Kind, Mapped, Operation, Token, decode};
use crate::log::{LogArea, LogEnd, Reader};
use crate::page::{Lsn, PageId};
use crate::recovery::AsFar;
use crate::recovery::unflushed_chunks::{UnflushedChunks, find_end};
use crate::shared::Address;
use crate::sync::{HashMap, HashSet};
use crate::types::{CATALOG, OVERLAID, TreeId, dropped_by, sealed_before};

/// The newest that the log says of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Newest {
    /// The image in the structure record at this page's version.
    Image,
    /// A copy on the volume.
    Copy(Address),
    /// It exists no longer.
    Ended,
}

/// The checkpoint's state that a log is read on top of.
pub(crate) struct Base<'b> {
    /// Tokens that no record had confirmed, with their pages, as the checkpoint lists them.
    pub(crate) provisional: &'b [u64],
    /// Whether the checkpoint's mapping table has a place for a page.
    pub(crate) has: &'b dyn Fn(PageId) -> bool,
}

/// From which LSN on commits are repeated, by tree and key: bulk loads and runs of overlays that
/// the log makes parts of trees have what was true then.
#[derive(Default)]
pub(crate) struct Loads(HashMap<TreeId, Vec<(Vec<u8>, Lsn)>>);

impl Loads {
    /// The record at `lsn` makes a load from `lower` on part of `tree`.
    pub(crate) fn note(&mut self, tree: TreeId, lower: &[u8], lsn: Lsn) {
        let loads = self.0.entry(tree).or_default();
        if lower.is_empty() {
            loads.retain(|load| load.1 > lsn);
        }
        loads.push((lower.to_vec(), lsn));
    }

    /// Whether a load was linked over the operation's key after the commit at `lsn`.
    pub(crate) fn came_after(&self, operation: &Operation<'_>, lsn: Lsn) -> bool {
        let loads = self.0.get(&operation.tree.id);
        let later = |load: &(Vec<u8>, Lsn)| lsn < load.1 && operation.key >= &load.0[..];
        loads.is_some_and(|loads| loads.iter().any(later))
            && !canary::is_on(Canary::ReplayOverLoads)
    }
}

/// The result of one pass over the log.
pub(crate) struct Scan {
    /// Its start.
    start: Lsn,
    pages: HashMap<PageId, (Lsn, Newest)>,
    /// Of these, chunks that exist, and their values' stamps.
    chunks: HashMap<PageId, Lsn>,
    /// Pages and chunks that belong to tokens.
    provisional: HashMap<PageId, Token>,
    confirmed: HashSet<Token>,
    /// Highest sequence number of each segment that copies lie in.
    pub(crate) seqs: HashMap<u32, u64>,
    dropped: HashSet<TreeId>,
    loads: Loads,
    changes_overlays: bool,
    /// It says where a part of a large value is.
    pub(crate) has_chunks: bool,
    commits: u64,
    /// Records of copies that are older than what the log says of their pages before: what that is,
    /// and the record.
    late: Vec<(Lsn, Lsn)>,
    /// Chunks that may not have reached the drive.
    unflushed: UnflushedChunks,
    pub(crate) end: LogEnd,
}

/// Tokens that nothing has confirmed, and what belonged to them.
#[derive(Default)]
pub(crate) struct Orphaned {
    pub(crate) tokens: HashSet<Token>,
    pub(crate) pages: Vec<PageId>,
}

/// The rest of a recovery, once the engine runs.
#[derive(Default)]
pub(crate) struct Plan {
    /// The superblock with the log's start; none for a new store.
    pub(crate) superblock: Option<Superblock>,
    pub(crate) end: LogEnd,
    /// Pages whose newest state is in the log, and the record that it is in.
    pub(crate) images: HashMap<PageId, Lsn>,
    pub(crate) dropped: HashSet<TreeId>,
    pub(crate) loads: Loads,
    /// The log changes which trees have overlays, or which runs.
    pub(crate) changes_overlays: bool,
    pub(crate) commits: u64,
    /// No checkpoint of this recovery may let the log begin between the two; see [`Scan::late`].
    pub(crate) late: Vec<(Lsn, Lsn)>,
    /// Everything that the log has changed in the mapping table.
    touched: Vec<PageId>,
    /// Allocations that nothing has confirmed. Their ids are free: the log has to say so before it
    /// gives them to another owner.
    pub(crate) orphaned: Orphaned,
    /// Receives the progress.
    pub(crate) listener: Option<Arc<dyn Fn(u64, u64) + Send + Sync>>,
}

impl Plan {
    /// The log's end when the store was opened, if there was one.
    pub(crate) fn log_end(&self) -> Option<LogEnd> {
        self.superblock.is_some().then_some(self.end)
    }

    /// Pages whose mapping words differ from the checkpoint's.
    pub(crate) fn touched(&self) -> impl Iterator<Item = PageId> + '_ {
        self.touched.iter().copied()
    }

    /// Whether the volume alone says everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.images.is_empty() && self.commits == 0 && self.orphaned.pages.is_empty()
    }
}

/// A record whose checksum matches, but which this version cannot read.
pub(crate) fn unknown_record(lsn: Lsn, kind: Kind) -> StorageError {
    StorageError::UnknownLogRecord {
        position: lsn.0,
        kind: kind as u8,
    }
}

/// A reader of the log from where a recovery starts.
pub(crate) fn reader<'v>(
    volume: &'v Volume,
    area: &'v LogArea,
    superblock: &Superblock,
) -> Reader<'v> {
    let start = Lsn(superblock.log_start);
    Reader::new(
        volume,
        area,
        &superblock.store_id,
        start,
        superblock.log_epoch,
    )
}

impl Scan {
    /// Of a log that says nothing and ends at `end`.
    pub(crate) fn empty(end: LogEnd) -> Scan {
        Scan {
            start: end.lsn,
            pages: HashMap::default(),
            chunks: HashMap::default(),
            provisional: HashMap::default(),
            confirmed: HashSet::default(),
            seqs: HashMap::default(),
            dropped: HashSet::default(),
            loads: Loads::default(),
            changes_overlays: false,
            has_chunks: false,
            commits: 0,
            late: Vec::new(),
            unflushed: UnflushedChunks::default(),
            end,
        }
    }

    /// Reads the log from where `superblock` says to its end, on top of the
    /// checkpoint's `base`. The end is before the first record that names a chunk which is not
    /// there, though it has to be.
    pub(crate) fn read(
        volume: &Volume,
        area: &LogArea,
        superblock: &Superblock,
        base: &Base<'_>,
    ) -> Result<Scan, OpenError> {
        let mut log = reader(volume, area, superblock);
        let scan = Scan::read_with(&mut log, superblock, base).whole()?;
        let missing = scan.unflushed.first_missing(volume, superblock, &log)?;
        if missing.is_none() {
            return Ok(scan);
        }
        let cut = find_end(volume, area, superblock)?;
        let mut log = reader(volume, area, superblock).until(cut);
        let shorter = Scan::read_with(&mut log, superblock, base).whole()?;
        let end = LogEnd {
            lsn: cut,
            is_cut: cut < scan.end.lsn,
            ..scan.end
        };
        Ok(Scan { end, ..shorter })
    }

    /// As [`Scan::read`], up to where the log cannot be read any further; whatever it says of
    /// chunks is taken for true.
    pub(crate) fn read_as_far(
        volume: &Volume,
        area: &LogArea,
        superblock: &Superblock,
        base: &Base<'_>,
    ) -> AsFar<Scan> {
        Scan::read_with(&mut reader(volume, area, superblock), superblock, base)
    }

    /// As [`Scan::read_as_far`], but no further than to `end`, where an earlier reading has found
    /// the log's end: a writer may be writing behind it.
    pub(crate) fn read_until(
        volume: &Volume,
        area: &LogArea,
        superblock: &Superblock,
        base: &Base<'_>,
        end: Lsn,
    ) -> AsFar<Scan> {
        let mut log = reader(volume, area, superblock).until(end);
        Scan::read_with(&mut log, superblock, base)
    }

    fn read_with(reader: &mut Reader<'_>, superblock: &Superblock, base: &Base<'_>) -> AsFar<Scan> {
        let mut scan = Scan::empty(reader.end());
        scan.start = Lsn(superblock.log_start);
        scan.provisional_before(base.provisional);
        let failed = loop {
            match reader.next() {
                Ok(None) => break None,
                Ok(Some(record)) => match decode(record.kind, record.body) {
                    Some(body) => scan.note(record.lsn, &body, base),
                    None => break Some(unknown_record(record.lsn, record.kind)),
                },
                Err(error) => break Some(error.into()),
            }
        };
        scan.end = reader.end();
        let failed = failed.or((scan.end.lsn.0 < superblock.log_durable).then_some(
            StorageError::LogCorrupt {
                position: scan.end.lsn.0,
                durable: superblock.log_durable,
            },
        ));
        AsFar::new(scan, failed.map(OpenError::from))
    }

    /// Takes what nothing has confirmed so far for confirmed.
    pub(crate) fn keep_provisional(&mut self) {
        self.provisional.clear();
    }

    fn provisional_before(&mut self, words: &[u64]) {
        let mut rest = words;
        while let [token, count, more @ ..] = rest {
            let count = (*count as usize).min(more.len());
            for page in &more[..count] {
                self.provisional.insert(PageId(*page), *token);
            }
            rest = &more[count..];
        }
    }

    fn note(&mut self, lsn: Lsn, body: &Body<'_>, base: &Base<'_>) {
        self.unflushed.note(lsn, body);
        match body {
            Body::Commit {
                tokens,
                chunks,
                operations,
            } => {
                self.commits += 1;
                self.confirm(tokens, chunks, lsn);
                for operation in operations {
                    let is_listing = operation.key.first() == Some(&OVERLAID);
                    self.changes_overlays |= operation.tree == CATALOG && is_listing;
                    if operation.tree == CATALOG
                        && let Some(value) = operation.value
                        && let Some((tree, lsn)) = sealed_before(operation.key, value.bytes)
                        && !canary::is_on(Canary::RepeatOverRuns)
                    {
                        self.loads.note(tree, &[], lsn);
                    }
                    if operation.tree == CATALOG
                        && let Some(tree) = dropped_by(operation.key)
                        && operation.value.is_some()
                    {
                        self.dropped.insert(tree);
                    }
                }
            }
            Body::Structure {
                tree,
                tokens,
                ended,
                images,
                loaded,
            } => {
                if let Some(lower) = loaded {
                    self.loads.note(*tree, lower, lsn);
                }
                for image in images {
                    self.newest(image.page, lsn, Newest::Image);
                }
                self.confirm(tokens, ended, lsn);
            }
            Body::Mapping { token, copies } => {
                for copy in copies {
                    self.note_segment(copy);
                    self.has_chunks |= !matches!(copy.what, Copied::Page | Copied::Provisional);
                    if !self.is_of_dead(copy, base) {
                        self.copied(*token, copy, lsn);
                    }
                }
            }
            Body::Free { tokens, chunks } => self.confirm(tokens, chunks, lsn),
        }
    }

    fn confirm(&mut self, tokens: &[Token], ended: &[PageId], lsn: Lsn) {
        self.confirmed.extend(tokens);
        for page in ended {
            self.provisional.remove(page);
            self.chunks.remove(page);
            self.pages.insert(*page, (lsn, Newest::Ended));
        }
    }

    fn newest(&mut self, page: PageId, version: Lsn, what: Newest) {
        let entry = self.pages.entry(page).or_insert((version, what));
        if entry.0 <= version {
            *entry = (version, what);
        }
    }

    /// Whether the copied page or chunk was freed before the log's start, though the record
    /// of the copy came later. A page or chunk that is older than the start and
    /// existed then has a place in the checkpoint's table, or is provisional.
    fn is_of_dead(&self, copy: &Mapped, base: &Base<'_>) -> bool {
        matches!(copy.what, Copied::Page | Copied::MovedChunk)
            && copy.version < self.start
            && !self.pages.contains_key(&copy.page)
            && !self.provisional.contains_key(&copy.page)
            && !(base.has)(copy.page)
            && !canary::is_on(Canary::MissLateEnds)
    }

    fn note_segment(&mut self, copy: &Mapped) {
        if copy.what != Copied::Provisional {
            let seq = self.seqs.entry(copy.address.segment()).or_insert(0);
            *seq = copy.seq.max(*seq);
        }
    }

    fn copied(&mut self, token: Token, copy: &Mapped, lsn: Lsn) {
        let page = copy.page;
        match copy.what {
            Copied::Page => {
                if let Some(&(known, _)) = self.pages.get(&page)
                    && known > copy.version
                {
                    self.late.push((known, lsn));
                }
                self.newest(page, copy.version, Newest::Copy(copy.address));
            }
            Copied::NewChunk | Copied::UnflushedChunk => {
                self.provisional.insert(page, token);
                self.chunks.insert(page, copy.version);
                self.pages.insert(page, (lsn, Newest::Copy(copy.address)));
            }
            Copied::MovedChunk => {
                // It may have been freed while it was moved, and its id may be another's.
                let is_news = !self.pages.contains_key(&page)
                    || self.chunks.get(&page) == Some(&copy.version);
                if is_news {
                    self.chunks.insert(page, copy.version);
                    self.pages.insert(page, (lsn, Newest::Copy(copy.address)));
                } else if let Some(&(known, _)) = self.pages.get(&page) {
                    self.late.push((known, lsn));
                }
            }
            Copied::Provisional => {
                self.provisional.insert(page, token);
            }
        }
    }

    /// Brings the mapping table, as the checkpoint gave it, up to the log. The
    /// pages whose newest state is an image say [`PagePlace::Loading`] until
    /// a replay has put them in.
    pub(crate) fn apply(
        mut self,
        superblock: &Superblock,
        set: &mut dyn FnMut(PageId, PagePlace),
    ) -> Plan {
        let mut orphaned = Orphaned::default();
        for (&page, token) in &self.provisional {
            if !self.confirmed.contains(token) {
                self.pages.insert(page, (Lsn(u64::MAX), Newest::Ended));
                orphaned.tokens.insert(*token);
                orphaned.pages.push(page);
            }
        }
        let mut images = HashMap::default();
        for (&page, &(version, newest)) in &self.pages {
            match newest {
                Newest::Copy(address) => set(page, PagePlace::Stored(address)),
                Newest::Ended => set(page, PagePlace::Free),
                Newest::Image => {
                    set(page, PagePlace::Loading(0));
                    images.insert(page, version);
                }
            }
        }
        Plan {
            superblock: Some(superblock.clone()),
            end: self.end,
            images,
            dropped: self.dropped,
            loads: self.loads,
            changes_overlays: self.changes_overlays,
            commits: self.commits,
            late: self.late,
            touched: self.pages.into_keys().collect(),
            orphaned,
            listener: None,
        }
    }
}
