//! Beside a volume that is being resized, which takes a file system long, tasks go on that need no
//! space.

#![allow(missing_docs, clippy::unwrap_used)]

use super::common;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use common::{key, tiny, value};
use isobath::{Error, Options, Store, Tree, Volume};
use isobath_io::{
    BackendReport, Channel, ChannelOptions, Device, IoError, IoErrorKind, Op, VolumeError,
};

/// What tasks that need not wait may take; elsewhere it only makes a failure slow.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a call ends that was held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Well,
    /// There is no space beyond this many bytes.
    Full(u64),
    /// As a flush does that reports a lost write.
    Broken,
}

struct Gate {
    is_closed: bool,
    held: usize,
    end: End,
}

/// Memory that changes its length when it is allowed to.
struct Gated {
    inner: Arc<dyn Device>,
    gate: Mutex<Gate>,
    changed: Condvar,
}

impl Gated {
    fn new() -> Arc<Gated> {
        Arc::new(Gated {
            inner: Arc::clone(Volume::in_memory(0, None).device()),
            gate: Mutex::new(Gate {
                is_closed: false,
                held: 0,
                end: End::Well,
            }),
            changed: Condvar::new(),
        })
    }

    fn volume(self: &Arc<Self>) -> Volume {
        Volume::from_device(self.clone())
    }

    /// Holds calls from now on.
    fn close(&self) {
        self.gate.lock().unwrap().is_closed = true;
    }

    /// Lets calls end, like this.
    fn open(&self, end: End) {
        let mut gate = self.gate.lock().unwrap();
        gate.is_closed = false;
        gate.end = end;
        self.changed.notify_all();
    }

    /// Waits until a call is held.
    fn await_held(&self) {
        let begin = Instant::now();
        let mut gate = self.gate.lock().unwrap();
        while gate.held == 0 {
            assert!(begin.elapsed() < PATIENCE, "nothing resizes the volume");
            gate = self
                .changed
                .wait_timeout(gate, Duration::from_millis(50))
                .unwrap()
                .0;
        }
    }

    /// Waits while calls are held; how they end.
    fn pass(&self) -> End {
        let mut gate = self.gate.lock().unwrap();
        gate.held += 1;
        self.changed.notify_all();
        while gate.is_closed {
            gate = self.changed.wait(gate).unwrap();
        }
        gate.held -= 1;
        gate.end
    }
}

impl Device for Gated {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn limit(&self) -> Option<u64> {
        None
    }

    fn logical_block(&self) -> u32 {
        self.inner.logical_block()
    }

    fn grow(&self, new_len: u64) -> Result<(), VolumeError> {
        match self.pass() {
            End::Full(most) if new_len > most => Err(VolumeError::NoSpace {
                path: "memory".into(),
                needed: new_len - self.len(),
            }),
            End::Broken => Err(IoError::new(IoErrorKind::Media, Op::Flush, 0, 0).into()),
            _ => self.inner.grow(new_len),
        }
    }

    fn can_shrink(&self) -> bool {
        self.inner.can_shrink()
    }

    fn shrink(&self, new_len: u64) -> Result<(), VolumeError> {
        self.pass();
        self.inner.shrink(new_len)
    }

    fn channel(self: Arc<Self>, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError> {
        Arc::clone(&self.inner).channel(options)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.inner.write_at(offset, buf)
    }

    fn sync(&self) -> Result<(), IoError> {
        self.inner.sync()
    }

    fn backend_report(&self) -> BackendReport {
        self.inner.backend_report()
    }
}

const FIRST: u64 = 1000;

/// A pool and a log that take what the tests change without a page being written back.
fn options() -> Options {
    tiny(1, 8).pool_bytes(24 << 20).log_bytes(16 << 20)
}

fn filled(device: &Arc<Gated>, options: &Options) -> (Store, Tree) {
    let store = Store::create_on_volume(device.volume(), options).unwrap();
    let tree = store.create_tree("t").unwrap();
    // In few commits: each one alone takes a block of the log, which would grow.
    for first in (0..FIRST).step_by(50) {
        let mut transaction = store.begin().unwrap();
        for n in first..first + 50 {
            transaction.insert(&tree, &key(n), &value(n, 900)).unwrap();
        }
        transaction.commit().unwrap();
    }
    (store, tree)
}

/// Threads that insert records from `FIRST` on until they fail or are told to stop.
struct Inserters {
    stop: Arc<AtomicBool>,
    next: Arc<AtomicU64>,
    threads: Vec<thread::JoinHandle<(Vec<u64>, Option<Error>)>>,
}

impl Inserters {
    fn start(tree: &Tree, count: usize) -> Inserters {
        let (stop, next) = (
            Arc::<AtomicBool>::default(),
            Arc::new(AtomicU64::new(FIRST)),
        );
        let work = |_| {
            let (tree, stop, next) = (tree.clone(), Arc::clone(&stop), Arc::clone(&next));
            thread::spawn(move || {
                let mut done = Vec::new();
                while !stop.load(Ordering::SeqCst) {
                    let n = next.fetch_add(1, Ordering::SeqCst);
                    if let Err(error) = tree.insert(&key(n), &value(n, 900)) {
                        return (done, Some(error));
                    }
                    done.push(n);
                }
                (done, None)
            })
        };
        let threads = (0..count).map(work).collect();
        Inserters {
            stop,
            next,
            threads,
        }
    }

    /// Acknowledged records, and the errors.
    fn end(self) -> (Vec<u64>, Vec<Error>) {
        self.stop.store(true, Ordering::SeqCst);
        let (mut done, mut errors) = (Vec::new(), Vec::new());
        for thread in self.threads {
            let (these, error) = thread.join().unwrap();
            done.extend(these);
            errors.extend(error);
        }
        (done, errors)
    }
}

/// Whether `work` ends although the volume is being resized. Opens the gate if it does not, so
/// that the test ends.
fn goes_on(device: &Gated, work: impl FnOnce() + Send + 'static) -> bool {
    let (tell, ended) = channel();
    let worker = thread::spawn(move || {
        work();
        let _ = tell.send(());
    });
    let in_time = ended.recv_timeout(PATIENCE).is_ok();
    if !in_time {
        device.open(End::Well);
    }
    worker.join().unwrap();
    in_time
}

/// Reads, single changes and transactions that need no new page.
fn modest_work(store: &Store, tree: &Tree) -> impl FnOnce() + Send + 'static {
    let (store, tree) = (store.clone(), tree.clone());
    move || {
        for n in 0..50 {
            tree.insert(&key(n * 7), &value(n * 7, 900)).unwrap();
            assert_eq!(tree.get(&key(n * 13)).unwrap(), Some(value(n * 13, 900)));
        }
        let mut transaction = store.begin().unwrap();
        for n in 0..5 {
            transaction.insert(&tree, &key(n), &value(n, 900)).unwrap();
        }
        transaction.commit().unwrap();
    }
}

fn verify(tree: &Tree, done: &[u64]) {
    for n in (0..FIRST).chain(done.iter().copied()) {
        assert_eq!(tree.get(&key(n)).unwrap(), Some(value(n, 900)), "{n}");
    }
}

#[test]
fn the_tasks_of_a_worker_go_on_while_the_volume_grows() {
    let device = Gated::new();
    let (store, tree) = filled(&device, &options());
    device.close();
    let inserters = Inserters::start(&tree, 3);
    device.await_held();
    let went_on = goes_on(&device, modest_work(&store, &tree));
    device.open(End::Well);
    let before = inserters.next.load(Ordering::SeqCst);
    while inserters.next.load(Ordering::SeqCst) < before + 300 {
        thread::yield_now();
    }
    let (done, errors) = inserters.end();
    assert!(went_on, "the worker stood still");
    assert!(errors.is_empty(), "{errors:?}");
    verify(&tree, &done);
    store.close().unwrap();
}

#[test]
fn a_volume_that_goes_on_growing_does_so_before_writers_wait() {
    let device = Gated::new();
    let (store, tree) = filled(&device, &options());
    // The first time by need.
    let length = device.len();
    let inserters = Inserters::start(&tree, 1);
    while device.len() == length {
        thread::yield_now();
    }
    device.close();
    device.await_held();
    let begin = inserters.next.load(Ordering::SeqCst);
    let in_time = goes_on(&device, {
        let (next, stop) = (Arc::clone(&inserters.next), Arc::clone(&inserters.stop));
        move || {
            // A few hundred pages' room; with old code none.
            while next.load(Ordering::SeqCst) < begin + 50 && !stop.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        }
    });
    device.open(End::Well);
    let (done, errors) = inserters.end();
    assert!(in_time, "it grew when there was no room left");
    assert!(errors.is_empty(), "{errors:?}");
    verify(&tree, &done);
    store.close().unwrap();
}

#[test]
fn of_tasks_that_wait_for_growth_all_learn_that_there_is_no_space() {
    let device = Gated::new();
    let (store, tree) = filled(&device, &options());
    device.close();
    let inserters = Inserters::start(&tree, 6);
    device.await_held();
    // As soon as the others have come to wait, too.
    thread::sleep(Duration::from_millis(50));
    device.open(End::Full(device.len()));
    let begin = Instant::now();
    while !inserters
        .threads
        .iter()
        .all(thread::JoinHandle::is_finished)
    {
        assert!(begin.elapsed() < PATIENCE, "a task was not told");
        thread::sleep(Duration::from_millis(1));
    }
    let (done, errors) = inserters.end();
    assert_eq!(errors.len(), 6);
    for error in &errors {
        assert!(matches!(error, Error::VolumeFull { .. }), "{error}");
    }
    verify(&tree, &done);
    // There is some again.
    device.open(End::Well);
    for n in 0..2000 {
        tree.insert(&key(n), &value(n, 900)).unwrap();
    }
    assert!(store.stats().growth_stalls >= 6);
    store.close().unwrap();
}

#[test]
fn of_tasks_that_wait_for_growth_all_learn_that_it_failed() {
    let device = Gated::new();
    let (store, tree) = filled(&device, &options());
    device.close();
    let inserters = Inserters::start(&tree, 6);
    device.await_held();
    thread::sleep(Duration::from_millis(50));
    device.open(End::Broken);
    let (done, errors) = {
        let begin = Instant::now();
        while !inserters
            .threads
            .iter()
            .all(thread::JoinHandle::is_finished)
        {
            assert!(begin.elapsed() < PATIENCE, "a task was not told");
            thread::sleep(Duration::from_millis(1));
        }
        inserters.end()
    };
    for error in &errors {
        let is_cause = matches!(error, Error::Volume(_));
        assert!(
            is_cause || matches!(error, Error::Poisoned { .. }),
            "{error}"
        );
    }
    assert_eq!(errors.len(), 6);
    assert_eq!(
        tree.get(&key(5)).unwrap(),
        Some(value(5, 900)),
        "reads go on"
    );
    assert!(store.close().is_err());
    device.open(End::Well);
    let store = Store::open_on_volume(device.volume(), &options()).unwrap();
    verify(&store.tree("t").unwrap(), &done);
    store.close().unwrap();
}

#[test]
fn closing_waits_for_growth_and_leaves_nothing_behind() {
    let device = Gated::new();
    let (store, tree) = filled(&device, &options());
    device.close();
    let inserters = Inserters::start(&tree, 2);
    device.await_held();
    let (tell, closed) = channel();
    let closer = thread::spawn(move || tell.send(store.close()).unwrap());
    assert!(
        closed.recv_timeout(Duration::from_millis(300)).is_err(),
        "an insert waits for growth, and closing for the insert"
    );
    device.open(End::Well);
    closed.recv_timeout(PATIENCE).unwrap().unwrap();
    closer.join().unwrap();
    let (done, errors) = inserters.end();
    for error in &errors {
        assert!(matches!(error, Error::Closed), "{error}");
    }
    assert_eq!(Arc::strong_count(&device), 1, "a thread uses the volume");
    let store = Store::open_on_volume(device.volume(), &options()).unwrap();
    verify(&store.tree("t").unwrap(), &done);
    store.close().unwrap();
}

#[test]
fn commits_go_on_while_the_log_grows() {
    let device = Gated::new();
    let options = tiny(1, 8).pool_bytes(24 << 20);
    let (store, tree) = filled(&device, &options);
    let before = device.len();
    device.close();
    let overwriter = {
        let (tree, stop) = (tree.clone(), Arc::new(AtomicBool::new(false)));
        let until = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut count = 0;
            while !until.load(Ordering::SeqCst) {
                let n = count % FIRST;
                tree.insert(&key(n), &value(n, 900)).unwrap();
                count += 1;
            }
            count
        });
        (thread, stop)
    };
    device.await_held();
    let went_on = goes_on(&device, modest_work(&store, &tree));
    device.open(End::Well);
    let begin = Instant::now();
    while device.len() == before && begin.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
    }
    overwriter.1.store(true, Ordering::SeqCst);
    assert!(overwriter.0.join().unwrap() > 0);
    assert!(went_on, "the worker stood still");
    assert!(device.len() > before);
    verify(&tree, &[]);
    store.close().unwrap();
}

#[test]
fn the_tasks_of_a_worker_go_on_while_the_volume_is_cut() {
    let device = Gated::new();
    let (store, tree) = filled(&device, &options());
    for n in FIRST..20_000 {
        tree.insert(&key(n), &value(n, 900)).unwrap();
    }
    for n in FIRST..20_000 {
        tree.remove(&key(n)).unwrap();
    }
    let before = device.len();
    device.close();
    let compactor = {
        let store = store.clone();
        thread::spawn(move || store.compact())
    };
    device.await_held();
    let went_on = goes_on(&device, modest_work(&store, &tree));
    device.open(End::Well);
    compactor.join().unwrap().unwrap();
    assert!(went_on, "the worker stood still");
    assert!(device.len() < before, "{} of {before} bytes", device.len());
    verify(&tree, &[]);
    store.close().unwrap();
}
