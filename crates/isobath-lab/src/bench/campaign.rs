//! Many runs as one campaign: interleaved, written down one by one, and gone on with after an
//! interruption.

mod journal;

use std::collections::BTreeSet;
use std::path::Path;

use journal::{Journal, Line, TrialLine};
pub(crate) use journal::{append, go_on_with, lock};

use super::child::{ChildProgram, run_in_child};
use super::harness;
use super::place::{Ready, RunPlace};
use super::plan::Plan;
use super::record::RunRecord;
use super::row::hashed;
use super::run::{self, RunReport};
use super::search::{Search, SearchPlan, search};
use crate::engine::EngineKind;
use crate::{LabError, Monitor};

/// One run of a campaign.
#[derive(Debug, Clone)]
pub struct Case {
    /// The plan of the run.
    pub plan: Plan,
    /// Which side of a comparison, from 0; equal plans may stand on both.
    pub side: usize,
    /// Round of repeats, from 0.
    pub round: usize,
    /// The file system that is made for this run alone; the plan's path if there is none.
    pub place: Option<RunPlace>,
    /// The row of the campaign that it belongs to, where the campaign has named rows.
    pub row: Option<String>,
    /// What was searched before, where the plan's settings were; see [`Campaign::tune`].
    pub search: Option<Search>,
}

impl Case {
    /// A run where its plan says, outside of named rows.
    #[must_use]
    pub fn new(plan: Plan, side: usize, round: usize) -> Case {
        Case {
            plan,
            side,
            round,
            place: None,
            row: None,
            search: None,
        }
    }

    /// Equal for equal plans and rounds; what a record of an earlier session is found by.
    fn name(&self) -> String {
        let place = self.place_of(&self.plan);
        format!("{place}-{}-{}", self.side, self.round)
    }

    /// Equal for equal plans in the same row and region.
    fn place_of(&self, plan: &Plan) -> String {
        let mut text = format!("{plan:?}");
        text += &match &self.place {
            None => String::new(),
            Some(RunPlace::Region(region)) => region.to_string_lossy().into_owned(),
            Some(RunPlace::VirtualSsd(place)) => {
                format!("virtual SSD in {}", place.directory.display())
            }
        };
        text += self.row.as_deref().unwrap_or_default();
        hashed(&text)
    }
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

/// The outcome of a case.
#[derive(Debug)]
pub enum Outcome {
    /// It was run now.
    Ran(Box<RunRecord>),
    /// An earlier session had run it.
    Known(Box<RunRecord>),
}

/// A directory with the records of a campaign, or only memory.
#[derive(Debug, Default)]
pub struct Campaign {
    journal: Option<Journal>,
    known: Vec<Line>,
    trials: Vec<TrialLine>,
    failed: Vec<FailedRun>,
    ran: bool,
    /// The program that runs an engine that may end its process.
    child: Option<ChildProgram>,
}

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
        let journal = Journal::open(directory)?;
        Ok(Campaign {
            known: journal.records()?,
            trials: journal.lines(journal::TRIALS)?,
            failed: journal.lines(journal::FAILED)?,
            journal: Some(journal),
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
        let known: Vec<Line> = journal::read(directory, journal::RECORDS)?;
        Ok(still_failed(
            &journal::read(directory, journal::FAILED)?,
            &known,
        ))
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
    pub fn read(directory: &Path) -> Result<Vec<RunRecord>, LabError> {
        let lines: Vec<Line> = journal::read(directory, journal::RECORDS)?;
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
        let mut record = report
            .record
            .clone()
            .ok_or_else(|| LabError::Verify("the run has no record".to_owned()))?;
        record.round = case.round;
        record.search.clone_from(&case.search);
        record.row.clone_from(&case.row);
        record.set_harness(harness::ns_per_operation(&case.plan, monitor));
        record.after_gap = !self.known.is_empty() && !self.ran;
        self.ran = true;
        self.failed.retain(|failed| failed.case != name);
        if let Some(journal) = &self.journal {
            let line = Line {
                case: name,
                record: record.clone(),
            };
            journal.add_record(&line, &report)?;
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
        if let Some(journal) = &self.journal {
            journal.add(journal::FAILED, &failed)?;
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
                operations_per_s: report.record.map_or(0.0, |r| r.series.rate_from(0)),
            };
            if let Some(journal) = &self.journal {
                journal.add(journal::TRIALS, &line)?;
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
        plan: &Plan,
        monitor: &dyn Monitor,
    ) -> Result<RunReport, LabError> {
        let is_removed = case.place.is_none() && !plan.keep;
        let store = plan.engine.path.as_ref().filter(|_| is_removed);
        let (Some(journal), Some(store)) = (&self.journal, store) else {
            return self.run_case(case, plan, monitor);
        };
        journal.mark(store)?;
        let ran = self.run_case(case, plan, monitor);
        journal.unmark()?;
        ran
    }

    /// Runs a plan in the place of its case.
    fn run_case(
        &self,
        case: &Case,
        plan: &Plan,
        monitor: &dyn Monitor,
    ) -> Result<RunReport, LabError> {
        let run = |plan: &Plan| match &self.child {
            Some(child) if plan.engine.kind.may_abort() => run_in_child(child, plan, monitor),
            _ => run::run(plan, monitor),
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

/// Distinct texts of records, in the order of their first appearance.
pub(super) fn distinct<'r>(
    records: &'r [RunRecord],
    of: impl Fn(&'r RunRecord) -> String,
) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let texts = records.iter().map(of);
    texts.filter(|text| seen.insert(text.clone())).collect()
}

#[cfg(test)]
pub(super) mod tests;
