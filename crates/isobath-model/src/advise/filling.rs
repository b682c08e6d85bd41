//! How the levels of an LSM tree fill while it is written, from one compacted run on.
//!
//! What RocksDB 7.8 does by default with two background jobs: one flushes, one compacts. A level's score is its size over its target,
//! L0's its files over the trigger (or its size over L1's target); the compaction of the highest score runs, and what it takes is
//! gone when it ends. So debt builds up where one thread does not keep up, and writers are slowed down by files in L0.

/// Bytes per second that writers are given once L0 has as many files as slow them down (`delayed_write_rate`).
const DELAYED_BYTES_PER_S: f64 = 16.0 * 1024.0 * 1024.0;
/// Records rewritten per record that moves into a level with so many times as many: as in `lsm::levels`, where a simulation of
/// files agrees with it.
const REWRITE_SCALE: f64 = 1.15;
const REWRITE_POWER: f64 = 0.7;
/// Steps of the whole time.
const STEPS: u32 = 4000;

/// What is written, and what of it takes how long. Sizes are in records.
pub(super) struct Filling<'f> {
    /// Distinct records among so many successive writes.
    pub(super) distinct: &'f dyn Fn(f64) -> f64,
    /// Writes that fill a memtable.
    pub(super) memtable: f64,
    /// Records that a file of the target size holds.
    pub(super) file: f64,
    /// Targets of L1 and the levels below, but the last, which holds the data.
    pub(super) targets: Vec<f64>,
    pub(super) data: f64,
    pub(super) trigger_files: f64,
    pub(super) slowdown_files: f64,
    pub(super) stop_files: f64,
    pub(super) record_bytes: f64,
    /// Seconds that a compaction takes per record that it reads and writes again.
    pub(super) rewrite_s: f64,
    /// Writes per second that clients would make.
    pub(super) writes_per_s: f64,
    pub(super) warm_up_s: f64,
    pub(super) duration_s: f64,
}

/// Means over the measured time, in records, and what a write cost in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Filled {
    /// Of the writes that clients would make, those that they could.
    pub(super) done_share: f64,
    /// Files in L0.
    pub(super) l0_files: f64,
    /// Distinct records of each level above the last.
    pub(super) levels: Vec<f64>,
    /// Writes of which the memtable holds some, mean.
    pub(super) in_memtable: f64,
    /// Records flushed per write.
    pub(super) flushed: f64,
    /// Records that compactions write per write, and that they read.
    pub(super) rewritten: f64,
    pub(super) reread: f64,
    /// Writes between two compactions of L0, each of which replaces all of L1.
    pub(super) l0_interval: Option<f64>,
    /// Writes in which L2 and each level below is replaced once.
    pub(super) lifetimes: Vec<Option<f64>>,
}

struct Job {
    ends_s: f64,
    level: usize,
    /// Writes (of L0) or records (of a level) that it takes, and files of L0.
    takes: f64,
    files: usize,
    reads: f64,
    writes: f64,
}

struct State {
    memtable: f64,
    /// Files in L0, each of one memtable.
    l0_files: usize,
    /// Distinct records of a memtable.
    flushed: f64,
    levels: Vec<f64>,
    /// Of L2, what came out of L1 as it is now: it lies between the keys that are left there, and overlaps none of them.
    beside_l1: f64,
    job: Option<Job>,
}

#[derive(Default)]
struct Sums {
    seconds: f64,
    writes: f64,
    l0_files: f64,
    memtable: f64,
    levels: Vec<f64>,
    flushed: f64,
    rewritten: f64,
    reread: f64,
    l0_jobs: f64,
    moved_in: Vec<f64>,
}

impl Filling<'_> {
    pub(super) fn run(&self) -> Filled {
        let count = self.targets.len();
        let mut state = State {
            memtable: 0.0,
            l0_files: 0,
            flushed: (self.distinct)(self.memtable),
            levels: vec![0.0; count],
            beside_l1: 0.0,
            job: None,
        };
        let mut sums = Sums {
            levels: vec![0.0; count],
            moved_in: vec![0.0; count + 1],
            ..Sums::default()
        };
        let step_s = (self.warm_up_s + self.duration_s) / f64::from(STEPS);
        for step in 0..STEPS {
            let now_s = f64::from(step) * step_s;
            let is_measured = now_s >= self.warm_up_s;
            self.step(&mut state, &mut sums, now_s, step_s, is_measured);
        }
        self.means(&sums)
    }

    fn step(&self, state: &mut State, sums: &mut Sums, now_s: f64, step_s: f64, is_measured: bool) {
        let files = state.l0_files as f64;
        let delayed = DELAYED_BYTES_PER_S / self.record_bytes;
        let rate = match files {
            files if files >= self.stop_files => 0.0,
            files if files >= self.slowdown_files => self.writes_per_s.min(delayed),
            _ => self.writes_per_s,
        };
        let writes = rate * step_s;
        state.memtable += writes;
        let mut flushed = 0.0;
        // Bound: a step is far shorter than a memtable takes; what is left waits for the next.
        if state.memtable >= self.memtable {
            state.memtable -= self.memtable;
            state.l0_files += 1;
            flushed = state.flushed;
        }
        let (mut reread, mut rewritten, mut is_l0, mut into) = (0.0, 0.0, false, None);
        if state.job.as_ref().is_some_and(|job| job.ends_s <= now_s)
            && let Some(job) = state.job.take()
        {
            self.end(state, &job);
            (reread, rewritten, is_l0) = (job.reads, job.writes, job.level == 0);
            into = (job.level > 0).then_some((job.level, job.writes));
        }
        if state.job.is_none() {
            state.job = self.next_job(state, now_s);
        }
        if !is_measured {
            return;
        }
        sums.seconds += step_s;
        sums.writes += writes;
        sums.l0_files += files * step_s;
        sums.memtable += state.memtable * step_s;
        sums.flushed += flushed;
        sums.reread += reread;
        sums.rewritten += rewritten;
        sums.l0_jobs += f64::from(u8::from(is_l0));
        if let Some((level, records)) = into {
            sums.moved_in[level] += records;
        }
        for (sum, level) in sums.levels.iter_mut().zip(&state.levels) {
            *sum += level * step_s;
        }
    }

    /// The compaction of the level with the highest score, if any is at its target.
    fn next_job(&self, state: &State, now_s: f64) -> Option<Job> {
        let files = state.l0_files as f64;
        let (l0_writes, l0_records) = (files * self.memtable, files * state.flushed);
        let first = self.targets.first().copied().unwrap_or(self.data);
        let mut best = (files / self.trigger_files).max(l0_records / first);
        let mut level = 0;
        for (at, (size, target)) in state.levels.iter().zip(&self.targets).enumerate() {
            if size / target > best {
                (best, level) = (size / target, at + 1);
            }
        }
        if best < 1.0 {
            return None;
        }
        let (takes, files, reads, writes) = match level {
            0 => {
                let below = self.size(state, 0);
                let merged = match state.levels.is_empty() {
                    true => self.data,
                    false => (self.distinct)(l0_writes + self.writes_of(below)),
                };
                (l0_writes, state.l0_files, l0_records + below, merged)
            }
            _ => {
                let beside = if level == 1 { state.beside_l1 } else { 0.0 };
                let size = state.levels[level - 1];
                let below = (self.size(state, level) - beside).max(0.0);
                let moved = self.file.min(size);
                // Files that overlap nothing move without being rewritten.
                let rewritten = moved * REWRITE_SCALE * (below / size).powf(REWRITE_POWER);
                (moved, 0, rewritten, rewritten)
            }
        };
        Some(Job {
            ends_s: now_s + 0.5 * (reads + writes) * self.rewrite_s,
            level,
            takes,
            files,
            reads,
            writes,
        })
    }

    /// Records of the level at this place below L0; the last holds the data.
    fn size(&self, state: &State, at: usize) -> f64 {
        state.levels.get(at).copied().unwrap_or(self.data)
    }

    fn end(&self, state: &mut State, job: &Job) {
        if job.level == 0 {
            state.l0_files -= job.files;
            state.beside_l1 = 0.0;
            if let Some(first) = state.levels.first_mut() {
                *first = job.writes;
            }
            return;
        }
        let at = job.level - 1;
        let (size, below) = (state.levels[at], self.size(state, at + 1));
        let share = (job.takes / size.max(1.0)).min(1.0);
        state.levels[at] = (size - job.takes).max(0.0);
        if let Some(next) = state.levels.get_mut(at + 1) {
            let both = (self.distinct)(self.writes_of(size) + self.writes_of(below));
            let more = share * (both - below).max(0.0);
            *next += more;
            if at == 0 {
                state.beside_l1 += more;
            }
        }
    }

    /// Writes among which so many records are distinct.
    fn writes_of(&self, records: f64) -> f64 {
        if records <= 0.0 {
            return 0.0;
        }
        let (mut low, mut high) = (records, records);
        // Bounds: doublings until there are enough, at most a million times as many; then halvings.
        for _ in 0..20 {
            if (self.distinct)(high) >= records {
                break;
            }
            (low, high) = (high, 2.0 * high);
        }
        for _ in 0..30 {
            let middle = 0.5 * (low + high);
            match (self.distinct)(middle) < records {
                true => low = middle,
                false => high = middle,
            }
        }
        high
    }

    fn means(&self, sums: &Sums) -> Filled {
        let seconds = sums.seconds.max(f64::MIN_POSITIVE);
        let writes = sums.writes.max(f64::MIN_POSITIVE);
        let levels: Vec<f64> = sums.levels.iter().map(|sum| sum / seconds).collect();
        let lifetime = |at: usize| {
            let size = levels.get(at).copied().unwrap_or(self.data);
            let moved = sums.moved_in.get(at).copied().unwrap_or(0.0);
            (moved > 0.0).then(|| size / moved * writes)
        };
        Filled {
            done_share: writes / (self.writes_per_s * seconds),
            l0_files: sums.l0_files / seconds,
            in_memtable: sums.memtable / seconds,
            flushed: sums.flushed / writes,
            rewritten: sums.rewritten / writes,
            reread: sums.reread / writes,
            l0_interval: (sums.l0_jobs > 0.0).then(|| writes / sums.l0_jobs),
            lifetimes: (1..=levels.len()).map(lifetime).collect(),
            levels,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filling(distinct: &dyn Fn(f64) -> f64) -> Filling<'_> {
        Filling {
            distinct,
            memtable: 1000.0,
            file: 1000.0,
            targets: vec![4000.0, 40_000.0],
            data: 100_000.0,
            trigger_files: 4.0,
            slowdown_files: 20.0,
            stop_files: 36.0,
            record_bytes: 1000.0,
            rewrite_s: 1e-6,
            writes_per_s: 1000.0,
            warm_up_s: 0.0,
            duration_s: 10.0,
        }
    }

    #[test]
    fn a_short_run_pays_less_than_the_steady_state() {
        let even = |writes: f64| 1e5 * -(-writes / 1e5).exp_m1();
        let short = filling(&even).run();
        let long = Filling {
            warm_up_s: 300.0,
            duration_s: 300.0,
            ..filling(&even)
        }
        .run();
        assert!((short.done_share - 1.0).abs() < 1e-9 && (long.done_share - 1.0).abs() < 1e-9);
        // 0.161 of it.
        assert!(
            short.rewritten < 0.165 * long.rewritten,
            "{short:?} {long:?}"
        );
        // L0 into L1 is rewritten about twice, L1 into L2 and L2 into L3 some 5.8 and 2.2 times: `lsm::levels`.
        // Together 7.22 here, since the last level is not full; 39,760 records are in the first level below L1.
        assert!((7.15..7.3).contains(&long.rewritten), "{long:?}");
        assert!((39_500.0..40_000.0).contains(&long.levels[1]), "{long:?}");
    }

    #[test]
    fn writers_wait_for_a_compaction_that_does_not_keep_up() {
        let even = |writes: f64| 1e5 * -(-writes / 1e5).exp_m1();
        let slow = Filling {
            rewrite_s: 300e-6,
            writes_per_s: 50_000.0,
            duration_s: 60.0,
            ..filling(&even)
        }
        .run();
        // 0.050 and 34.8 of at most 36.
        assert!(slow.done_share < 0.051 && slow.l0_files > 34.5, "{slow:?}");
    }

    /// What leaves L1 file by file overlaps nothing that went before it: no file is rewritten until L1 is another.
    #[test]
    fn files_of_l1_move_beside_each_other_without_being_rewritten() {
        let even = |writes: f64| 1e5 * -(-writes / 1e5).exp_m1();
        let filling = filling(&even);
        let rewritten = |beside_l1| {
            let mut state = State {
                memtable: 0.0,
                l0_files: 0,
                flushed: 995.0,
                levels: vec![5000.0, 2000.0],
                beside_l1,
                job: None,
            };
            let job = filling.next_job(&state, 0.0).unwrap();
            assert_eq!((job.level, job.takes), (1, 1000.0));
            filling.end(&mut state, &job);
            (job.writes, state.beside_l1 > beside_l1)
        };
        assert_eq!(rewritten(2000.0), (0.0, true));
        // 1,000 records of 5,000 where 2,000 lie below.
        let (some, _) = rewritten(0.0);
        // Measured 605.5.
        assert!((600.0..610.0).contains(&some), "{some}");
    }

    #[test]
    fn popular_records_are_flushed_once_for_many_writes() {
        let few = |writes: f64| 100.0 * -(-writes / 100.0).exp_m1();
        let filled = filling(&few).run();
        // A tenth: 100 records of every 1,000 writes.
        assert!(filled.flushed < 0.101, "{filled:?}");
    }
}
