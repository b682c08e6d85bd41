//! Simulation of section 5.2.1: how many files of the next level does one compaction touch?
//!
//! RocksDB picks, in a level that exceeds its capacity, the file whose key range overlaps the
//! fewest files of the next level. The paper reports that for keys `0..N-1` inserted once each in
//! random order the mean is Θ(F), with R² 0.974 for a straight line over F. This module replays
//! that policy on keys alone (no values, no I/O).

use crate::linear::{LinearFit, fit_line};
use crate::rng::SplitMix64;

/// What to simulate. All sizes are counted in files and keys, so that a small run stands for a
/// large store.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MovementSimulation {
    /// Keys per file; 64 is enough for the ranges of neighbouring files to be as ragged as in a
    /// large store.
    pub file_keys: usize,
    /// `C`: files in L0 that trigger a compaction, and the capacity of L1 in files.
    pub l0_files: usize,
    /// Files flushed in total (the data set, `N / T`).
    pub total_files: usize,
    /// Seed of the insertion order.
    pub seed: u64,
}

/// What one simulated load did.
#[derive(Debug, Clone, PartialEq)]
pub struct MovementOutcome {
    /// Fanout `F` of this run.
    pub fanout: usize,
    /// Mean number of next-level files touched per compaction out of L1 or deeper, trivial moves
    /// excluded.
    pub touched_files_mean: f64,
    /// Compactions out of L1 or deeper that rewrote data.
    pub compaction_count: u64,
    /// Files moved down without a rewrite because nothing overlapped them.
    pub trivial_moves: u64,
    /// Per source level: files written by compactions out of it, per file flushed. Index 0 is L0 →
    /// L1.
    pub rewritten_per_flushed: Vec<f64>,
    /// Files per level at the end; index 0 is L0.
    pub level_files: Vec<usize>,
}

impl MovementOutcome {
    /// Files written by flushes and compactions per file flushed: the write amplification of the
    /// load.
    pub fn write_amplification(&self) -> f64 {
        1.0 + self.rewritten_per_flushed.iter().sum::<f64>()
    }
}

type File = Vec<u32>;

impl MovementSimulation {
    /// The paper's workload scaled down: 128 GB in 64 MB files, `C` = 4.
    pub fn of_the_paper(seed: u64) -> Self {
        Self {
            file_keys: 64,
            l0_files: 4,
            total_files: 1968,
            seed,
        }
    }

    /// Loads the store once with fanout `fanout` (at least 2).
    pub fn run(&self, fanout: usize) -> MovementOutcome {
        assert!(
            fanout >= 2 && self.file_keys > 0 && self.l0_files > 0,
            "a tree needs growing levels and non-empty files"
        );
        let mut keys: Vec<u32> = (0..(self.total_files * self.file_keys) as u32).collect();
        SplitMix64::new(self.seed).shuffle(&mut keys);
        let mut tree = Tree::new(*self, fanout);
        for run in keys.chunks(self.file_keys) {
            let mut file = run.to_vec();
            file.sort_unstable();
            tree.flush(file);
        }
        tree.outcome(self.total_files)
    }

    /// Mean files touched for each fanout, and the straight line through them (the paper's R²
    /// 0.974).
    pub fn touched_files_line(&self, fanouts: &[usize]) -> (Vec<MovementOutcome>, LinearFit) {
        let runs: Vec<_> = fanouts.iter().map(|&fanout| self.run(fanout)).collect();
        let points: Vec<_> = runs
            .iter()
            .map(|run| (run.fanout as f64, run.touched_files_mean))
            .collect();
        let line = fit_line(&points);
        (runs, line)
    }
}

struct Tree {
    plan: MovementSimulation,
    fanout: usize,
    l0: Vec<File>,
    /// `levels[0]` is L1. Files of a level are disjoint and sorted by their first key.
    levels: Vec<Vec<File>>,
    rewritten: Vec<u64>,
    touched_sum: u64,
    compaction_count: u64,
    trivial_moves: u64,
}

impl Tree {
    fn new(plan: MovementSimulation, fanout: usize) -> Self {
        Self {
            plan,
            fanout,
            l0: Vec::new(),
            levels: vec![Vec::new()],
            rewritten: vec![0],
            touched_sum: 0,
            compaction_count: 0,
            trivial_moves: 0,
        }
    }

    fn flush(&mut self, file: File) {
        self.l0.push(file);
        if self.l0.len() >= self.plan.l0_files {
            self.compact_l0();
            self.restore_capacities();
        }
    }

    /// L0 files span the whole key range, so all of L1 takes part (section 5.2.1).
    fn compact_l0(&mut self) {
        let mut keys: Vec<u32> = self.l0.drain(..).flatten().collect();
        keys.extend(self.levels[0].drain(..).flatten());
        keys.sort_unstable();
        self.levels[0] = split(&keys, self.plan.file_keys);
        self.rewritten[0] += self.levels[0].len() as u64;
    }

    fn capacity(&self, level: usize) -> usize {
        self.plan
            .l0_files
            .saturating_mul(self.fanout.saturating_pow(level as u32))
    }

    fn restore_capacities(&mut self) {
        let mut level = 0;
        while level < self.levels.len() {
            while self.levels[level].len() > self.capacity(level) {
                self.move_one_file(level);
            }
            level += 1;
        }
    }

    /// Moves the file of `level` that overlaps the fewest files of the next level.
    fn move_one_file(&mut self, level: usize) {
        if level + 1 == self.levels.len() {
            self.levels.push(Vec::new());
            self.rewritten.push(0);
        }
        let (index, range) = fewest_overlaps(&self.levels[level], &self.levels[level + 1]);
        let file = self.levels[level].remove(index);
        if range.is_empty() {
            self.levels[level + 1].insert(range.start, file);
            self.trivial_moves += 1;
            return;
        }
        self.touched_sum += range.len() as u64;
        self.compaction_count += 1;
        let mut keys = file;
        keys.extend(self.levels[level + 1][range.clone()].iter().flatten());
        keys.sort_unstable();
        let merged = split(&keys, self.plan.file_keys);
        self.rewritten[level + 1] += merged.len() as u64;
        self.levels[level + 1].splice(range, merged);
    }

    fn outcome(&self, flushed: usize) -> MovementOutcome {
        let mut level_files = vec![self.l0.len()];
        level_files.extend(self.levels.iter().map(Vec::len));
        MovementOutcome {
            fanout: self.fanout,
            touched_files_mean: self.touched_sum as f64 / (self.compaction_count.max(1)) as f64,
            compaction_count: self.compaction_count,
            trivial_moves: self.trivial_moves,
            rewritten_per_flushed: self
                .rewritten
                .iter()
                .map(|&n| n as f64 / flushed as f64)
                .collect(),
            level_files,
        }
    }
}

/// Cuts sorted keys into equal files of about `file_keys` keys (RocksDB cuts its outputs likewise;
/// equal parts keep the last file from being a sliver that would win every later comparison).
fn split(keys: &[u32], file_keys: usize) -> Vec<File> {
    let files = keys.len().div_ceil(file_keys).max(1);
    (0..files)
        .map(|i| keys[i * keys.len() / files..(i + 1) * keys.len() / files].to_vec())
        .filter(|file| !file.is_empty())
        .collect()
}

/// Index of the file in `from` with the fewest overlapping files in `into` (the first among
/// equals), and their range. Both levels are sorted and disjoint, so one pass over both suffices.
fn fewest_overlaps(from: &[File], into: &[File]) -> (usize, std::ops::Range<usize>) {
    let mut best = (0, 0..usize::MAX);
    let mut start = 0;
    for (index, file) in from.iter().enumerate() {
        let (first, last) = (file[0], file[file.len() - 1]);
        while start < into.len() && into[start][into[start].len() - 1] < first {
            start += 1;
        }
        let mut end = start;
        while end < into.len() && into[end][0] <= last {
            end += 1;
        }
        if end - start < best.1.len() {
            best = (index, start..end);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_search_finds_the_gap() {
        let from = vec![vec![0, 9], vec![20, 29], vec![40, 49]];
        let into = vec![vec![0, 4], vec![5, 25], vec![26, 39], vec![50, 60]];
        assert_eq!(fewest_overlaps(&from, &into), (2, 3..3));
        assert_eq!(fewest_overlaps(&from[..2], &into), (0, 0..2));
    }

    #[test]
    fn no_key_is_lost_and_levels_keep_their_order() {
        let plan = MovementSimulation {
            file_keys: 16,
            l0_files: 4,
            total_files: 300,
            seed: 7,
        };
        let mut keys: Vec<u32> = (0..300 * 16).collect();
        SplitMix64::new(7).shuffle(&mut keys);
        let mut tree = Tree::new(plan, 4);
        for run in keys.chunks(16) {
            let mut file = run.to_vec();
            file.sort_unstable();
            tree.flush(file);
        }
        for (i, level) in tree.levels.iter().enumerate() {
            let flat: Vec<u32> = level.iter().flatten().copied().collect();
            assert!(
                flat.is_sorted_by(|a, b| a < b),
                "level {} is out of order",
                i + 1
            );
            assert!(
                level.len() <= tree.capacity(i),
                "level {} exceeds its capacity",
                i + 1
            );
        }
        let mut all: Vec<u32> = tree
            .l0
            .iter()
            .chain(tree.levels.iter().flatten())
            .flatten()
            .copied()
            .collect();
        all.sort_unstable();
        assert_eq!(all, (0..300 * 16).collect::<Vec<u32>>());
    }
}
