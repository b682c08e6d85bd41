//! A program's session: its settings, its regions with their controllers, and the thread that
//! measures.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::budget::MemoryBudget;
use super::controller::{Controller, Decision, Sample};
use super::log::Log;
use super::machine::{self, Memory, Ticks, process_seconds};
use super::settings::{Mode, Settings};
use super::transfer::Spent;
use crate::kvs::registry;

/// A sample is whole after this share of the interval: the measuring thread never wakes on time.
const WHOLE: f64 = 0.8;

/// Counters at one moment.
#[derive(Debug, Clone, Copy)]
struct Marks {
    at: Instant,
    ticks: Ticks,
    process: f64,
    requests: u64,
    bytes: u64,
}

/// A region of the program: the code between `begin` and `end` with one name.
#[derive(Debug)]
struct Region {
    controller: Controller,
    /// The measurement since the controller was asked last, of one or more executions.
    pending: Sample,
    pending_ticks: (u64, u64),
    decision: Decision,
}

#[derive(Debug)]
struct Active {
    name: String,
    pc: u32,
    marks: Marks,
}

struct SessionState {
    regions: HashMap<String, Region>,
    active: Option<Active>,
    log: Option<Log>,
    /// The devices' handles.
    devices: Vec<usize>,
    has_log_failed: bool,
}

/// Sums over the whole session.
#[derive(Debug, Default)]
struct Totals {
    requests: AtomicU64,
    bytes: AtomicU64,
    wait_ns: AtomicU64,
    busy_ns: AtomicU64,
}

/// A session.
pub(super) struct Session {
    settings: Settings,
    started: Instant,
    memory: Memory,
    budget: MemoryBudget,
    state: Mutex<SessionState>,
    /// Data accesses per thread, as they are now.
    pda: AtomicU32,
    /// The program's own data accesses.
    own_requests: AtomicU64,
    own_bytes: AtomicU64,
    totals: Totals,
    has_ended: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Session {
    /// Opens the log and starts the measuring thread.
    pub(super) fn start(settings: Settings) -> Result<Arc<Session>, String> {
        let log = match &settings.log {
            None => None,
            Some(path) => Some(Log::create(path)?),
        };
        let interval = Duration::from_millis(settings.interval_ms);
        let pda = settings.bounds.pda.unwrap_or(1);
        let session = Arc::new(Session {
            settings,
            started: Instant::now(),
            memory: Memory::new(),
            budget: MemoryBudget::new(),
            state: Mutex::new(SessionState {
                regions: HashMap::new(),
                active: None,
                log,
                devices: Vec::new(),
                has_log_failed: false,
            }),
            pda: AtomicU32::new(pda),
            own_requests: AtomicU64::new(0),
            own_bytes: AtomicU64::new(0),
            totals: Totals::default(),
            has_ended: AtomicBool::new(false),
            thread: Mutex::new(None),
        });
        let measured = Arc::clone(&session);
        let thread = std::thread::Builder::new()
            .name("isobath-omp".to_owned())
            .spawn(move || {
                while !measured.has_ended.load(Ordering::Acquire) {
                    std::thread::park_timeout(interval);
                    measured.measure(&mut measured.state.lock(), 0);
                }
            })
            .map_err(|error| error.to_string())?;
        *session.thread.lock() = Some(thread);
        Ok(session)
    }

    /// Takes over the limits of a device.
    pub(super) fn attach(&self, device: usize) {
        let mut state = self.state.lock();
        if !state.devices.contains(&device) {
            state.devices.push(device);
        }
        // Its counts so far are not the active region's.
        let marks = self.marks(&state.devices);
        if let Some(active) = &mut state.active {
            active.marks = marks;
        }
        self.apply(&state.devices);
        if self.memory.is_grouped() {
            machine::return_freed_values();
        }
        // The memory left by the limit once all pools and caches are full.
        let devices = state.devices.iter();
        let devices = devices.filter_map(|device| registry::device(*device as *mut _).ok());
        let pools: u64 = devices.map(|device| device.unused_bytes()).sum();
        let remaining = self.memory.remaining(self.settings.bounds.memory_limit);
        self.budget.set(remaining.saturating_sub(pools));
    }

    /// Memory for values that are being loaded.
    pub(super) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    pub(super) fn is_serial(&self) -> bool {
        self.settings.mode != Mode::PdaPc
    }

    pub(super) fn data_accesses(&self) -> u32 {
        self.pda.load(Ordering::Relaxed)
    }

    /// Counts data accesses that the program makes by other means than a device.
    pub(super) fn count(&self, requests: u64, bytes: u64) {
        self.own_requests.fetch_add(requests, Ordering::Relaxed);
        self.own_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a transfer.
    pub(super) fn spend(&self, spent: Spent) {
        let totals = &self.totals;
        totals.requests.fetch_add(spent.requests, Ordering::Relaxed);
        totals.bytes.fetch_add(spent.bytes, Ordering::Relaxed);
        totals.wait_ns.fetch_add(spent.wait_ns, Ordering::Relaxed);
        totals.busy_ns.fetch_add(spent.busy_ns, Ordering::Relaxed);
    }

    pub(super) fn spent(&self) -> Spent {
        let totals = &self.totals;
        Spent {
            requests: totals.requests.load(Ordering::Relaxed),
            bytes: totals.bytes.load(Ordering::Relaxed),
            wait_ns: totals.wait_ns.load(Ordering::Relaxed),
            busy_ns: totals.busy_ns.load(Ordering::Relaxed),
        }
    }

    /// A region begins; how many compute threads it gets. One that was active ends.
    pub(super) fn begin(&self, name: &str) -> u32 {
        let mut state = self.state.lock();
        self.end_active(&mut state, 0);
        let region = state
            .regions
            .entry(name.to_owned())
            .or_insert_with(|| Region::new(&self.settings));
        region.decision = region.controller.enter();
        let Decision { pc, pda, .. } = region.decision;
        if region.pending.pc != pc {
            // Of another number of compute threads.
            region.clear();
        }
        self.pda.store(pda, Ordering::Relaxed);
        self.apply(&state.devices);
        let marks = self.marks(&state.devices);
        state.active = Some(Active {
            name: name.to_owned(),
            pc,
            marks,
        });
        pc
    }

    /// The region ends, which has done `items`, in a unit of the program's own.
    pub(super) fn end(&self, items: u64) {
        self.end_active(&mut self.state.lock(), items.max(1));
    }

    fn end_active(&self, state: &mut SessionState, items: u64) {
        self.measure(state, items);
        state.active = None;
    }

    /// Adds the active region's measurements to its sample, and asks the controller once that
    /// is long enough.
    fn measure(&self, state: &mut SessionState, items: u64) {
        let Some(active) = &mut state.active else {
            return;
        };
        let Some(region) = state.regions.get_mut(&active.name) else {
            return;
        };
        let marks = self.marks(&state.devices);
        let before = std::mem::replace(&mut active.marks, marks);
        region.add(&before, &marks, active.pc, items);
        let whole = WHOLE * self.settings.interval_ms as f64 / 1000.0;
        // Without an access or an item there is nothing to judge yet.
        let has_work = region.pending.requests > 0 || region.pending.items > 0;
        if region.pending.seconds < whole || !has_work {
            return;
        }
        let sample = self.whole(region);
        let decision = region.controller.step(&sample);
        region.decision = decision;
        region.clear();
        region.pending.pda = decision.pda;
        self.pda.store(decision.pda, Ordering::Relaxed);
        let name = active.name.clone();
        self.write_log(state, &name, &sample, &decision);
        self.apply(&state.devices);
    }

    fn write_log(
        &self,
        state: &mut SessionState,
        region: &str,
        sample: &Sample,
        decision: &Decision,
    ) {
        let at = self.started.elapsed().as_secs_f64();
        let mode = self.settings.mode.name();
        let what = [region, mode, self.settings.controller_name()];
        if let Some(log) = &mut state.log
            && log.add(at, what, sample, decision).is_err()
        {
            state.has_log_failed = true;
        }
    }

    /// Logs measurements too short for a sample.
    fn log_rest(&self, state: &mut SessionState) {
        for (name, region) in std::mem::take(&mut state.regions) {
            if region.pending.seconds > 0.0 {
                let decision = Decision {
                    reason: "the program ends",
                    ..region.decision
                };
                let sample = self.whole(&region);
                self.write_log(state, &name, &sample, &decision);
            }
        }
    }

    /// The measurement of a region, with the shares of processors and memory.
    fn whole(&self, region: &Region) -> Sample {
        Sample {
            cpu: region.busy_share(self.settings.bounds.processors),
            memory: self.memory.used(),
            ..region.pending
        }
    }

    fn marks(&self, devices: &[usize]) -> Marks {
        let mut requests = self.own_requests.load(Ordering::Relaxed);
        let mut bytes = self.own_bytes.load(Ordering::Relaxed);
        for device in devices {
            if let Ok(device) = registry::device(*device as *mut _) {
                let (counters, _) = device.counters();
                requests += counters.completed;
                bytes += counters.bytes;
            }
        }
        Marks {
            at: Instant::now(),
            ticks: Ticks::now(),
            process: process_seconds(),
            requests,
            bytes,
        }
    }

    /// Gives the devices their limits and their channel.
    fn apply(&self, devices: &[usize]) {
        for device in devices {
            if let Ok(device) = registry::device(*device as *mut _) {
                device
                    .limits
                    .set(device.limits.depth(), self.data_accesses());
                device.set_serial(self.is_serial());
            }
        }
    }

    /// Ends the measuring thread and writes the log out; whether all of it could be written.
    pub(super) fn finish(&self) -> bool {
        self.has_ended.store(true, Ordering::Release);
        if let Some(thread) = self.thread.lock().take() {
            thread.thread().unpark();
            // It has nothing to say.
            let _ = thread.join();
        }
        let mut state = self.state.lock();
        self.end_active(&mut state, 0);
        self.log_rest(&mut state);
        let finished = state.log.take().is_none_or(Log::finish);
        finished && !state.has_log_failed
    }
}

impl Region {
    fn new(settings: &Settings) -> Region {
        let mut controller = Controller::new(settings.kind, settings.bounds);
        let decision = controller.enter();
        let mut region = Region {
            controller,
            pending: Sample::default(),
            pending_ticks: (0, 0),
            decision,
        };
        region.pending.pda = decision.pda;
        region
    }

    fn clear(&mut self) {
        self.pending = Sample {
            pda: self.decision.pda,
            ..Sample::default()
        };
        self.pending_ticks = (0, 0);
    }

    fn add(&mut self, before: &Marks, now: &Marks, pc: u32, items: u64) {
        let pending = &mut self.pending;
        pending.pc = pc;
        pending.seconds += (now.at - before.at).as_secs_f64();
        // A device that was closed takes its counts with it.
        pending.requests += now.requests.saturating_sub(before.requests);
        pending.bytes += now.bytes.saturating_sub(before.bytes);
        pending.items += items;
        pending.cpu_seconds += now.process - before.process;
        let (busy, all) = now.ticks.since(before.ticks);
        self.pending_ticks.0 += busy;
        self.pending_ticks.1 += all;
    }

    /// The machine's busy share, or this process's, where the kernel's ticks are too coarse.
    fn busy_share(&self, processors: u32) -> f64 {
        let own = self.pending.cpu_seconds / (self.pending.seconds * f64::from(processors));
        let (busy, all) = self.pending_ticks;
        match all {
            0 => own.min(1.0),
            _ => (busy as f64 / all as f64).max(own).min(1.0),
        }
    }
}
