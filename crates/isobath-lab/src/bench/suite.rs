//! Campaigns as files: named rows, each run on every engine with the same data, cache, durability
//! and clients.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::campaign::Case;
use super::catalogue::Workload;
use super::place::{RunPlace, VirtualSsdPlace};
use super::plan::Plan;
use super::ratio::schedule;
use crate::LabError;
use crate::engine::{
    DriveProfile, DriveState, EngineConfig, EngineKind, SimulatedDrive, SpaceConfig,
};
use crate::names::named;

/// The campaign that the repository holds.
const FIRST: &str = include_str!("../../campaigns/first.toml");
/// Rows of a campaign at most.
pub const SUITE_ROWS_MAX: usize = 30;
/// Cache that holds everything: so many times the data, and so many bytes beside.
const IN_MEMORY_POOL_FACTOR: f64 = 2.0;
const IN_MEMORY_POOL_SPARE: u64 = 64 << 20;
/// Bytes of a cache at least.
const POOL_MIN: u64 = 8 << 20;
/// Clients per core that wait for a drive, and I/Os in flight per worker of Isobath.
const WAITING_PER_CORE: usize = 64;
/// Tasks per worker of Isobath that wait for nothing: they overlap their cache misses.
const BUSY_TASKS_PER_CORE: usize = 8;
/// Share of a simulated drive that the data fill, and of its flash that the engine cannot write to.
const SIMULATED_FILL: f64 = 0.5;
const OVER_PROVISIONING: f64 = 0.125;

/// A campaign: its rows, and how large and long their runs are.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    /// Its name.
    pub name: String,
    /// A description, in a sentence.
    pub about: String,
    /// Engines of every row, the first of which the others are compared with.
    pub engines: Vec<EngineKind>,
    /// Sizes of a run if nothing else is asked for.
    pub quick: SuiteSizes,
    /// Sizes of a long run.
    pub full: SuiteSizes,
    /// The rows, in the order in which they run.
    pub rows: Vec<SuiteRow>,
}

/// How large and long the runs of a campaign are.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteSizes {
    /// Data of rows in memory, MiB.
    pub in_memory_mib: u64,
    /// Data of rows out of memory, MiB.
    pub out_of_memory_mib: u64,
    /// Capacity of simulated drives, MiB.
    pub simulated_mib: u64,
    /// Cache of rows out of memory and on simulated drives, as a share of the data.
    pub pool_share: f64,
    /// Seconds before measuring.
    pub warm_up_s: f64,
    /// Seconds measured.
    pub measure_s: f64,
    /// Seconds of each measurement of the drive's own limit, before and after a run out of memory.
    pub drive_s: f64,
}

named! {
    /// The place of a row's data.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum SuiteData {
        /// On a drive and in the cache, which holds everything.
        InMemory = "in memory",
        /// On a drive; the cache holds a share.
        OutOfMemory = "out of memory",
        /// On a simulated drive whose blocks were all discarded.
        SimulatedTrimmed = "simulated SSD, trimmed",
        /// On a simulated drive that was written in full, and twice at random.
        SimulatedPreconditioned = "simulated SSD, preconditioned",
    }
}

impl SuiteData {
    fn drive_state(self) -> Option<DriveState> {
        match self {
            SuiteData::InMemory | SuiteData::OutOfMemory => None,
            SuiteData::SimulatedTrimmed => Some(DriveState::Trimmed),
            SuiteData::SimulatedPreconditioned => Some(DriveState::Preconditioned),
        }
    }
}

named! {
    /// Whether a row's engines log.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum SuiteLog {
        /// A commit is on the drive before it is acknowledged.
        #[default]
        On = "on",
        /// Nothing is logged; a crash loses the store.
        Off = "off",
    }
}

/// One row: a workload under stated conditions.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteRow {
    /// Its name, different from the other rows'.
    pub name: String,
    /// Name of its workload.
    pub workload: String,
    /// The place of the data.
    pub data: SuiteData,
    /// Whether the engines log.
    #[serde(default)]
    pub log: SuiteLog,
}

/// The caller's choices of a campaign.
#[derive(Debug, Clone, Default)]
pub struct SuiteChoice {
    /// Whether the runs are long.
    pub full: bool,
    /// Engines in place of the campaign's own.
    pub engines: Option<Vec<EngineKind>>,
    /// Rows whose names are or begin with one of these; all if there are none.
    pub rows: Vec<String>,
    /// How long to measure, in place of the campaign's own.
    pub duration: Option<Duration>,
    /// How long to run before measuring, in place of the campaign's own.
    pub warm_up: Option<Duration>,
    /// Bytes of data of every row, in place of the campaign's own.
    pub data_bytes: Option<u64>,
    /// Shares of a row's data with which each engine runs it, with the cache and the drive of the
    /// whole; all of it if there are none.
    pub sizes: Vec<f64>,
    /// How often each engine runs each row.
    pub repeats: usize,
    /// Whether RocksDB runs each row once more with its blocks aligned to pages of the drive.
    pub block_align: bool,
    /// Directory in which engines make their files.
    pub directory: PathBuf,
    /// The file in which a file system is made for each run; see [`super::make_region`].
    pub region: Option<PathBuf>,
    /// The place of virtual SSDs, so that every engine runs rows of simulated drives; without it
    /// only Isobath does, in this process.
    pub virtual_ssd: Option<VirtualSsdPlace>,
    /// Whether the drive's own limit is measured.
    pub measures_drive: bool,
    /// Seed of keys and of the order of runs.
    pub seed: u64,
}

impl SuiteChoice {
    fn place(&self, is_simulated: bool) -> Option<RunPlace> {
        match is_simulated {
            true => self.virtual_ssd.clone().map(RunPlace::VirtualSsd),
            false => self.region.clone().map(RunPlace::Region),
        }
    }
}

impl Suite {
    /// The campaign that the repository holds.
    ///
    /// # Errors
    /// None: a test reads it.
    pub fn first() -> Result<Suite, LabError> {
        Suite::from_toml("first", FIRST)
    }

    /// The campaign that a file describes; `name` stands in messages.
    ///
    /// # Errors
    /// [`LabError::Request`] for an unknown campaign, and for rows that cannot run.
    pub fn from_toml(name: &str, text: &str) -> Result<Suite, LabError> {
        let request = |message: String| LabError::Request(format!("{name}: {message}"));
        let suite: Suite = toml::from_str(text).map_err(|error| request(error.to_string()))?;
        if suite.rows.is_empty() || suite.rows.len() > SUITE_ROWS_MAX {
            return Err(request(format!(
                "a campaign has 1 to {SUITE_ROWS_MAX} rows, this has {}",
                suite.rows.len()
            )));
        }
        if suite.engines.is_empty() {
            return Err(request("a campaign names an engine at least".to_owned()));
        }
        for (at, row) in suite.rows.iter().enumerate() {
            Workload::named(&row.workload)?;
            if suite.rows[..at].iter().any(|other| other.name == row.name) {
                return Err(request(format!("two rows are named {}", row.name)));
            }
        }
        for sizes in [&suite.quick, &suite.full] {
            sizes.check().map_err(request)?;
        }
        Ok(suite)
    }

    /// The rows that were chosen.
    ///
    /// # Errors
    /// [`LabError::Request`] for a name that no row has or begins with.
    pub fn chosen(&self, names: &[String]) -> Result<Vec<&SuiteRow>, LabError> {
        for name in names {
            if !self.rows.iter().any(|row| row.name.starts_with(name)) {
                let all: Vec<&str> = self.rows.iter().map(|row| row.name.as_str()).collect();
                return Err(LabError::Request(format!(
                    "no row's name is or begins with `{name}`; there are {}",
                    all.join(", ")
                )));
            }
        }
        let is_chosen = |row: &&SuiteRow| {
            names.is_empty() || names.iter().any(|name| row.name.starts_with(name))
        };
        Ok(self.rows.iter().filter(is_chosen).collect())
    }

    /// The runs, row by row; within a row the engines take turns, in a random order in each repeat.
    ///
    /// # Errors
    /// [`LabError::NotBuilt`] for an engine that this build lacks; [`LabError::Request`] for sizes
    /// that are no shares, or that a cache would hold out of memory; as for [`Suite::chosen`].
    pub fn cases(&self, choice: &SuiteChoice) -> Result<Vec<Case>, LabError> {
        let is_share = |share: &f64| *share > 0.0 && *share <= 1.0;
        if !choice.sizes.iter().all(is_share) {
            return Err(LabError::Request(
                "--sizes are shares above 0, at most 1".to_owned(),
            ));
        }
        let sizes: &[f64] = match choice.sizes.is_empty() {
            true => &[1.0],
            false => &choice.sizes,
        };
        let engines = choice.engines.as_ref().unwrap_or(&self.engines);
        engines.iter().try_for_each(|kind| kind.check_built())?;
        let mut cases = Vec::new();
        for (number, row) in self.chosen(&choice.rows)?.into_iter().enumerate() {
            let is_simulated = row.data.drive_state().is_some();
            let needs_process = is_simulated && choice.virtual_ssd.is_none();
            let may_run = |kind: &EngineKind| !needs_process || *kind == EngineKind::Isobath;
            let sides = sides(engines.iter().copied().filter(may_run), choice.block_align);
            let seed = choice.seed.wrapping_add(number as u64);
            for (round, at) in schedule(sides.len() * sizes.len(), choice.repeats, seed) {
                let (side, share) = (at % sides.len(), sizes[at / sides.len()]);
                let (kind, block_align) = sides[side];
                let mut plan = self.plan(row, kind, share, choice)?;
                plan.engine.tuning.block_align = block_align;
                cases.push(Case {
                    place: choice.place(is_simulated),
                    row: Some(row.name.clone()),
                    ..Case::new(plan, side, round)
                });
            }
        }
        Ok(cases)
    }

    fn plan(
        &self,
        row: &SuiteRow,
        kind: EngineKind,
        share: f64,
        choice: &SuiteChoice,
    ) -> Result<Plan, LabError> {
        let sizes = if choice.full { &self.full } else { &self.quick };
        let workload = Workload::named(&row.workload)?;
        let in_pool = row.data == SuiteData::InMemory;
        let data_bytes = choice.data_bytes.unwrap_or(match row.data {
            SuiteData::InMemory => sizes.in_memory_mib << 20,
            SuiteData::OutOfMemory => sizes.out_of_memory_mib << 20,
            _ => ((sizes.simulated_mib << 20) as f64 * SIMULATED_FILL) as u64,
        });
        let commits_wait = row.log == SuiteLog::On && workload.mix.writes();
        let waits = row.data == SuiteData::OutOfMemory || commits_wait;
        let engine = engine(kind, row, data_bytes, sizes.pool_share, waits);
        let size = (data_bytes as f64 * share) as u64;
        if row.data == SuiteData::OutOfMemory && share < 1.0 && size <= engine.pool_bytes {
            return Err(LabError::Request(format!(
                "{}: a share of {share} of the data fits in the cache, which has {} bytes; name larger shares",
                row.name, engine.pool_bytes
            )));
        }
        let in_process = engine.simulated.is_some() && choice.virtual_ssd.is_none();
        let has_file = !in_process && kind != EngineKind::Null;
        let is_real = has_file && engine.simulated.is_none();
        let seconds = Duration::from_secs_f64;
        let duration = choice.duration.unwrap_or(seconds(sizes.measure_s));
        let depth = u32::try_from(WAITING_PER_CORE * cores()).unwrap_or(u32::MAX);
        let uses_drive = !in_pool || workload.mix.writes();
        let engine = EngineConfig {
            path: has_file.then(|| choice.directory.join(kind.file_name())),
            ..engine
        };
        let records = size / workload.record_bytes();
        Ok(Plan {
            drive_depth: (is_real && uses_drive && choice.measures_drive).then_some(depth),
            in_pool,
            warm_up: choice.warm_up.unwrap_or(seconds(sizes.warm_up_s)),
            drive_duration: seconds(sizes.drive_s).min(duration),
            seed: choice.seed,
            ..Plan::new(engine, workload, records, duration)
        })
    }
}

/// Engines, and whether their blocks are aligned; RocksDB a second time if that is asked for.
fn sides(engines: impl Iterator<Item = EngineKind>, block_align: bool) -> Vec<(EngineKind, bool)> {
    let mut sides: Vec<_> = engines.map(|kind| (kind, false)).collect();
    if block_align && sides.iter().any(|side| side.0 == EngineKind::RocksDb) {
        sides.push((EngineKind::RocksDb, true));
    }
    sides
}

/// An engine in a row, whose clients wait for a drive or do not.
fn engine(
    kind: EngineKind,
    row: &SuiteRow,
    data_bytes: u64,
    pool_share: f64,
    waits: bool,
) -> EngineConfig {
    let simulated = row.data.drive_state().map(|state| SimulatedDrive {
        profile: DriveProfile::Tlc,
        capacity_bytes: (data_bytes as f64 / SIMULATED_FILL) as u64,
        over_provisioning: OVER_PROVISIONING,
        state,
        wear_difference_max: None,
    });
    let (tasks_per_worker, threads) = match waits {
        true => (WAITING_PER_CORE, WAITING_PER_CORE * cores()),
        false => (BUSY_TASKS_PER_CORE, cores()),
    };
    let pool_bytes = match row.data {
        SuiteData::InMemory => {
            (data_bytes as f64 * IN_MEMORY_POOL_FACTOR) as u64 + IN_MEMORY_POOL_SPARE
        }
        _ => ((data_bytes as f64 * pool_share) as u64).max(POOL_MIN),
    };
    EngineConfig {
        tasks_per_worker,
        depth_per_worker: WAITING_PER_CORE as u32,
        threads,
        space: SpaceConfig {
            log_bytes: (row.log == SuiteLog::Off).then_some(0),
            segment_bytes: simulated.and_then(|drive| drive.segment_bytes()),
            ..SpaceConfig::default()
        },
        simulated,
        ..EngineConfig::new(kind, pool_bytes)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl SuiteSizes {
    fn check(&self) -> Result<(), String> {
        let mib = [
            self.in_memory_mib,
            self.out_of_memory_mib,
            self.simulated_mib,
        ];
        let seconds = [self.warm_up_s, self.measure_s, self.drive_s];
        // Sizes are shifted and times become durations.
        if mib.iter().any(|mib| !(1..=1 << 30).contains(mib)) {
            return Err("sizes are 1 to 1073741824 MiB".to_owned());
        }
        if seconds.iter().any(|s| !(0.0..=1e6).contains(s)) || self.measure_s == 0.0 {
            return Err("times are 0 to 1000000 seconds, and measuring takes some".to_owned());
        }
        match self.pool_share > 0.0 && self.pool_share <= 1.0 {
            true => Ok(()),
            false => Err("pool_share is a share above 0, at most 1".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice() -> SuiteChoice {
        SuiteChoice {
            engines: Some(vec![EngineKind::Isobath, EngineKind::Null]),
            repeats: 2,
            directory: PathBuf::from("place"),
            region: Some(PathBuf::from("region")),
            measures_drive: true,
            seed: 1,
            ..SuiteChoice::default()
        }
    }

    #[test]
    fn the_first_campaign_has_what_it_is_to_have() {
        let suite = Suite::first().unwrap();
        assert!(suite.rows.len() <= SUITE_ROWS_MAX);
        let has = |workload: &str, data: SuiteData, log: SuiteLog| {
            let found = |row: &SuiteRow| {
                (row.workload.as_str(), row.data, row.log) == (workload, data, log)
            };
            assert!(suite.rows.iter().any(found), "{workload} {data:?} {log:?}");
        };
        for workload in ["update-small", "update-zipf", "update", "update-large-zipf"] {
            for data in [SuiteData::InMemory, SuiteData::OutOfMemory] {
                has(workload, data, SuiteLog::On);
                has(workload, data, SuiteLog::Off);
            }
        }
        for workload in ["lookup", "scan"] {
            has(workload, SuiteData::InMemory, SuiteLog::On);
            has(workload, SuiteData::OutOfMemory, SuiteLog::On);
        }
        for letter in ["a", "b", "c", "d", "e", "f"] {
            let workload = format!("ycsb-{letter}");
            has(&workload, SuiteData::OutOfMemory, SuiteLog::On);
        }
    }

    #[test]
    fn engines_of_a_row_have_the_same_conditions() {
        let suite = Suite::first().unwrap();
        let cases = suite.cases(&choice()).unwrap();
        let simulated = suite.rows.iter().filter(|r| r.data.drive_state().is_some());
        let simulated = simulated.count();
        assert_eq!(
            cases.len(),
            2 * (2 * (suite.rows.len() - simulated) + simulated)
        );
        for row in &suite.rows {
            let of: Vec<&Case> = cases
                .iter()
                .filter(|case| case.row.as_ref() == Some(&row.name))
                .collect();
            for case in &of {
                let (plan, first) = (&case.plan, &of[0].plan);
                assert_eq!(plan.records, first.records);
                assert_eq!(plan.engine.pool_bytes, first.engine.pool_bytes);
                assert_eq!(plan.engine.space.log_bytes, first.engine.space.log_bytes);
                assert_eq!(plan.engine.space.buffered_ms, None);
                let data = plan.records * plan.workload.record_bytes();
                assert_eq!(plan.in_pool, plan.engine.pool_bytes > data, "{}", row.name);
                assert_eq!(case.place.is_none(), plan.engine.simulated.is_some());
                if plan.engine.simulated.is_some() {
                    assert_eq!(plan.engine.kind, EngineKind::Isobath);
                    assert!(plan.engine.path.is_none() && plan.drive_depth.is_none());
                }
            }
        }
        let rows = SuiteChoice {
            rows: vec!["ycsb".to_owned(), "scan-in".to_owned()],
            data_bytes: Some(1 << 20),
            full: true,
            ..choice()
        };
        let cases = suite.cases(&rows).unwrap();
        assert_eq!(cases.len(), 2 * 2 * 8);
        assert!(cases.iter().all(|case| case.plan.duration.as_secs() == 40));
        assert!(
            cases
                .iter()
                .all(|case| case.plan.records * case.plan.workload.record_bytes() <= 1 << 20)
        );
        let none = SuiteChoice {
            rows: vec!["fly".to_owned()],
            ..choice()
        };
        let error = suite.cases(&none).unwrap_err().to_string();
        assert!(error.contains("lookup-in"), "{error}");
    }

    #[test]
    fn rocksdb_has_a_second_row_where_that_is_asked_for() {
        let both = || [EngineKind::Isobath, EngineKind::RocksDb].into_iter();
        let plain = [(EngineKind::Isobath, false), (EngineKind::RocksDb, false)];
        assert_eq!(sides(both(), false), plain);
        assert_eq!(sides(both(), true)[..2], plain);
        assert_eq!(sides(both(), true)[2..], [(EngineKind::RocksDb, true)]);
        assert_eq!(sides(both().take(1), true), plain[..1]);
    }

    #[test]
    fn every_engine_runs_on_virtual_ssds() {
        let suite = Suite::first().unwrap();
        let place = VirtualSsdPlace {
            directory: PathBuf::from("drives"),
            serve: (PathBuf::from("isobath"), Vec::new()),
        };
        let choice = SuiteChoice {
            virtual_ssd: Some(place),
            engines: Some(vec![EngineKind::Isobath, EngineKind::Null]),
            ..choice()
        };
        let cases = suite.cases(&choice).unwrap();
        assert_eq!(cases.len(), 2 * 2 * suite.rows.len());
        for case in cases {
            let plan = &case.plan;
            let on_ssd = matches!(case.place, Some(RunPlace::VirtualSsd(_)));
            assert_eq!(on_ssd, plan.engine.simulated.is_some());
            let has_path = plan.engine.kind != EngineKind::Null;
            assert_eq!(plan.engine.path.is_some(), has_path);
            // Its own rates are those of FUSE.
            assert!(!on_ssd || plan.drive_depth.is_none());
        }
    }

    #[test]
    fn rows_are_run_with_several_sizes_in_one_cache() {
        let suite = Suite::first().unwrap();
        let sizes = SuiteChoice {
            sizes: vec![0.25, 0.5, 1.0],
            ..choice()
        };
        let (all, one) = (
            suite.cases(&sizes).unwrap(),
            suite.cases(&choice()).unwrap(),
        );
        assert_eq!(all.len(), 3 * one.len());
        for case in &one {
            let same = |other: &&Case| {
                let (a, b) = (&other.plan, &case.plan);
                (&other.row, other.round, other.side) == (&case.row, case.round, case.side)
                    && a.engine.kind == b.engine.kind
            };
            let of: Vec<&Case> = all.iter().filter(same).collect();
            let mut counts: Vec<u64> = of.iter().map(|case| case.plan.records).collect();
            counts.sort_unstable();
            let whole = case.plan.records;
            assert_eq!(counts, [whole / 4, whole / 2, whole], "{:?}", case.row);
            for other in of {
                assert_eq!(
                    format!("{:?}", other.plan.engine),
                    format!("{:?}", case.plan.engine)
                );
            }
        }
        for (sizes, why) in [(vec![0.05], "fits in the cache"), (vec![1.5], "at most 1")] {
            let wrong = SuiteChoice { sizes, ..choice() };
            let error = suite.cases(&wrong).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn what_is_no_campaign_is_refused() {
        let refused = |from: &str, to: &str, why: &str| {
            let text = FIRST.replacen(from, to, 1);
            let error = Suite::from_toml("mine.toml", &text)
                .unwrap_err()
                .to_string();
            assert!(error.contains(why), "{error}");
        };
        refused("lookup-out", "lookup-in", "two rows are named lookup-in");
        refused("workload = \"scan\"", "workload = \"fly\"", "no workload");
        refused("pool_share = 0.1", "pool_share = 0", "above 0");
        refused("measure_s = 6", "measure_s = 0", "measuring takes some");
        refused("log = \"off\"", "logs = \"off\"", "unknown field");
        refused("mib = 128", "mib = 0", "1 to 1073741824");
        assert!(Suite::from_toml("x", "rows = []").is_err());
    }
}
