//! What a B+-tree writes and reads under updates of records, with and without overlays.
//!
//! A tree of fixed-size records in full leaves takes blind upserts and lookups. A [`Design`] says
//! where an upsert goes: into its leaf, which is written out of place when its frame is wanted;
//! into a *memory overlay*, which is sealed as an immutable sorted *run* and merged into the leaves
//! by a position that moves through the key space; into deltas of its leaf; or into an LSM tree.
//! The page writes and trims of a run then go through the cleaning simulator ([`crate::sim`]) on a
//! volume of a given size, so that designs are compared at equal space and equal memory.
//!
//! Not simulated: the log, inner nodes and the mapping table, which all designs write alike; what
//! moves from a dirty leaf into the overlay when its frame is wanted.
//!
//! ```
//! use isobath_flash::overlay::{OverlayParams, simulate_overlay};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let params = OverlayParams { records: 20_000, space: 1.45, ..OverlayParams::default() };
//! let simulate = |design: &str| {
//!     let params = OverlayParams { design: design.parse()?, ..params.clone() };
//!     simulate_overlay(&params, &mut |_| true)
//! };
//! let (today, overlays) = (simulate("in-place")?, simulate("overlays:0.25")?);
//! assert!(overlays.written_cleaned < today.written_cleaned / 4.0);
//! # Ok(())
//! # }
//! ```

mod io;
mod leaves;
mod levels;
mod mix;
mod params;
mod run;
mod runs;
#[cfg(test)]
mod tests;

pub use params::{Design, OverlayError, OverlayParams, RecordLaw};

use crate::rng::Rng;
use crate::sim::{Duplicates, RunLength, SimConfig, SimError, simulate_workload};
use crate::trace::Trace;
use crate::workload::{Op, Synthetic, Workload, WorkloadKind};
use io::Io;
use mix::Mix;

/// Pages per segment of a volume of at least so many segments. Fewer pages make greedy choices
/// better than they are at full size.
const SEGMENT_PAGES: u32 = 64;
const SEGMENTS: f64 = 256.0;
/// Free segments that start cleaning, and segments cleaned at a time.
const CLEAN: u32 = 8;
/// Of lookups, one in so many is followed by a scan.
const SCAN_EVERY: u64 = 64;
/// Parts of a run, and the share of it after which cleaning begins.
const PARTS: u64 = 100;
const UPDATING: f64 = 0.75;
/// Upserts among which lookups of a growing mix choose, as a share of the records: one in so many.
const RECENT_SHARE: u32 = 8;
/// Records per scan.
const SCAN_RECORDS: u32 = 100;

/// Records, leaves and their sizes.
#[derive(Debug, Clone, Copy)]
struct Shape {
    records: u32,
    per_leaf: u32,
    leaves: u32,
}

impl Shape {
    /// Pages of so many records.
    fn pages(self, records: usize) -> u32 {
        records.div_ceil(self.per_leaf as usize) as u32
    }

    /// Leaves that hold a part of a scan's records, from `key` on.
    fn scanned_leaves(self, key: u32) -> std::ops::RangeInclusive<u32> {
        let last = (key + SCAN_RECORDS - 1).min(self.records - 1);
        key / self.per_leaf..=last / self.per_leaf
    }
}

/// A tree under one design.
trait Model {
    /// Gives a record a version, without looking at its old one; `is_new` if the caller knows that
    /// the tree has none.
    fn update(&mut self, key: u32, version: u32, is_new: bool, io: &mut Io);
    /// The newest version of a record; 0 is that of the load.
    fn lookup(&mut self, key: u32, io: &mut Io) -> u32;
    /// Pages that a scan from `key` on reads from the device.
    fn scan(&self, key: u32, io: &Io) -> u32;
    /// Runs, levels or delta pages beside the base, on average of the tree.
    fn parts(&self) -> f64;
}

/// The second half of a run, the steady state. Ratios are per byte of upserted records, or per byte
/// of the data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OverlayReport {
    /// Upserts.
    pub updates: u64,
    /// Bytes written per user byte, before cleaning.
    pub written: f64,
    /// Bytes that the cleaner moves per byte written.
    pub wamp: f64,
    /// Bytes written per user byte, with those that the cleaner moves.
    pub written_cleaned: f64,
    /// Bytes that merges read per user byte.
    pub merge_read: f64,
    /// Device reads per upsert, merges excluded.
    pub reads_per_update: f64,
    /// Device reads per lookup, with the law of the upserts.
    pub reads_per_lookup: f64,
    /// Pages read per scan of 100 records. Neighbours count one each.
    pub reads_per_scan: f64,
    /// Memory of the overlay per byte of data, at the fill of nodes under random insertion.
    pub overlay_memory: f64,
    /// Memory of filters per byte of data.
    pub filter_memory: f64,
    /// Memory of the page cache per byte of data: the rest.
    pub cache_memory: f64,
    /// Mean live bytes on the volume per byte of data.
    pub live: f64,
    /// Most live bytes on the volume per byte of data.
    pub live_max: f64,
    /// Bytes of the volume per byte of data.
    pub space: f64,
    /// Mean number of runs, levels or delta pages per leaf beside the base.
    pub parts: f64,
    /// Lookups that did not find the newest version: always 0.
    pub stale_lookups: u64,
}

/// Counts of a part of a run.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    updates: u64,
    lookups: u64,
    scans: u64,
    update_reads: u64,
    lookup_reads: u64,
    scan_reads: u64,
    stale: u64,
    live_sum: f64,
    parts_sum: f64,
}

/// Runs a design and cleans below it. `observe` is called about a hundred times with the share that
/// is done, from 0 to 1, and ends the run by answering `false`.
///
/// # Errors
/// If a parameter is out of range, the data with its runs does not fit the volume, or `observe`
/// ended the run.
pub fn simulate_overlay(
    params: &OverlayParams,
    observe: &mut dyn FnMut(f64) -> bool,
) -> Result<OverlayReport, OverlayError> {
    let shape = params.check()?;
    let mut run = Run::new(params, shape)?;
    let total = (f64::from(params.records) * params.updates_per_record) as u64;
    for part in 0..PARTS {
        if part == PARTS / 2 {
            run.begin_measuring();
        }
        run.advance(total * (part + 1) / PARTS - total * part / PARTS);
        if !observe(UPDATING * (part + 1) as f64 / PARTS as f64) {
            return Err(SimError::Stopped.into());
        }
    }
    let done = run.done;
    let (io, memory) = (&run.io, params.memory(shape));
    let data = f64::from(params.records) * f64::from(params.record_bytes);
    let unit = f64::from(io.unit_bytes);
    let updates = done.updates as f64;
    let user_bytes = updates * f64::from(params.record_bytes);
    let per = |sum: u64, count: u64| sum as f64 / (count as f64).max(1.0);
    let live_max = f64::from(io.units()) * unit / data;
    let mut report = OverlayReport {
        updates: done.updates,
        written: io.written as f64 * unit / user_bytes,
        wamp: 0.0,
        written_cleaned: 0.0,
        merge_read: io.merge_reads as f64 * f64::from(params.page_bytes) / user_bytes,
        reads_per_update: per(done.update_reads, done.updates),
        reads_per_lookup: per(done.lookup_reads, done.lookups),
        reads_per_scan: per(done.scan_reads, done.scans),
        overlay_memory: memory.overlay / data,
        filter_memory: memory.filters / data,
        cache_memory: memory.cache / data,
        live: done.live_sum / updates * unit / data,
        live_max,
        space: live_max,
        parts: done.parts_sum / updates,
        stale_lookups: done.stale + run.verify(),
    };
    if !matches!(params.design, Design::Lsm { .. }) {
        report.space = params.space;
        report.wamp = clean(params, run.io.into_ops(), data, unit, observe)?;
    }
    report.written_cleaned = report.written * (1.0 + report.wamp);
    Ok(report)
}

/// What the cleaner moves per byte written, on a volume of `params.space` bytes per byte of data.
fn clean(
    params: &OverlayParams,
    ops: Vec<Op>,
    data: f64,
    unit: f64,
    observe: &mut dyn FnMut(f64) -> bool,
) -> Result<f64, OverlayError> {
    let trace = Trace::new(ops, 0);
    let units_per_page = params.page_bytes / unit as u32;
    let bytes = data * params.space;
    let pages = (bytes / f64::from(params.page_bytes) / SEGMENTS) as u32;
    let pages = pages.clamp(SEGMENT_PAGES / 8, SEGMENT_PAGES);
    let segment_bytes = pages * params.page_bytes;
    let segments = (bytes / f64::from(segment_bytes)) as u32;
    let units = f64::from(segments) * f64::from(pages * units_per_page);
    let fill = (f64::from(trace.pages()) + 0.5) / units;
    if fill >= 1.0 {
        return Err(OverlayError::Space {
            live: f64::from(trace.pages()) * unit / data,
            space: params.space,
        });
    }
    let config = SimConfig {
        segment_bytes,
        page_bytes: unit as u32,
        clean_below: CLEAN,
        clean_batch: Some(CLEAN),
        sort_buffer_segments: 0,
        duplicates: Duplicates::Absorbed,
        open_segments_max: Some((segments / 32).max(8)),
        spare_segments: SimConfig::paper_spare(segments, CLEAN, CLEAN),
        seed: params.seed,
        ..SimConfig::paper(segments, fill)
    };
    // The load is a small part of the operations: their second half is that of the run, nearly.
    let report = simulate_workload(
        params.policy,
        &config,
        trace.replay(1),
        RunLength::ToEnd,
        &mut |done| observe(UPDATING + (1.0 - UPDATING) * done),
    )?;
    Ok(report.steady.wamp())
}

/// The source of keys.
enum Keys {
    Law(Synthetic),
    Mix(Mix),
}

impl Keys {
    /// The next key, and whether the tree is known not to have it.
    fn next(&mut self) -> (u32, bool) {
        match self {
            Self::Law(law) => {
                let mut next = [Op::write(0)];
                law.fill(&mut next);
                (next[0].page(), false)
            }
            Self::Mix(mix) => mix.next(),
        }
    }
}

/// Which keys are looked up.
enum Lookups {
    /// Keys of the upserts' own law, which has no memory.
    Law,
    /// Any: lookups by the law of keys in order would take some of that order.
    Uniform,
    /// Keys among the last that were upserted: those of a mix that grows.
    Recent(Vec<u32>),
}

/// A design under way.
struct Run {
    keys: Keys,
    lookups: Lookups,
    lookups_per_update: f64,
    model: Box<dyn Model>,
    io: Io,
    /// By record, the newest version.
    newest: Vec<u32>,
    version: u32,
    rng: Rng,
    lookups_due: f64,
    done: Totals,
}

impl Run {
    fn new(params: &OverlayParams, shape: Shape) -> Result<Run, OverlayError> {
        let keys = match params.law {
            RecordLaw::Law(kind) => {
                let law = Synthetic::new(kind, shape.records, params.seed)?;
                Keys::Law(match kind {
                    WorkloadKind::Sequential { .. } => law.in_order(),
                    _ => law,
                })
            }
            RecordLaw::OrderMix => Keys::Mix(Mix::new(shape.records, params.seed)),
        };
        let lookups = match params.law {
            RecordLaw::Law(WorkloadKind::Sequential { .. }) => Lookups::Uniform,
            RecordLaw::Law(_) => Lookups::Law,
            RecordLaw::OrderMix => {
                Lookups::Recent(vec![0; shape.records.div_ceil(RECENT_SHARE) as usize])
            }
        };
        let frames = (params.memory(shape).cache / f64::from(params.page_bytes)) as usize;
        let mut io = Io::new(params, frames);
        let model: Box<dyn Model> = match params.design {
            Design::Overlays { .. } | Design::WholeLaps { .. } => {
                Box::new(runs::Overlays::new(params, shape, &mut io))
            }
            Design::Lsm { fan_out } => Box::new(levels::Lsm::new(params, shape, fan_out, &mut io)),
            Design::InPlace | Design::Cumulative { .. } | Design::Chained { .. } => {
                Box::new(leaves::Leaves::new(params, shape, &mut io))
            }
        };
        Ok(Run {
            keys,
            lookups,
            lookups_per_update: params.lookups_per_update,
            model,
            io,
            newest: vec![0; shape.records as usize],
            version: 0,
            rng: Rng::new(params.seed ^ 0x100c),
            lookups_due: 0.0,
            done: Totals::default(),
        })
    }

    /// Forgets the counts of the warm-up.
    fn begin_measuring(&mut self) {
        let stale = self.done.stale;
        self.done = Totals {
            stale,
            ..Totals::default()
        };
        (self.io.written, self.io.merge_reads) = (0, 0);
    }

    /// Makes so many upserts, with the lookups and scans beside them.
    fn advance(&mut self, updates: u64) {
        for _ in 0..updates {
            let (key, is_new) = self.keys.next();
            self.done.updates += 1;
            self.version += 1;
            let version = self.version;
            self.newest[key as usize] = version;
            if let Lookups::Recent(keys) = &mut self.lookups {
                let at = version as usize % keys.len();
                keys[at] = key;
            }
            let reads = self.io.reads;
            self.model.update(key, version, is_new, &mut self.io);
            self.done.update_reads += self.io.reads - reads;
            self.done.live_sum += f64::from(self.io.live());
            self.done.parts_sum += self.model.parts();
            self.lookups_due += self.lookups_per_update;
            while self.lookups_due >= 1.0 {
                self.lookups_due -= 1.0;
                self.lookup();
            }
        }
    }

    fn read_key(&mut self) -> u32 {
        match &self.lookups {
            Lookups::Law => self.keys.next().0,
            Lookups::Uniform => self.rng.below(self.newest.len() as u32),
            Lookups::Recent(keys) => keys[self.rng.below(keys.len() as u32) as usize],
        }
    }

    fn lookup(&mut self) {
        let key = self.read_key();
        let reads = self.io.reads;
        let found = self.model.lookup(key, &mut self.io);
        self.done.lookup_reads += self.io.reads - reads;
        self.done.stale += u64::from(found != self.newest[key as usize]);
        self.done.lookups += 1;
        if self.done.lookups.is_multiple_of(SCAN_EVERY) {
            let key = self.read_key();
            self.done.scans += 1;
            self.done.scan_reads += u64::from(self.model.scan(key, &self.io));
        }
    }

    /// Looks up every record, and counts those of which an older version is found.
    fn verify(&mut self) -> u64 {
        let (model, io) = (&mut self.model, &mut self.io);
        let keys = 0u32..;
        let stale = keys
            .zip(&self.newest)
            .filter(|&(key, &newest)| model.lookup(key, io) != newest);
        stale.count() as u64
    }
}
