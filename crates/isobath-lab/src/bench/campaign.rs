//! Many runs as one campaign: interleaved, written down one by one, and gone on with after an
//! interruption.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::child::{ChildProgram, lookup_in_child};
use super::harness;
use super::lookup::{LookupPlan, LookupReport, lookup};
use super::place::{Place, Ready};
use super::record::Record;
use super::search::{Search, SearchPlan, search};
use crate::drive_model::write_whole;
use crate::engine::EngineKind;
use crate::{LabError, Monitor, write_limit};

/// One run of a campaign.
#[derive(Debug, Clone)]
pub struct Case {
    /// The plan of the run.
    pub plan: LookupPlan,
    /// Which side of a comparison, from 0; equal plans may stand on both.
    pub side: usize,
    /// Round of repeats, from 0.
    pub round: usize,
    /// The file system that is made for this run alone; the plan's path if there is none.
    pub place: Option<Place>,
    /// The row of the campaign that it belongs to, where the campaign has named rows.
    pub row: Option<String>,
    /// What was searched before, where the plan's settings were; see [`Campaign::tune`].
    pub search: Option<Search>,
}

impl Case {
    /// Equal for equal plans and rounds; what a record of an earlier session is found by.
    fn name(&self) -> String {
        let place = self.place_of(&self.plan);
        format!("{place}-{}-{}", self.side, self.round)
    }

    /// Equal for equal plans in the same row and region.
    fn place_of(&self, plan: &LookupPlan) -> String {
        let mut text = format!("{plan:?}");
        text += &match &self.place {
            None => String::new(),
            Some(Place::Region(region)) => region.to_string_lossy().into_owned(),
            Some(Place::VirtualSsd(place)) => {
                format!("virtual SSD in {}", place.directory.display())
            }
        };
        text += self.row.as_deref().unwrap_or_default();
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

/// One line of a campaign's file.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct Line {
    case: String,
    record: Record,
}

/// A run that failed.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct FailedRun {
    case: String,
    /// Its row, or its workload.
    pub row: String,
    /// The engine.
    pub engine: EngineKind,
    /// Bytes of data.
    pub data_bytes: u64,
    /// Round of repeats, from 0.
    pub round: usize,
    /// Its error.
    pub error: String,
}

/// The last failure of each case that has no record.
fn still_failed(failed: &[FailedRun], known: &[Line]) -> Vec<FailedRun> {
    let is_last = |(at, run): &(usize, &FailedRun)| {
        let later = &failed[at + 1..];
        !later.iter().any(|later| later.case == run.case)
            && !known.iter().any(|line| line.case == run.case)
    };
    let last = failed.iter().enumerate().filter(is_last);
    last.map(|(_, run)| run.clone()).collect()
}

/// One line of the file of a campaign's trials.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
struct TrialLine {
    trial: String,
    operations_per_s: f64,
}

/// The outcome of a case.
#[derive(Debug)]
pub enum Outcome {
    /// It was run now.
    Ran(Box<Record>),
    /// An earlier session had run it.
    Known(Box<Record>),
}

/// A directory with the records of a campaign, or only memory.
#[derive(Debug, Default)]
pub struct Campaign {
    directory: Option<PathBuf>,
    /// The file of records, locked against a second process that would run the same cases.
    _lock: Option<File>,
    known: Vec<Line>,
    trials: Vec<TrialLine>,
    failed: Vec<FailedRun>,
    ran: bool,
    /// The program that runs an engine that may end its process.
    child: Option<ChildProgram>,
}

const RECORDS: &str = "records.jsonl";
const TRIALS: &str = "trials.jsonl";
const FAILED: &str = "failed.jsonl";
const LATENCIES: &str = "latencies.hlog";
/// Which store a run is making.
const RUNNING: &str = "running";

impl Campaign {
    /// A campaign that keeps nothing.
    #[must_use]
    pub fn in_memory() -> Campaign {
        Campaign::default()
    }

    /// The campaign in this directory, which is made, or gone on with.
    ///
    /// # Errors
    /// I/O errors, a file of records that is none, and that another process runs this campaign.
    pub fn open(directory: &Path) -> Result<Campaign, LabError> {
        fs::create_dir_all(directory).map_err(LabError::io("make", directory))?;
        let lock = lock(&directory.join(RECORDS))?;
        let known: Vec<Line> = go_on_with(&directory.join(RECORDS))?;
        keep_latencies(&directory.join(LATENCIES), &known)?;
        Ok(Campaign {
            directory: Some(directory.to_path_buf()),
            _lock: Some(lock),
            known,
            trials: go_on_with(&directory.join(TRIALS))?,
            failed: go_on_with(&directory.join(FAILED))?,
            ran: false,
            child: None,
        })
    }

    /// Runs engines that may end their process in one of their own.
    #[must_use]
    pub fn with_child(mut self, child: ChildProgram) -> Campaign {
        self.child = Some(child);
        self
    }

    /// The runs of a campaign that failed, and did not succeed later.
    ///
    /// # Errors
    /// As for [`Campaign::open`].
    pub fn read_failed(directory: &Path) -> Result<Vec<FailedRun>, LabError> {
        let (known, _) = read_lines::<Line>(&directory.join(RECORDS))?;
        let (failed, _) = read_lines::<FailedRun>(&directory.join(FAILED))?;
        Ok(still_failed(&failed, &known))
    }

    /// The same of the runs of this session and those before.
    #[must_use]
    pub fn failed(&self) -> Vec<FailedRun> {
        still_failed(&self.failed, &self.known)
    }

    /// The records of a campaign that was run.
    ///
    /// # Errors
    /// As for [`Campaign::open`], and that there is none.
    pub fn read(directory: &Path) -> Result<Vec<Record>, LabError> {
        // A campaign may still be running: its file stays as it is.
        let (lines, _) = read_lines::<Line>(&directory.join(RECORDS))?;
        if lines.is_empty() {
            return Err(LabError::Request(format!(
                "{} holds no campaign; make one with `isobath bench campaign --out {}`",
                directory.display(),
                directory.display()
            )));
        }
        Ok(lines.into_iter().map(|line| line.record).collect())
    }

    /// Runs a case, unless an earlier session has run it, and writes it down.
    ///
    /// Every case makes its store, and its simulated drive, again; so a gap between two sessions
    /// changes no state that a later case relies on. The first record after a gap is marked all the
    /// same.
    ///
    /// # Errors
    /// Those of the run, and of writing the record.
    pub fn run(&mut self, case: &Case, monitor: &dyn Monitor) -> Result<Outcome, LabError> {
        let name = case.name();
        if let Some(line) = self.known.iter().find(|line| line.case == name) {
            return Ok(Outcome::Known(Box::new(line.record.clone())));
        }
        let report = match self.run_marked(case, &case.plan, monitor) {
            Ok(report) => report,
            Err(error) => {
                self.note_failure(case, &name, &error)?;
                return Err(error);
            }
        };
        let mut record = Record::of(&case.plan, &report, case.round)
            .ok_or_else(|| LabError::Verify("the run has no row".to_owned()))?;
        record.search.clone_from(&case.search);
        record.row.clone_from(&case.row);
        record.set_harness(harness::ns_per_operation(&case.plan, monitor), &report);
        record.after_gap = !self.known.is_empty() && !self.ran;
        self.ran = true;
        self.failed.retain(|failed| failed.case != name);
        if let Some(directory) = &self.directory {
            let line = Line {
                case: name.clone(),
                record: record.clone(),
            };
            // A session that is killed in between runs this case again, and takes its latencies out
            // first.
            append_latencies(directory, &name, &report)?;
            append(&directory.join(RECORDS), &line)?;
        }
        Ok(Outcome::Ran(Box::new(record)))
    }

    /// Writes down that a run failed: a table in which it is only missing would look as if it had
    /// not been asked for.
    fn note_failure(&mut self, case: &Case, name: &str, error: &LabError) -> Result<(), LabError> {
        let is_stop = matches!(
            error,
            LabError::Interrupted | LabError::Engine(isobath::Error::Interrupted)
        );
        if is_stop {
            return Ok(());
        }
        let plan = &case.plan;
        let failed = FailedRun {
            case: name.to_owned(),
            row: case
                .row
                .clone()
                .unwrap_or_else(|| plan.workload.name.clone()),
            engine: plan.engine.kind,
            data_bytes: plan.records.saturating_mul(plan.workload.record_bytes()),
            round: case.round,
            error: error.to_string(),
        };
        if let Some(directory) = &self.directory {
            append(&directory.join(FAILED), &failed)?;
        }
        self.failed.push(failed);
        Ok(())
    }

    /// Searches settings for a case's engine and gives them to its plan. Trials that an earlier
    /// session ran are not run again.
    ///
    /// # Errors
    /// Those of [`search()`], of the trials, and of writing them down.
    pub fn tune(
        &mut self,
        case: &mut Case,
        wanted: &SearchPlan,
        monitor: &dyn Monitor,
    ) -> Result<(), LabError> {
        let asked = case.clone();
        let mut number = 0;
        let found = search(&asked.plan, wanted, &mut |plan| {
            number += 1;
            let trial = format!("{}-{}-{number}", asked.place_of(plan), wanted.seed);
            if let Some(known) = self.trials.iter().find(|known| known.trial == trial) {
                return Ok(known.operations_per_s);
            }
            let report = self.run_marked(&asked, plan, monitor)?;
            let line = TrialLine {
                trial,
                operations_per_s: report.series.rate_from(0),
            };
            if let Some(directory) = &self.directory {
                append(&directory.join(TRIALS), &line)?;
            }
            let rate = line.operations_per_s;
            self.trials.push(line);
            Ok(rate)
        })?;
        found.tune(&mut case.plan);
        case.search = Some(found);
        Ok(())
    }

    /// Runs a plan in the place of its case, and notes in the directory, while it runs, which store
    /// it makes: what a killed session left is removed before.
    fn run_marked(
        &self,
        case: &Case,
        plan: &LookupPlan,
        monitor: &dyn Monitor,
    ) -> Result<LookupReport, LabError> {
        let store = plan.engine.path.as_ref().filter(|_| case.place.is_none());
        let (Some(directory), Some(store)) = (&self.directory, store) else {
            return self.run_case(case, plan, monitor);
        };
        let mark = directory.join(RUNNING);
        let failed = || LabError::io("write", &mark);
        let left = match fs::read_to_string(&mark) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            left => left.map_err(LabError::io("read", &mark))?,
        };
        // A torn line would name another path.
        for path in left.split_inclusive('\n') {
            if let Some(path) = path.strip_suffix('\n') {
                remove_left(Path::new(path))?;
            }
        }
        // Files from before this run are not its own, and stay; so does what a line cannot
        // name.
        let store = std::path::absolute(store).map_err(failed())?;
        let limit = write_limit::file_beside(&store);
        let own = [&store, &limit].map(|path| match path.to_str() {
            Some(text) if !path.exists() && !text.contains('\n') => format!("{text}\n"),
            _ => String::new(),
        });
        fs::write(&mark, own.concat()).map_err(failed())?;
        let ran = self.run_case(case, plan, monitor);
        fs::remove_file(&mark).map_err(failed())?;
        ran
    }
    /// Runs a plan in the place of its case.
    fn run_case(
        &self,
        case: &Case,
        plan: &LookupPlan,
        monitor: &dyn Monitor,
    ) -> Result<LookupReport, LabError> {
        let run = |plan: &LookupPlan| match &self.child {
            Some(child) if plan.engine.kind.may_abort() => lookup_in_child(child, plan, monitor),
            _ => lookup(plan, monitor),
        };
        let Some(place) = &case.place else {
            return run(plan);
        };
        let ready = Ready::make(place, plan.engine.simulated, monitor)?;
        let mut plan = plan.clone();
        if let Some(path) = &mut plan.engine.path {
            *path = ready
                .directory()
                .join(path.file_name().unwrap_or("engine".as_ref()));
        }
        plan.virtual_ssd = ready.virtual_ssd().map(Path::to_path_buf);
        plan.region_bytes = ready.region_bytes();
        let report = run(&plan)?;
        ready.take_away()?;
        Ok(report)
    }
}

/// Removes a store, or a file beside one, of a session that was killed.
fn remove_left(path: &Path) -> Result<(), LabError> {
    let removed = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(LabError::io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

/// The file of records, locked so that no second process writes it.
fn lock(path: &Path) -> Result<File, LabError> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let file = file.map_err(LabError::io("open", path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LabError::input(
            path,
            "another process runs this campaign; wait for it, or choose another directory",
        )),
        Err(TryLockError::Error(error)) => Err(LabError::io("lock", path)(error)),
    }
}

/// The lines of a file, and how many bytes they take: an interruption may have torn the one after
/// them. That case is run again.
fn read_lines<L: DeserializeOwned>(path: &Path) -> Result<(Vec<L>, u64), LabError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(LabError::io("read", path)(error)),
    };
    let (mut lines, mut whole) = (Vec::new(), 0);
    for (number, text) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        match serde_json::from_slice(text) {
            Ok(line) if text.ends_with(b"\n") => lines.push(line),
            _ if whole + text.len() == bytes.len() => break,
            _ => {
                let text = format!(
                    "line {} is no record of a campaign, or one of another version",
                    number + 1
                );
                return Err(LabError::input(path, text));
            }
        }
        whole += text.len();
    }
    Ok((lines, whole as u64))
}

/// The same, where the next line will be appended: a torn line is cut off.
fn go_on_with<L: DeserializeOwned>(path: &Path) -> Result<Vec<L>, LabError> {
    let (lines, whole) = read_lines(path)?;
    let cut = || match OpenOptions::new().write(true).open(path) {
        Ok(file) if file.metadata()?.len() > whole => file.set_len(whole),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    cut().map_err(LabError::io("write", path))?;
    Ok(lines)
}

fn append(path: &Path, line: &impl Serialize) -> Result<(), LabError> {
    let mut text = serde_json::to_string(line).map_err(|e| LabError::input(path, e.to_string()))?;
    text.push('\n');
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(LabError::io("write", path))
}

/// Adds the run's latencies to an HdrHistogram log, tagged with the case.
fn append_latencies(directory: &Path, case: &str, report: &LookupReport) -> Result<(), LabError> {
    let Some(latencies) = &report.latency_ns else {
        return Ok(());
    };
    let path = directory.join(LATENCIES);
    let mut serializer = V2DeflateSerializer::new();
    let mut text = Vec::new();
    let seconds = report
        .series
        .samples
        .last()
        .map_or(0.0, |sample| sample.seconds);
    let mut builder = IntervalLogWriterBuilder::new();
    builder.with_max_value_divisor(1000.0);
    builder
        .begin_log_with(&mut text, &mut serializer)
        .ok()
        .and_then(|mut log| {
            log.write_histogram(
                latencies,
                Duration::ZERO,
                Duration::from_secs_f64(seconds),
                hdrhistogram::serialization::interval_log::Tag::new(case),
            )
            .ok()
        })
        .ok_or_else(|| LabError::input(&path, "the latencies cannot be encoded"))?;
    let file = OpenOptions::new().create(true).append(true).open(&path);
    file.and_then(|mut file| file.write_all(&text))
        .map_err(LabError::io("write", &path))
}

/// Takes latencies out of a log whose case has no record: a killed session had written nothing but
/// them.
fn keep_latencies(path: &Path, known: &[Line]) -> Result<(), LabError> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        text => text.map_err(LabError::io("read", path))?,
    };
    let is_known = |tag: &str| known.iter().any(|line| line.case == tag);
    let is_kept = |line: &&str| {
        let tag = line.strip_prefix("Tag=").and_then(|l| l.split(',').next());
        line.ends_with('\n') && tag.is_none_or(is_known)
    };
    let kept: String = text.split_inclusive('\n').filter(is_kept).collect();
    if kept != text {
        write_whole(path, &kept)?;
    }
    Ok(())
}

/// Distinct texts of records, in the order of their first appearance.
pub(super) fn distinct<'r>(
    records: &'r [Record],
    of: impl Fn(&'r Record) -> String,
) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let texts = records.iter().map(of);
    texts.filter(|text| seen.insert(text.clone())).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::Silent;
    use crate::bench::{Workload, write_csv};
    use crate::engine::{Callers, EngineConfig, Schema, SpaceConfig, Tuning};

    pub(crate) fn case(side: usize, round: usize) -> Case {
        let plan = LookupPlan {
            engine: EngineConfig {
                kind: EngineKind::Null,
                path: None,
                pool_bytes: 1 << 20,
                workers: None,
                tasks_per_worker: 1,
                depth_per_worker: 1,
                threads: 1,
                callers: Callers::Threads,
                space: SpaceConfig::default(),
                simulated: None,
                tuning: Tuning::default(),
                schema: Schema::default(),
            },
            latency_every: None,
            left_out: crate::bench::LeftOut::default(),
            virtual_ssd: None,
            region_bytes: None,
            in_pool: false,
            records: 1000,
            workload: Workload::lookup(),
            rate_per_s: None,
            warm_up: Duration::ZERO,
            duration: Duration::from_millis(40),
            load_only: false,
            keep: false,
            drive_depth: None,
            drive_duration: Duration::ZERO,
            sample_every: Duration::from_millis(10),
            until_steady: false,
            components: false,
            seed: 1,
        };
        Case {
            plan,
            side,
            round,
            place: None,
            row: None,
            search: None,
        }
    }

    #[test]
    fn a_campaign_goes_on_after_an_interruption() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("campaign");
        let cases = [case(0, 0), case(1, 0), case(0, 1)];
        let mut first = Campaign::open(&directory).unwrap();
        for case in &cases[..2] {
            let Outcome::Ran(record) = first.run(case, &Silent).unwrap() else {
                panic!("the campaign is new");
            };
            assert!(!record.after_gap);
        }
        // No other process may run it now.
        let error = Campaign::open(&directory).unwrap_err().to_string();
        assert!(error.contains("another process"), "{error}");
        drop(first);
        // The process is killed while it writes the second record.
        let path = directory.join(RECORDS);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() - 30]).unwrap();

        let mut second = Campaign::open(&directory).unwrap();
        assert!(matches!(
            second.run(&cases[0], &Silent).unwrap(),
            Outcome::Known(_)
        ));
        let Outcome::Ran(torn) = second.run(&cases[1], &Silent).unwrap() else {
            panic!("a torn record counts as none");
        };
        let Outcome::Ran(last) = second.run(&cases[2], &Silent).unwrap() else {
            panic!("it was never run");
        };
        assert!(torn.after_gap && !last.after_gap);
        let records = Campaign::read(&directory).unwrap();
        assert_eq!(records.len(), 3);
        assert!(
            records
                .iter()
                .all(|r| r.operations_per_s > 0.0 && r.round < 2)
        );

        write_csv(&directory, &records).unwrap();
        let csv = fs::read_to_string(directory.join("records.csv")).unwrap();
        assert_eq!(csv.lines().count(), 4);
        assert!(csv.starts_with("row,config_hash,round"), "{csv}");
        let header: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
        let first: Vec<&str> = csv.lines().nth(1).unwrap().split(',').collect();
        let cell = |name| first[header.iter().position(|column| *column == name).unwrap()];
        assert_eq!((cell("latency_one_in"), cell("levels")), ("16", ""));
        let kinds = fs::read_to_string(directory.join("operations.csv")).unwrap();
        assert_eq!(kinds.lines().count(), 4);
        assert!(
            kinds.lines().nth(1).unwrap().contains(",lookup,get,"),
            "{kinds}"
        );
        let series = fs::read_to_string(directory.join("series.csv")).unwrap();
        assert!(series.lines().count() > 3, "{series}");
        let log = fs::read_to_string(directory.join(LATENCIES)).unwrap();
        // The torn record's run counts once.
        assert_eq!(log.matches("Tag=").count(), 3, "{log}");
        let page = super::super::report::html(&records, &[], &[]);
        assert!(
            page.contains("<svg") && page.contains("no drive is involved"),
            "{page}"
        );
        assert!(!page.contains("<script") && !page.contains("http"));
    }

    #[test]
    fn a_torn_last_line_is_cut_off_by_who_goes_on_and_by_nobody_else() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("campaign");
        let mut campaign = Campaign::open(&directory).unwrap();
        for case in [case(0, 0), case(1, 0)] {
            campaign.run(&case, &Silent).unwrap();
        }
        drop(campaign);
        let path = directory.join(RECORDS);
        let whole = fs::read(&path).unwrap();
        let first = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
        // Torn behind its last brace, within a character, and within a word.
        let mut in_character = whole[..first + 40].to_vec();
        in_character.push(0xc2);
        for torn in [
            &whole[..whole.len() - 1],
            &in_character,
            &whole[..first + 10],
        ] {
            fs::write(&path, torn).unwrap();
            assert_eq!(Campaign::read(&directory).unwrap().len(), 1);
            assert_eq!(fs::read(&path).unwrap(), torn);
            assert_eq!(Campaign::open(&directory).unwrap().known.len(), 1);
            assert_eq!(fs::read(&path).unwrap(), whole[..first]);
        }
        // In the middle nothing is torn: the file is another one.
        fs::write(&path, [b"{}\n", &whole[..]].concat()).unwrap();
        let error = Campaign::open(&directory).unwrap_err().to_string();
        assert!(error.contains("line 1 is no record"), "{error}");
        assert_eq!(fs::read(&path).unwrap().len(), whole.len() + 3);
    }

    #[test]
    fn what_a_killed_session_left_does_not_end_a_campaign() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("campaign");
        let mut case = case(0, 0);
        case.plan.engine.kind = EngineKind::Drive;
        let store = place.path().join("store");
        case.plan.engine.path = Some(store.clone());
        let limit = write_limit::file_beside(&store);
        let mut campaign = Campaign::open(&directory).unwrap();
        // A store that is no campaign's is refused, and stays.
        fs::write(&store, "mine").unwrap();
        assert!(campaign.run(&case, &Silent).is_err());
        assert_eq!(fs::read(&store).unwrap(), b"mine");
        // A session was killed while it ran.
        fs::write(&limit, "left").unwrap();
        // The last line is cut off, and names a file that is not the campaign's.
        let other = place.path().join("other");
        fs::write(&other, "mine").unwrap();
        let left = [&store, &limit, &other].map(|path| path.display().to_string());
        let left = left.join("\n");
        fs::write(directory.join(RUNNING), left).unwrap();
        assert!(matches!(
            campaign.run(&case, &Silent).unwrap(),
            Outcome::Ran(_)
        ));
        assert!(!store.exists() && !limit.exists());
        assert!(!directory.join(RUNNING).exists());
        assert_eq!(fs::read(&other).unwrap(), b"mine");
    }

    #[test]
    fn kinds_of_operations_and_levels_stand_in_csv_and_report() {
        let place = tempfile::tempdir().unwrap();
        let mut campaign = Campaign::in_memory();
        let Outcome::Ran(mut record) = campaign.run(&case(0, 0), &Silent).unwrap() else {
            panic!("nothing was run before");
        };
        record.settings = vec![("levels_with_files".to_owned(), "3".to_owned())];
        record.operations_by_type = [("new-order", 45.25), ("payment", 43.5)]
            .map(|(name, per_s)| (name.to_owned(), per_s))
            .into();
        let records = [*record];
        write_csv(place.path(), &records).unwrap();
        let read = |name| fs::read_to_string(place.path().join(name)).unwrap();
        assert!(
            read("records.csv").contains(",3,"),
            "{}",
            read("records.csv")
        );
        let kinds = read("operations.csv");
        assert!(
            kinds.contains(",new-order,45.25") && kinds.contains(",payment,43.5"),
            "{kinds}"
        );
        let page = super::super::report::html(&records, &[], &[]);
        assert!(
            page.contains("new-order") && page.contains("45.2"),
            "{page}"
        );
    }

    #[test]
    fn a_run_that_fails_is_written_down_until_it_succeeds() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("campaign");
        let mut case = case(0, 0);
        case.plan.engine.kind = EngineKind::Drive;
        let store = place.path().join("store");
        case.plan.engine.path = Some(store.clone());
        fs::write(&store, "in the way").unwrap();
        let mut campaign = Campaign::open(&directory).unwrap();
        for _ in 0..2 {
            campaign.run(&case, &Silent).unwrap_err();
        }
        let failed = campaign.failed();
        assert_eq!(failed.len(), 1);
        assert!(failed[0].error.contains("exists already"), "{failed:?}");
        assert_eq!(Campaign::read_failed(&directory).unwrap(), failed);
        let page = super::super::report::html(&[], &[], &failed);
        assert!(page.contains("Runs that failed") && page.contains("exists already"));
        fs::remove_file(&store).unwrap();
        campaign.run(&case, &Silent).unwrap();
        assert_eq!(campaign.failed(), []);
        assert_eq!(Campaign::read_failed(&directory).unwrap(), []);
    }

    #[test]
    fn a_file_that_is_no_campaign_is_refused() {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(RECORDS), "one\ntwo\n").unwrap();
        let error = Campaign::open(place.path()).unwrap_err().to_string();
        assert!(error.contains("line 1 is no record"), "{error}");
        let nowhere = Campaign::read(&place.path().join("none")).unwrap_err();
        assert!(nowhere.to_string().contains("holds no campaign"));
    }

    #[test]
    fn cases_that_differ_are_found_apart_and_equal_ones_again() {
        let region = |path: &str| Some(Place::Region(path.into()));
        let change: [fn(&mut Case); 7] = [
            |_| (),
            |case| case.side = 1,
            |case| case.round = 1,
            |case| case.row = Some("another".to_owned()),
            |case| case.plan.records += 1,
            |case| case.plan.engine.threads += 1,
            |case| case.plan.seed += 1,
        ];
        let mut names = BTreeSet::new();
        for change in change {
            for place in [None, region("one"), region("two")] {
                let made = || {
                    let mut case = case(0, 0);
                    case.place.clone_from(&place);
                    change(&mut case);
                    case.name()
                };
                assert_eq!(made(), made());
                names.insert(made());
            }
        }
        assert_eq!(names.len(), 21);
    }

    #[test]
    fn a_file_that_was_cut_anywhere_keeps_its_whole_lines_and_takes_more() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(TRIALS);
        let trial = |number: u32| TrialLine {
            trial: format!("Größe-{number}"),
            operations_per_s: f64::from(number) * 1.5,
        };
        (0..3).for_each(|number| append(&path, &trial(number)).unwrap());
        let whole = fs::read(&path).unwrap();
        for cut in 0..=whole.len() {
            fs::write(&path, &whole[..cut]).unwrap();
            // A line without its end is torn, also if nothing else is missing.
            let kept = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
            let numbers = |trials: &[TrialLine]| -> Vec<String> {
                trials.iter().map(|trial| trial.trial.clone()).collect()
            };
            // To read a file changes nothing: another process may be writing to it.
            let read: Vec<TrialLine> = read_lines(&path).unwrap().0;
            assert_eq!(fs::read(&path).unwrap(), whole[..cut], "{cut}");
            let first = Campaign::open(place.path()).unwrap();
            assert_eq!(numbers(&first.trials), numbers(&read), "{cut}");
            assert_eq!(first.trials.len(), kept, "{cut}");
            drop(first);
            append(&path, &trial(9)).unwrap();
            let second = Campaign::open(place.path()).unwrap();
            assert_eq!(second.trials.len(), kept + 1, "{cut}");
            assert_eq!(numbers(&second.trials)[..kept], numbers(&read), "{cut}");
        }
    }

    #[test]
    fn trials_are_run_once_and_again_where_they_differ() {
        let place = tempfile::tempdir().unwrap();
        let lines = || {
            let text = fs::read_to_string(place.path().join(TRIALS)).unwrap();
            text.lines().count()
        };
        let tuned = |trial_ms: u64, seed: u64| {
            let mut case = case(0, 0);
            let wanted = SearchPlan {
                trials: 3,
                duration: Duration::from_millis(trial_ms),
                seed,
            };
            let mut campaign = Campaign::open(place.path()).unwrap();
            campaign.tune(&mut case, &wanted, &Silent).unwrap();
            (case.plan.engine.threads, case.search.unwrap())
        };
        let first = tuned(30, 1);
        assert_eq!(lines(), 3);
        assert_eq!(tuned(30, 1), first);
        assert_eq!(lines(), 3);
        // Longer trials, and another seed, say nothing of these.
        tuned(40, 1);
        assert_eq!(lines(), 6);
        tuned(30, 2);
        assert_eq!(lines(), 9);
    }
}
