//! Reading many keys at once: cache misses overlap on the calling thread, page
//! faults on the workers.

use crate::Error;
use crate::api::record::get_in_task;
use crate::api::tree::Tree;
use crate::btree::{Batch, Lookup, ValueKind};
use crate::engine::{Job, WorkerState};
use crate::page::PageId;
use crate::txn::versions::OldValue;
use crate::txn::visible::Seen;

/// Keys that are looked up before their values are handed out.
const BATCH_KEYS: usize = 512;
/// Bytes of values after which a worker hands out what it has read for a caller elsewhere.
const FETCHED_BYTES: usize = 1 << 20;

/// Hands the value of each of `keys` to `each`, in any order.
pub(crate) fn get_each(
    tree: &Tree,
    keys: &[&[u8]],
    mut each: impl FnMut(usize, Option<&[u8]>) + Send,
) -> Result<(), Error> {
    tree.alive()?;
    let engine = tree.runtime.engine()?;
    let mut batch = Batch::default();
    let mut missing: Vec<(usize, PageId)> = Vec::new();
    let mut first = 0;
    for part in keys.chunks(BATCH_KEYS) {
        tree.runtime.count_records(part.len());
        let pool = tree.runtime.pool()?;
        missing.clear();
        // Taken before the base is read, and gone before the caller's code runs.
        let levels = pool.overlays.of(tree.state.tree.id);
        let levels = levels.map(|overlaid| overlaid.levels());
        tree.state.tree.get_many_resident(pool, part, &mut batch);
        let is_above = match levels {
            None => Vec::new(),
            Some(levels) => {
                let above = part.iter().map(|key| levels.may_have(key));
                above.collect::<Result<Vec<bool>, _>>()?
            }
        };
        let reader = engine.transactions.reader(tree.state.tree.id, None);
        for (at, lookup) in batch.lookups().iter().enumerate() {
            if is_above.get(at) == Some(&true) {
                // It is looked for in several parts, on its own.
                missing.push((first + at, PageId(0)));
                continue;
            }
            let page = match lookup {
                Lookup::Absent | Lookup::Found(ValueKind::Inline, _) => {
                    match reader.judge(part[at]) {
                        Seen::Leaf => each(first + at, batch.value(at).map(|value| value.bytes)),
                        Seen::Older(OldValue::Absent) => each(first + at, None),
                        Seen::Older(OldValue::Inline(old)) => each(first + at, Some(&old)),
                        _ => missing.push((first + at, PageId(0))),
                    }
                    continue;
                }
                Lookup::NotResident(page) => *page,
                // Large, or being changed: read on its own.
                Lookup::Found(ValueKind::Extent, _) | Lookup::Contended => PageId(0),
            };
            missing.push((first + at, page));
        }
        if !missing.is_empty() {
            fetch(tree, keys, &missing, &mut each)?;
        }
        first += part.len();
    }
    Ok(())
}

/// Reads the keys whose pages are missing: here if this is a task, else on all
/// workers.
fn fetch(
    tree: &Tree,
    keys: &[&[u8]],
    missing: &[(usize, PageId)],
    each: &mut (impl FnMut(usize, Option<&[u8]>) + Send),
) -> Result<(), Error> {
    let here = WorkerState::with_current(tree.runtime.engine()?, |local| {
        local.map(|local| {
            let mut tell = |at: usize, value: Option<&[u8]>| {
                each(at, value);
                true
            };
            fetch_in_task(local, tree, keys, missing, &mut tell).map(|_| ())
        })
    });
    if let Some(result) = here {
        return result;
    }
    let share = missing.len().div_ceil(tree.runtime.config().workers);
    let mut parts: Vec<(&[(usize, PageId)], Fetched)> = missing
        .chunks(share)
        .map(|part| (part, Fetched::default()))
        .collect();
    // Bound: each round reads a value of every part that is left.
    while !parts.is_empty() {
        let jobs = parts.iter_mut().map(|(part, fetched)| {
            let job: Job<'_, Error> = Box::new(move |local: &WorkerState| {
                let mut take = |at: usize, value: Option<&[u8]>| fetched.take(at, value);
                let count = fetch_in_task(local, tree, keys, part, &mut take)?;
                *part = &part[count..];
                Ok(())
            });
            job
        });
        tree.runtime.run_all(jobs.collect())?;
        // Here, if no worker's task waits: `each` may use the store.
        for (_, fetched) in &mut parts {
            fetched.hand_out(each);
        }
        parts.retain(|(part, _)| !part.is_empty());
    }
    Ok(())
}

/// Values that a worker has read for a caller that is no task of it.
#[derive(Default)]
struct Fetched {
    /// By the indexes of their keys: the lengths of those that are there.
    found: Vec<(usize, Option<usize>)>,
    bytes: Vec<u8>,
}

impl Fetched {
    /// Adds a value; whether another one fits.
    fn take(&mut self, at: usize, value: Option<&[u8]>) -> bool {
        self.found.push((at, value.map(<[u8]>::len)));
        self.bytes.extend_from_slice(value.unwrap_or_default());
        self.bytes.len() < FETCHED_BYTES
    }

    fn hand_out(&mut self, each: &mut impl FnMut(usize, Option<&[u8]>)) {
        let mut rest = &self.bytes[..];
        for (at, length) in self.found.drain(..) {
            let value = length.map(|length| {
                let (value, later) = rest.split_at(length);
                rest = later;
                value
            });
            each(at, value);
        }
        self.bytes.clear();
    }
}

/// Reads keys in their order until `each` says that it is enough; how many.
fn fetch_in_task(
    local: &WorkerState,
    tree: &Tree,
    keys: &[&[u8]],
    missing: &[(usize, PageId)],
    each: &mut impl FnMut(usize, Option<&[u8]>) -> bool,
) -> Result<usize, Error> {
    let window = local.worker.depth() as usize;
    let mut ahead = 0;
    let mut pages = Vec::new();
    let mut value = Vec::new();
    for (n, &(at, _)) in missing.iter().enumerate() {
        ahead = ahead.max(n);
        // Many at a time: neighbours are read together.
        if ahead < missing.len().min(n + window / 2) {
            let end = missing.len().min(n + window);
            pages.clear();
            pages.extend(missing[ahead..end].iter().map(|missing| missing.1));
            ahead += local
                .engine
                .buffer
                .start_ahead(&local.worker, &pages, window);
        }
        let found = get_in_task(local, tree.state.tree, keys[at], &mut value)?;
        if !each(at, found.then_some(&value[..])) {
            return Ok(n + 1);
        }
    }
    Ok(missing.len())
}
