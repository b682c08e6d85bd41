//! Bringing a store that was not closed up to its log, on all workers
//! (docs/decisions/0014).

use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::Error;
use crate::btree::{Decision, Tree, TreeId, ValueKind, ValueRef};
use crate::context::WriteContext;
use crate::engine::recovery::{nonsense, reader};
use crate::engine::{Counters, Local, Plan, TaskContext};
use crate::extent::{self, Extent};
use crate::log::Reader;
use crate::log::record::{Body, Token, decode};
use crate::page::{Lsn, PAGE_SIZE, PageId};
use crate::runtime::{Job, Runtime};

/// Share of the pool, in bytes, that the changes may take which are applied
/// together: one in this many. The longer that stretch of the log, the more
/// often one visit to a page brings several changes.
const STRIDE_SHARE: u64 = 16;
/// Least and most bytes of the log whose changes are applied together.
const STRIDE_BYTES: (u64, u64) = (1 << 20, 256 << 20);
/// Ids in one record.
const GIVEN_UP_AT_A_TIME: usize = 1000;
/// Tasks per worker that apply them.
const TASKS: usize = 32;
/// Keys per task that are looked at to part the changes evenly.
const SAMPLES: usize = 32;

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
        self.give_up(runtime)?;
        let start = superblock.log_start;
        let total = 2 * (self.end.lsn.0 - start);
        let pool_bytes = u64::from(engine.pool.frames.count()) * PAGE_SIZE as u64;
        let stride = (pool_bytes / STRIDE_SHARE).clamp(STRIDE_BYTES.0, STRIDE_BYTES.1);
        let mut log = reader(&volume, area, superblock).until(self.end.lsn);
        loop {
            let (images, more) = self.next_images(&mut log, stride)?;
            install(runtime, images)?;
            self.tell(log.position().0 - start, total);
            if !more {
                break;
            }
        }
        let lanes = engine.config.workers * TASKS;
        let mut log = reader(&volume, area, superblock).until(self.end.lsn);
        let mut orphans = Vec::new();
        loop {
            let (changes, more) = self.next_changes(&mut log, stride, &mut orphans)?;
            apply_all(runtime, part(changes, lanes))?;
            self.tell(total / 2 + log.position().0 - start, total);
            if !more {
                break;
            }
        }
        // Before the checkpoint: after it nothing says any more that they are there.
        runtime.run(|local| extent::free_leftovers(local, &orphans))?;
        engine.recovering.store(false, Ordering::Release);
        let before = engine.log.next();
        runtime.run(|local| local.checkpoint(before))?;
        Counters::add(&engine.counters.recovered_bytes, total / 2);
        let took = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Counters::add(&engine.counters.recovery_ns, took);
        Ok(())
    }

    /// Logs that what nothing has confirmed is gone, before its ids are given
    /// to others: the next recovery reads the same log.
    fn give_up(&self, runtime: &Runtime) -> Result<(), Error> {
        let tokens: Vec<Token> = self.given_up.tokens.iter().copied().collect();
        runtime.run(|local| {
            for pages in self.given_up.pages.chunks(GIVEN_UP_AT_A_TIME) {
                let _ = local.log_free(&[], pages);
            }
            for tokens in tokens.chunks(GIVEN_UP_AT_A_TIME) {
                let _ = local.log_free(tokens, &[]);
            }
            Ok(())
        })
    }

    fn tell(&self, done: u64, total: u64) {
        if let Some(listen) = &self.listener {
            listen(done, total);
        }
    }

    /// The images of the next stretch of the log that are the newest of their pages.
    fn next_images(
        &self,
        reader: &mut Reader<'_>,
        stride: u64,
    ) -> Result<(Vec<NewestImage>, bool), Error> {
        let from = reader.position();
        let mut found = Vec::new();
        while reader.position().0 < from.0 + stride {
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

    /// The changes of the next stretch of the log, in its order. Changes to trees that were dropped since are left out, as parts of these trees
    /// may be gone; large values that they made are noted among the `orphans`.
    fn next_changes(
        &self,
        reader: &mut Reader<'_>,
        stride: u64,
        orphans: &mut Vec<Extent>,
    ) -> Result<(Vec<Change>, bool), Error> {
        let from = reader.position();
        let mut changes = Vec::new();
        while reader.position().0 < from.0 + stride {
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
                    let large = operation.value.filter(|v| v.kind == ValueKind::Extent);
                    orphans.extend(large.and_then(|value| Extent::decode(value.bytes)));
                    continue;
                }
                changes.push(Change {
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

/// Parts the changes by ranges of keys, about evenly: each lane visits pages of its
/// own, and a page once for all its changes.
fn part(changes: Vec<Change>, lanes: usize) -> Vec<Vec<Change>> {
    let every = (changes.len() / (lanes * SAMPLES)).max(1);
    let sampled = changes.iter().step_by(every);
    let mut sample: Vec<_> = sampled.map(|c| (c.tree.id, c.key.clone())).collect();
    sample.sort_unstable();
    let bounds: Vec<_> = (1..lanes)
        .filter_map(|lane| sample.get(lane * sample.len() / lanes))
        .collect();
    let mut parts: Vec<Vec<Change>> = (0..lanes).map(|_| Vec::new()).collect();
    for change in changes {
        let is_below =
            |(tree, key): &&(TreeId, Vec<u8>)| (*tree, key) <= (change.tree.id, &change.key);
        parts[bounds.partition_point(is_below)].push(change);
    }
    parts
}

/// Keeps the last change of each key, in the order of keys.
fn keep_last(lane: &mut Vec<Change>) {
    lane.sort_by(|a, b| {
        // Of a key, the newest first.
        (a.tree.id, &a.key, b.lsn).cmp(&(b.tree.id, &b.key, a.lsn))
    });
    lane.dedup_by(|later, kept| later.tree.id == kept.tree.id && later.key == kept.key);
}

/// Applies the last change of every key, the lanes side by side.
fn apply_all(runtime: &Runtime, lanes: Vec<Vec<Change>>) -> Result<(), Error> {
    let jobs = lanes
        .into_iter()
        .filter(|lane| !lane.is_empty())
        .map(|mut lane| -> Job<'_, ()> {
            Box::new(move |local: &Local| {
                keep_last(&mut lane);
                lane.iter().try_for_each(|change| change.apply(local))
            })
        })
        .collect();
    runtime.run_all(jobs)
}
