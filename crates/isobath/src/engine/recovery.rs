//! What the log says beyond the checkpoint, and bringing the store up to it
//! (docs/decisions/0014).

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::atomic::Ordering;
use std::time::Instant;

use isobath_io::Volume;

use super::{Counters, Engine, Local, TaskContext};
use crate::Error;
use crate::btree::{Decision, Tree, TreeId, ValueKind, ValueRef};
use crate::buffer::{Place, Reservation};
use crate::catalog;
use crate::context::WriteContext;
use crate::log::record::{Body, Copied, Kind, Mapped, Token, decode};
use crate::log::{LogArea, LogEnd, Reader};
use crate::options::RecoveryListener;
use crate::page::{Lsn, PAGE_SIZE, PageId};
use crate::pagestore::{Address, Superblock};
use crate::runtime::{Job, Runtime};
use crate::sync::{HashMap, HashSet};

/// Bytes of the log whose changes are applied together, in parallel.
const STRIDE_BYTES: u64 = 4 << 20;
/// Tasks per worker that apply them.
const TASKS: usize = 16;

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

/// What one pass over the log has found.
pub(super) struct Scan {
    pages: HashMap<PageId, (Lsn, Newest)>,
    /// What belongs to tokens: pages and chunks.
    promised: HashMap<PageId, Token>,
    settled: HashSet<Token>,
    /// Highest sequence number of each segment that copies lie in.
    pub(super) seqs: HashMap<u32, u64>,
    dropped: HashSet<TreeId>,
    commits: u64,
    pub(super) end: LogEnd,
}

/// What is left to do once the engine runs.
#[derive(Default)]
pub(crate) struct Plan {
    /// Where the log starts; nowhere for a new store.
    superblock: Option<Superblock>,
    end: LogEnd,
    /// Pages whose newest state is in the log, and the record that it is in.
    images: HashMap<PageId, Lsn>,
    dropped: HashSet<TreeId>,
    commits: u64,
    /// Everything that the log has changed in the mapping table.
    touched: Vec<PageId>,
    /// Who is told how it goes on.
    pub(crate) listener: RecoveryListener,
}

impl Plan {
    /// Where the log ended when the store was opened, if there was one.
    pub(super) fn log_end(&self) -> Option<LogEnd> {
        self.superblock.is_some().then_some(self.end)
    }

    /// Pages whose mapping words differ from the checkpoint's.
    pub(super) fn touched(&self) -> impl Iterator<Item = PageId> + '_ {
        self.touched.iter().copied()
    }

    /// Whether the volume alone says everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.images.is_empty() && self.commits == 0
    }
}

/// A record whose checksum matches, but which this version cannot read.
fn nonsense(lsn: Lsn, kind: Kind) -> Error {
    Error::UnknownLogRecord {
        position: lsn.0,
        kind: kind as u8,
    }
}

/// A reader of the log from where a recovery starts.
fn reader<'v>(volume: &'v Volume, area: &'v LogArea, superblock: &Superblock) -> Reader<'v> {
    let start = Lsn(superblock.log_start);
    Reader::new(
        volume,
        area,
        &superblock.store_id,
        start,
        superblock.log_incarnation,
    )
}

impl Scan {
    /// Of a log that says nothing and ends at `end`.
    pub(super) fn empty(end: LogEnd) -> Scan {
        Scan {
            pages: HashMap::default(),
            promised: HashMap::default(),
            settled: HashSet::default(),
            seqs: HashMap::default(),
            dropped: HashSet::default(),
            commits: 0,
            end,
        }
    }

    /// Reads the log from where `superblock` says to its end. `promises` are
    /// those of the checkpoint.
    pub(super) fn read(
        volume: &Volume,
        area: &LogArea,
        superblock: &Superblock,
        promises: &[u64],
    ) -> Result<Scan, Error> {
        let mut reader = reader(volume, area, superblock);
        let mut scan = Scan::empty(reader.end());
        scan.promised_before(promises);
        while let Some(record) = reader.next()? {
            let body = decode(record.kind, record.body).ok_or(nonsense(record.lsn, record.kind))?;
            scan.note(record.lsn, &body);
        }
        scan.end = reader.end();
        Ok(scan)
    }

    fn promised_before(&mut self, words: &[u64]) {
        let mut rest = words;
        while let [token, count, more @ ..] = rest {
            let count = (*count as usize).min(more.len());
            for page in &more[..count] {
                self.promised.insert(PageId(*page), *token);
            }
            rest = &more[count..];
        }
    }

    fn note(&mut self, lsn: Lsn, body: &Body<'_>) {
        match body {
            Body::Commit {
                tokens,
                chunks,
                operations,
            } => {
                self.commits += 1;
                self.settle(tokens, chunks, lsn);
                for operation in operations {
                    if operation.tree == catalog::CATALOG
                        && let Some(tree) = catalog::dropped_by(operation.key)
                        && operation.value.is_some()
                    {
                        self.dropped.insert(tree);
                    }
                }
            }
            Body::Structure {
                tokens,
                ended,
                images,
                ..
            } => {
                for image in images {
                    self.newest(image.page, lsn, Newest::Image);
                }
                self.settle(tokens, ended, lsn);
            }
            Body::Mapping { token, copies } => {
                copies
                    .iter()
                    .for_each(|copy| self.copied(*token, copy, lsn));
            }
            Body::Free { tokens, chunks } => self.settle(tokens, chunks, lsn),
        }
    }

    fn settle(&mut self, tokens: &[Token], ended: &[PageId], lsn: Lsn) {
        self.settled.extend(tokens);
        for page in ended {
            self.promised.remove(page);
            self.pages.insert(*page, (lsn, Newest::Ended));
        }
    }

    fn newest(&mut self, page: PageId, version: Lsn, what: Newest) {
        let entry = self.pages.entry(page).or_insert((version, what));
        if entry.0 <= version {
            *entry = (version, what);
        }
    }

    fn copied(&mut self, token: Token, copy: &Mapped, lsn: Lsn) {
        let page = copy.page;
        if copy.what != Copied::Promised {
            let seq = self.seqs.entry(copy.address.segment()).or_insert(0);
            *seq = copy.seq.max(*seq);
        }
        match copy.what {
            Copied::Page => self.newest(page, copy.version, Newest::Copy(copy.address)),
            Copied::NewChunk => {
                self.promised.insert(page, token);
                self.pages.insert(page, (lsn, Newest::Copy(copy.address)));
            }
            Copied::MovedChunk => {
                let ended = matches!(self.pages.get(&page), Some((_, Newest::Ended)));
                if !ended {
                    self.pages.insert(page, (lsn, Newest::Copy(copy.address)));
                }
            }
            Copied::Promised => {
                self.promised.insert(page, token);
            }
        }
    }

    /// Brings the mapping table, as the checkpoint gave it, up to the log. The
    /// pages whose newest state is an image say [`Place::Loading`] until
    /// [`Plan::install`] has put them in.
    pub(super) fn apply(
        mut self,
        superblock: &Superblock,
        set: &mut dyn FnMut(PageId, Place),
    ) -> Plan {
        for (page, token) in &self.promised {
            if !self.settled.contains(token) {
                self.pages.insert(*page, (Lsn(u64::MAX), Newest::Ended));
            }
        }
        let mut images = HashMap::default();
        for (&page, &(version, newest)) in &self.pages {
            match newest {
                Newest::Copy(address) => set(page, Place::Stored(address)),
                Newest::Ended => set(page, Place::Free),
                Newest::Image => {
                    set(page, Place::Loading(0));
                    images.insert(page, version);
                }
            }
        }
        Plan {
            superblock: Some(superblock.clone()),
            end: self.end,
            images,
            dropped: self.dropped,
            commits: self.commits,
            touched: self.pages.into_keys().collect(),
            listener: RecoveryListener::default(),
        }
    }
}

/// One change that a commit made.
struct Change {
    lsn: Lsn,
    tree: Tree,
    key: Vec<u8>,
    value: Option<(ValueKind, Vec<u8>)>,
}

impl Change {
    fn apply(&self, local: &Local) -> Result<(), Error> {
        let ctx = TaskContext { local };
        ctx.admit()?;
        self.tree
            .apply(&ctx, &self.key, Some(self.lsn), |_| match &self.value {
                Some((kind, bytes)) => Decision::Put(ValueRef { kind: *kind, bytes }),
                None => Decision::Remove,
            })
    }
}

impl Plan {
    /// Does what is left to do, on all workers, and writes a checkpoint.
    /// Progress is in bytes of the log, which is read twice.
    ///
    /// # Errors
    ///
    /// Any of reading the log, or of writing; the store on the volume is as
    /// recoverable as before.
    pub(crate) fn run(self, runtime: &Runtime) -> Result<(), Error> {
        let Some(superblock) = self.superblock.as_ref().filter(|_| !self.is_empty()) else {
            return Ok(());
        };
        let began = Instant::now();
        let engine = &runtime.engine;
        let volume = engine.volume()?;
        let Some(area) = engine.log.area() else {
            return Ok(());
        };
        let start = superblock.log_start;
        let total = 2 * (self.end.lsn.0 - start);
        let mut log = reader(&volume, area, superblock);
        loop {
            let (images, more) = self.next_images(&mut log)?;
            install(runtime, images)?;
            self.listener.tell(log.position().0 - start, total);
            if !more {
                break;
            }
        }
        let lanes = engine.config.workers * TASKS;
        let mut log = reader(&volume, area, superblock);
        loop {
            let (changes, more) = self.next_changes(&mut log, lanes)?;
            apply_all(runtime, changes)?;
            self.listener
                .tell(total / 2 + log.position().0 - start, total);
            if !more {
                break;
            }
        }
        engine.recovering.store(false, Ordering::Release);
        let before = engine.log.next();
        runtime.run(|local| local.checkpoint(before))?;
        Counters::add(&engine.counters.recovered_bytes, total / 2);
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Counters::add(&engine.counters.recovery_ns, took);
        Ok(())
    }

    /// The images of the next stretch of the log that are the newest of their pages.
    fn next_images(&self, reader: &mut Reader<'_>) -> Result<(Vec<NewestImage>, bool), Error> {
        let from = reader.position();
        let mut found = Vec::new();
        while reader.position().0 < (from.0 + STRIDE_BYTES).min(self.end.lsn.0) {
            let Some(record) = reader.next()? else {
                return Ok((found, false));
            };
            let lsn = record.lsn;
            let body = decode(record.kind, record.body).ok_or(nonsense(lsn, record.kind))?;
            if let Body::Structure { images, .. } = body {
                for image in images {
                    if self.images.get(&image.page) == Some(&lsn) {
                        let mut page = Box::new([0; PAGE_SIZE]);
                        image.expand(&mut page);
                        found.push((image.page, lsn, page));
                    }
                }
            }
        }
        Ok((found, reader.position() < self.end.lsn))
    }

    /// The changes of the next stretch of the log, those of a key in one lane.
    fn next_changes(
        &self,
        reader: &mut Reader<'_>,
        lanes: usize,
    ) -> Result<(Vec<Vec<Change>>, bool), Error> {
        let hash = BuildHasherDefault::<DefaultHasher>::default();
        let from = reader.position();
        let mut changes: Vec<Vec<Change>> = (0..lanes).map(|_| Vec::new()).collect();
        while reader.position().0 < (from.0 + STRIDE_BYTES).min(self.end.lsn.0) {
            let Some(record) = reader.next()? else {
                return Ok((changes, false));
            };
            let lsn = record.lsn;
            let body = decode(record.kind, record.body).ok_or(nonsense(lsn, record.kind))?;
            let Body::Commit { operations, .. } = body else {
                continue;
            };
            for operation in operations {
                if self.dropped.contains(&operation.tree.id) {
                    continue;
                }
                let lane = hash.hash_one((operation.tree.id, operation.key)) as usize % lanes;
                changes[lane].push(Change {
                    lsn,
                    tree: operation.tree,
                    key: operation.key.to_vec(),
                    value: operation
                        .value
                        .map(|value| (value.kind, value.bytes.to_vec())),
                });
            }
        }
        Ok((changes, reader.position() < self.end.lsn))
    }
}

/// A page, the record that holds its newest image, and that.
type NewestImage = (PageId, Lsn, Box<[u8; PAGE_SIZE]>);

/// Makes pages resident, on all workers.
fn install(runtime: &Runtime, images: Vec<NewestImage>) -> Result<(), Error> {
    let lanes = runtime.engine.config.workers;
    let mut parts: Vec<Vec<NewestImage>> = (0..lanes).map(|_| Vec::new()).collect();
    for (at, image) in images.into_iter().enumerate() {
        parts[at % lanes].push(image);
    }
    let jobs = parts
        .into_iter()
        .map(|part| -> Job<'_, ()> {
            Box::new(move |local: &Local| {
                part.iter()
                    .try_for_each(|(id, lsn, image)| local.install_image(*id, *lsn, image))
            })
        })
        .collect();
    runtime.run_all(jobs)
}

/// Applies every lane's changes in order, the lanes side by side.
fn apply_all(runtime: &Runtime, lanes: Vec<Vec<Change>>) -> Result<(), Error> {
    let jobs = lanes
        .into_iter()
        .filter(|lane| !lane.is_empty())
        .map(|lane| -> Job<'_, ()> {
            Box::new(move |local: &Local| lane.iter().try_for_each(|change| change.apply(local)))
        })
        .collect();
    runtime.run_all(jobs)
}

impl Local {
    /// Makes the page `id` resident with this content, which the structure
    /// record at `lsn` holds.
    fn install_image(&self, id: PageId, lsn: Lsn, image: &[u8; PAGE_SIZE]) -> Result<(), Error> {
        TaskContext { local: self }.admit()?;
        let mut reservation = Reservation::new(vec![(self.wait_for_frame(), id)]);
        let mut page = reservation.take(&self.engine.pool);
        page.words().store_all(image);
        page.changed(lsn, lsn);
        Ok(())
    }
}

impl Engine {
    /// The oldest commit in flight that has not been applied, or `complete`.
    pub(crate) fn oldest_commit(&self, complete: Lsn) -> Lsn {
        complete.min(self.transactions.oldest_unapplied(&self.log))
    }
}
