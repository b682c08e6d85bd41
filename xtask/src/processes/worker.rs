//! The process that works on a store until it closes it or is killed, and the one that reads it
//! meanwhile.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use isobath::{BackupOptions, Error, Store};

use super::journal::{Journal, Note, Seen, Span, now};
use super::plan::{End, LogPlace, Plan};
use super::{Problem, ProcessArgs, step, watch};
use crate::clients::recorder::Recorder;
use crate::clients::records::{Records, work as run_client};
use crate::clients::state;
use crate::history::{Key, Version};
use crate::random::Random;

/// Backups that add to each other, at most.
const LONGEST_CHAIN: usize = 4;
/// Bytes of the largest store that is checked while it is in use.
const MAX_CHECKED: u64 = 100 << 20;
/// Times that a reader is opened again because the writer has left it behind.
const TRIES: usize = 50;
/// Looks at clients that come to rest, each a millisecond after the last.
const MAX_LOOKS: usize = 10_000;

/// The files of a store.
pub(super) fn files(directory: &Path, plan: &Plan) -> Vec<PathBuf> {
    let files = 0..plan.files;
    files
        .map(|file| directory.join(format!("store.{file}.isobath")))
        .collect()
}

/// The place of its log, if that has one of its own.
pub(super) fn log_file(directory: &Path, plan: &Plan) -> Option<PathBuf> {
    (plan.log == LogPlace::Separate).then(|| directory.join("store.log"))
}

/// The records that the store has when a round begins.
pub(super) fn known_path(directory: &Path) -> PathBuf {
    directory.join("known")
}

fn plan_of(args: &ProcessArgs) -> Result<Plan, Problem> {
    Plan::draw(0, 0, 0, &mut Random::new(0)).fixed(&args.plan)
}

/// Works until told to stop, or something is wrong.
pub(crate) fn work(args: &ProcessArgs) -> bool {
    let plan = plan_of(args);
    match plan.and_then(|plan| run(args, &plan)) {
        Ok(()) => true,
        Err(problem) => {
            eprintln!("the worker: {problem}");
            false
        }
    }
}

/// Says something to the process that has started this.
fn say(word: &str) -> Result<(), Problem> {
    println!("{word}");
    let flushed = std::io::stdout().flush();
    flushed.map_err(|error| error.to_string())
}

fn run(args: &ProcessArgs, plan: &Plan) -> Result<(), Problem> {
    stay_on(plan.cores)?;
    let scenario = plan.scenario();
    let small = scenario.more.small;
    small.switch_on();
    let records = Records::new(&scenario, &mut Random::new(plan.seed));
    let known = std::fs::read(known_path(&args.directory)).map_err(|e| e.to_string())?;
    let known: Vec<(Key, Version)> = serde_json::from_slice(&known).map_err(|e| e.to_string())?;
    let known: BTreeMap<Key, Version> = known.into_iter().collect();
    let store = Store::open(&files(&args.directory, plan), &plan.options()?);
    let store = store.map_err(|error| format!("opening: {error}"))?;
    let journal = Journal::create(&args.directory).map_err(|error| error.to_string())?;
    let first_version = args.round << 40 | 1;
    let recorder = Recorder::new(
        &records,
        &scenario,
        known.clone(),
        first_version,
        Some(journal),
    );
    let trees = records.open_trees(&store, &recorder, &known);
    let trees = trees.map_err(|error| format!("opening trees: {error}"))?;
    let watched = Arc::clone(&recorder);
    watch(move || watched.begun());
    say("writing")?;
    let ended = Arc::new(AtomicUsize::new(0));
    let mut helper = Helper {
        args,
        plan,
        store: &store,
        recorder: &recorder,
        ended: &ended,
        random: Random::new(plan.seed ^ args.round << 20 ^ 0xbac0),
        chain: Vec::new(),
        made: 0,
    };
    std::thread::scope(|scope| {
        let (mut tasks, count) = (Vec::new(), records.own.len());
        for number in 0..count {
            let actor = records.actor(number, args.round, &store, &trees, &recorder, &known);
            let (ended, operations) = (Arc::clone(&ended), scenario.operations);
            let work = move || run_client(actor, operations, &ended);
            // Threads, and tasks of the store's workers.
            if number % 2 == 1 {
                tasks.push(store.spawn(work));
            } else {
                scope.spawn(move || {
                    small.switch_on();
                    work();
                });
            }
        }
        let mut is_told = false;
        while ended.load(Ordering::Relaxed) < count || plan.end == End::Kill {
            if !is_told && recorder.begun() as u64 >= plan.operations
                || ended.load(Ordering::Relaxed) == count
            {
                if plan.end != End::Kill {
                    break;
                }
                if !is_told {
                    say("enough")?;
                }
                is_told = true;
            }
            let violations = recorder.violations();
            if !violations.is_empty() {
                return Err(violations.join("\n"));
            }
            helper.help()?;
        }
        recorder.stop();
        for task in tasks {
            task.join().map_err(|_| "a task panicked".to_owned())?;
        }
        Ok::<(), Problem>(())
    })
    .and_then(|()| match recorder.violations() {
        violations if violations.is_empty() => Ok(()),
        violations => Err(violations.join("\n")),
    })
    .unwrap_or_else(|problem| {
        // What one client has found must not be hidden by the others.
        eprintln!("{problem}");
        std::process::exit(2)
    });
    drop(trees);
    say("closing")?;
    step();
    store.close().map_err(|error| format!("closing: {error}"))?;
    say("closed")
}

/// Restricts the process to some cores.
#[allow(unsafe_code)]
fn stay_on(cores: u64) -> Result<(), Problem> {
    if cores == 0 {
        return Ok(());
    }
    let bytes = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of cores is plain bits, all of which may be clear. The calls read
    // and write `may` and `set` only, whose lengths are passed.
    let done = unsafe {
        let mut may: libc::cpu_set_t = std::mem::zeroed();
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, bytes, &raw mut may);
        let allowed = (0..libc::CPU_SETSIZE as usize).filter(|core| libc::CPU_ISSET(*core, &may));
        for core in allowed.take(cores as usize) {
            libc::CPU_SET(core, &mut set);
        }
        libc::sched_setaffinity(0, bytes, &raw const set)
    };
    match done {
        0 => Ok(()),
        _ => Err(format!(
            "staying on {cores} cores: {}",
            std::io::Error::last_os_error()
        )),
    }
}

/// Makes backups, checks the store and has it read while clients work.
struct Helper<'a> {
    args: &'a ProcessArgs,
    plan: &'a Plan,
    store: &'a Store,
    recorder: &'a Recorder,
    ended: &'a AtomicUsize,
    random: Random,
    chain: Vec<String>,
    made: u64,
}

impl Helper<'_> {
    fn help(&mut self) -> Result<(), Problem> {
        step();
        match self.random.below(60) {
            // Where system calls fail, so do these.
            _ if self.plan.may_end() => {}
            0..4 => self.back_up()?,
            4 if self.plan.size <= MAX_CHECKED => self.check()?,
            5..7 => self.have_it_read()?,
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(1 + self.random.below(10)));
        Ok(())
    }

    /// Checks the store while clients rest.
    fn check(&mut self) -> Result<(), Problem> {
        self.recorder.pause(true);
        let rest = || {
            let ended = self.ended.load(Ordering::Relaxed);
            self.recorder.resting() + ended == self.plan.threads as usize
        };
        for _ in 0..MAX_LOOKS {
            if rest() {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let report = rest().then(|| self.store.check(&mut |_, _| step()));
        self.recorder.pause(false);
        match report.transpose() {
            Ok(Some(report)) if !report.problems.is_empty() => {
                Err(format!("check: {}", report.problems.join("; ")))
            }
            Ok(_) => Ok(()),
            Err(error) => Err(format!("check: {error}")),
        }
    }

    /// Adds to the last backups, or begins again.
    fn back_up(&mut self) -> Result<(), Problem> {
        let old = match self.chain.len() >= LONGEST_CHAIN {
            true => std::mem::take(&mut self.chain),
            false => Vec::new(),
        };
        self.made += 1;
        let name = format!("backup-{}-{}", self.args.round, self.made);
        let place = |name: &String| self.args.directory.join(name);
        let mut options = BackupOptions::new();
        if let Some(base) = self.chain.last() {
            options = options.since(place(base));
        }
        let began = self.recorder.tick();
        let mut go_on = |_: &str, _, _| {
            step();
            std::ops::ControlFlow::Continue(())
        };
        let done = self.store.backup(&place(&name), &options, &mut go_on);
        done.map_err(|error| format!("a backup: {error}"))?;
        self.chain.push(name);
        let ended = self.recorder.tick();
        let span = Span { began, ended };
        self.recorder.note(Note::Backup(span, self.chain.clone()));
        for name in old {
            let _ = std::fs::remove_file(place(&name));
        }
        Ok(())
    }

    /// Has another process read the store.
    fn have_it_read(&mut self) -> Result<(), Problem> {
        let output = super::this("read", &self.args.directory, self.args.round, self.plan)?
            .output()
            .map_err(|error| format!("starting a reader: {error}"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("a reader, {}: {said}", output.status));
        }
        // A busy writer may leave each of its tries behind.
        if let Ok(note) = serde_json::from_slice(&output.stdout) {
            self.recorder.note(note);
        }
        Ok(())
    }
}

/// Reads all of a store while another process writes it, and prints it.
pub(crate) fn read(args: &ProcessArgs) -> bool {
    for _ in 0..TRIES {
        match plan_of(args).and_then(|plan| read_once(args, &plan)) {
            Ok(Some(note)) => {
                println!("{}", serde_json::to_string(&note).unwrap_or_default());
                return true;
            }
            Ok(None) => {}
            Err(problem) => {
                eprintln!("{problem}");
                return false;
            }
        }
    }
    true
}

/// `None` if the writer has used again what the reader needs.
fn read_once(args: &ProcessArgs, plan: &Plan) -> Result<Option<Note>, Problem> {
    let is_late =
        |error: &Error| matches!(error, Error::ReaderOverrun { .. } | Error::SnapshotTooOld);
    let scenario = plan.scenario();
    scenario.more.small.switch_on();
    let records = Records::new(&scenario, &mut Random::new(plan.seed));
    let began = now();
    let options = plan.options()?.workers(1).read_only(true);
    let store = Store::open(&files(&args.directory, plan), &options).map_err(Error::from);
    let store = match store {
        Ok(store) => store,
        Err(error) if is_late(&error) => return Ok(None),
        Err(error) => return Err(format!("opening: {error}")),
    };
    let ended = now();
    let found = state::find(&store, &records.universe);
    if found.unreadable.iter().any(|(_, error)| is_late(error)) {
        return Ok(None);
    }
    let mut problems = found.problems;
    let unreadable = found.unreadable.iter();
    problems.extend(
        unreadable.map(|(key, error)| format!("{}: {error}", records.universe.describe(*key))),
    );
    if let Err(error) = store.close() {
        problems.push(format!("closing: {error}"));
    }
    match problems.is_empty() {
        true => {
            let records = found.records.into_iter().collect();
            let span = Span { began, ended };
            Ok(Some(Note::Reader(Seen {
                span,
                records,
                trees: found.trees,
            })))
        }
        false => Err(problems.join("\n")),
    }
}
