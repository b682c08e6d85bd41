//! Bringing a store that was not closed up to its log, on all workers.

use std::cmp::Ordering as Order;
use std::sync::Arc;

use crate::btree::{Tree, ValueKind, ValueRef};
use crate::buffer::Reservation;
use crate::canary::{self, Canary};
use crate::context::{TaskContext, WriteContext};
use crate::engine::{Job, Runtime, TaskHandle, WorkerState};
use crate::error::OpenError;
use crate::extent::{self, Extent};
use crate::levels;
use crate::log::record::{Body, Operation, Token, decode};
use crate::log::{Reader, ReservationClass};
use crate::merging::Merging;
use crate::page::{Lsn, PAGE_SIZE, PageId};
use crate::recovery::{Plan, log_reader, unknown_record};
use crate::runtime::{Urgency, block_on};
use crate::shared::Counters;
use crate::trace;
use crate::types::CATALOG;

/// Share of the pool, in bytes, that the changes may take which are applied
/// together: one in this many. The longer that stretch of the log, the more
/// often one visit to a page brings several changes. While one stretch is
/// applied, the next one is read.
const STRIDE_SHARE: u64 = 16;
/// Least and most bytes of the log whose changes are applied together.
const STRIDE_BYTES: (u64, u64) = (1 << 20, 256 << 20);
/// Ids in one record.
const ORPHANED_AT_A_TIME: usize = 1000;
/// Tasks per worker that apply them.
const TASKS: usize = 64;
/// Changes for which a task reserves log space at a time.
const ROOM_FOR: usize = 64;
/// Keys per task that are looked at to part the changes evenly.
const SAMPLES: usize = 32;

/// One change that a commit made; where its key lies among the bytes of its
/// stretch, with the value behind it.
#[derive(Clone, Copy)]
struct Change {
    tree: Tree,
    /// The key's first bytes, which order most keys without a look at the rest.
    prefix: u64,
    lsn: Lsn,
    at: u32,
    key_bytes: u32,
    value_bytes: u32,
    /// `None` removes the key.
    kind: Option<ValueKind>,
}

/// The changes of a stretch of the log, in its order, and the bytes of their keys and
/// values.
#[derive(Default)]
struct Stretch {
    changes: Vec<Change>,
    bytes: Vec<u8>,
}

impl Stretch {
    fn push(&mut self, lsn: Lsn, operation: &Operation<'_>) {
        let Operation { tree, key, value } = *operation;
        let mut prefix = [0; 8];
        let common = key.len().min(prefix.len());
        prefix[..common].copy_from_slice(&key[..common]);
        let bytes = value.map_or(&[][..], |value| value.bytes);
        self.changes.push(Change {
            tree,
            prefix: u64::from_le_bytes(prefix).swap_bytes(),
            lsn,
            at: self.bytes.len() as u32,
            key_bytes: key.len() as u32,
            value_bytes: bytes.len() as u32,
            kind: value.map(|value| value.kind),
        });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(bytes);
    }
}

/// The key and the value of `change`.
fn parts<'b>(bytes: &'b [u8], change: &Change) -> (&'b [u8], &'b [u8]) {
    let (key, rest) = bytes[change.at as usize..].split_at(change.key_bytes as usize);
    (key, &rest[..change.value_bytes as usize])
}

/// By tree and key.
fn order(bytes: &[u8], a: &Change, b: &Change) -> Order {
    (a.tree.id, a.prefix)
        .cmp(&(b.tree.id, b.prefix))
        .then_with(|| parts(bytes, a).0.cmp(parts(bytes, b).0))
}

/// Applies the last change of every key among `changes`.
fn apply(local: &WorkerState, bytes: &[u8], mut changes: Vec<Change>) -> Result<(), OpenError> {
    // Of a key, the newest first.
    changes.sort_unstable_by(|a, b| order(bytes, a, b).then((b.lsn, b.at).cmp(&(a.lsn, a.at))));
    changes.dedup_by(|later, kept| order(bytes, later, kept) == Order::Equal);
    let ctx = TaskContext { local };
    for changes in changes.chunks(ROOM_FOR) {
        // A change that is older than its page takes a stamp.
        let stamps = size_of::<Lsn>() * changes.len();
        let _reservation = local.engine.log_tasks.reserve(
            &local.worker,
            stamps as u64,
            ReservationClass::System,
        )?;
        apply_to_tree(&ctx, bytes, changes)?;
    }
    Ok(())
}

fn apply_to_tree(ctx: &TaskContext<'_>, bytes: &[u8], changes: &[Change]) -> Result<(), OpenError> {
    for change in changes {
        ctx.admit()?;
        let (key, value) = parts(bytes, change);
        let value = change.kind.map(|kind| ValueRef { kind, bytes: value });
        levels::put(&change.tree, ctx, key, change.lsn, value)?;
    }
    Ok(())
}

/// Does what `plan` leaves to do, on all workers. From then on checkpoints are written.
/// Progress is in bytes of the log, which is read twice.
///
/// # Errors
///
/// Any of reading the log, or of writing; the store on the volume is as
/// recoverable as before.
pub(crate) fn run(plan: Plan, runtime: &Runtime) -> Result<(), OpenError> {
    Replay(plan).apply(runtime)?;
    runtime.engine()?.checkpoints.end_opening();
    Ok(())
}

struct Replay(Plan);

impl Replay {
    fn apply(self, runtime: &Runtime) -> Result<(), OpenError> {
        let plan = &self.0;
        let Some(superblock) = plan.superblock.as_ref().filter(|_| !plan.is_empty()) else {
            return Ok(());
        };
        let _span = trace::span!("recovery");
        let began = crate::runtime::clock::wall();
        let engine = runtime.engine()?;
        let volume = engine.shared.volume()?;
        let Some(area) = engine.log.area() else {
            return Ok(());
        };
        let start = superblock.log_start;
        engine.log_tasks.hold(Lsn(start));
        self.give_up(runtime)?;
        let total = 2 * (self.0.end.lsn.0 - start);
        let pool_bytes = u64::from(engine.buffer.pool.frames.count()) * PAGE_SIZE as u64;
        let stride = (pool_bytes / STRIDE_SHARE).clamp(STRIDE_BYTES.0, STRIDE_BYTES.1);
        if let Some(last) = self.0.images.values().max() {
            let mut log = log_reader(&volume, &area, superblock).until(Lsn(last.0 + 1));
            loop {
                let (images, more) = self.next_images(&mut log, stride)?;
                install(runtime, images)?;
                self.tell(log.position().0 - start, total);
                if !more {
                    break;
                }
            }
        }
        if self.0.changes_overlays {
            // Whether a tree has overlays at the end decides where all of its changes go.
            let log = log_reader(&volume, &area, superblock).until(self.0.end.lsn);
            wait(start_applying(runtime, self.catalog_changes(log)?)?)?;
        }
        let restore = |local: &WorkerState| Merging::restore(local).map(drop);
        runtime.run(Urgency::Ordinary, restore)?;
        let mut log = log_reader(&volume, &area, superblock).until(self.0.end.lsn);
        let mut orphans = Vec::new();
        let mut applying = Vec::new();
        let mut more = true;
        while more {
            // Everything before this is applied once the last stretch is.
            let applied_to = log.position();
            let mut dropped = Vec::new();
            let stride = stride.min(engine.log.recovery_stretch());
            let read = self.next_changes(&mut log, stride, &mut dropped);
            let applied = wait(std::mem::take(&mut applying));
            let stretch = read.and_then(|read| applied.map(|()| read))?;
            if engine.log.recovery_is_short() && !canary::is_on(Canary::RecoverAtOnce) {
                let_go(runtime, applied_to, &mut orphans)?;
            }
            orphans.append(&mut dropped);
            if canary::is_on(Canary::CoverUnapplied) {
                let_go(runtime, engine.log.next(), &mut orphans)?;
            }
            applying = start_applying(runtime, stretch)?;
            more = log.position() < self.0.end.lsn;
            self.tell(total / 2 + log.position().0 - start, total);
        }
        wait(applying)?;
        let before = engine.log.next();
        let_go(runtime, before, &mut orphans)?;
        Counters::add(&engine.shared.counters.recovered_bytes, total / 2);
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Counters::add(&engine.shared.counters.recovery_ns, took);
        let ms = took / 1_000_000;
        trace::tell!(info, "recovered from the log", bytes = total / 2, ms = ms);
        Ok(())
    }

    /// Logs that what nothing has confirmed is gone, before its ids are given
    /// to others: the next recovery reads the same log.
    fn give_up(&self, runtime: &Runtime) -> Result<(), OpenError> {
        let tokens: Vec<Token> = self.0.orphaned.tokens.iter().copied().collect();
        runtime.run(Urgency::Ordinary, |local| {
            for pages in self.0.orphaned.pages.chunks(ORPHANED_AT_A_TIME) {
                local.engine.pagestore.log_free(&local.worker, &[], pages);
            }
            for tokens in tokens.chunks(ORPHANED_AT_A_TIME) {
                local.engine.pagestore.log_free(&local.worker, tokens, &[]);
            }
            Ok(())
        })
    }

    fn tell(&self, done: u64, total: u64) {
        if let Some(listen) = &self.0.listener {
            listen(done, total);
        }
    }

    /// The images of the next stretch of the log that are the newest of their pages.
    fn next_images(
        &self,
        reader: &mut Reader<'_>,
        stride: u64,
    ) -> Result<(Vec<NewestImage>, bool), OpenError> {
        let from = reader.position();
        let mut found = Vec::new();
        while reader.position().0 < from.0 + stride {
            let Some(record) = reader.next()? else {
                return Ok((found, false));
            };
            let lsn = record.lsn;
            let body = decode(record.kind, record.body).ok_or(unknown_record(lsn, record.kind))?;
            if let Body::Structure { images, .. } = body {
                for image in images {
                    if self.0.images.get(&image.page) == Some(&lsn) {
                        let mut page = Box::new([0; PAGE_SIZE]);
                        image.expand(&mut page);
                        found.push((image.page, lsn, page));
                    }
                }
            }
        }
        Ok((found, true))
    }

    /// All changes of the catalog that the log has.
    fn catalog_changes(&self, mut reader: Reader<'_>) -> Result<Stretch, OpenError> {
        let mut stretch = Stretch::default();
        while let Some(record) = reader.next()? {
            let lsn = record.lsn;
            let body = decode(record.kind, record.body).ok_or(unknown_record(lsn, record.kind))?;
            let Body::Commit { operations, .. } = body else {
                continue;
            };
            let changes = operations.into_iter().filter(|each| each.tree == CATALOG);
            changes.for_each(|operation| stretch.push(lsn, &operation));
        }
        Ok(stretch)
    }

    /// The changes of the next stretch of the log. Those to trees that were dropped
    /// since are left out, as parts of these trees may be gone; large values that they
    /// made are noted among the `orphans`.
    fn next_changes(
        &self,
        reader: &mut Reader<'_>,
        stride: u64,
        orphans: &mut Vec<Extent>,
    ) -> Result<Stretch, OpenError> {
        let end = reader.position().0 + stride;
        let mut stretch = Stretch::default();
        while reader.position().0 < end
            && let Some(record) = reader.next()?
        {
            let lsn = record.lsn;
            let body = decode(record.kind, record.body).ok_or(unknown_record(lsn, record.kind))?;
            let Body::Commit { operations, .. } = body else {
                continue;
            };
            for operation in operations {
                if self.0.loads.came_after(&operation, lsn) {
                    continue;
                }
                if self.0.dropped.contains(&operation.tree.id) {
                    let large = operation.value.filter(|v| v.kind == ValueKind::Extent);
                    orphans.extend(large.and_then(|value| Extent::decode(value.bytes)));
                } else {
                    stretch.push(lsn, &operation);
                }
            }
        }
        Ok(stretch)
    }
}

/// A page, the record that holds its newest image, and that.
type NewestImage = (PageId, Lsn, Box<[u8; PAGE_SIZE]>);

/// Makes pages resident, on all workers.
fn install(runtime: &Runtime, images: Vec<NewestImage>) -> Result<(), OpenError> {
    let lanes = runtime.config().workers;
    let mut parts: Vec<Vec<NewestImage>> = (0..lanes).map(|_| Vec::new()).collect();
    for (at, image) in images.into_iter().enumerate() {
        parts[at % lanes].push(image);
    }
    let jobs = parts
        .into_iter()
        .map(|part| -> Job<'_, OpenError> {
            Box::new(move |local: &WorkerState| {
                part.iter()
                    .try_for_each(|(id, lsn, image)| install_image(local, *id, *lsn, image))
            })
        })
        .collect();
    runtime.run_all(jobs)
}

/// Makes the page `id` resident with this content, which the structure record at `lsn` holds.
fn install_image(
    local: &WorkerState,
    id: PageId,
    lsn: Lsn,
    image: &[u8; PAGE_SIZE],
) -> Result<(), OpenError> {
    TaskContext { local }.admit()?;
    let buffer = &local.engine.buffer;
    let mut reservation = Reservation::new(vec![(buffer.wait_for_frame(&local.worker), id)]);
    let mut page = reservation.take(&buffer.pool);
    page.words().store_all(image);
    page.changed(lsn, lsn);
    Ok(())
}

/// Parts the changes by ranges of keys, about evenly: each lane visits pages of its
/// own, and a page once for all its changes.
fn part(stretch: &Stretch, lanes: usize) -> Vec<Vec<Change>> {
    let Stretch { changes, bytes } = stretch;
    let every = (changes.len() / (lanes * SAMPLES)).max(1);
    let mut sample: Vec<_> = changes.iter().step_by(every).collect();
    sample.sort_unstable_by(|a, b| order(bytes, a, b));
    let bounds: Vec<_> = (1..lanes)
        .filter_map(|lane| sample.get(lane * sample.len() / lanes))
        .collect();
    let mut parts = vec![Vec::with_capacity(changes.len() / lanes); lanes];
    for change in changes {
        let lane = bounds.partition_point(|bound| order(bytes, bound, change) != Order::Greater);
        parts[lane].push(*change);
    }
    parts
}

/// Writes a checkpoint that needs nothing of the log before `applied_to`, and so frees space in it.
/// Existing records are in the pages, but for large values of dropped trees, which are freed.
fn let_go(runtime: &Runtime, applied_to: Lsn, orphans: &mut Vec<Extent>) -> Result<(), OpenError> {
    // Before the checkpoint: after it nothing says any more that they are there.
    runtime.run(Urgency::Ordinary, |local| {
        extent::free_leftovers(local, orphans)
    })?;
    orphans.clear();
    runtime.engine()?.log_tasks.hold(applied_to);
    runtime.run(Urgency::Ordinary, |local| {
        let checkpoints = &local.engine.checkpoints;
        checkpoints.checkpoint(&local.worker, applied_to)?;
        Ok(())
    })
}

/// Tasks that apply parts of a stretch.
type Applying = Vec<TaskHandle<Result<(), OpenError>>>;

/// Starts tasks on all workers that apply the changes.
fn start_applying(runtime: &Runtime, stretch: Stretch) -> Result<Applying, OpenError> {
    let lanes = part(&stretch, runtime.config().workers * TASKS);
    let bytes = Arc::new(stretch.bytes);
    let engine = Arc::clone(runtime.engine()?);
    let start = |changes| {
        let engine = Arc::clone(&engine);
        let bytes = Arc::clone(&bytes);
        runtime.spawn(Urgency::Ordinary, None, move || {
            WorkerState::in_task(&engine, |local| apply(local, &bytes, changes))
        })
    };
    let lanes = lanes.into_iter().filter(|lane| !lane.is_empty());
    Ok(lanes.map(start).collect())
}

/// Waits for all of them; the first error.
fn wait(tasks: Applying) -> Result<(), OpenError> {
    let mut first = Ok(());
    for task in tasks {
        first = first.and(block_on(task.flat()));
    }
    first
}
