//! Reading and verifying a whole store.

use std::collections::{BTreeMap, HashSet};
use std::future::{Future, poll_fn};
use std::ops::Bound;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::api::catalog;
use crate::api::store::Progress;
use crate::btree::{Direction, Tree, ValueKind, Visitor};
use crate::buffer::PagePlace;
use crate::context::TaskContext;
use crate::engine::{Runtime, WorkerState};
use crate::error::{Error, StorageError};
use crate::extent::{self, ExtentReader};
use crate::levels::Cursor;
use crate::merging;
use crate::overlay::Overlaid;
use crate::page::{PAGE_SIZE, PageId};
use crate::runtime::{Urgency, block_on};
use crate::shared::Address;
use crate::sync::Mutex;

/// Looks at the live bytes of segments, of which one has to find them right.
const ACCOUNT_LOOKS: u32 = 64;
/// Pages between two counts that the check has of its progress.
const PAGES_PER_COUNT: usize = 256;

/// The result of [`Store::check`](crate::Store::check); a sound store has no
/// `problems`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// Named trees.
    pub trees: u64,
    /// Pages of trees.
    pub pages: u64,
    /// Records of named trees.
    pub records: u64,
    /// Chunks of large values, their index chunks included.
    pub value_chunks: u64,
    /// Bytes of pages and of large values that were read and verified.
    pub bytes_verified: u64,
    /// Segments whose summary cannot be read. No problem in itself: the cleaner
    /// rebuilds it from the mapping table.
    pub unreadable_summaries: u64,
    /// Problems, a sentence each.
    pub problems: Vec<String>,
}

struct Found<'p> {
    ids: HashSet<PageId>,
    twice: Vec<PageId>,
    extents: Vec<Vec<u8>>,
    progress: Progress<'p>,
    /// Pages and chunks that are in use.
    total: u64,
}

impl Found<'_> {
    fn tell(&mut self) {
        (self.progress)(self.ids.len() as u64, self.total);
    }
}

impl Visitor for Found<'_> {
    fn page(&mut self, id: PageId, _level: u8) {
        if !self.ids.insert(id) {
            self.twice.push(id);
        }
        if self.ids.len().is_multiple_of(PAGES_PER_COUNT) {
            self.tell();
        }
    }

    fn extent(&mut self, descriptor: &[u8]) {
        self.extents.push(descriptor.to_vec());
    }
}

/// Finds pages alone: which large values there are is said elsewhere.
struct PagesOf<'f, 'p>(&'f mut Found<'p>);

impl Visitor for PagesOf<'_, '_> {
    fn page(&mut self, id: PageId, level: u8) {
        self.0.page(id, level);
    }

    fn extent(&mut self, _: &[u8]) {}
}

/// From a check's task to the caller that waits for it.
#[derive(Default)]
struct Newest(Mutex<Told>);

#[derive(Default)]
struct Told {
    /// Done and total, unless the caller has taken them.
    count: Option<(u64, u64)>,
    /// Wakes the caller.
    waker: Option<Waker>,
}

impl Newest {
    fn tell(&self, done: u64, total: u64) {
        let mut told = self.0.lock();
        told.count = Some((done, total));
        let waker = told.waker.take();
        drop(told);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn take(&self) -> Option<(u64, u64)> {
        self.0.lock().count.take()
    }

    /// Ready with the next count.
    fn poll(&self, context: &Context<'_>) -> Poll<(u64, u64)> {
        let mut told = self.0.lock();
        told.waker = Some(context.waker().clone());
        told.count.take().map_or(Poll::Pending, Poll::Ready)
    }
}

/// Checks the store in a task. The caller tells `progress` while it waits, so that no task waits
/// for what `progress` does; a caller that is a task checks in its own.
pub(crate) fn check(runtime: &Runtime, progress: Progress<'_>) -> Result<CheckReport, Error> {
    if runtime.is_in_task() {
        return runtime.run(Urgency::Ordinary, |local| check_here(local, progress));
    }
    let newest = Arc::new(Newest::default());
    let (engine, tell) = (Arc::clone(runtime.engine()?), Arc::clone(&newest));
    let task = runtime.spawn(Urgency::Ordinary, None, move || {
        WorkerState::in_task(&engine, |local| {
            check_here(local, &mut |done, total| tell.tell(done, total))
        })
    });
    let mut task = pin!(task.flat());
    let report = loop {
        let event = block_on(poll_fn(|context| match task.as_mut().poll(context) {
            Poll::Ready(report) => Poll::Ready(Err(report)),
            Poll::Pending => newest.poll(context).map(Ok),
        }));
        match event {
            Ok((done, total)) => progress(done, total),
            Err(report) => break report,
        }
    };
    if let Some((done, total)) = newest.take() {
        progress(done, total);
    }
    report
}

fn check_here(local: &WorkerState, progress: Progress<'_>) -> Result<CheckReport, Error> {
    local.engine.transactions.gc(local);
    let engine = &local.engine;
    let does_merge = engine.shared.writable().is_ok();
    let _pause = match does_merge {
        true => Some(engine.merging.pause(local)?),
        false => None,
    };
    if does_merge {
        engine.merging.free_retired(&engine.transactions, local)?;
    }
    let mut report = CheckReport::default();
    let total = local.engine.pagestore.ids_in_use();
    let mut found = Found {
        ids: HashSet::new(),
        twice: Vec::new(),
        extents: Vec::new(),
        progress,
        total,
    };
    let mut trees = vec![("the catalog".to_owned(), catalog::CATALOG)];
    match catalog::list(local) {
        Ok(named) => trees.extend(named),
        Err(error) => report.add("the catalog", error)?,
    }
    for (name, tree) in trees {
        found.tell();
        match local.pool.overlays.of(tree.id) {
            None => check_tree(local, &name, tree, &mut found, &mut report)?,
            Some(overlaid) => check_overlaid(local, &name, &overlaid, &mut found, &mut report)?,
        }
        check_values(local, &name, &mut found, &mut report)?;
    }
    // The rest of a tree whose drop has failed half-way is the next opening's,
    // which goes on with it.
    let half_dropped = catalog::list_dropped(local)
        .map_err(Error::from)
        .and_then(|trees| Ok(!trees.is_empty() || has_unlisted(local)?));
    let half_dropped = match half_dropped {
        Ok(is_any) => is_any,
        Err(error) => {
            report.add("the catalog", error)?;
            true
        }
    };
    check_versions(local, &mut found, &mut report);
    for id in &found.twice {
        report
            .problems
            .push(format!("page {id} belongs to two owners"));
    }
    if report.problems.is_empty() && !half_dropped {
        // With pages unread, unreachable ones are a consequence.
        check_reachability(local, &found, &mut report);
    }
    check_accounts(local, &mut report)?;
    check_summaries(local, &mut report);
    (found.progress)(total, total);
    Ok(report)
}

/// Whether a run was being built or freed when the store was left.
fn has_unlisted(local: &WorkerState) -> Result<bool, Error> {
    Ok(!merging::list_unlisted(local)?.is_empty())
}

impl CheckReport {
    /// Notes a problem of `what`; none of the store's is that a writer overtakes a reader, which
    /// ends the check.
    fn add(&mut self, what: &str, error: impl Into<Error>) -> Result<(), Error> {
        let error = error.into();
        if matches!(error, Error::ReaderOverrun { .. }) {
            return Err(error);
        }
        self.problems.push(format!("{what}: {error}"));
        Ok(())
    }
}

fn check_tree(
    local: &WorkerState,
    name: &str,
    tree: Tree,
    found: &mut Found<'_>,
    report: &mut CheckReport,
) -> Result<(), Error> {
    let before = found.ids.len();
    match tree.verify(&TaskContext { local }, found) {
        Ok(shape) => {
            if tree != catalog::CATALOG {
                report.trees += 1;
                report.records += shape.records;
            }
        }
        Err(error) => report.add(&format!("tree {name:?}"), error)?,
    }
    let pages = (found.ids.len() - before) as u64;
    report.pages += pages;
    report.bytes_verified += pages * PAGE_SIZE as u64;
    Ok(())
}

/// The pages of a tree that has overlays, and those of its runs; its records, and their large
/// values, are those of all of these together.
fn check_overlaid(
    local: &WorkerState,
    name: &str,
    overlaid: &Overlaid,
    found: &mut Found<'_>,
    report: &mut CheckReport,
) -> Result<(), Error> {
    let ctx = TaskContext { local };
    let before = found.ids.len();
    let levels = overlaid.levels();
    let runs = levels.runs.iter().map(|run| run.tree);
    for tree in std::iter::once(overlaid.tree).chain(runs) {
        if let Err(error) = tree.verify(&ctx, &mut PagesOf(found)) {
            report.add(&format!("tree {name:?}"), error)?;
            return Ok(());
        }
    }
    let pages = (found.ids.len() - before) as u64;
    report.pages += pages;
    report.bytes_verified += pages * PAGE_SIZE as u64;
    report.trees += 1;
    let (lower, upper) = (Bound::Unbounded, Bound::Unbounded);
    let mut cursor = Cursor::new(overlaid.tree, lower, upper, Direction::Forward);
    let mut failed = None;
    while failed.is_none() {
        match cursor.next(&ctx) {
            Ok(None) => break,
            Ok(Some(entry)) => {
                report.records += 1;
                if entry.value.kind == ValueKind::Extent {
                    found.extent(entry.value.bytes);
                }
            }
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(()), |error| report.add(&format!("tree {name:?}"), error))
}

fn check_values(
    local: &WorkerState,
    name: &str,
    found: &mut Found<'_>,
    report: &mut CheckReport,
) -> Result<(), Error> {
    let mut bytes = Vec::new();
    for descriptor in std::mem::take(&mut found.extents) {
        found.tell();
        let outcome = extent::decode(&descriptor).and_then(|extent| {
            let mut reader = ExtentReader::new(local, extent)?;
            for id in reader.ids() {
                found.page(id, 0);
                report.value_chunks += 1;
            }
            let mut length = 0;
            loop {
                bytes.clear();
                if !reader.read(local, &mut bytes)? {
                    break;
                }
                length += bytes.len() as u64;
            }
            report.bytes_verified += length;
            if length == reader.length() {
                Ok(())
            } else {
                Err(StorageError::Structure {
                    page: 0,
                    reason: "a large value has a wrong length",
                })
            }
        });
        if let Err(error) = outcome {
            report.add(&format!("a large value of tree {name:?}"), error)?;
        }
    }
    Ok(())
}

/// Checks large values that only open snapshots read, which belong to no tree.
fn check_versions(local: &WorkerState, found: &mut Found<'_>, report: &mut CheckReport) {
    for descriptor in local.engine.transactions.versions.large_values() {
        let ids =
            extent::decode(descriptor.bytes()).and_then(|extent| extent::chunk_ids(local, extent));
        match ids {
            Ok(ids) => ids.into_iter().for_each(|id| {
                found.page(id, 0);
                report.value_chunks += 1;
            }),
            Err(error) => report
                .problems
                .push(format!("a large value that a snapshot can read: {error}")),
        }
    }
}

/// Every page id in use was reached.
fn check_reachability(local: &WorkerState, found: &Found<'_>, report: &mut CheckReport) {
    let high_water = local.engine.pagestore.high_water();
    for id in (PageId::FIRST_FREE.0..high_water).map(PageId) {
        let used = local.engine.buffer.pool.mapping.place(id) != PagePlace::Free;
        if used && !found.ids.contains(&id) {
            report
                .problems
                .push(format!("page {id} takes space but nothing leads to it"));
        }
    }
}

/// Counts the sealed segments whose summary cannot be read.
fn check_summaries(local: &WorkerState, report: &mut CheckReport) {
    let engine = &local.engine;
    let segments = engine.pagestore.segments();
    for segment in 1..segments {
        if !engine.pagestore.pin_sealed(segment) {
            continue;
        }
        report.unreadable_summaries += u64::from(
            local
                .engine
                .pagestore
                .read_summary(&local.worker, segment)
                .is_err(),
        );
        engine.pagestore.unpin(Address::new(segment, 0, 0));
    }
}

/// The live bytes of every segment are those of the pages that lie in it.
///
/// Beside writers a page's last place still counts for a moment when no page names it any more. So
/// a segment is reported only if every look finds it wrong.
///
/// # Errors
///
/// [`Error::Poisoned`].
fn check_accounts(local: &WorkerState, report: &mut CheckReport) -> Result<(), Error> {
    let mut wrong: Option<BTreeMap<usize, String>> = None;
    for _ in 0..ACCOUNT_LOOKS {
        // Obsolete pages count until their records are durable.
        local.engine.buffer.wait_for_ended_pages(&local.worker)?;
        local.engine.buffer.wait_for_batches(&local.worker)?;
        local
            .engine
            .pagestore
            .wait_for_pending_frees(&local.worker)?;
        let mut now = wrong_accounts(local);
        if let Some(before) = wrong {
            now.retain(|segment, _| before.contains_key(segment));
        }
        let is_right = now.is_empty();
        wrong = Some(now);
        if is_right {
            break;
        }
    }
    report
        .problems
        .extend(wrong.unwrap_or_default().into_values());
    Ok(())
}

/// Segments whose live bytes are not those of the pages that the mapping table has there, and what
/// is wrong.
fn wrong_accounts(local: &WorkerState) -> BTreeMap<usize, String> {
    let engine = &local.engine;
    let high_water = engine.pagestore.high_water();
    let wrong = engine.pagestore.miscounted(|live| {
        for id in (PageId::FIRST_FREE.0..high_water).map(PageId) {
            let address = match engine.buffer.pool.mapping.place(id) {
                PagePlace::Stored(address) => address,
                PagePlace::Resident(frame) | PagePlace::Loading(frame) => {
                    engine.buffer.stored_address(frame)
                }
                PagePlace::Free => continue,
            };
            if !address.is_none() {
                live[address.segment() as usize] += u64::from(address.length());
            }
        }
    });
    let problem = |(segment, counted, bytes)| {
        let problem =
            format!("segment {segment} counts {counted} live bytes, but its pages have {bytes}");
        (segment as usize, problem)
    };
    wrong.into_iter().map(problem).collect()
}
