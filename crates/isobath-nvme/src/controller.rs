//! One controller: starting and stopping it, its administration queue, resets.
#![allow(unsafe_code)]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bus::{Bus, Capabilities, register};
use crate::command::{Command, admin};
use crate::error::NvmeError;
use crate::identify::{ControllerInfo, NamespaceInfo, PAGE, SmartLog};
use crate::queue::{Deadline, MAX_ENTRIES, QueuePair};

/// Entries of the administration queue.
const ADMIN_ENTRIES: u16 = 32;
/// Looks at the administration queue in vain before the controller's status is looked at.
const STATUS_ROUNDS: u32 = 256;
/// The longest wait for an abort, after which the controller is reset.
const ABORT_TIMEOUT: Duration = Duration::from_secs(5);
/// Resets for the sake of one pair of queues.
const RESETS: u32 = 8;
/// The longest wait for a drive that is asked to write its caches.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// What a controller is used with.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ControllerOptions {
    /// How long a command may take before it is aborted, and the controller reset if that does not
    /// help; default 30 s.
    pub timeout: Duration,
    /// Queue pairs asked for, one for each channel and one for blocking calls; default 64.
    pub queue_pairs: u16,
}

impl Default for ControllerOptions {
    fn default() -> Self {
        ControllerOptions {
            timeout: Duration::from_secs(30),
            queue_pairs: 64,
        }
    }
}

/// Whether commands may be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    Running,
    /// It is gone.
    Removed,
    /// It could not be restarted.
    Dead,
}

/// What a command answers: the word of its completion, and its page if it was given one.
type Answer = (u32, Option<Box<[u8; PAGE]>>);

/// Memory that the drive reaches, shared by all channels that registered it.
struct Region {
    start: usize,
    bytes: usize,
    address: u64,
    users: u32,
}

/// A running NVMe controller. Channels share it; each has a queue pair of its own.
pub struct Controller {
    bus: Arc<dyn Bus>,
    options: ControllerOptions,
    capabilities: Capabilities,
    info: ControllerInfo,
    queue_pairs: u16,
    /// The administration queue; held during a reset.
    admin: Mutex<QueuePair>,
    /// Counts the resets. Changes only while `admin` is locked.
    epoch: AtomicU64,
    state: AtomicU8,
    /// Whether the controller was reset while its volatile cache may have held writes.
    cache_lost: AtomicBool,
    used_ids: Mutex<BTreeSet<u16>>,
    regions: Mutex<Vec<Region>>,
}

impl std::fmt::Debug for Controller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Controller")
            .field("drive", &self.bus.name())
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// Resets and starts the controller behind `bus`, and asks what it is.
    ///
    /// # Errors
    /// Any of [`NvmeError`] that a drive gives cause for.
    pub fn open(
        bus: Arc<dyn Bus>,
        options: &ControllerOptions,
    ) -> Result<Arc<Controller>, NvmeError> {
        let low = bus.read(register::CAP);
        let high = bus.read(register::CAP + 4);
        let removed = || NvmeError::Removed {
            drive: bus.name().to_owned(),
        };
        if low == register::GONE && high == register::GONE {
            return Err(removed());
        }
        let capabilities = Capabilities(u64::from(low) | u64::from(high) << 32);
        let refuse = |reason: String| NvmeError::Unsupported {
            drive: bus.name().to_owned(),
            reason,
        };
        if !capabilities.has_nvm_commands() {
            return Err(refuse("it has not the NVM command set".to_owned()));
        }
        if capabilities.min_page() > PAGE as u64 {
            let page = capabilities.min_page();
            return Err(refuse(format!(
                "its smallest page has {page} bytes, over 4096"
            )));
        }
        if capabilities.max_entries() < 2 {
            return Err(refuse("its queues have one entry, and need two".to_owned()));
        }
        // Two doorbells for each pair, the administration queue's first.
        let doorbells = bus
            .register_bytes()
            .saturating_sub(u64::from(register::DOORBELLS))
            / u64::from(capabilities.doorbell_stride());
        let reachable = (doorbells / 2).saturating_sub(1).min(u64::from(u16::MAX)) as u16;
        if reachable == 0 {
            return Err(refuse("its registers are too few for any queue".to_owned()));
        }
        let admin = QueuePair::new(&bus, capabilities, 0, ADMIN_ENTRIES)?;
        let mut controller = Controller {
            capabilities,
            info: ControllerInfo::parse(&[0; PAGE], 0),
            queue_pairs: options.queue_pairs.clamp(1, reachable),
            options: options.clone(),
            admin: Mutex::new(admin),
            epoch: AtomicU64::new(0),
            state: AtomicU8::new(State::Running as u8),
            cache_lost: AtomicBool::new(false),
            used_ids: Mutex::default(),
            regions: Mutex::default(),
            bus: Arc::clone(&bus),
        };
        let asked = controller.start_and_ask();
        let (info, granted) = asked.inspect_err(|_| controller.give_up(State::Dead))?;
        if !info.takes_entry_sizes() {
            return Err(refuse(
                "its queue entries are not of 64 and 16 bytes".to_owned(),
            ));
        }
        if info
            .max_transfer_bytes
            .is_some_and(|bytes| bytes < PAGE as u64)
        {
            return Err(refuse(
                "it transfers less than 4096 bytes at once".to_owned(),
            ));
        }
        controller.info = info;
        controller.queue_pairs = granted;
        Ok(Arc::new(controller))
    }

    fn start_and_ask(&self) -> Result<(ControllerInfo, u16), NvmeError> {
        let mut admin = lock(&self.admin);
        self.start(&mut admin)?;
        let page = self.identify(&mut admin, admin::CNS_CONTROLLER, 0)?;
        let granted = self.ask_for_queues(&mut admin)?;
        let info = ControllerInfo::parse(&page, self.capabilities.min_page());
        Ok((info, granted))
    }

    /// What the controller says of itself.
    pub fn info(&self) -> &ControllerInfo {
        &self.info
    }

    /// The drive's name: its PCI address.
    pub fn name(&self) -> &str {
        self.bus.name()
    }

    /// Queue pairs that it gives.
    pub fn queue_pairs(&self) -> u16 {
        self.queue_pairs
    }

    /// Resets since it was opened.
    pub fn resets(&self) -> u64 {
        self.epoch()
    }

    pub(crate) fn bus(&self) -> &Arc<dyn Bus> {
        &self.bus
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.options.timeout
    }

    pub(crate) fn abort_timeout(&self) -> Duration {
        self.options.timeout.min(ABORT_TIMEOUT)
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Running,
            1 => State::Removed,
            _ => State::Dead,
        }
    }

    /// Refuses a controller that takes no commands any more.
    fn check_running(&self) -> Result<(), NvmeError> {
        match self.state() {
            State::Running => Ok(()),
            State::Removed => Err(self.removed()),
            State::Dead => Err(NvmeError::Dead {
                drive: self.name().to_owned(),
            }),
        }
    }

    /// Whether a reset may have lost writes that were not flushed.
    pub(crate) fn has_lost_its_cache(&self) -> bool {
        self.cache_lost.load(Ordering::Acquire)
    }

    fn removed(&self) -> NvmeError {
        NvmeError::Removed {
            drive: self.name().to_owned(),
        }
    }

    // Starting and stopping.

    /// Stops the controller, and starts it with an empty administration queue.
    fn start(&self, admin: &mut QueuePair) -> Result<(), NvmeError> {
        self.disable()?;
        for slot in admin.slots_in_flight() {
            admin.give_back(slot);
        }
        admin.restart();
        let (submissions, completions) = admin.addresses();
        let entries = u32::from(ADMIN_ENTRIES - 1);
        self.bus.write(register::AQA, entries | entries << 16);
        for (at, address) in [(register::ASQ, submissions), (register::ACQ, completions)] {
            self.bus.write(at, address as u32);
            self.bus.write(at + 4, (address >> 32) as u32);
        }
        self.bus
            .write(register::CC, register::ENTRY_SIZES | register::ENABLE);
        self.wait_until(register::READY, register::READY, "start")
    }

    /// Stops the controller: it accesses no memory afterwards, and knows no queues.
    fn disable(&self) -> Result<(), NvmeError> {
        let configuration = self.bus.read(register::CC);
        self.bus
            .write(register::CC, configuration & !register::ENABLE);
        self.wait_until(register::READY, 0, "stop")
    }

    fn wait_until(&self, bits: u32, wanted: u32, action: &'static str) -> Result<(), NvmeError> {
        let time = self.capabilities.ready_timeout();
        let deadline = Deadline::after(&*self.bus, time);
        for round in 0.. {
            let status = self.bus.read(register::CSTS);
            if status == register::GONE {
                return Err(self.removed());
            }
            if status & bits == wanted {
                return Ok(());
            }
            let drive = self.name().to_owned();
            if wanted != 0 && status & register::FATAL != 0 {
                return Err(NvmeError::Fatal { drive });
            }
            if deadline.has_passed(&*self.bus) {
                let seconds = time.as_secs();
                return Err(NvmeError::NotReady {
                    drive,
                    action,
                    seconds,
                });
            }
            self.bus.pause(round);
        }
        Ok(())
    }

    /// Looks whether the controller still works; resets it if it says that it does not.
    pub(crate) fn look(&self, epoch: u64) {
        let status = self.bus.read(register::CSTS);
        if status == register::GONE || status & register::FATAL != 0 {
            self.recover(epoch);
        }
    }

    /// Resets the controller, unless that was done since `epoch`. Channels notice by the number of
    /// resets, and give their commands again.
    pub(crate) fn recover(&self, epoch: u64) {
        let mut admin = lock(&self.admin);
        if self.epoch() != epoch || self.state() != State::Running {
            return;
        }
        if self.info.volatile_cache {
            self.cache_lost.store(true, Ordering::Release);
        }
        let restarted = self.start(&mut admin);
        match restarted.and_then(|()| self.ask_for_queues(&mut admin)) {
            Ok(_) => {}
            Err(NvmeError::Removed { .. }) => self.give_up(State::Removed),
            Err(_) => self.give_up(State::Dead),
        }
        self.epoch.fetch_add(1, Ordering::Release);
    }

    /// Every command from now on fails, and those in flight end.
    pub(crate) fn give_up(&self, state: State) {
        self.bus.cut_off();
        self.state.store(state as u8, Ordering::Release);
    }

    // Administration commands.

    /// Executes one command; `with_page` gives it the slot's page, whose contents are returned.
    fn execute(
        &self,
        queue: &mut QueuePair,
        action: &'static str,
        command: Command,
        with_page: bool,
        time: Duration,
    ) -> Result<Answer, NvmeError> {
        let drive = || self.name().to_owned();
        let seconds = time.as_secs();
        let timeout = || NvmeError::Timeout {
            drive: drive(),
            action,
            seconds,
        };
        self.check_running()?;
        // All slots are taken if as many commands were never answered.
        let slot = queue.take_slot().ok_or_else(timeout)?;
        let mut command = command;
        if with_page {
            queue.clear_page(slot);
            command = command.data(queue.page_address(slot), 0);
        }
        queue.push(slot, command);
        queue.ring();
        let deadline = Deadline::after(&*self.bus, time);
        let mut done = Vec::new();
        for round in 1.. {
            queue.reap(&mut done);
            let mut own = None;
            for (ended, status, result) in done.drain(..) {
                match ended == slot {
                    true => own = Some((status, result)),
                    // Its caller has given up waiting.
                    false => queue.give_back(ended),
                }
            }
            if let Some((status, result)) = own {
                let page = with_page.then(|| queue.page(slot));
                queue.give_back(slot);
                return match status.is_success() {
                    true => Ok((result, page)),
                    false => Err(NvmeError::Command {
                        drive: drive(),
                        action,
                        status,
                    }),
                };
            }
            if round % STATUS_ROUNDS == 0 {
                // A channel may have given it up meanwhile.
                self.check_running()?;
                match self.bus.read(register::CSTS) {
                    register::GONE => return Err(self.removed()),
                    status if status & register::FATAL != 0 => {
                        return Err(NvmeError::Fatal { drive: drive() });
                    }
                    _ => {}
                }
            }
            if deadline.has_passed(&*self.bus) {
                // The slot stays taken: the drive may still write its page.
                return Err(timeout());
            }
            self.bus.pause(round);
        }
        Err(timeout())
    }

    fn identify(
        &self,
        queue: &mut QueuePair,
        what: u32,
        namespace: u32,
    ) -> Result<Box<[u8; PAGE]>, NvmeError> {
        let command = Command::new(admin::IDENTIFY, namespace).word(10, what);
        let (_, page) = self.execute(queue, "identify itself", command, true, self.timeout())?;
        Ok(page.unwrap_or_else(|| Box::new([0; PAGE])))
    }

    fn ask_for_queues(&self, queue: &mut QueuePair) -> Result<u16, NvmeError> {
        let wanted = u32::from(self.queue_pairs - 1);
        let command = Command::new(admin::SET_FEATURES, 0)
            .word(10, admin::NUMBER_OF_QUEUES)
            .word(11, wanted | wanted << 16);
        let (result, _) = self.execute(queue, "give queues", command, false, self.timeout())?;
        let granted = (result & 0xffff).min(result >> 16).min(wanted);
        Ok(granted as u16 + 1)
    }

    /// What the controller says of a namespace.
    ///
    /// # Errors
    /// [`NvmeError::NoNamespace`], or a failure of the drive.
    pub fn namespace(&self, id: u32) -> Result<NamespaceInfo, NvmeError> {
        let missing = || NvmeError::NoNamespace {
            drive: self.name().to_owned(),
            namespace: id,
            count: self.info.namespaces,
        };
        if id == 0 || id > self.info.namespaces {
            return Err(missing());
        }
        let page = self.identify(&mut lock(&self.admin), admin::CNS_NAMESPACE, id);
        let page = page.map_err(|error| match error {
            NvmeError::Command { status, .. } if status.is_invalid_namespace() => missing(),
            error => error,
        })?;
        NamespaceInfo::parse(id, &page).ok_or_else(missing)
    }

    /// The drive's own count of its health and use.
    ///
    /// # Errors
    /// A failure of the drive.
    pub fn smart(&self) -> Result<SmartLog, NvmeError> {
        let words = 512 / 4 - 1;
        let command =
            Command::new(admin::GET_LOG_PAGE, u32::MAX).word(10, admin::LOG_SMART | words << 16);
        let mut queue = lock(&self.admin);
        let (_, page) =
            self.execute(&mut queue, "tell its health", command, true, self.timeout())?;
        Ok(SmartLog::parse(
            &page.unwrap_or_else(|| Box::new([0; PAGE])),
        ))
    }

    /// Asks the drive to give up a command; whether it did is seen by the command's completion.
    /// Answers whether the drive replied.
    pub(crate) fn abort(&self, queue: u16, command: u16) -> bool {
        let abort =
            Command::new(admin::ABORT, 0).word(10, u32::from(queue) | u32::from(command) << 16);
        let mut admin = lock(&self.admin);
        let replied = self.execute(
            &mut admin,
            "abort a command",
            abort,
            false,
            self.abort_timeout(),
        );
        matches!(replied, Ok(_) | Err(NvmeError::Command { .. }))
    }

    // Queue pairs.

    /// A pair of queues for `depth` commands in flight, or as many as the controller allows. The
    /// controller does not know it before [`create_queues`](Self::create_queues).
    pub(crate) fn new_queue_pair(&self, depth: u32) -> Result<QueuePair, NvmeError> {
        let longest = self.capabilities.max_entries().min(MAX_ENTRIES);
        let entries = depth.saturating_add(1).clamp(2, longest) as u16;
        let mut used = lock(&self.used_ids);
        let id = (1..=self.queue_pairs).find(|id| !used.contains(id));
        let id = id.ok_or_else(|| NvmeError::NoQueue {
            drive: self.name().to_owned(),
            queues: self.queue_pairs,
        })?;
        let queue = QueuePair::new(&self.bus, self.capabilities, id, entries)?;
        used.insert(id);
        Ok(queue)
    }

    /// Lets another channel have the pair's number. The drive must know the queues no more.
    pub(crate) fn release_queue_pair(&self, queue: &QueuePair) {
        lock(&self.used_ids).remove(&queue.id());
    }

    /// Makes the queues, which are empty, known to the drive; resets it if it has just failed, be
    /// it by commands of others. Answers the number of resets at which that was done. If it fails,
    /// the drive knows neither queue.
    pub(crate) fn create_queues(&self, queue: &QueuePair) -> Result<u64, NvmeError> {
        let mut resets = 0;
        loop {
            let (epoch, created) = {
                let mut admin = lock(&self.admin);
                (self.epoch(), self.try_create_queues(&mut admin, queue))
            };
            match created {
                Err(error @ (NvmeError::Fatal { .. } | NvmeError::Timeout { .. })) => {
                    // It may have created one of them.
                    self.recover(epoch);
                    self.check_running()?;
                    resets += 1;
                    if resets > RESETS {
                        return Err(error);
                    }
                }
                created => return created.map(|()| epoch),
            }
        }
    }

    fn try_create_queues(&self, admin: &mut QueuePair, queue: &QueuePair) -> Result<(), NvmeError> {
        let (submissions, completions) = queue.addresses();
        let id = u32::from(queue.id());
        let sized = id | u32::from(queue.entries() - 1) << 16;
        // Both lie in one piece; completions raise no interrupt.
        let contiguous = 1;
        let create = |opcode, address, flags| {
            let command = Command::new(opcode, 0).data(address, 0);
            command.word(10, sized).word(11, flags)
        };
        let command = create(admin::CREATE_CQ, completions, contiguous);
        self.execute(
            admin,
            "create a completion queue",
            command,
            false,
            self.timeout(),
        )?;
        let command = create(admin::CREATE_SQ, submissions, contiguous | id << 16);
        let created = self.execute(
            admin,
            "create a submission queue",
            command,
            false,
            self.timeout(),
        );
        if let Err(NvmeError::Command { .. }) = created {
            // Only the other one is there.
            self.delete_queue(admin, admin::DELETE_CQ, queue)?;
        }
        created.map(drop)
    }

    fn delete_queue(
        &self,
        admin: &mut QueuePair,
        opcode: u8,
        queue: &QueuePair,
    ) -> Result<(), NvmeError> {
        let command = Command::new(opcode, 0).word(10, u32::from(queue.id()));
        let deleted = self.execute(admin, "delete a queue", command, false, self.timeout());
        deleted.map(drop)
    }

    /// Makes the drive forget the queues that it got in `epoch`. Resets it if it does not answer.
    /// Answers whether it has forgotten them: a drive that refuses goes on with the number in use.
    pub(crate) fn delete_queues(&self, queue: &QueuePair, epoch: u64) -> bool {
        let deleted = {
            let mut admin = lock(&self.admin);
            if self.epoch() != epoch || self.state() != State::Running {
                return true;
            }
            self.delete_queue(&mut admin, admin::DELETE_SQ, queue)
                .and_then(|()| self.delete_queue(&mut admin, admin::DELETE_CQ, queue))
        };
        match deleted {
            Ok(()) => true,
            Err(NvmeError::Command { .. }) => false,
            Err(_) => {
                self.recover(epoch);
                true
            }
        }
    }

    // Memory.

    /// Makes memory reachable for the drive, in whole pages; the answer is the bus address of
    /// `start`. Channels that give the same region share it.
    ///
    /// # Safety
    /// The memory must stay allocated until [`unmap`](Self::unmap).
    pub(crate) unsafe fn map(&self, start: usize, bytes: usize) -> Result<u64, NvmeError> {
        let (first, whole) = whole_pages(start, bytes);
        let mut regions = lock(&self.regions);
        let same = |r: &&mut Region| r.start == first && r.bytes == whole;
        if let Some(region) = regions.iter_mut().find(same) {
            region.users += 1;
            return Ok(region.address + (start - first) as u64);
        }
        let pointer = std::ptr::with_exposed_provenance_mut(first);
        // SAFETY: by contract; the pages around a part of them stay as long as that part.
        let address = unsafe { self.bus.map(pointer, whole)? };
        regions.push(Region {
            start: first,
            bytes: whole,
            address,
            users: 1,
        });
        Ok(address + (start - first) as u64)
    }

    /// Undoes one [`map`](Self::map) of the same region.
    pub(crate) fn unmap(&self, start: usize, bytes: usize) {
        let (first, whole) = whole_pages(start, bytes);
        let mut regions = lock(&self.regions);
        let found = regions
            .iter()
            .position(|r| r.start == first && r.bytes == whole);
        let Some(at) = found else { return };
        regions[at].users -= 1;
        if regions[at].users == 0 {
            let region = regions.swap_remove(at);
            self.bus.unmap(region.address, region.bytes);
        }
    }
}

/// The pages that a range of memory lies in.
fn whole_pages(start: usize, bytes: usize) -> (usize, usize) {
    let first = start / PAGE * PAGE;
    let end = start.saturating_add(bytes).next_multiple_of(PAGE);
    (first, end - first)
}

impl Drop for Controller {
    /// Stops the drive, which then writes its caches and accesses no memory any more.
    fn drop(&mut self) {
        if self.state() != State::Running {
            return;
        }
        const NORMAL_SHUTDOWN: u32 = 1 << 14;
        const SHUTDOWN_DONE: u32 = 2 << 2;
        let configuration = self.bus.read(register::CC);
        self.bus
            .write(register::CC, configuration | NORMAL_SHUTDOWN);
        let deadline = Deadline::after(&*self.bus, SHUTDOWN_TIMEOUT);
        for round in 0.. {
            let status = self.bus.read(register::CSTS);
            if status & 3 << 2 == SHUTDOWN_DONE
                || status == register::GONE
                || deadline.has_passed(&*self.bus)
            {
                break;
            }
            self.bus.pause(round);
        }
        if self.disable().is_err() {
            self.bus.cut_off();
        }
    }
}
