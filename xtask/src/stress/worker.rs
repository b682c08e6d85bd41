//! The process that works on a store until it is asked to close it, or killed.

use std::collections::BTreeMap;
use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use isobath::{BackupOptions, Error, Store};

use super::client::{Client, Common, steps_without};
use super::judge::{backups_path, last_backup};
use super::mode::Cores;
use super::watch::Watch;
use super::world::{self, COUNTERS, World};
use super::{Place, mode_of, reader};
use crate::crash::Problem;
use crate::crash::journal::{Journal, now};
use crate::random::Random;

/// Backups that add to each other, at most.
const LONGEST_CHAIN: usize = 4;
/// Records of the largest store that is checked while it is in use.
const CHECKED_RECORDS: u64 = 100_000;

/// Options of the worker process.
#[derive(Debug, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    directory: PathBuf,
    #[arg(long)]
    seed: u64,
    #[arg(long)]
    round: u64,
    #[arg(long)]
    size: u64,
    #[arg(long)]
    mode: String,
    #[arg(long, value_delimiter = ',')]
    without: Vec<String>,
}

/// Works until the input says to stop, or something is wrong.
pub(crate) fn work(args: &WorkerArgs) -> bool {
    match run(args) {
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

fn run(args: &WorkerArgs) -> Result<(), Problem> {
    let mode = mode_of(&args.mode)?;
    stay_on(mode.cores)?;
    mode.sizes().switch_on();
    let helper = mode.threads;
    let watch = Watch::begin(mode.threads + 1);
    let place = Place::new(&args.directory, &mode);
    watch.at(helper, "opening");
    let store = Store::open(&place.files, &mode.options()).map_err(|e| format!("opening: {e}"))?;
    let tree = |name| store.tree(name).map_err(|e| format!("tree {name}: {e}"));
    let common = Common {
        main: tree("main")?,
        shared: tree("shared")?,
        store: store.clone(),
        world: World::of_bytes(args.size),
        mode,
        base: world::load(&args.directory)?,
        gate: RwLock::new(()),
        watch: Arc::clone(&watch),
        steps: steps_without(&args.without),
        without: args.without.clone(),
    };
    if common.steps.is_empty() {
        return Err("--without leaves nothing to do".to_owned());
    }
    watch.idle(helper);
    say("writing")?;
    let stop = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for thread in 0..mode.threads {
            let mut client = client(args, &common, thread)?;
            let stop = &stop;
            threads.push(scope.spawn(move || {
                mode.sizes().switch_on();
                while !stop.load(Ordering::Relaxed) {
                    client
                        .step()
                        .unwrap_or_else(|problem| give_up(thread, &problem));
                }
                client.held = None;
                client.common.watch.idle(thread);
            }));
        }
        threads.push(scope.spawn(|| {
            help(args, &common, &stop).unwrap_or_else(|problem| give_up(helper, &problem));
        }));
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        stop.store(true, Ordering::Relaxed);
        for thread in threads {
            thread.join().map_err(|_| "a panic".to_owned())?;
        }
        read.map_err(|error| error.to_string()).map(|_| ())
    });
    ended?;
    say("closing")?;
    watch.at(helper, "closing");
    drop(common);
    store.close().map_err(|error| format!("closing: {error}"))?;
    watch.idle(helper);
    say("closed")
}

/// Ends the process: what one thread has found must not be hidden by the others.
fn give_up(thread: u64, problem: &str) {
    eprintln!("thread {thread}: {problem}");
    std::process::exit(1);
}

fn client<'c>(args: &WorkerArgs, common: &'c Common, thread: u64) -> Result<Client<'c>, Problem> {
    let journal = Journal::create(&args.directory, args.round, thread);
    Ok(Client {
        common,
        thread,
        journal: journal.map_err(|error| format!("the journal: {error}"))?,
        random: Random::new(args.seed ^ args.round << 20 ^ thread << 50),
        next: args.round << 40 | thread << 32 | 1,
        changed: BTreeMap::new(),
        held: None,
        counters: vec![0; COUNTERS as usize],
    })
}

/// Restricts the process to some cores.
#[allow(unsafe_code)]
fn stay_on(cores: Cores) -> Result<(), Problem> {
    let count = match cores {
        Cores::All => return Ok(()),
        Cores::Two => 2,
        Cores::One => 1,
    };
    let bytes = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of cores is plain bits, all of which may be clear. The calls read
    // and write `may` and `set` only, whose lengths are passed.
    let done = unsafe {
        let mut may: libc::cpu_set_t = std::mem::zeroed();
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::sched_getaffinity(0, bytes, &raw mut may);
        let allowed = (0..libc::CPU_SETSIZE as usize).filter(|core| libc::CPU_ISSET(*core, &may));
        for core in allowed.take(count) {
            libc::CPU_SET(core, &mut set);
        }
        libc::sched_setaffinity(0, bytes, &raw const set)
    };
    if done == 0 {
        Ok(())
    } else {
        let error = std::io::Error::last_os_error();
        Err(format!("staying on {count} cores: {error}"))
    }
}

/// Makes backups, checks the store and looks at its statistics while others work.
fn help(args: &WorkerArgs, common: &Common, stop: &AtomicBool) -> Result<(), Problem> {
    let mut random = Random::new(args.seed ^ args.round << 20 ^ 0xbac0);
    let mut chain = (0..args.round)
        .rev()
        .find_map(|round| last_backup(&args.directory, round))
        .map_or_else(Vec::new, |backup| backup.files);
    let helper = common.mode.threads;
    let mut made = 0;
    let may = |name: &str| common.without.iter().all(|without| without != name);
    while !stop.load(Ordering::Relaxed) {
        match random.below(13) {
            0..4 if may("backup") => {
                common.watch.at(helper, "a backup");
                made += 1;
                back_up(args, common, &mut chain, made)?;
            }
            4..6 if may("check") && common.world.main() <= CHECKED_RECORDS => {
                common.watch.at(helper, "waiting for all others");
                let _alone = common.gate.write().unwrap_or_else(PoisonError::into_inner);
                let mut step = |_, _| common.watch.at(helper, "a check");
                let report = common.store.check(&mut step);
                let report = report.map_err(|error| format!("check: {error}"))?;
                if !report.problems.is_empty() {
                    return Err(format!("check: {}", report.problems.join("; ")));
                }
            }
            6 if may("discard") => {
                common.watch.at(helper, "discarding");
                match common.store.discard_free_segments() {
                    // Not every file system knows holes.
                    Ok(_) | Err(Error::Io(_)) => {}
                    Err(error) => return Err(format!("discarding: {error}")),
                }
            }
            7 if may("compact") => {
                common.watch.at(helper, "compacting");
                let compacted = common.store.compact();
                compacted.map_err(|error| format!("compacting: {error}"))?;
            }
            8 if may("compact") => {
                common.watch.at(helper, "a checkpoint");
                let written = common.store.checkpoint();
                written.map_err(|error| format!("a checkpoint: {error}"))?;
            }
            9..11 if may("reader") => {
                common.watch.at(helper, "a reader");
                reader::start_and_judge(&args.directory, &common.mode)?;
            }
            _ => {
                common.watch.at(helper, "statistics");
                let _ = common.store.stats();
                let trees = common.store.trees().map_err(|e| format!("trees: {e}"))?;
                let known = |name| trees.iter().any(|tree| tree.name == name);
                if !known("main") || !known("shared") {
                    return Err(format!("trees are missing: {trees:?}"));
                }
            }
        }
        common.watch.idle(helper);
        std::thread::sleep(Duration::from_millis(random.below(300)));
    }
    Ok(())
}

/// Adds to the last backups, or begins again, and notes what a backup consists of.
fn back_up(
    args: &WorkerArgs,
    common: &Common,
    chain: &mut Vec<String>,
    made: u64,
) -> Result<(), Problem> {
    let old = if chain.len() >= LONGEST_CHAIN {
        std::mem::take(chain)
    } else {
        Vec::new()
    };
    let name = format!("backup-{}-{made}", args.round);
    let mut options = BackupOptions::new();
    if let Some(base) = chain.last() {
        options = options.since(args.directory.join(base));
    }
    let began = now();
    let helper = common.mode.threads;
    let done = common
        .store
        .backup(&args.directory.join(&name), &options, &mut |_, _, _| {
            common.watch.at(helper, "a backup");
            std::ops::ControlFlow::Continue(())
        });
    done.map_err(|error| format!("a backup: {error}"))?;
    chain.push(name);
    let line = format!("{began} {} {}\n", now(), chain.join(" "));
    let noted = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(backups_path(&args.directory, args.round))
        .and_then(|mut file| file.write_all(line.as_bytes()));
    noted.map_err(|error| format!("noting a backup: {error}"))?;
    for name in old {
        let _ = std::fs::remove_file(args.directory.join(name));
    }
    Ok(())
}
