//! Overlays: one in memory, runs, and the rolling merge.

use super::io::Io;
use super::run::Run;
use super::{Design, Model, OverlayParams, Shape};

/// Leaves per merge: a part of the key space like that of 1 MiB of 288 MB, and at most 1 MiB.
const MERGES_PER_LAP: u32 = 256;
const MERGE_LEAVES_MAX: u32 = 256;
/// Times that merges catch up while an overlay fills.
const STEPS: usize = 64;

#[derive(Debug)]
pub(super) struct Overlays {
    shape: Shape,
    capacity: usize,
    pages_mean: f64,
    runs_max: usize,
    /// Runs that the merge takes in this lap, from the oldest on; all where `None`.
    lap_runs: Option<usize>,
    false_positives: f64,
    merge_leaves: u32,
    /// The leaf that is merged next.
    position: u32,
    /// Versions by record, in memory (0 is none) and in the leaves.
    memory: Vec<u32>,
    base: Vec<u32>,
    /// Records in memory.
    sealing: Vec<u32>,
    /// Oldest first.
    runs: Vec<Run>,
    serial: u32,
    touched: Vec<bool>,
}

impl Overlays {
    pub(super) fn new(params: &OverlayParams, shape: Shape, io: &mut Io) -> Overlays {
        for _ in 0..shape.leaves {
            let leaf = io.take();
            io.write(leaf);
        }
        let (share, runs_max, lap_runs) = match params.design {
            Design::Overlays { share, runs } => (share, runs as usize, None),
            Design::WholeLaps { share } => (share, usize::MAX, Some(0)),
            _ => (1.0, usize::MAX, None),
        };
        Overlays {
            shape,
            capacity: params.overlay_records(),
            pages_mean: share * f64::from(shape.leaves),
            runs_max,
            lap_runs,
            false_positives: params.false_positives(),
            merge_leaves: (shape.leaves / MERGES_PER_LAP).clamp(1, MERGE_LEAVES_MAX),
            position: 0,
            memory: vec![0; shape.records as usize],
            base: vec![0; shape.records as usize],
            sealing: Vec::new(),
            runs: Vec::new(),
            serial: 0,
            touched: vec![false; shape.leaves as usize],
        }
    }

    /// Pages of runs that are not freed.
    pub(super) fn run_pages(&self) -> u32 {
        self.runs.iter().map(Run::live_pages).sum()
    }

    fn next_serial(&mut self) -> u32 {
        self.serial += 1;
        self.serial
    }

    /// Merges until the runs have no more pages than they should while the overlay fills: at its
    /// half the share's, so that sealing and merging keep pace.
    fn pace(&mut self, io: &mut Io) {
        let filled = self.sealing.len() as f64 / self.capacity as f64;
        let ahead = f64::from(self.shape.pages(self.capacity)) * (0.5 - filled);
        let pages_max = self.pages_mean + ahead;
        // Two laps at most: in the first there may be no run to merge.
        for _ in 0..2 * self.shape.leaves.div_ceil(self.merge_leaves) {
            let pages = self.run_pages();
            if pages == 0 || f64::from(pages) <= pages_max {
                break;
            }
            self.merge(io);
        }
    }

    /// Makes the memory overlay a run.
    fn seal(&mut self, io: &mut Io) {
        let memory = &mut self.memory;
        let records = self.sealing.drain(..);
        let records = records.map(|key| (key, std::mem::take(&mut memory[key as usize])));
        let records: Vec<_> = records.collect();
        let start = match self.lap_runs {
            None => self.position * self.shape.per_leaf,
            Some(_) => 0,
        };
        let serial = self.next_serial();
        self.runs.push(Run::new(self.shape, serial, start, records));
        while self.runs.len() > self.runs_max {
            self.combine(io);
        }
        self.runs.iter_mut().for_each(|run| run.write(io));
    }

    /// Makes the two neighbours with the fewest pages one run.
    fn combine(&mut self, io: &mut Io) {
        let pages = |at: &usize| self.runs[*at].live_pages() + self.runs[at + 1].live_pages();
        let Some(at) = (0..self.runs.len() - 1).min_by_key(pages) else {
            return;
        };
        let (mut older, mut newer) = (self.runs.remove(at), self.runs.remove(at));
        let records = newer.left().chain(older.left()).collect();
        older.discard(io);
        newer.discard(io);
        let start = self.position * self.shape.per_leaf;
        let serial = self.next_serial();
        let run = Run::new(self.shape, serial, start, records);
        self.runs.insert(at, run);
    }

    /// Merges the runs' records of the next leaves into these.
    fn merge(&mut self, io: &mut Io) {
        let (first, end) = (
            self.position,
            (self.position + self.merge_leaves).min(self.shape.leaves),
        );
        let per_leaf = self.shape.per_leaf;
        let keys = first * per_leaf..end * per_leaf;
        let (base, touched) = (&mut self.base, &mut self.touched);
        let taken = self.lap_runs.unwrap_or(self.runs.len());
        for run in &mut self.runs[..taken] {
            run.consume(&keys, io, |key, version| {
                base[key as usize] = version;
                touched[(key / per_leaf) as usize] = true;
            });
        }
        for leaf in first..end {
            if std::mem::take(&mut self.touched[leaf as usize]) {
                io.merge_reads += 1;
                io.write(leaf);
            }
        }
        let emptied = self.runs[..taken]
            .iter()
            .filter(|run| run.is_empty())
            .count();
        self.runs.retain(|run| !run.is_empty());
        self.position = end % self.shape.leaves;
        if let Some(lap) = &mut self.lap_runs {
            *lap = match self.position {
                0 => self.runs.len(),
                _ => taken - emptied,
            };
        }
    }
}

impl Model for Overlays {
    fn update(&mut self, key: u32, version: u32, is_new: bool, io: &mut Io) {
        let leaf = key / self.shape.per_leaf;
        // In place only where nothing above the leaf may have the key.
        if (is_new || io.is_dirty(leaf))
            && self.memory[key as usize] == 0
            && !self
                .runs
                .iter()
                .any(|run| run.may_have(key, self.false_positives))
        {
            self.base[key as usize] = version;
            io.change(leaf);
            return;
        }
        if std::mem::replace(&mut self.memory[key as usize], version) == 0 {
            self.sealing.push(key);
            if self
                .sealing
                .len()
                .is_multiple_of((self.capacity / STEPS).max(1))
            {
                self.pace(io);
            }
        }
        if self.sealing.len() >= self.capacity {
            self.seal(io);
        }
    }

    fn lookup(&mut self, key: u32, io: &mut Io) -> u32 {
        let memory = self.memory[key as usize];
        if memory != 0 {
            return memory;
        }
        for run in self.runs.iter().rev() {
            if let Some(version) = run.get(key, self.false_positives, io) {
                return version;
            }
        }
        io.read(key / self.shape.per_leaf, 1);
        self.base[key as usize]
    }

    fn scan(&self, key: u32, io: &Io) -> u32 {
        let leaves = self.shape.scanned_leaves(key);
        let leaves = leaves.filter(|&leaf| !io.is_cached(leaf)).count() as u32;
        leaves + self.runs.iter().map(|run| run.scan(key, io)).sum::<u32>()
    }

    fn parts(&self) -> f64 {
        self.runs.len() as f64
    }
}
