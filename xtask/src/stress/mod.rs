//! Everything that a store offers, at once, with real threads and real files,
//! until it is closed or killed; then what it holds is compared with what the
//! threads know, and so are the copies that were made while they ran.

mod client;
mod judge;
mod mode;
mod reader;
mod transact;
mod watch;
mod worker;
mod world;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use isobath::{Options, Store};

use crate::crash::{LogPlace, Problem, Way};
use crate::data::value;
use crate::history::Version;
use crate::random::Random;
use judge::{Since, Thread};
use mode::{End, Mode};
use watch::Watch;
use world::{SHARED, World, length, main_key, shared_key};

pub(crate) use reader::{ReaderArgs, read};
pub(crate) use worker::{WorkerArgs, work};

/// Rounds of one store before the next is made.
const ROUNDS: u64 = 5;
/// Bytes of a segment, of the log, and of what a volume that is nearly full has for
/// scratch trees, the tail and large values.
const SEGMENT: u32 = 256 << 10;
const LOG: u64 = 4 << 20;
const SCRATCH_ROOM: u64 = 12 << 20;
/// Longest life, in milliseconds, of a worker that is killed while it opens the store.
const LONGEST_OPENING_MS: u64 = 150;

/// Options of `cargo xtask stress`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long, about: the round that runs then is the last
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Seconds until the store is closed or its process killed, about
    #[arg(long, default_value_t = 5.0)]
    every: f64,
    /// The first store's seed; the next ones follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Bytes of data, about; suffixes K, M, G
    #[arg(long, default_value = "16M", value_parser = bytes)]
    size: u64,
    /// Fixes some drawn settings, as they are printed: backend=aio,threads=16
    #[arg(long, default_value = "")]
    mode: String,
    /// Leaves steps out, to find what a failure needs: write, swap, read, many, scan, transaction,
    /// streamed-write, streamed-read, snapshot, scratch, tail, backup, check, discard, compact,
    /// reader
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
    /// Directory of the stores; by default the system's temporary directory
    #[arg(long)]
    directory: Option<PathBuf>,
}

fn bytes(text: &str) -> Result<u64, Problem> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" => 1,
        "K" | "KiB" => 1 << 10,
        "M" | "MiB" => 1 << 20,
        "G" | "GiB" => 1 << 30,
        other => return Err(format!("{other:?} is no unit")),
    };
    let number: u64 = digits.parse().map_err(|e| format!("{e}"))?;
    number
        .checked_mul(unit)
        .ok_or_else(|| "too much".to_owned())
}

/// A mode in full, as it is printed.
fn mode_of(text: &str) -> Result<Mode, Problem> {
    let mut mode = Mode::draw(&mut Random::new(0));
    mode.fix(text)?;
    Ok(mode)
}

/// The place of a store's files.
struct Place {
    files: Vec<PathBuf>,
    log: Option<PathBuf>,
}

impl Place {
    fn new(directory: &Path, mode: &Mode) -> Place {
        let files = 0..mode.files;
        Place {
            files: files
                .map(|file| directory.join(format!("store-{file}.isobath")))
                .collect(),
            log: (mode.log == LogPlace::Separate).then(|| directory.join("store.log")),
        }
    }
}

/// The sums of a campaign.
#[derive(Default)]
struct Sum {
    stores: u64,
    rounds: u64,
    changes: u64,
    copies: u64,
    refused: Vec<Way>,
}

/// Stresses stores; whether all were as they should be.
pub(crate) fn campaign(args: &Args) -> bool {
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(args.minutes * 60.0);
    let watch = Watch::begin(1);
    let mut sum = Sum::default();
    let mut seed = args.seed;
    while Instant::now() < end {
        if let Err(problem) = one_store(args, seed, end, &watch, &mut sum) {
            println!("FAILED: {problem}");
            println!(
                "again: cargo xtask stress --seed {seed} --size {} --every {} --mode '{}' --without '{}'",
                args.size,
                args.every,
                args.mode,
                args.without.join(",")
            );
            return false;
        }
        seed += 1;
    }
    println!(
        "{} stores, {} rounds, {} changes, {} copies restored: all as they should be; {:.0} s",
        sum.stores,
        sum.rounds,
        sum.changes,
        sum.copies,
        begin.elapsed().as_secs_f64()
    );
    true
}

/// One store for some rounds.
struct Case<'a> {
    args: &'a Args,
    seed: u64,
    world: World,
    directory: PathBuf,
    watch: &'a Watch,
    /// The store's versions.
    state: Vec<Version>,
}

fn one_store(
    args: &Args,
    seed: u64,
    end: Instant,
    watch: &Watch,
    sum: &mut Sum,
) -> Result<(), Problem> {
    let parent = args.directory.clone().unwrap_or_else(std::env::temp_dir);
    let directory = tempfile::Builder::new()
        .prefix("isobath-stress-")
        .tempdir_in(&parent)
        .map_err(|error| format!("{}: {error}", parent.display()))?;
    let mut random = Random::new(seed);
    let mut first = Mode::draw(&mut random);
    first.fix(&args.mode)?;
    let world = World::of_bytes(args.size);
    let mut case = Case {
        args,
        seed,
        world,
        directory: directory.path().to_owned(),
        watch,
        state: world.first(),
    };
    sum.stores += 1;
    let mut rounds = || -> Result<(), Problem> {
        case.create(&first, &mut random)?;
        for round in 1..=ROUNDS {
            let mut mode = Mode::draw(&mut random).on_store_of(&first);
            mode.fix(&args.mode)?;
            case.use_what_works(&mut mode, sum);
            println!("seed {seed}, round {round}: {mode}");
            case.round(round, &mode, &mut random, sum)
                .map_err(|problem| format!("seed {seed}, round {round}, {mode}:\n{problem}"))?;
            sum.rounds += 1;
            if Instant::now() >= end {
                break;
            }
        }
        Ok(())
    };
    rounds().map_err(|problem| {
        // The evidence would be gone with the directory.
        let kept = directory.keep();
        format!("{problem}\nall files are in {}", kept.display())
    })
}

impl Case<'_> {
    /// Makes the store with its first records.
    fn create(&self, mode: &Mode, random: &mut Random) -> Result<(), Problem> {
        let place = Place::new(&self.directory, mode);
        mode.sizes().switch_on();
        let mut options = match mode.small {
            true => mode.options(),
            false => mode.options().segment_bytes(SEGMENT).log_bytes(LOG),
        };
        if let Some(log) = &place.log {
            options = options.log_path(log);
        }
        if mode.full {
            let data = self.args.size.max(self.world.main() * 1000);
            let log = if place.log.is_none() { LOG } else { 0 };
            let limit = data + data / 4 + log + SCRATCH_ROOM;
            let limit = limit.next_multiple_of(u64::from(SEGMENT));
            options = options.volume_limit_bytes(Some(limit));
        }
        options = options.backend(isobath::Backend::Auto);
        let mut fill = || {
            let store = Store::create(&place.files, &options)?;
            let main = store.create_tree("main")?;
            let records = (0..).zip(&self.state[..self.world.spread as usize]);
            main.bulk_load(records.filter(|(_, version)| **version != 0).map(
                |(record, version)| {
                    self.watch.at(0, "filling the store");
                    (main_key(record), value(*version, length(random)))
                },
            ))?;
            let shared = store.create_tree("shared")?;
            for at in 0..SHARED {
                let number = self.state[self.world.shared(at) as usize];
                shared.insert(&shared_key(at), &value(number, 0))?;
            }
            store.close()
        };
        let filled = fill();
        self.watch.idle(0);
        filled.map_err(|error| format!("making the store: {error}"))
    }

    /// Another way to the kernel, if this machine refuses one.
    fn use_what_works(&self, mode: &mut Mode, sum: &mut Sum) {
        if sum.refused.contains(&mode.backend) {
            mode.backend = Way::Pread;
        }
        if mode.backend == Way::Pread {
            return;
        }
        let probe = tempfile::tempdir_in(&self.directory);
        let Ok(probe) = probe else { return };
        let options = Options::new().pool_bytes(4 << 20).workers(1);
        let options = options.backend(mode.backend.backend()).tasks_per_worker(8);
        match Store::create(&[probe.path().join("probe.isobath")], &options) {
            Ok(store) => drop(store.close()),
            Err(error) => {
                println!("{}: {error}; pread instead", mode.backend.name());
                sum.refused.push(mode.backend);
                mode.backend = Way::Pread;
            }
        }
    }

    /// Lets a worker use the store for a while, and checks what it leaves.
    fn round(
        &mut self,
        round: u64,
        mode: &Mode,
        random: &mut Random,
        sum: &mut Sum,
    ) -> Result<(), Problem> {
        world::save(&self.directory, &self.state)?;
        let closed = self.run_worker(round, mode, random)?;
        let threads = judge::threads(&self.directory, round, mode.threads)?;
        sum.changes += threads.iter().map(|t| t.changes() as u64).sum::<u64>();
        let since = if closed { Since::Close } else { Since::Kill };
        let place = Place::new(&self.directory, mode);
        let found = self.read(&place.files, &mode.options())?;
        judge::judge(&self.world, &threads, since, &self.state, &found)?;
        if let Some(backup) = judge::last_backup(&self.directory, round) {
            let copied = self.judge_copy(&backup, &threads);
            copied.map_err(|e| format!("the copy of {}: {e}", backup.files.join(" + ")))?;
            sum.copies += 1;
        }
        self.state = found;
        Ok(())
    }

    /// Opens a store and reads all of it.
    fn read(&self, files: &[PathBuf], options: &Options) -> Result<Vec<Version>, Problem> {
        self.watch.at(0, "opening");
        let store = Store::open(files, options).map_err(|error| format!("opening: {error}"))?;
        let found = judge::read(&store, &self.world, self.watch)?;
        self.watch.at(0, "closing");
        let closed = store.close();
        self.watch.idle(0);
        closed.map_err(|error| format!("closing: {error}"))?;
        Ok(found)
    }

    /// Restores what a round has copied, and judges it.
    fn judge_copy(&self, backup: &judge::Backup, threads: &[Thread]) -> Result<(), Problem> {
        let files: Vec<PathBuf> = backup
            .files
            .iter()
            .map(|f| self.directory.join(f))
            .collect();
        let copy = self.directory.join("copy.isobath");
        let options = Options::new()
            .pool_bytes(4 << 20)
            .workers(1)
            .tasks_per_worker(16);
        let restored = Store::restore(&files, &[&copy], &options, &mut |_, _, _| {
            self.watch.at(0, "restoring");
            std::ops::ControlFlow::Continue(())
        });
        restored.map_err(|error| format!("restoring: {error}"))?;
        let found = self.read(std::slice::from_ref(&copy), &options)?;
        let since = Since::Backup {
            began: backup.began,
            ended: backup.ended,
        };
        judge::judge(&self.world, threads, since, &self.state, &found)?;
        std::fs::remove_file(&copy).map_err(|error| error.to_string())
    }

    /// Starts a worker, and ends it as the mode says; whether it closed the store.
    fn run_worker(&self, round: u64, mode: &Mode, random: &mut Random) -> Result<bool, Problem> {
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut worker = Command::new(this)
            .arg("stress-worker")
            .arg("--directory")
            .arg(&self.directory)
            .args(["--seed", &self.seed.to_string()])
            .args(["--round", &round.to_string()])
            .args(["--size", &self.args.size.to_string()])
            .args(["--mode", &mode.to_string()])
            .args(["--without", &self.args.without.join(",")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("starting a worker: {error}"))?;
        let output = worker.stdout.take().ok_or("the worker has no output")?;
        let ended = self.end_worker(&mut worker, BufReader::new(output), mode, random);
        // Whatever went wrong: it ends.
        let _ = worker.kill();
        let _ = worker.wait();
        ended
    }

    fn end_worker(
        &self,
        worker: &mut Child,
        mut output: BufReader<ChildStdout>,
        mode: &Mode,
        random: &mut Random,
    ) -> Result<bool, Problem> {
        if mode.end == End::KillOpening {
            std::thread::sleep(Duration::from_millis(random.below(LONGEST_OPENING_MS)));
            return still_runs(worker).map(|()| false);
        }
        hear(worker, &mut output, "writing")?;
        let share = 0.5 + random.below(1000) as f64 / 1000.0;
        let working = Duration::from_secs_f64(self.args.every * share);
        let begin = Instant::now();
        while begin.elapsed() < working {
            std::thread::sleep(Duration::from_millis(20).min(working));
            still_runs(worker)?;
        }
        if mode.end == End::Kill {
            return Ok(false);
        }
        let sent = worker
            .stdin
            .take()
            .map(|mut input| input.write_all(b"stop\n"));
        sent.transpose()
            .map_err(|error| format!("telling the worker: {error}"))?;
        hear(worker, &mut output, "closing")?;
        if mode.end == End::KillClosing {
            std::thread::sleep(Duration::from_micros(random.below(60_000)));
            let _ = worker.kill();
            let mut rest = String::new();
            let _ = output.read_to_string(&mut rest);
            // It may have been faster.
            return Ok(rest.contains("closed"));
        }
        hear(worker, &mut output, "closed")?;
        Ok(true)
    }
}

/// A worker has not ended yet; it ends only when stopped.
fn still_runs(worker: &mut Child) -> Result<(), Problem> {
    match worker.try_wait().map_err(|error| error.to_string())? {
        Some(status) => Err(format!("the worker ended early: {status}")),
        None => Ok(()),
    }
}

/// Waits until a worker says `word`.
fn hear(
    worker: &mut Child,
    output: &mut BufReader<ChildStdout>,
    word: &str,
) -> Result<(), Problem> {
    let mut line = String::new();
    let read = output.read_line(&mut line);
    read.map_err(|error| format!("reading from a worker: {error}"))?;
    if line.trim() == word {
        return Ok(());
    }
    // Its end says why, on the error output that is shared.
    let status = worker.wait().map_err(|error| error.to_string())?;
    Err(format!(
        "a worker said {line:?}, not {word:?}, and ended: {status}"
    ))
}
