//! Suspends workers in simulations at any access to shared data.
//!
//! A simulation runs everything in one thread. Code that passes an access, a
//! *place* in the source, may be held back there while others run. Which passes
//! those are, and for how long, is drawn from a seed ([`How`]); those that were
//! taken are noted as [`Switch`]es, and a list of them can be followed again.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An access in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The file.
    pub file: &'static str,
    /// Its line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

impl Place {
    fn of(location: &'static Location<'static>) -> Place {
        Place {
            file: location.file(),
            line: location.line(),
            column: location.column(),
        }
    }

    /// The same in every build and run.
    fn hash(self) -> u64 {
        let bytes = self.file.bytes().map(u64::from);
        bytes
            .chain([u64::from(self.line), u64::from(self.column)])
            .fold(0xcbf2_9ce4_8422_2325, |hash, part| {
                (hash ^ part).wrapping_mul(0x0100_0000_01b3)
            })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// Which worker or task was held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Who {
    /// A caller outside tasks.
    Application,
    /// A worker: in the task of this slot, or between tasks.
    Worker(usize, Option<u32>),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Application => write!(f, "the application"),
            Who::Worker(worker, None) => write!(f, "worker {worker} between tasks"),
            Who::Worker(worker, Some(task)) => write!(f, "worker {worker} in task {task}"),
        }
    }
}

/// A worker or caller was held back before an access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch {
    /// In which of the thread's simulations, from 0.
    pub simulation: u32,
    /// Before which access.
    pub place: Place,
    /// The how-manieth pass of that place, by any of them, from 1.
    pub pass: u64,
    /// For how many steps of the others, unless they could not go on.
    pub steps: u32,
    /// Which one; following a list of switches does not depend on it.
    pub who: Who,
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "simulation {}: {} is held back for {} steps before {} (pass {})",
            self.simulation, self.who, self.steps, self.place, self.pass
        )
    }
}

/// How switches are chosen.
#[derive(Debug, Clone, PartialEq)]
pub enum How {
    /// Each place gets its share, however rarely it is passed: the n-th pass of a
    /// place with a probability of `rate / n`.
    EveryPlace {
        /// Expected switches at each place per factor e of its passes.
        rate: f64,
        /// Most steps that a worker or caller is held back for.
        max_steps: u32,
    },
    /// Every pass with the same probability.
    EveryPass {
        /// Passes from one switch to the next, on average.
        gap: u32,
        /// Most steps that a worker or caller is held back for.
        max_steps: u32,
    },
    /// Few places, drawn from the seed, and there very often.
    FewPlaces {
        /// Places: one in this many.
        one_in: u32,
        /// Most steps that a worker or caller is held back for.
        max_steps: u32,
    },
    /// These, and no others.
    Given(Vec<Switch>),
}

/// The switches of one run: how they are chosen, and which were taken.
#[derive(Debug, Clone)]
pub struct Switches {
    how: How,
    record: Arc<Mutex<Record>>,
}

#[derive(Debug, Default)]
struct Record {
    taken: Vec<Switch>,
    passed: Vec<Place>,
}

/// Most switches of one simulation; then it goes on without.
const MAX_SWITCHES: u64 = 20_000;
/// Passes of one participant in a row after which it counts as waiting for others.
const MAX_PASSES: u64 = 1 << 22;

impl Switches {
    /// Switches chosen so.
    #[must_use]
    pub fn new(how: How) -> Switches {
        Switches {
            how,
            record: Arc::default(),
        }
    }

    /// Makes the simulations that this thread starts from now on use these switches.
    pub fn switch_on(&self) {
        CHOSEN.set(Some(self.clone()));
        STARTED.set(0);
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Those taken so far.
    #[must_use]
    pub fn taken(&self) -> Vec<Switch> {
        self.record().taken.clone()
    }

    /// Places passed so far, each once, in the order in which they came.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        self.record().passed.clone()
    }
}

/// The simulation's way to suspend a worker or caller.
#[derive(Clone, Copy)]
pub(crate) enum Hold {
    /// For this many steps of the others.
    Steps(u32),
    /// Until others have run: what it waits for is theirs.
    Waits(Place),
    /// For a step of a worker: the caller is none, and would block its thread.
    Blocks,
    /// Until the workers have ended.
    Ends,
}

thread_local! {
    /// Whether the code that runs now may be interrupted.
    static ARMED: Cell<bool> = const { Cell::new(false) };
    /// How the next simulations of this thread switch.
    static CHOSEN: RefCell<Option<Switches>> = const { RefCell::new(None) };
    /// Simulations that this thread has started since then.
    static STARTED: Cell<u32> = const { Cell::new(0) };
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
    static HANDLER: Cell<Option<Handler>> = const { Cell::new(None) };
}

/// How a simulation holds back its caller; returns when that goes on.
pub(crate) type Handler = fn(Hold);

/// Begins a simulation on this thread; whether it switches at all.
pub(crate) fn begin(seed: u64, handler: Handler) -> bool {
    let chosen = CHOSEN.with_borrow(Clone::clone);
    HANDLER.set(Some(handler));
    let on = chosen.is_some();
    STATE.set(chosen.map(|switches| {
        let number = STARTED.replace(STARTED.get() + 1);
        State::new(seed, number, switches)
    }));
    on
}

/// Ends the simulation of this thread.
pub(crate) fn end() {
    ARMED.set(false);
    HANDLER.set(None);
    STATE.set(None);
}

/// Says whether the code that runs from now on may be interrupted; returns the earlier setting.
pub(crate) fn arm(on: bool) -> bool {
    let switches = STATE.with_borrow_mut(|state| {
        if let Some(state) = state {
            state.passes_in_a_row = 0;
        }
        state.is_some()
    });
    ARMED.replace(on && switches)
}

/// Records which one is being held back.
pub(crate) fn note(who: Who) {
    STATE.with_borrow_mut(|state| {
        if let Some(state) = state {
            let mut record = state.switches.record();
            if let Some(last) = record.taken.last_mut() {
                last.who = who;
            }
        }
    });
}

/// Before an access at `location`: others may run now.
#[inline(always)]
pub(crate) fn point(location: &'static Location<'static>) {
    if ARMED.get() {
        pass(location);
    }
}

#[inline(never)]
fn pass(location: &'static Location<'static>) {
    let steps = STATE.with_borrow_mut(|state| state.as_mut()?.decide(location));
    if let Some(steps) = steps
        && let Some(handler) = HANDLER.get()
        && !std::thread::panicking()
    {
        handler(Hold::Steps(steps));
    }
}

/// Lets others run: the caller, at `location`, can go on only when they have.
/// `false` outside simulations that switch.
pub(crate) fn wait(location: &'static Location<'static>) -> bool {
    let switches = STATE.with_borrow(Option::is_some);
    match HANDLER.get() {
        Some(handler) if switches => {
            handler(Hold::Waits(Place::of(location)));
            true
        }
        _ => false,
    }
}

/// Takes a step of the simulation that this thread runs; `false` if there is none.
pub(crate) fn drive() -> bool {
    HANDLER.get().map(|handler| handler(Hold::Blocks)).is_some()
}

/// Steps the simulation that this thread runs, if there is one, until its workers have ended.
pub(crate) fn drive_to_end() {
    HANDLER.get().inspect(|handler| handler(Hold::Ends));
}

/// A place that was passed.
struct Passed {
    place: Place,
    hash: u64,
    passes: u64,
}

/// The state of a simulation.
struct State {
    number: u32,
    switches: Switches,
    seed: u64,
    /// Of the generator (splitmix64).
    random: u64,
    /// A location's address, and its place's index; 0 if there is none.
    table: Vec<(usize, usize)>,
    filled: usize,
    places: Vec<Passed>,
    given: HashMap<(Place, u64), u32>,
    /// Passes until the next switch of [`How::EveryPass`].
    until_next: u64,
    taken: u64,
    passes_in_a_row: u64,
}

const TABLE: usize = 1 << 14;

impl State {
    fn new(seed: u64, number: u32, switches: Switches) -> State {
        let given = match &switches.how {
            How::Given(list) => list
                .iter()
                .filter(|switch| switch.simulation == number)
                .map(|switch| ((switch.place, switch.pass), switch.steps))
                .collect(),
            _ => HashMap::new(),
        };
        let mut state = State {
            number,
            switches,
            seed,
            random: seed ^ 0x7377_6974_6368 ^ u64::from(number) << 40,
            table: vec![(0, 0); TABLE],
            filled: 0,
            places: Vec::new(),
            given,
            until_next: 0,
            taken: 0,
            passes_in_a_row: 0,
        };
        state.until_next = state.draw_gap();
        state
    }

    fn draw(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn draw_gap(&mut self) -> u64 {
        match self.switches.how {
            How::EveryPass { gap, .. } => 1 + self.draw() % (2 * u64::from(gap.max(1))),
            _ => u64::MAX,
        }
    }

    /// Index of the place at `location`, noted where it is new.
    fn index(&mut self, location: &'static Location<'static>) -> usize {
        let address = std::ptr::from_ref(location).addr();
        let mut at = (address >> 3).wrapping_mul(0x9e37_79b9) % TABLE;
        while self.table[at].0 != 0 {
            if self.table[at].0 == address {
                return self.table[at].1;
            }
            at = (at + 1) % TABLE;
        }
        // The compiler may have several copies of one location.
        let place = Place::of(location);
        let known = self.places.iter().position(|known| known.place == place);
        let index = known.unwrap_or_else(|| {
            self.switches.record().passed.push(place);
            self.places.push(Passed {
                place,
                hash: place.hash(),
                passes: 0,
            });
            self.places.len() - 1
        });
        self.filled += 1;
        assert!(self.filled < TABLE / 2, "too many places");
        self.table[at] = (address, index);
        index
    }

    /// For how many steps to hold back code that passes `location`, if at all.
    fn decide(&mut self, location: &'static Location<'static>) -> Option<u32> {
        let index = self.index(location);
        let passed = &mut self.places[index];
        passed.passes += 1;
        let (place, hash, pass) = (passed.place, passed.hash, passed.passes);
        self.passes_in_a_row += 1;
        if self.passes_in_a_row > MAX_PASSES {
            // It may wait in a loop for what only others can do.
            self.passes_in_a_row = 0;
            return self.take(place, pass, 1);
        }
        let (most, takes) = match self.switches.how {
            How::Given(_) => {
                let steps = *self.given.get(&(place, pass))?;
                return self.take(place, pass, steps);
            }
            How::EveryPlace { rate, max_steps } => {
                let drawn = (self.draw() >> 11) as f64 / (1u64 << 53) as f64;
                (max_steps, drawn * (pass as f64) < rate)
            }
            How::EveryPass { max_steps, .. } => {
                self.until_next -= 1;
                let takes = self.until_next == 0;
                if takes {
                    self.until_next = self.draw_gap();
                }
                (max_steps, takes)
            }
            How::FewPlaces { one_in, max_steps } => {
                let draw = (hash ^ self.seed).wrapping_mul(0xff51_afd7_ed55_8ccd) >> 33;
                let hot = draw.is_multiple_of(u64::from(one_in.max(1)));
                (max_steps, hot && self.draw().is_multiple_of(2))
            }
        };
        if !takes || self.taken >= MAX_SWITCHES {
            return None;
        }
        // Short and long ones are equally likely.
        let bits = 32 - most.max(1).leading_zeros();
        let longest = 1u64 << (self.draw() % u64::from(bits + 1));
        let steps = (1 + self.draw() % longest).min(u64::from(most)) as u32;
        self.take(place, pass, steps)
    }

    fn take(&mut self, place: Place, pass: u64, steps: u32) -> Option<u32> {
        self.taken += 1;
        self.passes_in_a_row = 0;
        self.switches.record().taken.push(Switch {
            simulation: self.number,
            place,
            pass,
            steps,
            who: Who::Application,
        });
        Some(steps)
    }
}
