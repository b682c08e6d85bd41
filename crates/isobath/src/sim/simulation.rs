//! Simulations as tests see them.

use std::rc::Rc;
use std::sync::Arc;

use isobath_flash::rng::Rng;
use isobath_io::Volume;

use super::driver::Driver;
use crate::engine::{Engine, Runtime, TaskHandle, WorkerState};
use crate::recovery::compare::Layout;
use crate::recovery::{self, EngineParts, Plan};
use crate::sync::atomic::Ordering;
use crate::sync::interrupt;
use crate::{Error, OpenError, Options, StorageError, Store};

/// A simulation made no progress: a task was lost, or two wait for each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the simulation with seed {seed} is stuck after {steps} steps: {state}")]
pub struct Stuck {
    /// The seed that shows it.
    pub seed: u64,
    /// Steps since the simulation began.
    pub steps: u64,
    /// Every worker's waits.
    pub state: String,
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

impl std::fmt::Debug for Simulation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Simulation").finish_non_exhaustive()
    }
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
        let parts = recovery::create(volume, config, frames, options.policy()?, store_id)?;
        Simulation::start(parts, seed, Store::created)
    }

    /// Opens the store on `volume`.
    ///
    /// # Errors
    ///
    /// As for [`Store::open_on_volume`].
    pub fn open(volume: Volume, options: &Options, seed: u64) -> Result<Simulation, Error> {
        let mut config = options.config()?;
        let superblock = recovery::read_superblock(&volume, &[])?;
        config.sizes = superblock.sizes;
        let frames = options.frames();
        let policy = options.policy_of(&superblock)?;
        let parts = recovery::open(volume, superblock, &[], config, frames, policy)?;
        Simulation::start(parts, seed, Store::opened)
    }

    fn start(
        parts: EngineParts,
        seed: u64,
        make: fn(Runtime, Plan, Vec<std::path::PathBuf>) -> Result<Store, OpenError>,
    ) -> Result<Simulation, Error> {
        let (engine, plan) = Engine::new(parts);
        let mut rng = Rng::new(seed);
        let mut locals = Vec::new();
        for index in 0..engine.shared.config.workers {
            let local = WorkerState::new(Arc::clone(&engine), index)?;
            local.worker.shuffle(rng.bits());
            locals.push(local);
        }
        let driver = Driver::start(seed, rng, locals).map_err(|source| Error::Memory {
            what: "a simulated worker's stack",
            source: Arc::new(source),
        })?;
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
        Driver::begin_operation();
        #[expect(clippy::expect_used, reason = "only `close` and `drop` take it")]
        self.store.as_ref().expect("an open simulation has a store")
    }

    /// The engine of the store.
    #[cfg(test)]
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
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
    pub fn run_until(&mut self, mut done: impl FnMut() -> bool, limit: u64) -> Result<u64, Stuck> {
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
    /// device's own digest it distinguishes different runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        self.driver.trace.get()
    }

    /// Steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.driver.steps.get()
    }

    /// Checkpoints that the store has written since it was opened.
    #[must_use]
    pub fn checkpoints(&self) -> u64 {
        let armed = interrupt::arm(false);
        let count = self
            .engine
            .shared
            .counters
            .checkpoints
            .load(Ordering::Acquire);
        interrupt::arm(armed);
        count
    }

    /// Whether no task seals or merges, which has pages of its own meanwhile.
    #[must_use]
    pub fn merges_rest(&self) -> bool {
        let armed = interrupt::arm(false);
        let rests = self.engine.merging.is_at_rest();
        interrupt::arm(armed);
        rests
    }

    /// Frames of the pool that are where they belong: free, in a replacement queue, lent, or
    /// holding a page that was never written. With no task running it is all of them; a frame that
    /// is missing was leaked.
    #[must_use]
    pub fn accounted_frames(&self) -> usize {
        self.driver.finish_steps();
        // No worker moves a frame while they are counted.
        let armed = interrupt::arm(false);
        let queued = self.engine.buffer.queued_frames();
        let local: usize = self
            .driver
            .locals
            .iter()
            .map(|l| l.engine.buffer.frames_kept(&l.worker))
            .sum();
        let frames = &self.engine.buffer.pool.frames;
        let global = self.engine.buffer.free_frames();
        let new = (0..frames.used())
            .filter(|&frame| frames.header(frame).is_unlisted())
            .count();
        interrupt::arm(armed);
        global + queued + local + new + self.engine.buffer.lent_frames()
    }

    /// Free frames that each worker keeps for itself.
    #[must_use]
    pub fn free_frames_kept(&self) -> Vec<usize> {
        self.driver.finish_steps();
        self.driver
            .locals
            .iter()
            .map(|l| l.engine.buffer.frames_kept(&l.worker))
            .collect()
    }

    /// Makes all records durable and frees the space that they make obsolete, while no client
    /// works. Whether all is at rest then: where workers go on by themselves, it may take more
    /// calls.
    ///
    /// # Errors
    ///
    /// A failed write.
    pub fn come_to_rest(&mut self) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        let rest = self.spawn(0, move || {
            WorkerState::with_current(&engine, |local| match local {
                Some(local) => {
                    local
                        .engine
                        .pagestore
                        .wait_for_pending_frees(&local.worker)?;
                    engine.log_tasks.wait_all_durable(&local.worker)
                }
                None => Err(StorageError::Closed),
            })
        });
        crate::runtime::block_on(rest.flat())?;
        self.driver.finish_steps();
        let armed = interrupt::arm(false);
        let engine = &self.engine;
        let rests = engine.log.is_durable(engine.log.newest_record())
            && !engine.pagestore.has_pending_frees()
            && engine.merging.is_at_rest();
        interrupt::arm(armed);
        Ok(rests)
    }

    /// The differences between this store, which is at rest, and `volume`, the image that a crash
    /// would leave now: pages in other places, counts, missing summaries.
    ///
    /// # Errors
    ///
    /// The copy cannot be opened.
    pub fn compare(&self, volume: Volume, options: &Options) -> Result<Vec<String>, Error> {
        let armed = interrupt::arm(false);
        let layout = Layout::of(&self.engine.buffer, &self.engine.pagestore);
        let compared = compare(&layout, volume, options);
        interrupt::arm(armed);
        compared
    }

    /// Closes the store, and compares what it was with the volume that `image` makes then.
    ///
    /// # Errors
    ///
    /// As for [`Store::close`]; the inner one: the copy cannot be opened.
    pub fn close_and_compare(
        mut self,
        image: impl FnOnce() -> Option<Volume>,
        options: &Options,
    ) -> Result<Result<Vec<String>, Error>, Error> {
        Driver::begin_operation();
        self.store.take().map_or(Ok(()), Store::close)?;
        let (layout, volume) = (self.engine.opening.closed_layout(), image());
        Ok(match layout.zip(volume) {
            Some((layout, volume)) => compare(layout, volume, options),
            None => Ok(Vec::new()),
        })
    }

    /// Closes the store, as [`Store::close`] does.
    ///
    /// # Errors
    ///
    /// As for [`Store::close`].
    pub fn close(mut self) -> Result<(), Error> {
        Driver::begin_operation();
        self.store.take().map_or(Ok(()), Store::close)
    }
}

impl Drop for Simulation {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The store may be stuck: closing it would hide why.
            std::mem::forget(self.store.take());
        }
        Driver::begin_operation();
        drop(self.store.take());
        Driver::end();
    }
}

/// The differences between this layout and `volume`, the image of a crash.
fn compare(layout: &Layout, volume: Volume, options: &Options) -> Result<Vec<String>, Error> {
    let superblock = recovery::read_superblock(&volume, &[])?;
    let mut config = options.config()?;
    config.sizes = superblock.sizes;
    let (frames, policy) = (options.frames(), options.policy_of(&superblock)?);
    let parts = recovery::open(volume, superblock, &[], config, frames, policy)?;
    let crashed = Engine::new(parts).0;
    Ok(layout.compare(&crashed.shared, &crashed.buffer, &crashed.pagestore))
}
