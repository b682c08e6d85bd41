//! The plan of one seed: sizes, workload and faults, all drawn from it.

use std::ops::RangeInclusive;
use std::time::Duration;

use isobath::{Durability, Options, PolicyKind, Small};
use isobath_io::{Fault, FaultPlan, FaultRule, IoErrorKind, Op, Survivors, Trigger};

use crate::random::Random;

/// Bytes of a segment in simulated stores; of a small one, if there are large ones.
const SEGMENT: u64 = 64 << 10;
/// Bytes of their logs: as few as can be.
const LOG: u64 = 4 << 20;
/// Bytes that a log device has before its log.
pub(crate) const LOG_HEADERS: u64 = 64 << 10;

/// How many of a hundred runs without power cuts have a log.
const LOGGED_PERCENT: u64 = 80;
/// How many of a hundred logs have a device of their own.
const APART_PERCENT: u64 = 35;

/// How many of a hundred runs drop many trees.
const DROPS_PERCENT: u64 = 25;

/// How many of a hundred runs are long ones, and how much longer.
const LONG_PERCENT: u64 = 6;
const LONG_FACTOR: u64 = 15;

/// A kind of fault that a campaign may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum FaultKind {
    /// Power cuts, between runs and during recovery.
    Power,
    /// I/Os that fail.
    Io,
    /// Bits of stored bytes change.
    Rot,
    /// Writes land elsewhere.
    Misdirected,
    /// Writes are acknowledged and dropped.
    Lost,
    /// Some I/Os take a thousand times longer.
    Slow,
    /// The device is full at times.
    Full,
}

/// Corruption of stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Corruption {
    Rot,
    Misdirected,
    Lost,
}

/// The faults of one seed.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    pub(crate) power: bool,
    /// Operations that fail, and how many of a million.
    pub(crate) io: Option<(Op, u32)>,
    pub(crate) corruption: Option<Corruption>,
    pub(crate) slow: bool,
    pub(crate) full: bool,
}

/// The subject of a campaign.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Shape {
    /// The workload that seeds have always had.
    Drawn,
    /// That, and what they did not always do.
    More,
    /// Clients that add large values while small checkpoints are written.
    Growing,
    /// Many short rounds, whose power is cut.
    Restless,
    /// More of them, each with a few operations.
    Brief,
    /// Backups, one after another.
    Copied,
    /// A volume that is hardly larger than what it holds, and so is cleaned all the time.
    Crowded,
    /// Transactions that spill, and so become runs.
    Spilling,
    /// Every call of the interface, while the log changes its extents and the volume becomes longer
    /// and shorter.
    Calls,
    /// Trees with overlays, whose memories are small.
    Overlaid,
    /// A copy that follows the store's stream of changes.
    Streamed,
}

/// Everything that a seed decides before it runs.
#[derive(Debug, Clone)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    pub(crate) workers: usize,
    pub(crate) tasks: usize,
    pub(crate) actors: u64,
    /// Operations of each actor and round.
    pub(crate) operations: u64,
    pub(crate) rounds: u64,
    pub(crate) trees: usize,
    pub(crate) own_keys: u64,
    pub(crate) shared_keys: u64,
    pub(crate) counters: u64,
    pub(crate) large_values: bool,
    /// Much of the work is making, filling and dropping a tree with large values.
    pub(crate) drops: bool,
    /// Of a hundred operations, those that are transactions.
    pub(crate) transactions: u64,
    /// When operations outside transactions are acknowledged.
    pub(crate) durability: Durability,
    /// Bytes of old values that are kept for snapshots.
    pub(crate) version_bytes: u64,
    pub(crate) extra_frames: u64,
    /// How segments to clean are chosen.
    pub(crate) policy: PolicyKind,
    /// Whether there is a log; without one no power may be cut.
    pub(crate) log: bool,
    /// Whether the log has a device of its own, with a write cache of its own.
    pub(crate) separate_log: bool,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) latency_us: RangeInclusive<u64>,
    pub(crate) atomic_unit: u32,
    pub(crate) faults: Faults,
    pub(crate) more: More,
}

/// Operations of campaigns beyond the workload that seeds have always had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct More {
    /// Trees that come and go, each with a client of its own.
    pub(crate) passing: usize,
    /// Of a hundred operations on them, those that load many records.
    pub(crate) loads: u64,
    /// Snapshots that a client holds at a time, at most.
    pub(crate) held_snapshots: usize,
    /// Stores on the drive that are opened beside the running one, per round.
    pub(crate) beside: u64,
    /// Sizes that make tables and logs come round soon.
    pub(crate) small: Small,
    /// Of a hundred operations of a client without such a tree, those on the trees of others.
    pub(crate) visits: u64,
    /// Transactions remove what they have read.
    pub(crate) deletes: bool,
    /// Clients that only add large values.
    pub(crate) growers: u64,
    /// Values are as long as fit into leaves.
    pub(crate) wide: bool,
    /// Of a hundred I/Os, those that are slow.
    pub(crate) slow: u32,
    /// Backups in each round, at most.
    pub(crate) backups: u64,
    /// The power goes within so many steps, each as likely as the others.
    pub(crate) cut_within: Option<u64>,
    /// Zeros are written to what the volume grows by.
    pub(crate) initializes: bool,
    /// Of a hundred operations, those that are calls beyond plain reads and writes (`calls.rs`).
    pub(crate) calls: u64,
    /// The log begins small, and becomes longer.
    pub(crate) grows_log: bool,
    /// Looks at what is on the drive when the newest superblock is corrupt, per round.
    pub(crate) superblocks: u64,
    /// A copy follows the stream of changes.
    pub(crate) streams: bool,
}

impl Default for More {
    fn default() -> More {
        More {
            passing: 1,
            loads: 0,
            held_snapshots: 0,
            beside: 0,
            small: Small {
                words_per_page: None,
                checkpoint_bytes: None,
                spill_bytes: None,
                overlay_bytes: None,
            },
            visits: 0,
            deletes: false,
            growers: 0,
            wide: false,
            slow: 1,
            backups: 0,
            cut_within: None,
            initializes: false,
            calls: 0,
            grows_log: false,
            superblocks: 0,
            streams: false,
        }
    }
}

impl More {
    fn draw(random: &mut Random) -> More {
        let mut more = More {
            passing: 1 + random.below(3) as usize,
            loads: random.one_of(&[0, 15, 40]),
            held_snapshots: random.one_of(&[0, 0, 2, 5]),
            beside: random.one_of(&[0, 3, 6]),
            small: Small {
                words_per_page: random.one_of(&[None, Some(32), Some(64), Some(128)]),
                checkpoint_bytes: random.one_of(&[
                    None,
                    Some(4 << 10),
                    Some(16 << 10),
                    Some(64 << 10),
                ]),
                spill_bytes: None,
                overlay_bytes: None,
            },
            visits: random.one_of(&[0, 10, 30]),
            deletes: random.chance(50),
            growers: random.one_of(&[0, 0, 1]),
            backups: random.one_of(&[0, 0, 0, 2]),
            initializes: random.chance(50),
            ..More::default()
        };
        // Behind what seeds drew before.
        more.small.spill_bytes = random.one_of(&[None, None, None, Some(0), Some(300), Some(2000)]);
        more.calls = random.one_of(&[0, 0, 0, 0, 10, 40]);
        more.grows_log = random.chance(10);
        more.superblocks = random.one_of(&[0, 0, 3]);
        more
    }
}

impl Scenario {
    /// Whether the store shows a commit once it is durable.
    pub(crate) fn shows_late(&self) -> bool {
        self.log && self.durability == Durability::Synced
    }

    /// The scenario of `seed`, with faults of the kinds `allowed` only.
    pub(crate) fn draw(seed: u64, allowed: &[FaultKind]) -> Scenario {
        let mut random = Random::new(seed ^ 0x0073_6365_6e61_7269);
        let faults = Faults::draw(&mut random, allowed);
        let workers = 1 + random.below(4) as usize;
        let actors = 1 + random.below(12);
        let full = faults.full;
        let mut scenario = Scenario {
            seed,
            workers,
            tasks: 2 + random.below(7) as usize,
            actors,
            operations: 10 + random.skewed(1500) / actors.div_ceil(4),
            rounds: 1 + random.below(3),
            trees: 1 + random.below(3) as usize,
            own_keys: 1 + random.skewed(400),
            shared_keys: 1 + random.skewed(24),
            counters: 1 + random.skewed(12),
            transactions: random.one_of(&[0, 20, 50, 80]),
            durability: random.one_of(&[
                Durability::Synced,
                Durability::Synced,
                Durability::Buffered { window_ms: 3 },
                Durability::None,
            ]),
            version_bytes: random.one_of(&[2 << 10, 64 << 10, 1 << 20]),
            large_values: random.chance(60),
            drops: false,
            log: faults.power || random.chance(LOGGED_PERCENT),
            separate_log: false,
            extra_frames: random.one_of(&[0, 0, 40, 400]),
            policy: Random::new(seed ^ 0x706f_6c69_6379).one_of(&[
                PolicyKind::LifeTable,
                PolicyKind::LifeTable,
                PolicyKind::LifeTable,
                PolicyKind::Mdc,
                PolicyKind::Mdc,
                PolicyKind::MultiLog,
            ]),
            limit_bytes: full.then(|| LOG + (2 << 20) + random.below(8) * (512 << 10)),
            latency_us: 0..=random.one_of(&[0, 5, 40, 200]),
            atomic_unit: random.one_of(&[512, 512, 4096]),
            faults,
            more: More::default(),
        };
        // Long enough for checkpoints beside the work, and logs that come round.
        if random.chance(LONG_PERCENT) {
            scenario.operations *= LONG_FACTOR;
        }
        scenario.separate_log = random.chance(APART_PERCENT) && scenario.log;
        if scenario.separate_log {
            // As full as it would be with the log on it.
            scenario.limit_bytes = scenario.limit_bytes.map(|limit| limit - LOG);
        }
        scenario.drops = random.chance(DROPS_PERCENT);
        scenario
    }

    /// The same with what seeds did not always do.
    pub(crate) fn with_more(mut self) -> Scenario {
        let mut random = Random::new(self.seed ^ 0x6d6f_7265);
        self.more = More::draw(&mut random);
        self.more.passing = self.more.passing.min(self.actors as usize);
        self.more.growers = self.more.growers.min(self.actors - 1);
        if !self.log
            || self.faults.io.is_some()
            || self.faults.corruption.is_some()
            || self.faults.full
        {
            // Where reading or writing fails, so does a backup.
            self.more.backups = 0;
        }
        if self.limit_bytes.is_some() {
            // A volume keeps space for checkpoints whose pages are full.
            self.more.small.words_per_page = None;
        }
        if self.more.backups > 0 {
            // What restores a backup lays out full pages.
            self.more.small.words_per_page = None;
        }
        self.more.grows_log &= self.may_grow_log();
        if self.more.grows_log {
            // A log grows when checkpoints are due.
            let bytes = self.more.small.checkpoint_bytes.unwrap_or(64 << 10);
            self.more.small.checkpoint_bytes = Some(bytes.max(16 << 10));
        }
        // A load is a task of its own, which its caller's task waits for; and there is one more for
        // looks and backups.
        let per_worker = (self.actors as usize).div_ceil(self.workers);
        self.tasks = self.tasks.max(per_worker + self.more.passing + 1);
        self
    }

    /// The same for a campaign that is about something.
    pub(crate) fn shaped(self, shape: Shape) -> Scenario {
        match shape {
            Shape::Drawn => self,
            Shape::More => self.with_more(),
            Shape::Growing => self.growing(),
            Shape::Restless => self.restless(),
            Shape::Brief => self.brief(),
            Shape::Copied => self.copied(),
            Shape::Crowded => self.crowded(),
            Shape::Spilling => self.spilling(),
            Shape::Calls => self.calling(),
            Shape::Overlaid => self.overlaid(),
            Shape::Streamed => self.streamed(),
        }
    }

    /// Whether the log may begin small and move.
    fn may_grow_log(&self) -> bool {
        self.log && !self.separate_log && self.limit_bytes.is_none()
    }

    fn growing(mut self) -> Scenario {
        self.workers = self.workers.max(2);
        self.actors = 6;
        self.operations = 100 + self.operations % 100;
        self.rounds = 1;
        // A checkpoint is seen by what is left after closing.
        self.faults.power &= self.seed.is_multiple_of(4);
        self.faults.slow = true;
        self.own_keys = self.own_keys.min(8);
        self.limit_bytes = None;
        self.faults.full = false;
        self.log = true;
        self.latency_us = 0..=200;
        self = self.with_more();
        self.more.growers = 4;
        self.more.backups = 0;
        self.more.passing = 1;
        self.more.beside = 6;
        self.more.small = Small {
            words_per_page: Some(8),
            checkpoint_bytes: Some(32 << 10),
            spill_bytes: None,
            overlay_bytes: None,
        };
        self.more.slow = 5;
        self
    }

    fn restless(mut self) -> Scenario {
        self.workers = self.workers.max(2);
        self.actors = self.actors.max(4);
        self.operations = 8 + self.operations % 40;
        self.rounds = 6;
        self.transactions = self.transactions.max(20);
        self.latency_us = 0..=200;
        self.drops = true;
        self = self.with_more();
        self.more.loads = 40;
        self.more.deletes = true;
        self.more.beside = 0;
        self.more.small.checkpoint_bytes = None;
        self.more.cut_within = Some(1_500);
        self
    }

    fn brief(mut self) -> Scenario {
        self.workers = self.workers.max(2);
        self.actors = 4 + self.actors % 4;
        self.operations = 2 + self.operations % 6;
        self.rounds = 10;
        self.trees = 1;
        self.own_keys = self.own_keys.min(12);
        self.shared_keys = self.shared_keys.min(6);
        self.counters = self.counters.min(4);
        self.transactions = self.transactions.max(50);
        self.large_values = false;
        self.latency_us = 0..=1000;
        self.atomic_unit = 512;
        self = self.with_more();
        self.more.wide = true;
        self.more.beside = 0;
        self.more.small.checkpoint_bytes = None;
        self.more.cut_within = Some(500);
        self
    }

    fn copied(mut self) -> Scenario {
        self.actors = self.actors.max(4);
        self.operations = self.operations.min(300);
        self.large_values = true;
        self.drops = true;
        // In a volume that is nearly full, what is freed is used again at once.
        let is_crowded = self.seed.is_multiple_of(2);
        let log = if self.separate_log { 0 } else { LOG };
        self.limit_bytes = is_crowded.then(|| log + (2 << 20) + self.seed % 4 * (256 << 10));
        self.faults.full = is_crowded;
        // Where reading or writing fails, so does a backup.
        (self.faults.io, self.faults.corruption) = (None, None);
        self.log = true;
        self = self.with_more();
        self.more.beside = 0;
        self.more.backups = 5;
        self.more.growers = u64::from(!is_crowded);
        // While a backup waits for its reads, others use space again.
        self.faults.slow = true;
        self.more.slow = 10;
        self.latency_us = 0..=200;
        self.more.small.words_per_page = None;
        self
    }

    fn streamed(mut self) -> Scenario {
        self.actors = self.actors.max(4);
        self.operations = self.operations.min(400);
        self.rounds = self.rounds.max(2);
        self.large_values = true;
        self.drops = true;
        // Where reading or writing fails, so does a stream.
        (self.faults.io, self.faults.corruption) = (None, None);
        self.log = true;
        self = self.with_more();
        if self.seed.is_multiple_of(4) {
            self = self.overlaid();
        }
        self.more.beside = 0;
        self.more.backups = 0;
        self.more.streams = true;
        self
    }

    fn crowded(mut self) -> Scenario {
        self.actors = self.actors.max(6);
        self.operations *= 4;
        self.rounds = self.rounds.max(2);
        self.large_values = true;
        self.drops = true;
        self.faults.full = true;
        if self.seed.is_multiple_of(2) {
            // What frees something becomes durable late.
            self.durability = Durability::None;
        }
        let log = if self.separate_log { 0 } else { LOG };
        self.limit_bytes = Some(log + (2 << 20) + self.seed % 4 * (256 << 10));
        self = self.with_more();
        self.more.beside = 4;
        self.more.cut_within = Some(20_000);
        self
    }

    fn spilling(mut self) -> Scenario {
        self.workers = self.workers.max(2);
        self.actors = self.actors.max(3);
        self.operations = 8 + self.operations % 100;
        self.rounds = 4;
        self.trees = self.trees.max(2);
        self.transactions = self.transactions.max(50);
        self.log = true;
        self = self.with_more();
        self.more.deletes = true;
        self.more.beside = self.seed % 3;
        self.more.small.spill_bytes = Some([0, 300, 2000][self.seed as usize % 3]);
        self.more.cut_within = (!self.seed.is_multiple_of(3)).then_some(4_000);
        self
    }

    fn calling(mut self) -> Scenario {
        self.workers = self.workers.max(2);
        self.actors = self.actors.max(4);
        self.operations = 40 + self.operations % 200;
        self.rounds = 3;
        if self.seed.is_multiple_of(4) {
            // A store without a log is whole once it is closed.
            (self.log, self.separate_log, self.faults.power) = (false, false, false);
        }
        self = self.with_more();
        self.more.calls = 70;
        self.more.superblocks = 8;
        self.more.beside = 4;
        self.more.grows_log = self.seed % 4 < 3 && self.may_grow_log();
        self.more.small.checkpoint_bytes = Some(32 << 10);
        self
    }

    fn overlaid(mut self) -> Scenario {
        let mut random = Random::new(self.seed ^ 0x6f76_6572_6c61_7973);
        self.workers = self.workers.max(2);
        self.actors = self.actors.max(3);
        self.operations = 60 + self.operations % 500;
        self.rounds = self.rounds.max(2);
        self.own_keys = self.own_keys.max(100);
        self.trees = self.trees.min(2);
        // A full volume takes no removals yet, and may not close.
        (self.faults.full, self.limit_bytes) = (false, None);
        self = self.with_more();
        self.more.small.overlay_bytes = Some(random.one_of(&[1 << 10, 4 << 10, 16 << 10]));
        self.more.cut_within = match random.below(3) {
            0 => None,
            _ => Some(random.one_of(&[4_000, 20_000])),
        };
        self
    }

    /// A short run for crash points at every I/O.
    pub(crate) fn short(seed: u64) -> Scenario {
        let mut random = Random::new(seed);
        let mut scenario = Scenario::draw(seed, &[FaultKind::Power]);
        scenario.actors = 1 + random.below(4);
        scenario.operations = 6 + random.below(24);
        scenario.rounds = 1;
        scenario.faults.power = true;
        scenario.log = true;
        scenario.own_keys = 1 + random.below(30);
        if seed.is_multiple_of(4) {
            scenario.transactions = scenario.transactions.max(50);
            scenario.more.small.spill_bytes = Some(0);
        }
        scenario
    }

    /// How the store is created and opened.
    pub(crate) fn options(&self) -> Options {
        let (workers, tasks) = (self.workers as u64, self.tasks as u64);
        let frames = 128 + 64 * workers + 4 * workers * tasks + self.extra_frames;
        let overlays = self.more.small.overlay_bytes.is_some();
        let options = Options::new()
            .durability(self.durability)
            .version_store_bytes(self.version_bytes)
            .pool_bytes(frames * 4224 + self.version_bytes)
            .workers(self.workers)
            .tasks_per_worker(self.tasks)
            .depth_per_worker(16)
            .cleaning_policy(self.policy)
            .segment_bytes(SEGMENT as u32)
            .volume_limit_bytes(self.limit_bytes)
            .overlays(overlays);
        match self.log {
            true if self.more.grows_log => options,
            true => options.log_bytes(LOG),
            false => options.log_bytes(0),
        }
    }

    /// The device's behaviour in round `round`, before faults are armed.
    pub(crate) fn device(&self, round: u64) -> FaultPlan {
        let seed = self.seed ^ (round + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut plan = FaultPlan::new(seed)
            .latency_us(self.latency_us.clone())
            .atomic_unit(self.atomic_unit)
            .max_bytes(self.limit_bytes)
            .first_writes_cost_more(self.more.initializes)
            .log_bytes(if self.separate_log {
                LOG_HEADERS + LOG
            } else {
                0
            });
        if self.faults.slow {
            let slow = Fault::Delay(Duration::from_millis(20));
            plan = plan.rule(FaultRule::new(
                slow,
                Trigger::Probability(f64::from(self.more.slow) / 100.0),
            ));
        }
        plan
    }

    /// Superblocks lie before this byte; they are written twice, and a run that
    /// loses both says nothing more.
    pub(crate) fn first_byte_at_risk(&self) -> u64 {
        SEGMENT
    }

    /// Faults while actors work, other than power cuts.
    pub(crate) fn rules(&self) -> Vec<FaultRule> {
        let mut rules = Vec::new();
        if let Some((op, per_million)) = self.faults.io {
            let share = Trigger::Probability(f64::from(per_million) / 1e6);
            let error = Fault::Error(IoErrorKind::Media);
            rules.push(FaultRule::new(error, share).ops(&[op]));
        }
        let fault = match self.faults.corruption {
            Some(Corruption::Misdirected) => Fault::Misdirected,
            Some(Corruption::Lost) => Fault::Lost,
            Some(Corruption::Rot) | None => return rules,
        };
        let share = Trigger::Probability(0.004);
        let rule = FaultRule::new(fault, share).ops(&[Op::Write, Op::WriteV]);
        rules.push(rule.region(self.first_byte_at_risk()..u64::MAX));
        rules
    }
}

impl Faults {
    /// Whether writes or flushes may fail.
    pub(crate) fn fails_writes(&self) -> bool {
        self.io.is_some_and(|(op, _)| op != Op::Read)
    }

    fn draw(random: &mut Random, allowed: &[FaultKind]) -> Faults {
        let may = |kind| allowed.contains(&kind);
        // Drawn whether allowed or not, so that the rest of the scenario stays.
        let (power, main) = (random.chance(75), random.below(20));
        let (slow, full) = (random.chance(15), random.chance(20));
        let io_op = random.one_of(&[Op::Read, Op::Write, Op::Flush]);
        let per_million = random.one_of(&[1_000, 5_000, 30_000]);
        let corruption = match main {
            0 if may(FaultKind::Rot) => Some(Corruption::Rot),
            1 if may(FaultKind::Misdirected) => Some(Corruption::Misdirected),
            2 if may(FaultKind::Lost) => Some(Corruption::Lost),
            _ => None,
        };
        let only = match allowed {
            [FaultKind::Rot] => Some(Corruption::Rot),
            [FaultKind::Misdirected] => Some(Corruption::Misdirected),
            [FaultKind::Lost] => Some(Corruption::Lost),
            _ => None,
        };
        let io = may(FaultKind::Io) && ((3..6).contains(&main) || allowed.len() == 1);
        let corruption = corruption.or(only);
        Faults {
            power: power && may(FaultKind::Power) && corruption.is_none(),
            io: io.then_some((io_op, per_million)),
            corruption,
            slow: slow && may(FaultKind::Slow),
            full: full && may(FaultKind::Full),
        }
    }
}

/// The fate of unflushed writes in one power cut: of those to the data, and of those to a log
/// device.
pub(crate) fn survivors(random: &mut Random, has_log_device: bool) -> (Survivors, Survivors) {
    let data = draw_survivors(random);
    let log = if has_log_device {
        draw_survivors(random)
    } else {
        data
    };
    (data, log)
}

fn draw_survivors(random: &mut Random) -> Survivors {
    random.one_of(&[
        Survivors::Random,
        Survivors::Random,
        Survivors::Random,
        Survivors::None,
        Survivors::Executed,
    ])
}
