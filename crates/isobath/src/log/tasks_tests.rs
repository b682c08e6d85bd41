//! The log with workers: group commit, power cuts, failures, buffered commits, and their cost.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use isobath_flash::rng::Rng;
use isobath_io::{Fault, FaultDevice, FaultPlan, FaultRule, IoErrorKind, Op, Survivors, Trigger};
use isobath_io::{Volume, VolumeOptions};

use crate::engine::{Engine, Runtime, WorkerState};
use crate::log::Reader;
use crate::log::record::Kind;
use crate::page::Lsn;
use crate::runtime::{TaskId, Urgency, clock};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Durability, Error, Options};

const STORE: [u8; 16] = [7; 16];

/// An engine without trees, whose log has `log_bytes`.
fn engine(volume: Volume, options: &Options, log_bytes: u64) -> Arc<Engine> {
    let options = options.clone().log_bytes(log_bytes);
    let (config, frames) = (options.config().unwrap(), options.frames());
    let parts = crate::recovery::create(volume, config, frames, options.policy().unwrap(), STORE);
    Engine::new(parts.unwrap()).0
}

fn options(workers: usize, tasks: usize) -> Options {
    Options::new()
        .pool_bytes(16 << 20)
        .segment_bytes(64 << 10)
        .workers(workers)
        .tasks_per_worker(tasks)
}

/// Appends one record as a commit would; its LSN.
fn commit(engine: &Engine, body: &[u8], durability: Durability) -> Result<Lsn, Error> {
    WorkerState::with_current(engine, |local| {
        let local = local.expect("in a task");
        let (log_tasks, bytes) = (&engine.log_tasks, body.len() as u64);
        log_tasks.wait_to_take(&local.worker, bytes)?;
        let room = log_tasks.reserve_commit(&local.worker, bytes, 0, false)?;
        let log = &engine.log;
        let lsn = log.append(local.worker.index, Kind::Commit, &[body], |_| {});
        drop(room);
        engine
            .log_tasks
            .make_durable(&local.worker, lsn, durability)?;
        Ok(lsn)
    })
}

/// Workers that a seed steps.
struct Stepped {
    runtime: Runtime,
    locals: Vec<Rc<WorkerState>>,
    rng: Rng,
}

impl Stepped {
    fn new(engine: &Arc<Engine>, seed: u64) -> Stepped {
        clock::simulate(true);
        let mut rng = Rng::new(seed);
        let locals = (0..engine.shared.config.workers)
            .map(|index| {
                let local = WorkerState::new(Arc::clone(engine), index).unwrap();
                local.worker.shuffle(rng.bits());
                local
            })
            .collect();
        Stepped {
            runtime: Runtime::simulated(Arc::clone(engine)),
            locals,
            rng,
        }
    }

    fn step(&mut self) {
        let index = self.rng.below(self.locals.len() as u32) as usize;
        self.locals[index].step(false);
        clock::advance(Duration::from_micros(1));
    }

    fn run_until(&mut self, mut done: impl FnMut() -> bool) {
        for _ in 0..2_000_000 {
            if done() {
                return;
            }
            self.step();
        }
        panic!("stuck");
    }

    /// Takes the idle checkpointer away, so that no space is freed.
    fn hide_checkpointer(&mut self) -> TaskId {
        loop {
            if let Some(task) = self
                .runtime
                .engine()
                .unwrap()
                .checkpoints
                .idle(&self.locals[0].worker)
                .take()
            {
                return task;
            }
            self.step();
        }
    }

    fn end(mut self) {
        self.runtime.engine().unwrap().workers.stop();
        let locals = self.locals.clone();
        self.run_until(|| locals.iter().filter(|local| !local.has_ended()).count() == 0);
        clock::simulate(false);
    }
}

/// The tasks' own account of their work.
#[derive(Default)]
struct Book {
    /// Acknowledged records: LSN and first byte.
    acknowledged: Mutex<Vec<(u64, u64)>>,
    refused: Mutex<Vec<Error>>,
    ended: AtomicU64,
}

fn spawn_commits(run: &Stepped, engine: &Arc<Engine>, book: &Arc<Book>, tasks: u64, each: u64) {
    for task in 0..tasks {
        let (engine, book) = (Arc::clone(engine), Arc::clone(book));
        let work = move || {
            let mut rng = Rng::new(task);
            for number in 0..each {
                let tag = task << 32 | number;
                let most = [100, 3000][usize::from(rng.below(10) == 0)];
                let mut body = vec![task as u8; 8 + rng.below(most) as usize];
                body[..8].copy_from_slice(&tag.to_le_bytes());
                match commit(&engine, &body, Durability::Synced) {
                    Ok(lsn) => book.acknowledged.lock().push((lsn.0, tag)),
                    Err(error) => book.refused.lock().push(error),
                }
            }
            book.ended.fetch_add(1, Ordering::SeqCst);
        };
        drop(
            run.runtime
                .spawn(Urgency::Ordinary, Some(task as usize), work),
        );
    }
}

/// The LSN at which a recovery of the store on `volume` starts, and LSN and tag of every commit
/// from there on.
fn read_log(volume: &Volume, engine: &Engine) -> (u64, Vec<(u64, u64)>) {
    let superblock = crate::recovery::read_superblock(volume, &[]).unwrap();
    let (start, open_epoch) = (Lsn(superblock.log_start), superblock.log_epoch);
    let area = engine.log.area().unwrap();
    let mut reader = Reader::new(volume, &area, &STORE, start, open_epoch);
    let mut found = Vec::new();
    while let Some(entry) = reader.next().unwrap() {
        if entry.kind == Kind::Commit {
            found.push((entry.lsn.0, crate::page::get_u64(entry.body, 0)));
        }
    }
    (start.0, found)
}

/// Power is cut at many moments of many runs: what was acknowledged until then
/// is in the log, whatever of the rest the drive kept. The log wraps around its
/// area several times.
#[test]
fn acknowledged_commits_survive_power_cuts() {
    const AREA: u64 = 4 << 20;
    let mut laps = 0;
    for seed in 1..=12 {
        let plan = FaultPlan::new(seed).latency_us(0..=300);
        let device = FaultDevice::new(0, plan);
        let volume = Volume::from_device(Arc::clone(&device) as _);
        let engine = engine(volume, &options(3, 16), AREA);
        let mut run = Stepped::new(&engine, seed);
        let book = Arc::new(Book::default());
        spawn_commits(&run, &engine, &book, 30, 400);
        let mut cuts = Rng::new(seed);
        while book.ended.load(Ordering::SeqCst) < 30 {
            for _ in 0..cuts.below(3000) {
                run.step();
            }
            let image = device.crash_image(Survivors::Random, cuts.bits());
            let (start, found) = read_log(&Volume::from_device(image), &engine);
            for acknowledged in book.acknowledged.lock().iter() {
                assert!(
                    acknowledged.0 < start || found.binary_search(acknowledged).is_ok(),
                    "seed {seed}: {acknowledged:?} is lost"
                );
            }
        }
        assert_eq!(book.acknowledged.lock().len(), 30 * 400);
        assert!(book.refused.lock().is_empty());
        laps += engine.log.next().0 / AREA;
        let counters = engine.log.counters();
        assert_eq!(counters.commits, 30 * 400);
        assert!(
            counters.flushes * 2 < counters.commits,
            "commits share flushes"
        );
        run.end();
    }
    assert!(laps >= 12, "{laps}");
}

/// The same seed gives the same I/Os.
#[test]
fn runs_repeat() {
    let digest = |seed: u64| {
        let device = FaultDevice::new(0, FaultPlan::new(5).latency_us(0..=300));
        let volume = Volume::from_device(Arc::clone(&device) as _);
        let engine = engine(volume, &options(2, 8), 4 << 20);
        let mut run = Stepped::new(&engine, seed);
        let book = Arc::new(Book::default());
        spawn_commits(&run, &engine, &book, 10, 100);
        run.run_until(|| book.ended.load(Ordering::SeqCst) == 10);
        run.end();
        (device.digest(), device.io_count())
    };
    assert_eq!(digest(1), digest(1));
    assert_ne!(digest(1), digest(2));
}

/// A log write fails: its waiters, and all later callers, get the cause; what was acknowledged
/// before is there.
#[test]
fn nothing_is_acknowledged_after_a_failed_log_write() {
    for seed in 1..=10 {
        let device = FaultDevice::new(0, FaultPlan::new(seed).latency_us(0..=300));
        let volume = Volume::from_device(Arc::clone(&device) as _);
        let engine = engine(volume, &options(2, 16), 4 << 20);
        let mut run = Stepped::new(&engine, seed);
        let book = Arc::new(Book::default());
        spawn_commits(&run, &engine, &book, 20, 50);
        let fault = Fault::Error(IoErrorKind::Media);
        device.add_rule(FaultRule::new(fault, Trigger::At(20 + seed)).ops(&[Op::Write]));
        run.run_until(|| book.ended.load(Ordering::SeqCst) == 20);
        let refused = book.refused.lock();
        assert_eq!(refused.len() + book.acknowledged.lock().len(), 20 * 50);
        assert!(refused.len() > 100);
        for error in refused.iter() {
            let Error::Poisoned { cause } = error else {
                panic!("{error}");
            };
            assert!(matches!(**cause, Error::Io(_)));
        }
        let image = device.crash_image(Survivors::None, 0);
        let (_, found) = read_log(&Volume::from_device(image), &engine);
        for acknowledged in book.acknowledged.lock().iter() {
            assert!(found.binary_search(acknowledged).is_ok(), "seed {seed}");
        }
        drop(refused);
        run.end();
    }
}

/// While nothing frees log space, commits wait; once something does, they go on.
#[test]
fn a_full_area_makes_commits_wait_for_the_checkpoint() {
    let engine = engine(Volume::in_memory(0, None), &options(2, 16), 4 << 20);
    let mut run = Stepped::new(&engine, 3);
    let checkpointer = run.hide_checkpointer();
    let book = Arc::new(Book::default());
    spawn_commits(&run, &engine, &book, 20, 2000);
    for _ in 0..400_000 {
        run.step();
    }
    let done = book.acknowledged.lock().len();
    assert!(done > 1000 && done < 40_000, "{done}");
    for _ in 0..50_000 {
        run.step();
    }
    assert_eq!(book.acknowledged.lock().len(), done, "all wait");
    engine
        .checkpoints
        .idle(&run.locals[0].worker)
        .set(Some(checkpointer));
    run.run_until(|| book.ended.load(Ordering::SeqCst) == 20);
    assert_eq!(book.acknowledged.lock().len(), 40_000);
    run.end();
}

#[test]
fn buffered_commits_are_written_within_their_window_and_others_with_company() {
    let engine = engine(Volume::in_memory(0, None), &options(1, 4), 4 << 20);
    let mut run = Stepped::new(&engine, 1);
    let append = |run: &mut Stepped, durability| {
        let (lsn, engine) = (Arc::new(AtomicU64::new(0)), Arc::clone(&engine));
        let told = Arc::clone(&lsn);
        let work = move || {
            told.store(
                commit(&engine, b"x", durability).unwrap().0,
                Ordering::SeqCst,
            )
        };
        drop(run.runtime.spawn(Urgency::Ordinary, None, work));
        run.run_until(|| lsn.load(Ordering::SeqCst) > 0);
        Lsn(lsn.load(Ordering::SeqCst))
    };
    let none = append(&mut run, Durability::None);
    for _ in 0..10_000 {
        run.step();
    }
    assert!(!engine.log.is_durable(none), "no flush was requested");
    let since = clock::now();
    let buffered = append(&mut run, Durability::Buffered { window_ms: 3 });
    assert!(!engine.log.is_durable(buffered));
    run.run_until(|| engine.log.is_durable(buffered));
    let took = clock::now() - since;
    assert!(
        (3..5).contains(&took.as_millis()),
        "{took:?} of simulated time"
    );
    assert!(engine.log.is_durable(none));
    assert_eq!(engine.log.counters().flushes, 1);
    run.end();
}

#[test]
fn too_large_a_transaction_is_refused() {
    let engine = engine(Volume::in_memory(0, None), &options(1, 4), 4 << 20);
    let mut run = Stepped::new(&engine, 1);
    let limit = engine.log.transaction_limit();
    let outcome = Arc::new(Mutex::new(None));
    let (told, task_engine) = (Arc::clone(&outcome), Arc::clone(&engine));
    let work = move || {
        let at_limit = commit(&task_engine, &vec![1; limit as usize], Durability::Synced);
        let beyond = commit(
            &task_engine,
            &vec![1; limit as usize + 1],
            Durability::Synced,
        );
        *told.lock() = Some((at_limit, beyond));
    };
    drop(run.runtime.spawn(Urgency::Ordinary, None, work));
    run.run_until(|| outcome.lock().is_some());
    let (at_limit, beyond) = outcome.lock().take().unwrap();
    assert!(at_limit.is_ok());
    assert!(matches!(
        beyond,
        Err(Error::TransactionTooLarge { bytes, limit: l }) if bytes == limit + 1 && l == limit
    ));
    run.end();
}

/// Workers with threads: every commit is answered, whichever flush it shared.
#[test]
fn workers_on_threads_answer_every_commit() {
    let engine = engine(Volume::in_memory(0, None), &options(2, 64), 64 << 20);
    let runtime = Runtime::start(Arc::clone(&engine)).unwrap();
    let tasks: Vec<_> = (0..96)
        .map(|task| {
            let engine = Arc::clone(&engine);
            runtime.spawn(Urgency::Ordinary, Some(task), move || {
                for _ in 0..300 {
                    let lsn = commit(&engine, &[5; 200], Durability::Synced).unwrap();
                    assert!(engine.log.is_durable(lsn));
                }
            })
        })
        .collect();
    for task in tasks {
        task.join().unwrap();
    }
    runtime.stop();
    let volume = engine.shared.volume().unwrap();
    assert_eq!(read_log(&volume, &engine).1.len(), 96 * 300);
}

// ---- measurements -----------------------------------------------------------------

/// Seconds of processor time of the whole process.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split(' ').collect();
    let ticks: f64 = fields[12].parse::<f64>().unwrap() + fields[13].parse::<f64>().unwrap();
    ticks / 100.0
}

/// Records of 200 bytes that one thread appends per second.
///
/// `cargo test --release -p isobath logging_tests::bench -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn bench_appends() {
    let engine = engine(Volume::in_memory(0, None), &options(2, 4), 256 << 20);
    let log = &engine.log;
    for threads in [1, 2] {
        const COUNT: u64 = 2_000_000;
        let since = Instant::now();
        std::thread::scope(|scope| {
            for writer in 0..threads {
                scope.spawn(move || {
                    for number in 0..COUNT {
                        log.append(writer, Kind::Commit, &[&[1; 168]], |_| {});
                        if number % 4096 == 0 && writer == 0 {
                            // What flushing and a checkpoint would do, without I/O.
                            log.set_start(log.contiguous_lsn());
                            log.request_flush_of_all();
                            if let crate::log::Claim::Flush(flush) = log.claim(writer) {
                                log.flushed(flush, true, Duration::ZERO);
                            }
                        }
                    }
                });
            }
        });
        let seconds = since.elapsed().as_secs_f64();
        let rate = COUNT as f64 * threads as f64 / seconds / 1e6;
        println!("{threads} thread(s): {rate:.2} M appends/s");
    }
}

/// Flushed 4 KiB writes per second of the drive, one after another.
fn flush_rate(volume: &Volume, at: u64) -> f64 {
    let mut channel = volume
        .channel(&isobath_io::ChannelOptions::with_depth(4))
        .unwrap();
    let block = isobath_io::AlignedBuf::new(4096);
    let since = Instant::now();
    let mut done = Vec::new();
    let mut count = 0u64;
    while since.elapsed() < Duration::from_secs(2) {
        let io = isobath_io::Io::write(at + count % 1000 * 4096, block.as_ptr(), 4096, 0).durable();
        #[allow(unsafe_code)]
        // SAFETY: the block outlives the wait below.
        unsafe {
            channel.submit(io).unwrap();
        }
        while channel.in_flight() > 0 {
            channel.wait(1, None, &mut done).unwrap();
        }
        count += 1;
    }
    count as f64 / since.elapsed().as_secs_f64()
}

/// Synced commits of 200-byte records per second on a file in the directory
/// `ISOBATH_BENCH_DIR`, beside the drive's flushed writes per second.
#[test]
#[ignore = "a measurement"]
fn bench_group_commit() {
    let dir = std::env::var("ISOBATH_BENCH_DIR").unwrap_or_else(|_| ".".to_owned());
    for tasks in [1usize, 8, 32, 128, 512] {
        let dir = tempfile::tempdir_in(&dir).unwrap();
        let path = dir.path().join("log");
        let volume = Volume::create(&[path], &VolumeOptions::new()).unwrap();
        let engine = engine(volume.clone(), &options(2, 256), 256 << 20);
        let before = flush_rate(&volume, 128 << 20);
        let runtime = Runtime::start(Arc::clone(&engine)).unwrap();
        let (cpu, since) = (cpu_seconds(), Instant::now());
        let end = since + Duration::from_secs(4);
        let handles: Vec<_> = (0..tasks)
            .map(|task| {
                let engine = Arc::clone(&engine);
                runtime.spawn(Urgency::Ordinary, Some(task), move || {
                    let mut count = 0u64;
                    while Instant::now() < end {
                        commit(&engine, &[5; 168], Durability::Synced).unwrap();
                        count += 1;
                    }
                    count
                })
            })
            .collect();
        let count: u64 = handles.into_iter().map(|h| h.join().unwrap()).sum();
        let (cpu, seconds) = (cpu_seconds() - cpu, since.elapsed().as_secs_f64());
        runtime.stop();
        let c = engine.log.counters();
        println!(
            "{tasks:4} tasks: {:8.0} commits/s, {:5.2} us CPU per commit, {:6.0} flushes/s of {:.1} KiB, {:.1} commits per flush, \
             flush {:.0} us mean {:.0} us max; drive: {before:.0} flushed 4 KiB writes/s",
            count as f64 / seconds,
            cpu / count as f64 * 1e6,
            c.flushes as f64 / seconds,
            c.bytes_written as f64 / c.flushes as f64 / 1024.0,
            count as f64 / c.flushes as f64,
            c.flush_ns as f64 / c.flushes as f64 / 1e3,
            c.flush_ns_max as f64 / 1e3,
        );
    }
}
