//! Whole stores in one thread: workers that a seed steps.
//!
//! A worker only ever advances by `step()`. Here no worker has a thread; each
//! step of the simulation draws one worker, and each worker draws the order of
//! its ready tasks. Together with a deterministic in-process device
//! ([`isobath_io::FaultDevice`]) a run is a function of its seed. The engine
//! that runs is the one that runs with threads, line by line: only where a
//! thread would block, the simulation takes steps instead.

#[cfg(any(test, feature = "simulation"))]
pub use simulated::{Simulation, Stuck};
#[cfg(any(test, feature = "simulation"))]
pub(crate) use simulated::{drive, drive_to_end};

/// Takes a step of the simulation that this thread runs; there is none.
#[cfg(not(any(test, feature = "simulation")))]
#[inline(always)]
pub(crate) fn drive() -> bool {
    false
}

/// Steps the simulation that this thread runs until its workers have ended.
#[cfg(not(any(test, feature = "simulation")))]
pub(crate) fn drive_to_end() {}

#[cfg(any(test, feature = "simulation"))]
mod simulated {
    use crate::sync::atomic::Ordering;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    use isobath_flash::rng::Rng;
    use isobath_io::Volume;

    use crate::buffer::flag;
    use crate::engine::{self, Engine, Local, Opened};
    use crate::runtime::Runtime;
    use crate::sched::clock;
    use crate::task::TaskHandle;
    use crate::{Error, Options, Store};

    /// Simulated time that a step takes.
    const STEP_TIME: Duration = Duration::from_micros(10);
    /// Steps in a row, per operation that waits, after which a simulation
    /// counts as stuck.
    const MOST_STEPS: u64 = 3_000_000;

    /// A simulation made no progress: a task was lost, or two wait for each other.
    #[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
    #[error("the simulation with seed {seed} is stuck after {steps} steps: {state}")]
    pub struct Stuck {
        /// The seed that shows it.
        pub seed: u64,
        /// Steps since the simulation began.
        pub steps: u64,
        /// What every worker waits for.
        pub state: String,
    }

    struct Driver {
        seed: u64,
        rng: RefCell<Rng>,
        locals: Vec<Rc<Local>>,
        steps: Cell<u64>,
        trace: Cell<u64>,
    }

    thread_local! {
        /// The simulation whose workers this thread steps.
        static DRIVER: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
    }

    impl Driver {
        fn step(&self) -> bool {
            let index = self.rng.borrow_mut().below(self.locals.len() as u32);
            let local = &self.locals[index as usize];
            let progress = local.step(false);
            self.steps.set(self.steps.get() + 1);
            clock::advance(STEP_TIME);
            self.note(u64::from(index));
            self.note(u64::from(progress));
            self.note(local.worker.counters.resumes.get());
            progress
        }

        fn note(&self, fact: u64) {
            let mixed = (self.trace.get() ^ fact).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.trace.set(mixed ^ mixed >> 29);
        }

        fn stuck(&self) -> Stuck {
            let states: Vec<String> = self.locals.iter().map(|local| local.describe()).collect();
            Stuck {
                seed: self.seed,
                steps: self.steps.get(),
                state: states.join("; "),
            }
        }
    }

    /// Takes a step of the simulation that this thread runs, if there is one.
    ///
    /// # Panics
    ///
    /// When it has been stuck for long.
    pub(crate) fn drive() -> bool {
        let driver = DRIVER.with_borrow(Clone::clone);
        let Some(driver) = driver else {
            return false;
        };
        driver.step();
        WAITED.set(WAITED.get() + 1);
        assert!(WAITED.get() < MOST_STEPS, "{}", driver.stuck());
        true
    }

    thread_local! {
        /// Steps that operations outside tasks have waited for since the last
        /// one that ended.
        static WAITED: Cell<u64> = const { Cell::new(0) };
    }

    /// Steps the simulation that this thread runs until its workers have ended.
    pub(crate) fn drive_to_end() {
        let driver = DRIVER.with_borrow(Clone::clone);
        let Some(driver) = driver else {
            return;
        };
        WAITED.set(0);
        // Each of them: asking closes the inbox of a worker that has ended.
        while driver.locals.iter().filter(|l| !l.has_ended()).count() > 0 {
            drive();
        }
    }

    /// A store without threads, whose workers are stepped in an order drawn
    /// from a seed. One thread can have one of them at a time.
    ///
    /// The [`Store`] inside is an ordinary one; calls from outside tasks step
    /// the simulation until they are answered. With a deterministic volume the
    /// same seed and the same calls give the same run.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use isobath::{Options, Simulation, Volume};
    ///
    /// let options = Options::new().pool_bytes(8 << 20).workers(3);
    /// let mut simulation = Simulation::new(Volume::in_memory(0, None), &options, 42)?;
    /// let tree = simulation.store().create_tree("t")?;
    /// let inserted = tree.clone();
    /// let task = simulation.spawn(2, move || inserted.insert(b"key", b"value"));
    /// task.join()??;
    /// assert!(tree.contains(b"key")?);
    /// simulation.close()?;
    /// # Ok(())
    /// # }
    /// ```
    pub struct Simulation {
        store: Option<Store>,
        engine: Arc<Engine>,
        driver: Rc<Driver>,
    }

    impl Simulation {
        /// Creates a store on the empty `volume`.
        ///
        /// # Errors
        ///
        /// As for [`Store::create_on_volume`].
        pub fn new(volume: Volume, options: &Options, seed: u64) -> Result<Simulation, Error> {
            let mut store_id = [0; 16];
            store_id[..8].copy_from_slice(&seed.to_le_bytes());
            let config = options.config()?;
            let frames = options.frames();
            let opened = engine::create(volume, config, frames, options.policy()?, store_id)?;
            Simulation::start(opened, seed, Store::created)
        }

        /// Opens the store on `volume`.
        ///
        /// # Errors
        ///
        /// As for [`Store::open_on_volume`].
        pub fn open(volume: Volume, options: &Options, seed: u64) -> Result<Simulation, Error> {
            let mut config = options.config()?;
            let superblock = engine::read_superblock(&volume, &[])?;
            config.segment_bytes = superblock.segment_bytes;
            let frames = options.frames();
            let policy = options.policy()?;
            let opened = engine::open(volume, superblock, &[], config, frames, policy)?;
            Simulation::start(opened, seed, Store::opened)
        }

        fn start(
            opened: Opened,
            seed: u64,
            make: fn(Runtime, engine::Plan, Vec<std::path::PathBuf>) -> Result<Store, Error>,
        ) -> Result<Simulation, Error> {
            let Opened { engine, plan } = opened;
            let mut rng = Rng::new(seed);
            let mut locals = Vec::new();
            for index in 0..engine.config.workers {
                let local = Local::new(Arc::clone(&engine), index)?;
                local.worker.shuffle(rng.bits());
                locals.push(local);
            }
            let driver = Rc::new(Driver {
                seed,
                rng: RefCell::new(rng),
                locals,
                steps: Cell::new(0),
                trace: Cell::new(seed),
            });
            let outer = DRIVER.replace(Some(Rc::clone(&driver)));
            assert!(outer.is_none(), "one simulation at a time per thread");
            WAITED.set(0);
            clock::simulate(true);
            let runtime = Runtime::simulated(Arc::clone(&engine));
            let made = make(runtime, plan, Vec::new());
            let mut simulation = Simulation {
                store: None,
                engine,
                driver,
            };
            simulation.store = Some(made?);
            Ok(simulation)
        }

        /// The store.
        ///
        /// # Panics
        ///
        /// Never: only closing takes the store away, and the simulation with it.
        #[must_use]
        pub fn store(&self) -> &Store {
            WAITED.set(0);
            #[expect(clippy::expect_used, reason = "only `close` and `drop` take it")]
            self.store.as_ref().expect("an open simulation has a store")
        }

        /// Runs `work` as a task of worker `worker`, modulo their number.
        pub fn spawn<T: Send + 'static>(
            &self,
            worker: usize,
            work: impl FnOnce() -> T + Send + 'static,
        ) -> TaskHandle<T> {
            self.store().spawn_on(worker, work)
        }

        /// Steps one worker, drawn from the seed; whether it did anything.
        pub fn step(&mut self) -> bool {
            self.driver.step()
        }

        /// Takes steps until `done` says so; how many.
        ///
        /// # Errors
        ///
        /// [`Stuck`] when it has not after `limit` steps.
        pub fn run_until(
            &mut self,
            mut done: impl FnMut() -> bool,
            limit: u64,
        ) -> Result<u64, Stuck> {
            let mut steps = 0;
            while !done() {
                if steps == limit {
                    return Err(self.driver.stuck());
                }
                self.driver.step();
                steps += 1;
            }
            Ok(steps)
        }

        /// A number that depends on every step so far. Together with the
        /// device's own digest it tells different runs apart.
        #[must_use]
        pub fn trace_hash(&self) -> u64 {
            self.driver.trace.get()
        }

        /// Steps so far.
        #[must_use]
        pub fn steps(&self) -> u64 {
            self.driver.steps.get()
        }

        /// Frames of the pool that are where they belong: free, in a replacement
        /// queue, or holding a page that was never written. With no task running it is all of them; a frame that is
        /// missing was leaked.
        #[must_use]
        pub fn accounted_frames(&self) -> usize {
            let global = self.engine.free_frames.lock().len();
            let queued: usize = self.engine.partitions.iter().map(|p| p.lock().len()).sum();
            let local: usize = self.driver.locals.iter().map(|l| l.free_count()).sum();
            let frames = &self.engine.pool.frames;
            let new = (0..frames.count())
                .filter(|&frame| {
                    let flags = frames.header(frame).flags.load(Ordering::Acquire);
                    flags & (flag::UNLISTED | flag::FREED) == flag::UNLISTED
                })
                .count();
            global + queued + local + new
        }

        /// Free frames that each worker keeps for itself.
        #[must_use]
        pub fn free_frames_kept(&self) -> Vec<usize> {
            self.driver.locals.iter().map(|l| l.free_count()).collect()
        }

        /// Closes the store, as [`Store::close`] does.
        ///
        /// # Errors
        ///
        /// As for [`Store::close`].
        pub fn close(mut self) -> Result<(), Error> {
            WAITED.set(0);
            self.store.take().map_or(Ok(()), Store::close)
        }
    }

    impl Drop for Simulation {
        fn drop(&mut self) {
            if std::thread::panicking() {
                // The store may be stuck: closing it would hide why.
                std::mem::forget(self.store.take());
            }
            WAITED.set(0);
            drop(self.store.take());
            DRIVER.set(None);
            clock::simulate(false);
        }
    }
}
