//! A levelled LSM tree, the reference. Memory is two tables of half the overlay each, as one is
//! filled while the other is flushed; compactions take no extra space, and cached pages stay valid.

use super::io::Io;
use super::run::Run;
use super::{Model, OverlayParams, Shape};

/// Runs in level 0 that are compacted together.
const LEVEL_0: usize = 4;
/// No version of a record in a level.
const ABSENT: u32 = u32::MAX;

#[derive(Debug)]
struct Level {
    /// By record.
    versions: Vec<u32>,
    records: usize,
    records_max: usize,
    /// The key where the next file begins that moves down.
    next: u32,
    /// Pages in the cache: the level's part for a part of the keys.
    first_page: u32,
    pages: u32,
}

impl Level {
    fn new(shape: Shape, records_max: usize, is_base: bool, io: &mut Io) -> Level {
        let pages = shape.pages(records_max);
        let first_page = io.take();
        (1..pages).for_each(|_| _ = io.take());
        Level {
            versions: vec![if is_base { 0 } else { ABSENT }; shape.records as usize],
            records: if is_base { records_max } else { 0 },
            records_max,
            next: 0,
            first_page,
            pages,
        }
    }

    fn put(&mut self, key: u32, version: u32) {
        let old = std::mem::replace(&mut self.versions[key as usize], version);
        self.records += usize::from(old == ABSENT);
    }

    /// The pages of the level, as if its records were spread evenly over the keys.
    fn page(&self, key: u32) -> u32 {
        let share = f64::from(key) / self.versions.len() as f64;
        self.first_page + (share * f64::from(self.pages)) as u32
    }
}

#[derive(Debug)]
pub(super) struct Lsm {
    shape: Shape,
    capacity: usize,
    false_positives: f64,
    memory: Vec<u32>,
    flushing: Vec<u32>,
    /// Oldest first.
    level_0: Vec<Run>,
    /// From level 1 down to the base, which has every record.
    levels: Vec<Level>,
    serial: u32,
}

impl Lsm {
    pub(super) fn new(params: &OverlayParams, shape: Shape, fan_out: u32, io: &mut Io) -> Lsm {
        let capacity = (params.overlay_records() / 2).max(1);
        let mut levels = vec![Level::new(shape, shape.records as usize, true, io)];
        while levels[0].records_max > LEVEL_0 * capacity {
            let records = levels[0].records_max / fan_out as usize;
            levels.insert(0, Level::new(shape, records.max(1), false, io));
        }
        Lsm {
            shape,
            capacity,
            false_positives: params.false_positives(),
            memory: vec![0; shape.records as usize],
            flushing: Vec::new(),
            level_0: Vec::new(),
            levels,
            serial: 0,
        }
    }

    fn flush(&mut self, io: &mut Io) {
        let memory = &mut self.memory;
        let records = self.flushing.drain(..);
        let records = records.map(|key| (key, std::mem::take(&mut memory[key as usize])));
        let records: Vec<_> = records.collect();
        self.serial += 1;
        let mut run = Run::new(self.shape, self.serial, 0, records);
        run.write(io);
        self.level_0.push(run);
        if self.level_0.len() >= LEVEL_0 {
            for mut run in self.level_0.drain(..) {
                run.left()
                    .for_each(|(key, version)| self.levels[0].put(key, version));
                run.discard(io);
            }
            let pages = u64::from(self.shape.pages(self.levels[0].records));
            io.written += pages;
            io.merge_reads += pages;
        }
        for upper in 0..self.levels.len() - 1 {
            while self.levels[upper].records > self.levels[upper].records_max {
                self.move_file(upper, io);
            }
        }
    }

    /// Merges a file of a level, as many records as the memory table has, into the level below.
    fn move_file(&mut self, upper: usize, io: &mut Io) {
        let (above, below) = self.levels.split_at_mut(upper + 1);
        let (upper, lower) = (&mut above[upper], &mut below[0]);
        let first = upper.next;
        let (mut key, mut moved) = (first, 0);
        while moved < self.capacity && key < self.shape.records {
            let version = std::mem::replace(&mut upper.versions[key as usize], ABSENT);
            if version != ABSENT {
                lower.put(key, version);
                moved += 1;
            }
            key += 1;
        }
        upper.records -= moved;
        upper.next = key % self.shape.records;
        let range = &lower.versions[first as usize..key as usize];
        let rewritten = range.iter().filter(|&&version| version != ABSENT).count();
        io.written += u64::from(self.shape.pages(rewritten));
        io.merge_reads += u64::from(self.shape.pages(rewritten) + self.shape.pages(moved));
    }
}

impl Model for Lsm {
    fn update(&mut self, key: u32, version: u32, _is_new: bool, io: &mut Io) {
        if std::mem::replace(&mut self.memory[key as usize], version) == 0 {
            self.flushing.push(key);
        }
        if self.flushing.len() >= self.capacity {
            self.flush(io);
        }
    }

    fn lookup(&mut self, key: u32, io: &mut Io) -> u32 {
        let memory = self.memory[key as usize];
        if memory != 0 {
            return memory;
        }
        for run in self.level_0.iter().rev() {
            if let Some(version) = run.get(key, self.false_positives, io) {
                return version;
            }
        }
        for (at, level) in self.levels.iter().enumerate() {
            let version = level.versions[key as usize];
            if version != ABSENT || super::run::hash(key, at as u32) < self.false_positives {
                io.read(level.page(key), 1);
            }
            if version != ABSENT {
                return version;
            }
        }
        ABSENT
    }

    fn scan(&self, key: u32, io: &Io) -> u32 {
        let end = (key + super::SCAN_RECORDS - 1).min(self.shape.records - 1);
        let missing = |level: &Level| {
            let pages = level.page(key)..=level.page(end);
            pages.filter(|&page| !io.is_cached(page)).count() as u32
        };
        let levels = self.levels.iter().map(missing).sum::<u32>();
        levels
            + self
                .level_0
                .iter()
                .map(|run| run.scan(key, io))
                .sum::<u32>()
    }

    fn parts(&self) -> f64 {
        (self.level_0.len() + self.levels.len() - 1) as f64
    }
}
