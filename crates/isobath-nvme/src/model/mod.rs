//! A model of an NVMe controller in memory: registers, queues, a clock that only polling advances,
//! blocks, faults and power losses.
//!
//! It sees memory as a drive does: by addresses that the driver has mapped, which differ from the
//! process's own. Whatever the driver does that the specification forbids is noted as a violation.
#![allow(unsafe_code)]

mod disk;
mod execute;
mod queues;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bus::{Bus, register};
use crate::error::NvmeError;
use crate::identify::PAGE;
use disk::Disk;
use queues::{CompletionQueue, Running, SubmissionQueue};

/// Bytes of the model's registers: doorbells of all queues that it can have, and more.
const REGISTER_BYTES: u64 = 16 << 10;

/// What the model is.
#[derive(Debug, Clone)]
pub struct ModelOptions {
    /// Logical blocks of its one namespace.
    pub blocks: u64,
    /// Bytes of a block, as a power of two.
    pub block_shift: u8,
    /// Bytes of metadata with each block.
    pub metadata_bytes: u16,
    /// Most pages that one command transfers, as a power of two; 0 for no limit.
    pub transfer_shift: u8,
    /// Entries of the longest queue.
    pub max_entries: u32,
    /// I/O queue pairs that it gives.
    pub queue_pairs: u16,
    /// Whether completed writes are volatile until they are flushed.
    pub volatile_cache: bool,
    /// Whether it can deallocate and write zeros.
    pub optional_commands: bool,
    /// Whether an abort ends the command.
    pub aborts: bool,
    /// Whether it ever becomes ready.
    pub becomes_ready: bool,
    /// Least and most steps that a command takes. A step is a microsecond of its clock.
    pub latency_steps: (u64, u64),
    /// Faults that commands of I/O queues have by chance, in thousandths.
    pub fault_rates: Vec<(ModelFault, u32)>,
    /// Where its chances come from.
    pub seed: u64,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions {
            blocks: 1 << 14,
            block_shift: 12,
            metadata_bytes: 0,
            transfer_shift: 5,
            max_entries: 256,
            queue_pairs: 16,
            volatile_cache: true,
            optional_commands: true,
            aborts: true,
            becomes_ready: true,
            latency_steps: (1, 20),
            fault_rates: Vec::new(),
            seed: 1,
        }
    }
}

/// What goes wrong with a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelFault {
    /// It fails with an error of the medium.
    Media,
    /// It ends as aborted, though the driver has not asked for that.
    Aborted,
    /// It takes so many steps more.
    Late(u64),
    /// It is never executed nor completed.
    Never,
    /// It is completed twice.
    Duplicated,
    /// Its completion has an id that is not in flight, and the right one does not come.
    WrongId,
    /// Its completion consists of random bytes.
    Garbage,
    /// The controller reports a fatal status, and does nothing until it is reset.
    Fatal,
    /// The controller does nothing until it is reset, and does not say so.
    Hang,
}

/// Splitmix64.
#[derive(Debug, Clone)]
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }
}

struct State {
    options: ModelOptions,
    chance: Chance,
    now: u64,
    is_removed: bool,
    is_cut_off: bool,
    is_fatal: bool,
    is_hung: bool,
    is_ready: bool,
    is_shut_down: bool,
    /// The step at which an enabled controller becomes ready.
    ready_at: u64,
    registers: BTreeMap<u32, u32>,
    /// Memory by the address that the drive uses: address in the process, bytes.
    memory: BTreeMap<u64, (usize, usize)>,
    next_address: u64,
    submissions: BTreeMap<u16, SubmissionQueue>,
    completions: BTreeMap<u16, CompletionQueue>,
    /// Commands that are under way, by when they end.
    running: BTreeMap<(u64, u64), Running>,
    /// Commands that will never end by themselves.
    lost: Vec<(u16, u16)>,
    fetched: u64,
    injected: VecDeque<ModelFault>,
    /// Opcode of the next administration command that is refused.
    refused: Option<u8>,
    identify: BTreeMap<u32, Box<[u8; PAGE]>>,
    disk: Disk,
    reads: u64,
    writes: u64,
    violations: Vec<String>,
}

/// A controller in memory with one namespace, number 1.
pub struct ModelController(Mutex<State>);

impl std::fmt::Debug for ModelController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelController").finish_non_exhaustive()
    }
}

impl ModelController {
    /// A controller that was just switched on, with zeroed blocks.
    pub fn new(options: ModelOptions) -> ModelController {
        ModelController::with_disk(options, Disk::default())
    }

    fn with_disk(options: ModelOptions, disk: Disk) -> ModelController {
        ModelController(Mutex::new(State {
            chance: Chance(options.seed),
            options,
            now: 0,
            is_removed: false,
            is_cut_off: false,
            is_fatal: false,
            is_hung: false,
            is_ready: false,
            is_shut_down: false,
            ready_at: 0,
            registers: BTreeMap::new(),
            memory: BTreeMap::new(),
            // Far from the addresses of a process, so that the two are not taken for each other.
            next_address: 1 << 56,
            submissions: BTreeMap::new(),
            completions: BTreeMap::new(),
            running: BTreeMap::new(),
            lost: Vec::new(),
            fetched: 0,
            injected: VecDeque::new(),
            refused: None,
            identify: BTreeMap::new(),
            disk,
            reads: 0,
            writes: 0,
            violations: Vec::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the next command of an I/O queue a fault.
    pub fn inject(&self, fault: ModelFault) {
        self.lock().injected.push_back(fault);
    }

    /// Refuses the next administration command of that opcode.
    #[cfg(test)]
    pub(crate) fn refuse(&self, opcode: u8) {
        self.lock().refused = Some(opcode);
    }

    /// Makes it do nothing more, whatever is reset.
    #[cfg(test)]
    pub(crate) fn break_down(&self) {
        let mut state = self.lock();
        state.is_hung = true;
        state.options.becomes_ready = false;
    }

    /// Pulls the drive out.
    pub fn remove(&self) {
        self.lock().is_removed = true;
    }

    /// Makes a block unreadable until it is written.
    pub fn spoil(&self, block: u64) {
        self.lock().disk.spoil(block);
    }

    /// Answers the identify command for the structure `what` with this page.
    pub fn answer_identify(&self, what: u32, page: [u8; PAGE]) {
        self.lock().identify.insert(what, Box::new(page));
    }

    /// The drive as it is found after its power was lost now: a block that was in the volatile
    /// cache, or was being written, is old or new. The original goes on.
    pub fn after_power_loss(&self, seed: u64) -> ModelController {
        let state = self.lock();
        let mut chance = Chance(seed);
        let mut disk = state.disk.clone();
        for running in state.running.values() {
            if let Some((first, data)) = state.data_to_write(&running.command) {
                disk.write_partly(first, &data, state.block_bytes(), &mut chance);
            }
        }
        disk.lose_power(&mut chance);
        ModelController::with_disk(state.options.clone(), disk)
    }

    /// Takes the blocks of another drive over.
    #[cfg(test)]
    pub(crate) fn take_disk_of(&self, other: &ModelController) {
        let disk = other.lock().disk.clone();
        self.lock().disk = disk;
    }

    /// What the driver did that the specification forbids.
    pub fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Regions of memory that are mapped.
    pub fn mapped_regions(&self) -> usize {
        self.lock().memory.len()
    }
}

impl State {
    fn block_bytes(&self) -> usize {
        1 << self.options.block_shift
    }

    fn register(&self, at: u32) -> u32 {
        self.registers.get(&at).copied().unwrap_or(0)
    }

    fn register_u64(&self, at: u32) -> u64 {
        u64::from(self.register(at)) | u64::from(self.register(at + 4)) << 32
    }

    fn violate(&mut self, what: impl Into<String>) {
        // The first ones tell enough.
        if self.violations.len() < 16 {
            self.violations.push(what.into());
        }
    }

    fn read(&self, at: u32) -> u32 {
        if self.is_removed || u64::from(at) + 4 > REGISTER_BYTES {
            return register::GONE;
        }
        // Ten seconds to become ready, and the NVM command set.
        let capabilities = u64::from(self.options.max_entries - 1) & 0xffff | 20 << 24 | 1 << 37;
        match at {
            register::CAP => capabilities as u32,
            0x04 => (capabilities >> 32) as u32,
            register::CSTS => {
                u32::from(self.is_ready)
                    | u32::from(self.is_fatal) << 1
                    | u32::from(self.is_shut_down) << 3
            }
            at => self.register(at),
        }
    }

    fn write(&mut self, at: u32, value: u32) {
        if self.is_removed {
            return;
        }
        if at >= register::DOORBELLS {
            return self.doorbell((at - register::DOORBELLS) / 4, value);
        }
        let before = self.register(at);
        self.registers.insert(at, value);
        if at != register::CC {
            return;
        }
        match (before & register::ENABLE, value & register::ENABLE) {
            (0, 1) => self.ready_at = self.now + 50,
            (1, 0) => self.reset(),
            _ => {}
        }
        if value >> 14 & 3 != 0 {
            self.disk.flush();
            self.is_shut_down = true;
        }
    }

    /// Forgets all queues and commands. What was acknowledged stays.
    fn reset(&mut self) {
        self.is_ready = false;
        self.is_fatal = false;
        self.is_hung = false;
        self.is_shut_down = false;
        self.submissions.clear();
        self.completions.clear();
        self.running.clear();
        self.lost.clear();
    }

    /// Lets a step of time pass.
    fn step(&mut self) {
        self.now += 1;
        if self.is_removed || self.is_cut_off || self.is_fatal || self.is_hung {
            return;
        }
        if !self.is_ready {
            let is_enabled = self.register(register::CC) & register::ENABLE == 1;
            if is_enabled && self.options.becomes_ready && self.now >= self.ready_at {
                self.is_ready = true;
                self.create_admin_queues();
            }
            return;
        }
        self.fetch();
        while let Some(entry) = self.running.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let running = entry.remove();
            self.end(running);
            if self.is_fatal || self.is_hung {
                return;
            }
        }
        self.post_waiting();
    }

    /// The bytes at an address that the driver has mapped in one piece.
    fn memory(&self, address: u64, bytes: usize) -> Option<*mut u8> {
        let (start, (memory, length)) = self.memory.range(..=address).next_back()?;
        let skip = usize::try_from(address - start).ok()?;
        let end = skip.checked_add(bytes)?;
        let pointer = std::ptr::with_exposed_provenance_mut::<u8>(*memory);
        (end <= *length).then(|| pointer.wrapping_add(skip))
    }
}

// SAFETY: memory is accessed with the state locked, by commands that a reset, or being cut off,
// keeps from being executed.
unsafe impl Bus for ModelController {
    fn name(&self) -> &str {
        "model"
    }

    fn register_bytes(&self) -> u64 {
        REGISTER_BYTES
    }

    fn read(&self, offset: u32) -> u32 {
        self.lock().read(offset)
    }

    fn write(&self, offset: u32, value: u32) {
        self.lock().write(offset, value);
    }

    unsafe fn map(&self, start: *mut u8, bytes: usize) -> Result<u64, NvmeError> {
        let mut state = self.lock();
        let start = start.expose_provenance();
        if !(start | bytes).is_multiple_of(PAGE) {
            state.violate("memory is mapped that is not whole pages");
        }
        let address = state.next_address;
        // A gap between regions catches what goes beyond one.
        state.next_address += (bytes + PAGE) as u64;
        state.memory.insert(address, (start, bytes));
        Ok(address)
    }

    fn unmap(&self, address: u64, bytes: usize) {
        let mut state = self.lock();
        match state.memory.remove(&address) {
            Some((_, mapped)) if mapped == bytes => {}
            _ => state.violate("memory is unmapped that was not mapped"),
        }
    }

    fn cut_off(&self) {
        self.lock().is_cut_off = true;
    }

    fn now(&self) -> Duration {
        Duration::from_micros(self.lock().now)
    }

    fn pause(&self, round: u32) {
        self.lock().step();
        if round % 64 == 63 {
            std::thread::yield_now();
        }
    }
}
