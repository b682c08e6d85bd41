//! One store for some rounds, each of them in a process of its own.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use isobath::{Options, Store};

use super::journal::{self, Left, Span};
use super::plan::{End, LOG, Plan, SEGMENT};
use super::worker::{files, known_path, log_file};
use super::{Problem, step};
use crate::clients::data::value;
use crate::clients::judge::judge;
use crate::clients::records::{Records, tree_id};
use crate::clients::state::{self, Created, State};
use crate::history::{History, Key, Outcome, Version};
use crate::random::Random;

/// What a volume that is nearly full has for other trees and large values.
const SCRATCH_BYTES: u64 = 12 << 20;
/// Longest life, in milliseconds, of a process that is killed while it opens the store.
const LONGEST_OPENING_MS: u64 = 150;

/// The sums of a campaign.
#[derive(Debug, Default)]
pub(super) struct Sum {
    pub(super) stores: u64,
    pub(super) rounds: u64,
    pub(super) acknowledged: u64,
    pub(super) open: u64,
    pub(super) copies: u64,
    pub(super) readers: u64,
    pub(super) while_opening: u64,
    /// Processes that ended because of a fault.
    pub(super) stopped: u64,
    pub(super) slowest_opening: Duration,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    Closed,
    Killed,
    /// By itself, because of a fault.
    Stopped,
}

/// A store and what it has.
pub(super) struct Case {
    directory: tempfile::TempDir,
    records: Records,
    known: BTreeMap<Key, Version>,
    created: Created,
    random: Random,
    round: u64,
}

impl Case {
    /// Makes a store in `parent`, with its first records.
    pub(super) fn new(
        parent: Option<&Path>,
        plan: &Plan,
        new: Options,
        random: Random,
    ) -> Result<Case, Problem> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
        let directory = tempfile::Builder::new()
            .prefix("isobath-process-")
            .tempdir_in(&parent)
            .map_err(|error| format!("{}: {error}", parent.display()))?;
        let scenario = plan.scenario();
        scenario.more.small.switch_on();
        let mut case = Case {
            directory,
            records: Records::new(&scenario, &mut Random::new(plan.seed)),
            known: BTreeMap::new(),
            created: Created::new(),
            random,
            round: 0,
        };
        case.create(plan, new)
            .map_err(|error| format!("making the store: {error}"))?;
        Ok(case)
    }

    fn create(&mut self, plan: &Plan, mut options: Options) -> Result<(), isobath::Error> {
        let place = self.directory.path();
        if !plan.small {
            options = options.segment_bytes(SEGMENT).log_bytes(LOG);
        }
        let log = log_file(place, plan);
        if let Some(log) = &log {
            options = options.log_path(log);
        }
        if plan.full {
            let log = if log.is_none() { LOG } else { 0 };
            let limit = plan.size + plan.size / 4 + log + SCRATCH_BYTES;
            let limit = limit.next_multiple_of(u64::from(SEGMENT));
            options = options.volume_limit_bytes(Some(limit));
        }
        let store = Store::create(&files(place, plan), &options)?;
        let mut next: Version = 1;
        let universe = &self.records.universe;
        let owned: std::collections::BTreeSet<Key> =
            self.records.own.iter().flatten().copied().collect();
        for keys in universe.trees.iter().take(plan.scenario().trees + 1) {
            let tree = store.create_tree(&keys.name)?;
            let id = tree_id(&store, &keys.name);
            self.known.insert(keys.existence, next);
            self.created.insert(keys.existence, vec![(next, id)]);
            let mut records = Vec::new();
            for (bytes, key) in &keys.keys {
                if owned.contains(key) && self.random.chance(75) {
                    next += 1;
                    self.known.insert(*key, next);
                    records.push((bytes, value(next, self.random.skewed(5000) as usize)));
                }
            }
            next += 1;
            tree.bulk_load(records)?;
        }
        store.close()
    }

    /// Lets a process work on the store, and judges what it leaves.
    ///
    /// # Errors
    ///
    /// What is wrong; then all files are kept.
    pub(super) fn round(
        mut self,
        plan: &Plan,
        environment: &[(&str, String)],
        sum: &mut Sum,
    ) -> Result<Case, Problem> {
        self.round += 1;
        let done = self.one_round(plan, environment, sum);
        match done {
            Ok(()) => Ok(self),
            Err(problem) => {
                let (round, kept) = (self.round, self.directory.keep());
                let kept = kept.display();
                let environment: Vec<String> = environment
                    .iter()
                    .map(|(name, value)| format!("{name}={value}"))
                    .collect();
                let environment = environment.join(" ");
                Err(format!(
                    "round {round}, {plan}:\n{problem}\n{environment}\nall files are in {kept}"
                ))
            }
        }
    }

    fn one_round(
        &mut self,
        plan: &Plan,
        environment: &[(&str, String)],
        sum: &mut Sum,
    ) -> Result<(), Problem> {
        let place = self.directory.path().to_owned();
        let known: Vec<(Key, Version)> = self.known.iter().map(|(k, v)| (*k, *v)).collect();
        let known = serde_json::to_vec(&known).map_err(|error| error.to_string())?;
        std::fs::write(known_path(&place), known).map_err(|error| error.to_string())?;
        let ended = self.run_process(plan, environment, sum)?;
        keep_killed(&place)?;
        let mut left = journal::read(&place, self.known.clone())?;
        let late = plan.scenario().shows_late();
        left.history = left.history.shown_late(late);
        for (existence, made) in &left.made {
            self.created.entry(*existence).or_default().extend(made);
        }
        for transaction in &left.history.transactions {
            match transaction.outcome {
                Outcome::Committed => sum.acknowledged += 1,
                _ => sum.open += 1,
            }
        }
        let begin = Instant::now();
        let options = plan.options()?;
        let state = self.read(&files(&place, plan), &options, &mut || {
            sum.slowest_opening = sum.slowest_opening.max(begin.elapsed());
        })?;
        let closed = ended == Ended::Closed;
        let known = self.judge(plan, state, left.history.clone(), closed)?;
        self.judge_copies(plan, left, sum)?;
        self.known = known;
        for (existence, made) in &mut self.created {
            // The numbers of trees that are gone may be given again.
            made.retain(|(version, _)| self.known.get(existence) == Some(version));
        }
        sum.rounds += 1;
        Ok(())
    }

    /// Opens a store, reads all of it, and checks it.
    fn read(
        &self,
        files: &[PathBuf],
        options: &Options,
        opened: &mut dyn FnMut(),
    ) -> Result<State, Problem> {
        step();
        let store = Store::open(files, options).map_err(|error| format!("opening: {error}"))?;
        opened();
        let mut state = state::read(&store, &self.records.universe, &self.created);
        match store.check(&mut |_, _| step()) {
            Ok(report) => state.problems.extend(report.problems),
            Err(error) => state.problems.push(format!("check: {error}")),
        }
        step();
        store.close().map_err(|error| format!("closing: {error}"))?;
        Ok(state)
    }

    fn judge(
        &self,
        plan: &Plan,
        state: State,
        mut history: History,
        closed: bool,
    ) -> Result<BTreeMap<Key, Version>, Problem> {
        step();
        let mut faults = plan.scenario().faults;
        // The store is read without them.
        faults.io = None;
        let universe = &self.records.universe;
        judge(universe, &faults, state, &mut history, closed).map_err(|all| all.join("\n"))
    }

    /// Judges the last backup of a round, and what its last reader has found.
    fn judge_copies(&self, plan: &Plan, left: Left, sum: &mut Sum) -> Result<(), Problem> {
        if let Some((Span { began, ended }, names)) = left.backup {
            let place = self.directory.path();
            let files: Vec<PathBuf> = names.iter().map(|name| place.join(name)).collect();
            let copy = place.join("copy.isobath");
            let options = Options::new().pool_bytes(4 << 20).workers(1);
            let options = options.tasks_per_worker(16);
            let mut go_on = |_: &str, _, _| {
                step();
                std::ops::ControlFlow::Continue(())
            };
            let restored = Store::restore(&files, &[&copy], &options, &mut go_on);
            restored.map_err(|error| format!("restoring: {error}"))?;
            let state = self.read(std::slice::from_ref(&copy), &options, &mut || {})?;
            let history = left.history.copied(began, ended);
            self.judge(plan, state, history, false)
                .map_err(|problem| format!("the copy of {}: {problem}", names.join(" + ")))?;
            std::fs::remove_file(&copy).map_err(|error| error.to_string())?;
            sum.copies += 1;
        }
        if let Some(seen) = left.reader {
            let Span { began, ended } = seen.span;
            let mut state = State {
                records: seen.records.into_iter().collect(),
                trees: seen.trees,
                unreadable: Vec::new(),
                problems: Vec::new(),
            };
            state.made_by(&self.records.universe, &self.created);
            // A reader sees commits that are durable.
            let mut history = left.history.copied(began, ended);
            let known = left.history.transactions.iter();
            let lasting: std::collections::BTreeSet<(u64, u64)> = known
                .filter(|t| t.durable)
                .map(|t| (t.begin, t.asked))
                .collect();
            for transaction in &mut history.transactions {
                let id = (transaction.begin, transaction.asked);
                transaction.durable &= lasting.contains(&id);
            }
            self.judge(plan, state, history, false)
                .map_err(|problem| format!("a reader: {problem}"))?;
            sum.readers += 1;
        }
        Ok(())
    }

    /// Starts a process, and ends it as the plan says.
    fn run_process(
        &mut self,
        plan: &Plan,
        environment: &[(&str, String)],
        sum: &mut Sum,
    ) -> Result<Ended, Problem> {
        let mut process = super::this("work", self.directory.path(), self.round, plan)?
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting a process: {error}"))?;
        let output = process.stdout.take().ok_or("the process has no output")?;
        let ended = self.end_process(&mut process, BufReader::new(output), plan);
        // Whatever went wrong: it ends.
        let _ = process.kill();
        let status = process.wait().map_err(|error| error.to_string())?;
        sum.while_opening += u64::from(plan.end == End::KillOpening);
        match ended {
            // It says so by this code; a panic or a signal would be something else.
            _ if plan.may_end() && status.code() == Some(1) => {
                sum.stopped += 1;
                Ok(Ended::Stopped)
            }
            Ok(true) => Ok(Ended::Closed),
            Ok(false) => Ok(Ended::Killed),
            Err(problem) => Err(format!("{problem} ({status})")),
        }
    }

    /// Whether it has closed the store.
    fn end_process(
        &mut self,
        process: &mut Child,
        mut output: BufReader<ChildStdout>,
        plan: &Plan,
    ) -> Result<bool, Problem> {
        if plan.end == End::KillOpening {
            let most = self.random.below(LONGEST_OPENING_MS);
            std::thread::sleep(Duration::from_millis(most));
            return match process.try_wait().map_err(|error| error.to_string())? {
                Some(status) => Err(format!("the process ended early: {status}")),
                None => Ok(false),
            };
        }
        hear(&mut output, "writing")?;
        if plan.end == End::Kill {
            return hear(&mut output, "enough").map(|()| false);
        }
        hear(&mut output, "closing")?;
        if plan.end == End::KillClosing {
            std::thread::sleep(Duration::from_micros(self.random.below(60_000)));
            let _ = process.kill();
            let mut rest = String::new();
            let _ = output.read_to_string(&mut rest);
            // It may have been faster.
            return Ok(rest.contains("closed"));
        }
        hear(&mut output, "closed").map(|()| true)
    }
}

/// Waits until a process says `word`; its end says why it does not, on the error output that is
/// shared.
fn hear(output: &mut BufReader<ChildStdout>, word: &str) -> Result<(), Problem> {
    let mut line = String::new();
    step();
    let read = output.read_line(&mut line);
    read.map_err(|error| format!("reading from a process: {error}"))?;
    if line.trim() == word {
        return Ok(());
    }
    Err(format!("a process said {line:?}, not {word:?}"))
}

/// Copies the store and the journal as a process has left them: judging opens the one and removes
/// the other.
fn keep_killed(directory: &Path) -> Result<(), Problem> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let killed = directory.join("killed");
    let _ = std::fs::remove_dir_all(&killed);
    std::fs::create_dir(&killed).map_err(failed)?;
    for file in std::fs::read_dir(directory).map_err(failed)?.flatten() {
        let name = file.file_name();
        let is_kept = name.to_string_lossy().starts_with("store.") || name == *"journal";
        if is_kept {
            std::fs::copy(file.path(), killed.join(name)).map_err(failed)?;
        }
    }
    Ok(())
}
