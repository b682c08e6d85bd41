//! Kills real processes while they write, and checks the stores that they leave.
//!
//! A writer process notes in journals outside the store what it asks for and
//! what was acknowledged. It is killed at a random instant; then the store is
//! opened, read, checked, and judged by what the journals say.

pub(crate) mod journal;
pub(crate) mod syscalls;
mod writer;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use isobath::{Backend, Options, Store};

use crate::data::{Universe, key_bytes};
use crate::history::{History, Key, Version, check};
use crate::random::Random;
use crate::simulate::state;

pub(crate) use writer::{WriterArgs, write};

/// Threads of a writer.
const THREADS: u64 = 8;
/// Records that each of them writes alone, and records of all of them.
const OWN_KEYS: u64 = 150;
const COUNTERS: u64 = 24;
/// Longest life of a writer, in milliseconds.
const LONGEST_MS: u64 = 500;

/// A way to the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Way {
    /// io_uring
    Uring,
    /// Linux native AIO
    Aio,
    /// Blocking pread and pwrite
    Pread,
}

impl Way {
    pub(crate) fn backend(self) -> Backend {
        match self {
            Way::Uring => Backend::IoUring {
                iopoll: false,
                sqpoll: false,
            },
            Way::Aio => Backend::Libaio,
            Way::Pread => Backend::Pread,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Uring => "uring",
            Way::Aio => "aio",
            Way::Pread => "pread",
        }
    }
}

/// The place of a store's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogPlace {
    /// On the store's own volume
    Volume,
    /// In a file of its own
    Separate,
}

impl LogPlace {
    fn name(self) -> &'static str {
        match self {
            LogPlace::Volume => "log on the volume",
            LogPlace::Separate => "separate log",
        }
    }
}

/// Options of `cargo xtask crash`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Writers to kill, for each way to the kernel
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Ways to the kernel; those that this machine refuses are named and left out
    #[arg(long, value_delimiter = ',', default_value = "uring,aio,pread")]
    backends: Vec<Way>,
    /// Decides the writes and, as far as it can, when writers are killed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Place of the log
    #[arg(long, value_delimiter = ',', default_value = "volume,separate")]
    logs: Vec<LogPlace>,
    /// Directory of the stores; by default the system's temporary directory
    #[arg(long)]
    directory: Option<PathBuf>,
}

/// A problem, in sentences.
pub(crate) type Problem = String;

/// How a store is created and opened: small, so that everything happens often.
pub(super) fn options(way: Way) -> Options {
    Options::new()
        .pool_bytes(4 << 20)
        .workers(2)
        .tasks_per_worker(16)
        .segment_bytes(256 << 10)
        .log_bytes(4 << 20)
        .backend(way.backend())
}

/// The records of a crash test.
pub(super) struct Records {
    pub(super) universe: Universe,
    pub(super) own: Vec<Vec<Key>>,
    pub(super) counters: Vec<Key>,
}

impl Records {
    pub(super) fn new() -> Records {
        let mut random = Random::new(7);
        let mut universe = Universe::default();
        universe.add_tree("a");
        universe.add_tree("b");
        let mut group = |kind, owner, count| -> Vec<Key> {
            (0..count)
                .map(|number| {
                    let tree = random.below(2) as usize;
                    let bytes = key_bytes(kind, owner, number, &mut random);
                    universe.add_key(tree, bytes)
                })
                .collect()
        };
        let own = (0..THREADS).map(|t| group(b'o', t, OWN_KEYS)).collect();
        let counters = group(b'c', 0, COUNTERS);
        Records {
            universe,
            own,
            counters,
        }
    }
}

/// Kills writers; whether every store was as it should be.
pub(crate) fn campaign(args: &Args) -> bool {
    let mut sound = true;
    let ways = args.backends.iter();
    let cases = ways.flat_map(|&way| args.logs.iter().map(move |&log| (way, log)));
    for (way, log) in cases {
        let begin = Instant::now();
        match one_way(args, way, log) {
            Ok(Some(sum)) => println!(
                "{}, {}: {} writers killed, {} of them while opening; {} commits acknowledged, {} open; \
                 slowest opening {:.0} ms; {:.1} s",
                way.name(),
                log.name(),
                args.rounds,
                sum.while_opening,
                sum.acknowledged,
                sum.open,
                sum.slowest_opening.as_secs_f64() * 1e3,
                begin.elapsed().as_secs_f64()
            ),
            Ok(None) => println!("{}: this machine refuses it; left out", way.name()),
            Err(problem) => {
                println!("{}, {} FAILED:\n{problem}", way.name(), log.name());
                sound = false;
            }
        }
    }
    sound
}

#[derive(Default)]
struct Sum {
    acknowledged: u64,
    open: u64,
    while_opening: u64,
    slowest_opening: Duration,
}

impl Sum {
    fn count(&mut self, history: &History) {
        for transaction in &history.transactions {
            if transaction.outcome == crate::history::Outcome::Committed {
                self.acknowledged += 1;
            } else {
                self.open += 1;
            }
        }
    }
}

/// How a writer is started, and what it may do.
#[derive(Default)]
struct Life<'l> {
    environment: &'l [(&'static str, String)],
    /// It may say that writing fails, and end.
    may_end: bool,
}

/// A writer's life.
struct Lived {
    had_opened: bool,
    /// It had ended before it was killed.
    has_ended: bool,
}

fn one_way(args: &Args, way: Way, log: LogPlace) -> Result<Option<Sum>, Problem> {
    let parent = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let directory = tempfile::Builder::new()
        .prefix("isobath-crash-")
        .tempdir_in(&parent)
        .map_err(|error| format!("{}: {error}", parent.display()))?;
    let path = directory.path().join("store.isobath");
    let mut new = options(way);
    if log == LogPlace::Separate {
        new = new.log_path(directory.path().join("store.log"));
    }
    let store = match Store::create(&[&path], &new) {
        Ok(store) => store,
        Err(error) => {
            println!("{}: {error}", way.name());
            return Ok(None);
        }
    };
    let records = Records::new();
    let mut known = BTreeMap::new();
    let mut created = BTreeMap::new();
    for (number, tree) in (1..).zip(&records.universe.trees) {
        store.create_tree(&tree.name).map_err(|e| e.to_string())?;
        known.insert(tree.existence, number);
        created.insert(tree.existence, vec![(number, None)]);
    }
    store.close().map_err(|error| format!("closing: {error}"))?;
    let mut random = Random::new(args.seed);
    let mut sum = Sum::default();
    for round in 1..=args.rounds {
        let (place, seed) = (directory.path(), args.seed);
        let lived = kill_one(
            place,
            &path,
            way,
            seed,
            round,
            &mut random,
            &Life::default(),
        )?;
        sum.while_opening += u64::from(!lived.had_opened);
        let history = journal::read(directory.path(), round, THREADS, known.clone())?;
        sum.count(&history);
        let judged = judge(&path, way, &records, &created, history, &mut sum);
        known = judged.map_err(|problem| {
            // The evidence would be gone with the directory.
            let kept = directory.path().display();
            format!("round {round}: {problem}\nthe store was in {kept}")
        })?;
    }
    Ok(Some(sum))
}

/// Starts a writer and kills it, unless it ends before and may do so.
fn kill_one(
    directory: &Path,
    store: &Path,
    way: Way,
    seed: u64,
    round: u64,
    random: &mut Random,
    life: &Life<'_>,
) -> Result<Lived, Problem> {
    let this = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut writer = Command::new(this)
        .arg("crash-writer")
        .args(["--backend", way.name()])
        .args(["--seed", &seed.to_string(), "--round", &round.to_string()])
        .arg("--store")
        .arg(store)
        .arg("--journals")
        .arg(directory)
        .envs(life.environment.iter().map(|(name, value)| (name, value)))
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("starting a writer: {error}"))?;
    let early = random.chance(15);
    if early {
        std::thread::sleep(Duration::from_millis(random.below(60)));
    } else {
        match wait_for_word(&mut writer) {
            Ok(()) => {}
            Err(_) if life.may_end => {}
            Err(problem) => return Err(problem),
        }
        std::thread::sleep(Duration::from_micros(random.below(1000 * LONGEST_MS)));
    }
    let ended = writer.try_wait().map_err(|error| error.to_string())?;
    if let Some(status) = ended {
        // It says so by this code; a panic or a signal would be something else.
        if life.may_end && status.code() == Some(1) {
            return Ok(Lived {
                had_opened: !early,
                has_ended: true,
            });
        }
        return Err(format!("the writer of round {round} ended early: {status}"));
    }
    let killed = writer.kill().and_then(|()| writer.wait());
    killed.map_err(|error| format!("killing a writer: {error}"))?;
    Ok(Lived {
        had_opened: !early,
        has_ended: false,
    })
}

/// Waits until the writer says that it writes.
fn wait_for_word(writer: &mut Child) -> Result<(), Problem> {
    let mut line = String::new();
    let Some(output) = writer.stdout.take() else {
        return Err("the writer has no output".to_owned());
    };
    let read = BufReader::new(output).read_line(&mut line);
    read.map_err(|error| format!("reading from a writer: {error}"))?;
    if line.trim() == "writing" {
        return Ok(());
    }
    // Its end says why, on the error output that is shared.
    let status = writer.wait().map_err(|error| error.to_string())?;
    Err(format!("a writer said {line:?} and ended: {status}"))
}

/// Opens what a writer left, and compares it with what the writer noted.
fn judge(
    path: &Path,
    way: Way,
    records: &Records,
    created: &state::Created,
    mut history: History,
    sum: &mut Sum,
) -> Result<BTreeMap<Key, Version>, Problem> {
    let begin = Instant::now();
    let store = Store::open(&[path], &options(way)).map_err(|error| format!("opening: {error}"))?;
    sum.slowest_opening = sum.slowest_opening.max(begin.elapsed());
    let state = state::read(&store, &records.universe, created);
    let mut problems = state.problems;
    for (key, error) in &state.unreadable {
        problems.push(format!("{}: {error}", records.universe.describe(*key)));
    }
    history.last = Some(state.records.clone());
    let findings = check(&history);
    problems.extend(
        findings
            .iter()
            .map(|f| records.universe.translate(&f.to_string())),
    );
    match store.check(&mut |_, _| {}) {
        Ok(report) => problems.extend(report.problems),
        Err(error) => problems.push(format!("check: {error}")),
    }
    if let Err(error) = store.close() {
        problems.push(format!("closing: {error}"));
    }
    if problems.is_empty() {
        Ok(state.records)
    } else {
        Err(problems.join("\n"))
    }
}
