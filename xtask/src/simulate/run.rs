//! One seed from its first step to its last check.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use isobath::{Canary, Error, Simulation, Small, Store, Volume};
use isobath_io::{Device, Fault, FaultDevice, FaultRule, LOG_OFFSET, Op, Survivors, Trigger};

use super::backups::{Backups, Schedule};
use super::beside::{Beside, looks_beside};
use super::stream::{Copy, Looks};
use super::superblocks::Superblocks;
use super::watch::Watch;
use crate::clients::judge::judge;
use crate::clients::plan::{Corruption, LOG_HEADERS, Scenario, survivors};
use crate::clients::recorder::Recorder;
use crate::clients::records::{Records, message, work};
use crate::clients::state;
use crate::history::{History, Key, Version};
use crate::random::Random;

/// Bits that are changed at a time, and steps between two such times.
const ROTTEN_BITS: u64 = 8;
const ROT_EVERY: u64 = 3000;

macro_rules! counts {
    ($($name:ident $says:literal,)*) => {
        /// What a run did, each with what is said of it.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub(crate) struct Counts { $(pub(crate) $name: u64),* }

        impl Counts {
            pub(super) fn add(&mut self, other: &Counts) { $(self.$name += other.$name;)* }

            /// All of them, in words.
            pub(super) fn said(&self) -> String {
                [$(format!("{} {}", self.$name, $says)),*].join(", ")
            }
        }
    };
}

counts! {
    operations "operations",
    ios "I/Os",
    crashes "power cuts",
    interruptions "more during recovery",
    checks "checks",
    refused "runs ended by detected corruption",
    unreadable "records unreadable",
    beside "stores opened beside",
    compared "of them compared word by word",
    superblocks "without their newest superblock",
    backups "backups restored",
    looks "looks at streams of changes",
    overruns "of which had fallen behind",
}

/// The report of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Depends on every step, I/O and answer.
    pub(crate) hash: u64,
    pub(crate) counts: Counts,
    pub(crate) errors: BTreeMap<&'static str, u64>,
}

/// A violation: behaviour that no correct engine shows.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", problems.join("\n"))]
pub(crate) struct Failure {
    pub(crate) problems: Vec<String>,
}

impl Failure {
    /// Says where it happened.
    pub(super) fn at(mut self, place: impl std::fmt::Display) -> Failure {
        for problem in &mut self.problems {
            *problem = format!("{place}: {problem}");
        }
        self
    }

    pub(super) fn of(problem: impl Into<String>) -> Failure {
        Failure {
            problems: vec![problem.into()],
        }
    }
}

/// Between two rounds.
pub(super) struct Between {
    pub(super) device: Arc<FaultDevice>,
    /// The versions that every reader finds from now on.
    pub(super) known: BTreeMap<Key, Version>,
    pub(super) created: state::Created,
    pub(super) next_version: Version,
}

/// How a round ended.
pub(super) enum Ended {
    /// All clients were done.
    Done,
    /// Writing failed, and closing did too.
    Failed,
    /// The power was cut.
    Cut,
}

pub(crate) struct Run {
    pub(super) scenario: Scenario,
    pub(super) records: Records,
    pub(super) report: Report,
    /// The power goes where the device's rules say, and nowhere else.
    pub(super) cut_by_rule: bool,
    pub(super) backups: Backups,
    pub(super) copy: Copy,
    pub(super) random: Random,
}

/// Runs `scenario`.
///
/// # Errors
///
/// What went wrong.
pub(crate) fn run(scenario: Scenario) -> Result<Report, Failure> {
    scenario.more.small.switch_on();
    let mut run = Run::new(scenario);
    run.whole()?;
    Ok(run.report)
}

fn mix(hash: u64, fact: u64) -> u64 {
    let mixed = (hash ^ fact).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ mixed >> 29
}

impl Between {
    /// Before anything.
    pub(super) fn new(device: Arc<FaultDevice>) -> Between {
        Between {
            device,
            known: BTreeMap::new(),
            created: BTreeMap::new(),
            next_version: 1,
        }
    }
}

impl Run {
    pub(super) fn new(scenario: Scenario) -> Run {
        let mut random = Random::new(scenario.seed ^ 0x72_756e);
        Run {
            records: Records::new(&scenario, &mut random),
            report: Report {
                hash: scenario.seed,
                ..Report::default()
            },
            scenario,
            cut_by_rule: false,
            backups: Backups::default(),
            copy: Copy::default(),
            random,
        }
    }

    pub(super) fn note(&mut self, fact: u64) {
        self.report.hash = mix(self.report.hash, fact);
    }

    fn whole(&mut self) -> Result<(), Failure> {
        let device = FaultDevice::new(0, self.scenario.device(0));
        let mut between = Between::new(device);
        for round in 0..self.scenario.rounds {
            let Some(simulation) = self.opened(&mut between, round)? else {
                return Ok(());
            };
            let (ended, recorder) = self.round(simulation, &mut between, round)?;
            if !self.ended(&ended, &recorder, &mut between, round)? {
                return Ok(());
            }
        }
        self.finally(&mut between)
    }

    /// A store to work with.
    pub(super) fn opened(
        &mut self,
        between: &mut Between,
        round: u64,
    ) -> Result<Option<Simulation>, Failure> {
        let seed = self.scenario.seed.wrapping_add(round << 48);
        let opened = if round == 0 {
            let volume = Volume::from_device(between.device.clone());
            Simulation::new(volume, &self.scenario.options(), seed)
        } else {
            self.open(&between.device, seed)
        };
        self.or_refused(opened, format_args!("opening for round {round}"))
    }

    /// Opens what is on a drive.
    pub(super) fn open(&self, device: &Arc<FaultDevice>, seed: u64) -> Result<Simulation, Error> {
        let volume = Volume::from_device(Arc::clone(device) as _);
        Simulation::open(volume, &self.scenario.options(), seed)
    }

    /// What came of something, or nothing where the faults of this run explain that it failed.
    pub(super) fn unless_detected<T>(
        &self,
        done: Result<T, Error>,
        what: impl std::fmt::Display,
    ) -> Result<Option<T>, Failure> {
        match done {
            Ok(done) => Ok(Some(done)),
            Err(error) if self.is_detected(&error) => Ok(None),
            Err(error) => Err(Failure::of(format!("{what}: {error}"))),
        }
    }

    /// The same, and a run that ends here is counted.
    pub(super) fn or_refused<T>(
        &mut self,
        done: Result<T, Error>,
        what: impl std::fmt::Display,
    ) -> Result<Option<T>, Failure> {
        let done = self.unless_detected(done, what)?;
        self.report.counts.refused += u64::from(done.is_none());
        Ok(done)
    }

    /// An error that says what the faults of this run have done.
    pub(super) fn is_detected(&self, error: &Error) -> bool {
        let corrupt = matches!(
            error,
            Error::CorruptPage { .. }
                | Error::Structure { .. }
                | Error::SuperblockCorrupt { .. }
                | Error::NotClosedCleanly { .. }
                | Error::LogCorrupt { .. }
                | Error::LogHeaderCorrupt { .. }
                | Error::LogOutOfStep { .. }
                | Error::NotALog { .. }
        );
        let failed = matches!(
            error,
            Error::Io(_)
                | Error::PageRead { .. }
                | Error::Volume(_)
                | Error::Poisoned { .. }
                | Error::NotClosedCleanly { .. }
        );
        let faults = &self.scenario.faults;
        (corrupt || failed) && faults.corruption.is_some() || failed && faults.io.is_some()
    }

    /// Lets clients work until they are done or the power is cut.
    pub(super) fn round(
        &mut self,
        mut simulation: Simulation,
        between: &mut Between,
        round: u64,
    ) -> Result<(Ended, Arc<Recorder>), Failure> {
        let recorder = Recorder::new(
            &self.records,
            &self.scenario,
            between.known.clone(),
            between.next_version,
            None,
        );
        recorder.known_created(between.created.clone());
        for rule in self.scenario.rules() {
            between.device.add_rule(rule);
        }
        let cut = self.plan_cut(&between.device);
        let mut looks = Looks::new(self.scenario.seed, round);
        let streams = self.scenario.more.streams;
        if streams {
            self.compare_copy(&mut simulation, &between.device, &mut looks)
                .map_err(|failure| failure.at(format!("round {round}, its copy at first")))?;
        }
        let ended = self.start(&simulation, &recorder, between, round);
        let (ended, count) = match ended {
            Ok(started) => started,
            Err(error) if self.is_detected(&error) || between.device.is_off() => {
                recorder.stop();
                (Arc::new(AtomicUsize::new(0)), 0)
            }
            Err(error) => return Err(Failure::of(format!("opening trees: {error}"))),
        };
        let mut watch = Watch::default();
        let mut was_off = false;
        let mut beside = Beside::new(&self.scenario);
        let backups = self.scenario.more.backups;
        let mut schedule = Schedule::new(self.scenario.seed, round, backups);
        let mut superblocks = Superblocks::new(&self.scenario, round);
        while ended.load(Ordering::Relaxed) < count {
            let did_something = simulation.step();
            let is_stuck = watch.is_stuck(did_something, || recorder.begun());
            let steps = watch.steps();
            if cut == Some(steps) {
                between.device.power_off();
            }
            if !was_off && between.device.is_off() {
                was_off = true;
                recorder.stop();
            }
            self.rot(&between.device, steps);
            let place = |what| format!("round {round}, {what}, step {steps}");
            if beside.is_due(&simulation) {
                let at_rest = || recorder.resting() + ended.load(Ordering::Relaxed) == count;
                self.look(&mut simulation, &between.device, &recorder, &at_rest)
                    .map_err(|failure| failure.at(place("beside")))?;
            }
            if superblocks.is_due(steps, &between.device) && !was_off {
                self.open_by_older(&between.device, &recorder)
                    .map_err(|failure| failure.at(place("without the newest superblock")))?;
            }
            if let Some(adds) = schedule.is_due(steps)
                && !was_off
            {
                self.back_up(&simulation, &between.device, &recorder, adds)
                    .map_err(|failure| failure.at(place("a backup")))?;
            }
            if streams && !was_off && looks.are_due(steps) {
                self.follow(&simulation, &between.device, &mut looks)
                    .map_err(|failure| failure.at(place("its stream")))?;
            }
            if is_stuck {
                let stuck = simulation.run_until(|| false, 1);
                let what = stuck
                    .err()
                    .map_or_else(String::new, |stuck| stuck.to_string());
                // Closing a store that is stuck would never end.
                std::mem::forget(simulation);
                let mut problems = recorder.violations();
                problems.push(format!("round {round} does not end: {what}"));
                return Err(Failure { problems });
            }
        }
        self.note(simulation.trace_hash());
        self.report.counts.operations += recorder.history().transactions.len() as u64;
        for (name, count) in recorder.counts() {
            *self.report.errors.entry(name).or_default() += count;
        }
        let cut = between.device.is_off()
            || self.scenario.faults.power && !self.cut_by_rule && self.random.chance(30);
        if cut {
            between.device.power_off();
        } else if !self.cut_by_rule {
            between.device.clear_rules();
            if streams {
                self.compare_copy(&mut simulation, &between.device, &mut looks)
                    .map_err(|failure| failure.at(format!("round {round}, its copy")))?;
            }
            self.whole_state(&mut simulation, &recorder, between, round)?;
            if self.scenario.faults.power && self.random.chance(25) {
                let at = Trigger::At(self.random.skewed(40) - 1);
                between
                    .device
                    .add_rule(FaultRule::new(Fault::PowerLoss, at));
            }
        }
        drop(looks);
        let ended = self.close(simulation, between, round)?;
        let violations = recorder.violations();
        if !violations.is_empty() {
            return Err(Failure {
                problems: violations,
            });
        }
        Ok((ended, recorder))
    }

    /// Closes the store at the end of a round.
    fn close(
        &mut self,
        simulation: Simulation,
        between: &Between,
        round: u64,
    ) -> Result<Ended, Failure> {
        let frames = simulation.store().stats().pool_frames;
        let accounted = simulation.accounted_frames() as u64;
        let is_known = simulation.merges_rest();
        let was_off = between.device.is_off();
        let (device, plan) = (&between.device, self.scenario.device(round + 300));
        // The next opening is judged by the contents of the switched-off drive.
        let image = || {
            let image = || device.crash_image_with(Survivors::None, 0, plan);
            let looks = looks_beside(&self.scenario) && !device.is_off();
            looks.then(|| Volume::from_device(image()))
        };
        let closed = simulation.close_and_compare(image, &self.scenario.options());
        if between.device.is_off() {
            return Ok(Ended::Cut);
        }
        if !was_off && is_known && accounted != frames {
            let what = format!("round {round}: {accounted} of {frames} frames are accounted for");
            return Err(Failure::of(what));
        }
        match self.unless_detected(closed, "closing")? {
            None => Ok(Ended::Failed),
            Some(Ok(problems)) if problems.is_empty() => Ok(Ended::Done),
            Some(Ok(problems)) => Err(Failure { problems }.at(format!("round {round}, closed"))),
            Some(Err(error)) => Err(Failure::of(format!("opening what was closed: {error}"))),
        }
    }

    /// Decides when the power goes: the step, if it is not at an I/O.
    fn plan_cut(&mut self, device: &FaultDevice) -> Option<u64> {
        let draw = self.random.below(3);
        let at = match self.scenario.more.cut_within {
            // While much is under way, not at the beginning.
            Some(within) => self.random.below(within),
            None => self.random.skewed(20_000),
        };
        if !self.scenario.faults.power || self.cut_by_rule {
            return None;
        }
        match draw {
            0 => None,
            1 => Some(at),
            _ => {
                let rule = FaultRule::new(Fault::PowerLoss, Trigger::At(at / 8));
                device.add_rule(rule.ops(&[Op::Write, Op::WriteV, Op::Flush]));
                None
            }
        }
    }

    /// Changes stored bits, now and then.
    fn rot(&mut self, device: &FaultDevice, steps: u64) {
        if self.scenario.faults.corruption != Some(Corruption::Rot)
            || !steps.is_multiple_of(ROT_EVERY)
        {
            return;
        }
        let first = self.scenario.first_byte_at_risk();
        let length = device.bytes();
        let log = device.log_len().saturating_sub(LOG_HEADERS);
        // Several at a time: most of the device holds nothing that matters.
        for _ in 0..ROTTEN_BITS {
            let at = if log > 0 && self.random.chance(25) {
                LOG_OFFSET + LOG_HEADERS + self.random.below(log)
            } else {
                first + self.random.below(length - first)
            };
            let bit = 1 << self.random.below(8);
            device.corrupt(at..at + 1, |bytes| bytes[0] ^= bit);
        }
    }

    /// Starts the clients; how many have ended, and how many there are.
    fn start(
        &mut self,
        simulation: &Simulation,
        recorder: &Arc<Recorder>,
        between: &Between,
        round: u64,
    ) -> Result<(Arc<AtomicUsize>, usize), Error> {
        let (store, known) = (simulation.store(), &between.known);
        let trees = self.records.open_trees(store, recorder, known)?;
        let ended = Arc::new(AtomicUsize::new(0));
        let count = self.records.own.len();
        for number in 0..count {
            let (records, operations) = (&self.records, self.scenario.operations);
            let actor = records.actor(number, round, store, &trees, recorder, known);
            let ended = Arc::clone(&ended);
            // Its result is in the recorder.
            let _detached = simulation.spawn(number, move || work(actor, operations, &ended));
        }
        Ok((ended, count))
    }

    /// Reads everything of a running store and judges the history with it.
    fn whole_state(
        &mut self,
        simulation: &mut Simulation,
        recorder: &Recorder,
        between: &Between,
        round: u64,
    ) -> Result<(), Failure> {
        let state = state::read(
            simulation.store(),
            &self.records.universe,
            &recorder.created(),
        );
        let now = self
            .judge(state, recorder.history(), true)
            .map_err(|failure| failure.at(format!("round {}, {}", round, "running")))?;
        self.balances(&between.known, &now, recorder.balance())
            .map_err(|failure| failure.at(format!("round {round}, running")))?;
        // Once a write has failed, begun changes cannot be taken back any more:
        // the next opening does so.
        let poisoned = recorder.counts().contains_key("poisoned");
        if poisoned || self.scenario.faults.fails_writes() {
            return Ok(());
        }
        self.sound(simulation.store(), round)
    }

    /// Whether the tree whose records are counted has as many as answers say: each that was
    /// inserted was found missing by its insertion, and each that was removed was counted by its
    /// removal.
    fn balances(
        &self,
        before: &BTreeMap<Key, Version>,
        now: &BTreeMap<Key, Version>,
        (least, most): (i64, i64),
    ) -> Result<(), Failure> {
        let faults = &self.scenario.faults;
        let Some(tree) = self.records.ends.filter(|_| faults.corruption.is_none()) else {
            return Ok(());
        };
        let keys = self.records.keys_of(tree);
        let count = |state: &BTreeMap<Key, Version>| {
            keys.iter().filter(|key| state.contains_key(key)).count() as i64
        };
        let grown = count(now) - count(before);
        if (least..=most).contains(&grown) {
            return Ok(());
        }
        let name = &self.records.universe.trees[tree].name;
        Err(Failure::of(format!(
            "the tree {name} has {grown} records more than before; by all answers it is {least} to {most}"
        )))
    }

    /// `store.check` finds nothing; what it should find is in the report.
    pub(super) fn sound(&mut self, store: &Store, round: u64) -> Result<(), Failure> {
        self.report.counts.checks += 1;
        let done = store.check(&mut |_, _| {});
        let report = self.unless_detected(done, format_args!("round {round}: check"))?;
        let problems = report.map_or_else(Vec::new, |report| report.problems);
        if problems.is_empty() || self.scenario.faults.corruption.is_some() {
            return Ok(());
        }
        Err(Failure { problems }.at(format_args!("round {round}: check")))
    }

    /// Judges a history whose last state was read; `running` if nothing happened
    /// in between that could have undone an acknowledgement.
    pub(super) fn judge(
        &mut self,
        state: state::State,
        mut history: History,
        running: bool,
    ) -> Result<BTreeMap<Key, Version>, Failure> {
        self.report.counts.unreadable += state.unreadable.len() as u64;
        let (universe, faults) = (&self.records.universe, &self.scenario.faults);
        let judged = judge(universe, faults, state, &mut history, running);
        for transaction in &history.transactions {
            self.report.hash = mix(self.report.hash, transaction.end ^ transaction.begin << 32);
        }
        judged.map_err(|problems| Failure { problems })
    }

    /// After a round: the present versions. `false` if the run ends early.
    fn ended(
        &mut self,
        ended: &Ended,
        recorder: &Recorder,
        between: &mut Between,
        round: u64,
    ) -> Result<bool, Failure> {
        self.note(between.device.digest());
        self.report.counts.ios += between.device.io_count();
        let plan = self.scenario.device(round + 1);
        let (data, log) = match ended {
            // After the store was closed the power may be switched off.
            Ended::Done if self.scenario.more.beside > 0 => (Survivors::None, Survivors::None),
            Ended::Done | Ended::Failed => (Survivors::Executed, Survivors::Executed),
            Ended::Cut => {
                self.report.counts.crashes += 1;
                survivors(&mut self.random, self.scenario.separate_log)
            }
        };
        if matches!(ended, Ended::Done) {
            self.open_closed_by_older(&between.device, recorder)
                .map_err(|failure| failure.at(format!("round {round}, closed")))?;
        }
        let variant = self.random.bits();
        let mut image = between
            .device
            .crash_image_split(data, log, variant, plan.clone());
        if matches!(ended, Ended::Cut) {
            image = self.interrupt_recovery(image, round)?;
        }
        between.device = image;
        between.next_version = recorder.versions_so_far();
        let seed = self.scenario.seed ^ 0x6f70_656e ^ round << 40;
        let opened = self.open(&between.device, seed);
        let what = format_args!("reopening after round {round}");
        let Some(simulation) = self.or_refused(opened, what)? else {
            return Ok(false);
        };
        let store = simulation.store();
        let state = state::read(store, &self.records.universe, &recorder.created());
        let running = matches!(ended, Ended::Done);
        between.known = self
            .judge(state, recorder.history(), running)
            .map_err(|failure| failure.at(format!("round {}, {}", round, "reopened")))?;
        between.created = recorder.created();
        // The numbers of trees that are gone may be given again.
        for (existence, made) in &mut between.created {
            made.retain(|(version, _)| between.known.get(existence) == Some(version));
        }
        self.sound(store, round)?;
        self.close_and_compare(simulation, between, round)
    }
}

/// Does `work` in a thread of its own, as one thread has one simulation at a time.
pub(super) fn beside<T: Send>(
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let (canary, small) = (Canary::switched_on(), Small::chosen());
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if let Some(canary) = canary {
                canary.switch_on();
            }
            small.switch_on();
            work()
        });
        match thread.join() {
            Ok(done) => done,
            Err(panic) => Err(Failure::of(format!("a panic: {}", message(&*panic)))),
        }
    })
}
