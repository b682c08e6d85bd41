//! Chooses which worker runs next, and resumes workers that are suspended in a step.
//!
//! Where a simulation switches, each worker's steps run on a stack of their
//! own. Held back before an access, even inside a task, it leaves that stack as it
//! is, and the driver steps others. Callers outside tasks have the driver's stack:
//! held back, they step the workers themselves.

#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult, Yielder};
use isobath_flash::rng::Rng;

use super::Stuck;
use crate::engine::{Interrupted, WorkerState, what_waits};
use crate::runtime::clock;
use crate::sync::interrupt::{self, Hold, Place, Who};

/// Simulated time that a step takes.
const STEP_TIME: Duration = Duration::from_micros(10);
/// Steps in a row, per operation that waits, after which a simulation
/// counts as stuck.
const MAX_STEPS: u64 = 20_000_000;
/// Steps in a row that did nothing, after which the one that is held back goes on.
const PATIENCE: u32 = 400;
/// Bytes of address space of a worker's stack.
const STACK_BYTES: usize = 1 << 20;

/// Why a worker's stack was left.
enum Pause {
    /// A step has ended; whether anything happened.
    Stepped(bool),
    /// The worker is held back in its step.
    Held,
    /// It can go on only when others have.
    Waits,
}

/// Resumed with whether there is to be another step.
type Steps = Coroutine<bool, Pause, (), DefaultStack>;

/// One worker that can be held back.
struct Seat {
    steps: Cell<Option<Steps>>,
    /// Set by the running coroutine itself; valid while it lives.
    yielder: Cell<*const Yielder<bool, Pause>>,
    /// No step of it has begun and not ended.
    is_between: Cell<bool>,
    /// Steps of others for which it is held back.
    held: Cell<u32>,
    /// The place at which it waits for others.
    waits_at: Cell<Option<Place>>,
}

impl Seat {
    fn new(local: &Rc<WorkerState>) -> std::io::Result<Rc<Seat>> {
        let seat = Rc::new(Seat {
            steps: Cell::new(None),
            yielder: Cell::new(std::ptr::null()),
            is_between: Cell::new(true),
            held: Cell::new(0),
            waits_at: Cell::new(None),
        });
        let (own, local) = (Rc::downgrade(&seat), Rc::clone(local));
        let stack = DefaultStack::new(STACK_BYTES)?;
        let steps = Steps::with_stack(stack, move |yielder, mut go_on| {
            if let Some(seat) = own.upgrade() {
                seat.yielder.set(std::ptr::from_ref(yielder));
            }
            while go_on {
                let progress = local.step(false);
                go_on = yielder.suspend(Pause::Stepped(progress));
            }
        });
        seat.steps.set(Some(steps));
        Ok(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some(mut steps) = self.steps.take() else {
            return;
        };
        if self.is_between.get() {
            // Ends at once: its stack holds nothing of a step.
            steps.resume(false);
        } else {
            // In the middle of a step, with tasks' stacks inside: no code can
            // unwind that. Only failed simulations leave any.
            std::mem::forget(steps);
        }
    }
}

/// Steps the workers of one simulation.
pub(super) struct Driver {
    pub(super) seed: u64,
    rng: RefCell<Rng>,
    pub(super) locals: Vec<Rc<WorkerState>>,
    /// One for each worker where the simulation switches, else none.
    seats: Vec<Rc<Seat>>,
    /// The worker whose stack is running.
    running: Cell<Option<usize>>,
    /// Whether a worker may be held back now.
    switches: Cell<bool>,
    pub(super) steps: Cell<u64>,
    pub(super) trace: Cell<u64>,
    /// Steps in a row that did nothing.
    idle: Cell<u32>,
}

thread_local! {
    /// The simulation whose workers this thread steps.
    static DRIVER: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
    /// Steps that operations outside tasks have waited for since the last
    /// one that ended.
    static WAITED: Cell<u64> = const { Cell::new(0) };
}

impl Driver {
    /// Steps `locals` from now on, on this thread.
    pub(super) fn start(
        seed: u64,
        rng: Rng,
        locals: Vec<Rc<WorkerState>>,
    ) -> std::io::Result<Rc<Self>> {
        let switches = interrupt::begin(seed, hold);
        let seats = if switches {
            locals.iter().map(Seat::new).collect::<Result<_, _>>()?
        } else {
            Vec::new()
        };
        let driver = Rc::new(Driver {
            seed,
            rng: RefCell::new(rng),
            locals,
            seats,
            running: Cell::new(None),
            switches: Cell::new(switches),
            steps: Cell::new(0),
            trace: Cell::new(seed),
            idle: Cell::new(0),
        });
        let outer = DRIVER.replace(Some(Rc::clone(&driver)));
        assert!(outer.is_none(), "one simulation at a time per thread");
        WAITED.set(0);
        clock::simulate(true);
        interrupt::arm(true);
        Ok(driver)
    }

    /// Ends the simulation of this thread.
    pub(super) fn end() {
        interrupt::end();
        DRIVER.set(None);
        clock::simulate(false);
    }

    /// An operation outside tasks begins.
    pub(super) fn begin_operation() {
        WAITED.set(0);
    }

    /// Steps one worker, drawn from the seed; whether it did anything.
    pub(super) fn step(&self) -> bool {
        let armed = interrupt::arm(false);
        let index = self.draw();
        let local = &self.locals[index];
        let progress = if self.seats.is_empty() {
            local.step(false)
        } else {
            self.resume(index)
        };
        let idle = if progress { 0 } else { self.idle.get() + 1 };
        self.idle.set(idle);
        self.steps.set(self.steps.get() + 1);
        clock::advance(STEP_TIME);
        self.note(index as u64);
        self.note(u64::from(progress));
        self.note(local.worker.counters.resumes.get());
        interrupt::arm(armed);
        progress
    }

    /// The next worker: any that is not held back.
    fn draw(&self) -> usize {
        let held = self.seats.iter().filter(|seat| seat.held.get() > 0).count();
        let free = self.locals.len() - held;
        if held == 0 {
            return self.rng.borrow_mut().below(free as u32) as usize;
        }
        for seat in &self.seats {
            let others_go_on = free > 0 && self.idle.get() < PATIENCE;
            let left = seat.held.get().saturating_sub(1);
            seat.held.set(if others_go_on { left } else { 0 });
        }
        if free == 0 {
            return self.rng.borrow_mut().below(held as u32) as usize;
        }
        let chosen = self.rng.borrow_mut().below(free as u32) as usize;
        let indices = 0..self.seats.len();
        let mut free = indices.filter(|&index| self.seats[index].held.get() == 0);
        free.nth(chosen).unwrap_or(0)
    }

    /// Lets a worker run until its step ends or it is held back.
    fn resume(&self, index: usize) -> bool {
        let seat = &self.seats[index];
        let Some(mut steps) = seat.steps.take() else {
            return false;
        };
        seat.is_between.set(false);
        seat.waits_at.set(None);
        self.running.set(Some(index));
        interrupt::arm(self.switches.get());
        let paused = steps.resume(true);
        interrupt::arm(false);
        self.running.set(None);
        let CoroutineResult::Yield(pause) = paused else {
            return false;
        };
        seat.steps.set(Some(steps));
        match pause {
            Pause::Stepped(progress) => {
                seat.is_between.set(true);
                progress
            }
            Pause::Held => {
                self.note(u64::from(seat.held.get()) << 8 | 1);
                true
            }
            Pause::Waits => false,
        }
    }

    /// Brings every worker to the end of its step, without holding back any.
    pub(super) fn finish_steps(&self) {
        if self.seats.is_empty() {
            return;
        }
        let armed = interrupt::arm(false);
        let switches = self.switches.replace(false);
        let mut rounds = 0;
        while self.seats.iter().any(|seat| !seat.is_between.get()) {
            for (index, seat) in self.seats.iter().enumerate() {
                seat.held.set(0);
                if !seat.is_between.get() {
                    self.resume(index);
                }
            }
            rounds += 1;
            assert!(rounds < MAX_STEPS, "{}", self.stuck());
        }
        self.switches.set(switches);
        interrupt::arm(armed);
    }

    /// Whether the worker's last step has ended, and nothing is left to do.
    fn has_ended(&self, index: usize) -> bool {
        let between = self
            .seats
            .get(index)
            .is_none_or(|seat| seat.is_between.get());
        between && self.locals[index].has_ended()
    }

    fn note(&self, fact: u64) {
        let mixed = (self.trace.get() ^ fact).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.trace.set(mixed ^ mixed >> 29);
    }

    pub(super) fn stuck(&self) -> Stuck {
        let describe = |index: usize| match self.seats.get(index) {
            Some(seat) if !seat.is_between.get() => match seat.waits_at.get() {
                Some(place) => format!("worker {index}: waits for others at {place}"),
                None => format!("worker {index}: is held back in a step"),
            },
            _ => self.locals[index].describe(),
        };
        let mut states: Vec<String> = (0..self.locals.len()).map(describe).collect();
        states.extend(self.locals.first().map(|local| what_waits(&local.engine)));
        Stuck {
            seed: self.seed,
            steps: self.steps.get(),
            state: states.join("; "),
        }
    }

    fn current() -> Option<Rc<Driver>> {
        DRIVER.with_borrow(Clone::clone)
    }
}

/// Holds back the caller: a worker in its step, or a caller outside tasks.
fn hold(why: Hold) {
    let Some(driver) = Driver::current() else {
        return;
    };
    let held = driver.running.get();
    let Some(index) = held.filter(|_| matches!(why, Hold::Steps(_) | Hold::Waits(_))) else {
        hold_application(&driver, why);
        return;
    };
    let seat = Rc::clone(&driver.seats[index]);
    let slot = driver.locals[index].worker.running_slot();
    drop(driver);
    let pause = match why {
        Hold::Steps(steps) => {
            interrupt::note(Who::Worker(index, slot));
            seat.held.set(steps);
            Pause::Held
        }
        Hold::Waits(place) => {
            seat.waits_at.set(Some(place));
            Pause::Waits
        }
        Hold::Blocks | Hold::Ends => return,
    };
    let yielder = seat.yielder.get();
    drop(seat);
    let interrupted = Interrupted::leave();
    // SAFETY: the running coroutine stored its own yielder, which lives as long
    // as it does. A task's coroutine inside is left where it is: nothing but this
    // worker resumes it, and this worker goes on right here.
    unsafe { (*yielder).suspend(pause) };
    interrupted.go_on();
}

fn hold_application(driver: &Driver, why: Hold) {
    match why {
        Hold::Steps(steps) => {
            driver.note(u64::from(steps) << 8 | 2);
            for _ in 0..steps {
                driver.step();
                if driver.idle.get() >= PATIENCE {
                    break;
                }
            }
        }
        Hold::Waits(_) | Hold::Blocks => drive(driver),
        Hold::Ends => drive_to_end(driver),
    }
}

/// Takes a step.
///
/// # Panics
///
/// When the simulation has been stuck for long.
fn drive(driver: &Driver) {
    driver.step();
    WAITED.set(WAITED.get() + 1);
    assert!(WAITED.get() < MAX_STEPS, "{}", driver.stuck());
}

/// Steps until the workers have ended.
fn drive_to_end(driver: &Driver) {
    WAITED.set(0);
    // Each of them: asking closes the inbox of a worker that has ended.
    let all = 0..driver.locals.len();
    while all
        .clone()
        .filter(|&index| !driver.has_ended(index))
        .count()
        > 0
    {
        drive(driver);
    }
}
