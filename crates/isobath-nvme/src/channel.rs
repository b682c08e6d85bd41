//! A worker's channel: a queue pair of its own, which it polls.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use isobath_io::{
    Channel, ChannelError, ChannelOptions, ChannelStats, Completion, EventWake, Io, IoError,
    IoErrorKind, IoVec, Op, QueueFull, Waker,
};

use crate::command::{Command, Status, nvm};
use crate::controller::{Controller, State};
use crate::error::{Failed, NvmeError};
use crate::identify::{NamespaceInfo, PAGE};
use crate::queue::QueuePair;

/// Most bytes of one command: what the entries of one PRP list page reach.
const MAX_TRANSFER: u64 = (PAGE * PAGE / 8) as u64;
/// Most logical blocks of one command.
const MAX_BLOCKS: u64 = 1 << 16;
/// How often a command is given again that the drive lost or called passing.
const RETRIES: u8 = 2;
/// How often the controller's status is looked at while commands are in flight.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// What is done to blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Task {
    Read,
    Write,
    Flush,
    Discard,
    Zero,
}

/// An accepted I/O: one or more commands.
struct Request {
    io: Io,
    task: Task,
    /// Memory of reads and writes.
    ranges: Vec<IoVec>,
    bytes: u64,
    /// Bytes for which commands were given.
    given: u64,
    /// Commands in flight.
    commands: u32,
    failed: Option<Failed>,
    start: Duration,
}

/// What a slot's command belongs to.
#[derive(Default)]
struct InFlight {
    request: u32,
    deadline: Duration,
    retries: u8,
    is_aborted: bool,
    /// Memory that was mapped for this command alone.
    mapped: Vec<(usize, usize)>,
}

/// Memory that was registered.
struct Registered {
    start: usize,
    bytes: usize,
    address: u64,
}

pub(crate) struct NvmeChannel {
    controller: Arc<Controller>,
    namespace: NamespaceInfo,
    max_transfer: u64,
    queue: QueuePair,
    /// Resets of the controller before the queues were created.
    epoch: u64,
    depth: u32,
    in_flight: u32,
    requests: Vec<Request>,
    free: Vec<u32>,
    /// Requests for which not all commands were given.
    queued: VecDeque<u32>,
    commands: Vec<InFlight>,
    /// Requests that ended before they reached the drive.
    ready: Vec<Completion>,
    /// Sorted by address.
    registered: Vec<Registered>,
    prps: Vec<u64>,
    done: Vec<(u16, Status, u32)>,
    next_look: Duration,
    wake: Arc<EventWake>,
    stats: ChannelStats,
}

// SAFETY: its pointers are the callers' memory, which they lend until the completion, from
// whichever thread they poll.
unsafe impl Send for NvmeChannel {}

impl NvmeChannel {
    pub(crate) fn open(
        controller: &Arc<Controller>,
        namespace: NamespaceInfo,
        options: &ChannelOptions,
    ) -> Result<NvmeChannel, NvmeError> {
        let wake = EventWake::new().map_err(|source| NvmeError::Os {
            path: "eventfd".into(),
            action: "create",
            source,
        })?;
        let queue = controller.new_queue_pair(options.depth)?;
        let created = controller.create_queues(&queue);
        let epoch = created.inspect_err(|_| controller.release_queue_pair(&queue))?;
        let limit = controller.info().max_transfer_bytes.unwrap_or(MAX_TRANSFER);
        let by_blocks = MAX_BLOCKS.saturating_mul(namespace.block_bytes());
        Ok(NvmeChannel {
            controller: Arc::clone(controller),
            namespace,
            max_transfer: limit.min(MAX_TRANSFER).min(by_blocks),
            epoch,
            depth: options.depth,
            in_flight: 0,
            requests: Vec::new(),
            free: Vec::new(),
            queued: VecDeque::new(),
            commands: (0..queue.slots()).map(|_| InFlight::default()).collect(),
            queue,
            ready: Vec::new(),
            registered: Vec::new(),
            prps: Vec::new(),
            done: Vec::new(),
            next_look: Duration::ZERO,
            wake: Arc::new(wake),
            stats: ChannelStats::default(),
        })
    }

    /// The bytes of an I/O, or what is wrong with it.
    fn check(&self, io: &Io, ranges: &[IoVec]) -> Result<u64, IoError> {
        let block = self.namespace.block_bytes();
        let (bytes, is_aligned) = match io.op {
            Op::Flush => return Ok(0),
            Op::Discard => (u64::from(io.len), io.len > 0),
            Op::Read | Op::Write | Op::WriteV => IoVec::total(ranges, block as u32),
            other => {
                return Err(IoError::new(IoErrorKind::Unsupported, other, io.offset, 0));
            }
        };
        self.check_range(io.op, io.offset, bytes, is_aligned)
    }

    fn check_range(
        &self,
        op: Op,
        offset: u64,
        bytes: u64,
        is_aligned: bool,
    ) -> Result<u64, IoError> {
        let fail = |kind| Err(IoError::new(kind, op, offset, bytes));
        if !is_aligned || !(offset | bytes).is_multiple_of(self.namespace.block_bytes()) {
            return fail(IoErrorKind::Misaligned);
        }
        match offset.checked_add(bytes) {
            Some(end) if end <= self.namespace.bytes() => Ok(bytes),
            _ => fail(IoErrorKind::OutOfRange),
        }
    }

    /// Zeros a range, whose completion is as an I/O's.
    pub(crate) fn submit_zeros(&mut self, offset: u64, bytes: u64) -> Result<(), IoError> {
        let io = Io::write(offset, std::ptr::null(), 0, 0);
        self.check_range(Op::Write, offset, bytes, bytes > 0)?;
        self.in_flight += 1;
        self.enqueue(io, Task::Zero, Vec::new(), bytes);
        Ok(())
    }

    fn enqueue(&mut self, io: Io, task: Task, ranges: Vec<IoVec>, bytes: u64) {
        let request = Request {
            io,
            task,
            ranges,
            bytes,
            given: 0,
            commands: 0,
            failed: None,
            start: Duration::ZERO,
        };
        let index = match self.free.pop() {
            Some(index) => {
                self.requests[index as usize] = request;
                index
            }
            None => {
                self.requests.push(request);
                // At most `depth`.
                self.requests.len() as u32 - 1
            }
        };
        self.queued.push_back(index);
    }

    /// Gives the drive as many commands as there is room for.
    fn hand_over(&mut self, now: Duration, out: &mut Vec<Completion>) {
        while let Some(&index) = self.queued.front() {
            let request = &mut self.requests[index as usize];
            if request.given == 0 {
                request.start = now;
            }
            let refused = match self.controller.state() {
                State::Running if self.controller.has_lost_its_cache() => Some(Failed::CacheLost),
                State::Running => request.failed,
                state => Some(lost(state)),
            };
            let info = self.controller.info();
            let refused = refused.or(match request.task {
                Task::Discard if !info.deallocate || !self.namespace.deallocates_to_zeros => {
                    Some(Failed::Unsupported)
                }
                Task::Zero if !info.write_zeroes => Some(Failed::Unsupported),
                _ => None,
            });
            // Without a volatile cache, what has completed is durable.
            let is_needless = request.task == Task::Flush && !info.volatile_cache;
            if is_needless || refused.is_some() {
                request.failed = refused;
                request.given = request.bytes;
                self.queued.pop_front();
                if self.requests[index as usize].commands == 0 {
                    self.finish(index, now, out);
                }
                continue;
            }
            let Some(slot) = self.queue.take_slot() else {
                break;
            };
            match self.build(index, slot) {
                Ok((command, bytes)) => {
                    self.queue.push(slot, command);
                    let in_flight = &mut self.commands[usize::from(slot)];
                    in_flight.request = index;
                    in_flight.deadline = now.saturating_add(self.controller.timeout());
                    in_flight.retries = 0;
                    in_flight.is_aborted = false;
                    self.stats.device_requests += 1;
                    let request = &mut self.requests[index as usize];
                    request.commands += 1;
                    request.given += bytes;
                    if request.given >= request.bytes {
                        self.queued.pop_front();
                    }
                }
                Err(failed) => {
                    self.unmap(slot);
                    self.queue.give_back(slot);
                    // The next round ends the request.
                    self.requests[index as usize].failed = Some(failed);
                }
            }
        }
        self.queue.ring();
    }

    /// The next command of a request, and the bytes that it is for.
    fn build(&mut self, index: u32, slot: u16) -> Result<(Command, u64), Failed> {
        let request = &self.requests[index as usize];
        let (task, durable) = (request.task, request.io.durable);
        let left = request.bytes - request.given;
        let shift = self.namespace.block_shift;
        let first = (request.io.offset + request.given) >> shift;
        let namespace = self.namespace.id;
        match task {
            Task::Flush => Ok((Command::new(nvm::FLUSH, namespace), 0)),
            Task::Discard => {
                // One range: attributes, length, start. A length has 32 bits.
                self.queue.write_page(slot, 0, (left >> shift) << 32);
                self.queue.write_page(slot, 1, first);
                let command = Command::new(nvm::DATASET_MANAGEMENT, namespace)
                    .word(11, nvm::DEALLOCATE)
                    .data(self.queue.page_address(slot), 0);
                Ok((command, left))
            }
            Task::Zero => {
                let blocks = (left >> shift).min(MAX_BLOCKS);
                let command = Command::new(nvm::WRITE_ZEROES, namespace);
                Ok((command.blocks(first, blocks as u32), blocks << shift))
            }
            Task::Read | Task::Write => {
                let bytes = self.describe_memory(index, slot)?;
                let opcode = match task {
                    Task::Read => nvm::READ,
                    _ => nvm::WRITE,
                };
                let flags = match task == Task::Write && durable {
                    true => nvm::FUA,
                    false => 0,
                };
                let prp2 = match self.prps.len() {
                    0 | 1 => 0,
                    2 => self.prps[1],
                    _ => {
                        for (word, prp) in self.prps[1..].iter().enumerate() {
                            self.queue.write_page(slot, word, *prp);
                        }
                        self.queue.page_address(slot)
                    }
                };
                let command = Command::new(opcode, namespace)
                    .word(12, flags)
                    .blocks(first, (bytes >> shift) as u32)
                    .data(self.prps[0], prp2);
                Ok((command, bytes))
            }
        }
    }

    /// Collects the pages of a request's next bytes in `self.prps`: as many as one command can
    /// have. Only the first may begin within a page, and only the last end within one.
    fn describe_memory(&mut self, index: u32, slot: u16) -> Result<u64, Failed> {
        self.prps.clear();
        let mut skip = self.requests[index as usize].given;
        let mut taken = 0;
        for at in 0.. {
            let Some(range) = self.requests[index as usize].ranges.get(at) else {
                break;
            };
            let length = range.len as u64;
            if skip >= length {
                skip -= length;
                continue;
            }
            let start = range.buf.expose_provenance() + skip as usize;
            if taken > 0 && !start.is_multiple_of(PAGE) {
                break;
            }
            let count = (length - skip).min(self.max_transfer - taken);
            skip = 0;
            let address = self.translate(start, count as usize, slot)?;
            self.prps.push(address);
            let mut page = (address / PAGE as u64 + 1) * PAGE as u64;
            while page < address + count {
                self.prps.push(page);
                page += PAGE as u64;
            }
            taken += count;
            if taken == self.max_transfer || !(start + count as usize).is_multiple_of(PAGE) {
                break;
            }
        }
        debug_assert!(taken > 0);
        Ok(taken)
    }

    /// Where the drive finds memory: in a region that was registered, or mapped for this command.
    fn translate(&mut self, start: usize, bytes: usize, slot: u16) -> Result<u64, Failed> {
        let after = self.registered.partition_point(|r| r.start <= start);
        if let Some(region) = after.checked_sub(1).map(|at| &self.registered[at])
            && start + bytes <= region.start + region.bytes
        {
            return Ok(region.address + (start - region.start) as u64);
        }
        // SAFETY: the submitter keeps the memory until the completion; it is unmapped before.
        let address = unsafe { self.controller.map(start, bytes) };
        let address = address.map_err(|_| Failed::NoMemory)?;
        self.commands[usize::from(slot)].mapped.push((start, bytes));
        Ok(address)
    }

    fn unmap(&mut self, slot: u16) {
        for (start, bytes) in self.commands[usize::from(slot)].mapped.drain(..) {
            self.controller.unmap(start, bytes);
        }
    }

    /// Takes over the commands that have ended.
    fn reap(&mut self, now: Duration, out: &mut Vec<Completion>) {
        let mut done = std::mem::take(&mut self.done);
        self.queue.reap(&mut done);
        for (slot, status, _) in done.drain(..) {
            let command = &mut self.commands[usize::from(slot)];
            if status.is_passing() && !command.is_aborted && command.retries < RETRIES {
                command.retries += 1;
                command.deadline = now.saturating_add(self.controller.timeout());
                self.stats.resubmitted += 1;
                self.queue.push_again(slot);
                continue;
            }
            let result = match (status.is_success(), command.is_aborted) {
                (true, _) => Ok(()),
                (false, true) => Err(Failed::TimedOut),
                (false, false) => Err(Failed::Status(status)),
            };
            self.end(slot, result, now, out);
        }
        self.done = done;
    }

    /// Ends a slot's command, which the drive has finished with.
    fn end(
        &mut self,
        slot: u16,
        result: Result<(), Failed>,
        now: Duration,
        out: &mut Vec<Completion>,
    ) {
        self.unmap(slot);
        self.queue.give_back(slot);
        let index = self.commands[usize::from(slot)].request;
        let request = &mut self.requests[index as usize];
        request.commands -= 1;
        if let Err(failed) = result {
            request.failed.get_or_insert(failed);
        }
        if request.commands > 0 {
            // The memory of the whole is in use until its last command has ended.
            return;
        }
        let is_given = request.given >= request.bytes;
        if is_given {
            self.finish(index, now, out);
        }
    }

    /// Completes a request that has no commands left.
    fn finish(&mut self, index: u32, now: Duration, out: &mut Vec<Completion>) {
        let request = &mut self.requests[index as usize];
        request.ranges = Vec::new();
        let (io, bytes) = (request.io, request.bytes);
        let mut failed = request.failed;
        // What it read may be older than what was acknowledged.
        if self.controller.has_lost_its_cache() {
            failed.get_or_insert(Failed::CacheLost);
        }
        let latency = now.saturating_sub(request.start);
        let result = match failed {
            None => Ok(()),
            Some(failed) => Err(IoError::new(failed.kind(), io.op, io.offset, bytes)
                .on(self.controller.name().as_ref())),
        };
        self.free.push(index);
        self.in_flight -= 1;
        self.stats
            .of_mut(io.op)
            .record(result.is_ok(), bytes, latency);
        out.push(Completion {
            user_data: io.user_data,
            result,
        });
    }

    /// After a reset: ends or repeats the commands that the controller has forgotten.
    fn follow_reset(&mut self, now: Duration, out: &mut Vec<Completion>) {
        if self.controller.epoch() == self.epoch && self.controller.state() == State::Running {
            return;
        }
        // What has ended before the reset has ended.
        self.reap(now, out);
        if self.controller.state() == State::Running {
            self.queue.restart();
            match self.controller.create_queues(&self.queue) {
                Ok(epoch) => self.epoch = epoch,
                Err(_) => self.controller.give_up(State::Dead),
            }
        }
        let state = self.controller.state();
        let may_repeat = state == State::Running && !self.controller.has_lost_its_cache();
        for slot in self.queue.slots_in_flight() {
            let command = &mut self.commands[usize::from(slot)];
            if may_repeat && command.retries < RETRIES && !command.is_aborted {
                command.retries += 1;
                command.deadline = now.saturating_add(self.controller.timeout());
                self.stats.resubmitted += 1;
                self.queue.push_again(slot);
            } else {
                self.end(slot, Err(lost(state)), now, out);
            }
        }
        self.queue.ring();
    }

    /// Looks after commands that take long: aborts them, then resets the controller.
    fn watch(&mut self, now: Duration) {
        if self.queue.in_flight() == 0 || now < self.next_look {
            return;
        }
        self.next_look = now.saturating_add(LOOK_EVERY);
        self.controller.look(self.epoch);
        for slot in self.queue.slots_in_flight() {
            let command = &mut self.commands[usize::from(slot)];
            if now < command.deadline || self.controller.epoch() != self.epoch {
                continue;
            }
            if command.is_aborted {
                self.controller.recover(self.epoch);
                continue;
            }
            command.is_aborted = true;
            command.deadline = now.saturating_add(self.controller.abort_timeout());
            let id = self.queue.command_id(slot);
            if !self.controller.abort(self.queue.id(), id) {
                // The others would wait as long in vain.
                self.controller.recover(self.epoch);
            }
        }
    }

    /// Submits and reaps once without blocking.
    fn pump(&mut self, out: &mut Vec<Completion>) {
        if !self.ready.is_empty() {
            self.in_flight -= self.ready.len() as u32;
            out.append(&mut self.ready);
        }
        if self.in_flight == 0 {
            return;
        }
        let now = self.controller.bus().now();
        self.follow_reset(now, out);
        self.hand_over(now, out);
        self.reap(now, out);
        self.watch(now);
        // Into the slots that have become free.
        self.hand_over(now, out);
    }

    fn register(&mut self, start: *mut u8, bytes: usize) -> bool {
        let start = start.expose_provenance();
        // SAFETY: the caller's contract keeps the region until the channel is dropped.
        let Ok(address) = (unsafe { self.controller.map(start, bytes) }) else {
            return false;
        };
        let at = self.registered.partition_point(|r| r.start < start);
        self.registered.insert(
            at,
            Registered {
                start,
                bytes,
                address,
            },
        );
        true
    }

    fn unregister_all(&mut self) {
        for region in self.registered.drain(..) {
            self.controller.unmap(region.start, region.bytes);
        }
    }

    /// Completions that belonged to no command in flight.
    #[cfg(test)]
    pub(crate) fn strays(&self) -> u64 {
        self.queue.strays()
    }
}

fn lost(state: State) -> Failed {
    match state {
        State::Removed => Failed::Removed,
        State::Running | State::Dead => Failed::Reset,
    }
}

impl Channel for NvmeChannel {
    unsafe fn submit(&mut self, io: Io) -> Result<(), QueueFull> {
        if self.in_flight >= self.depth {
            return Err(QueueFull);
        }
        self.in_flight += 1;
        self.stats.in_flight_max = self.stats.in_flight_max.max(self.in_flight);
        let (task, ranges) = match io.op {
            Op::Read | Op::Write => {
                let buf = io.buf.cast_const();
                let len = io.len as usize;
                let task = if io.op == Op::Read {
                    Task::Read
                } else {
                    Task::Write
                };
                (task, vec![IoVec { buf, len }])
            }
            // SAFETY: by the caller's contract.
            Op::WriteV => (Task::Write, unsafe { io.copy_ranges() }),
            Op::Discard => (Task::Discard, Vec::new()),
            _ => (Task::Flush, Vec::new()),
        };
        match self.check(&io, &ranges) {
            Ok(bytes) => self.enqueue(io, task, ranges, bytes),
            Err(error) => {
                self.stats.of_mut(io.op).count(false, 0);
                self.ready.push(Completion {
                    user_data: io.user_data,
                    result: Err(error),
                });
            }
        }
        Ok(())
    }

    fn poll(&mut self, out: &mut Vec<Completion>) -> Result<usize, ChannelError> {
        let before = out.len();
        self.pump(out);
        if self.in_flight > 0 {
            self.controller.bus().pause(0);
        }
        Ok(out.len() - before)
    }

    fn wait(
        &mut self,
        min: u32,
        timeout: Option<Duration>,
        out: &mut Vec<Completion>,
    ) -> Result<usize, ChannelError> {
        let before = out.len();
        if self.in_flight == 0 {
            self.stats.sleeps += 1;
            self.stats.system_calls += 1;
            let woken = self.wake.sleep(timeout).map_err(|source| ChannelError {
                backend: "nvme",
                action: "sleep",
                source,
            })?;
            self.stats.wakes += u64::from(woken);
            return Ok(0);
        }
        let wanted = min.clamp(1, self.in_flight) as usize;
        let bus = Arc::clone(self.controller.bus());
        let deadline = timeout.map(|t| bus.now().saturating_add(t));
        for round in 0.. {
            let found = out.len();
            self.pump(out);
            if out.len() - before >= wanted {
                break;
            }
            if self.wake.is_signalled() {
                // Consumes the wake.
                self.wake.begin();
                self.wake.end();
                self.stats.wakes += 1;
                break;
            }
            if deadline.is_some_and(|deadline| bus.now() >= deadline) {
                break;
            }
            bus.pause(if out.len() > found { 0 } else { round });
        }
        Ok(out.len() - before)
    }

    unsafe fn register_buffers(&mut self, regions: &[(*mut u8, usize)]) -> bool {
        self.unregister_all();
        let all = regions
            .iter()
            .all(|(start, bytes)| self.register(*start, *bytes));
        if !all {
            self.unregister_all();
        }
        all
    }

    unsafe fn register_more(&mut self, region: (*mut u8, usize)) -> bool {
        self.register(region.0, region.1)
    }

    fn waker(&self) -> Waker {
        Waker::new(self.wake.clone())
    }

    fn in_flight(&self) -> u32 {
        self.in_flight
    }

    fn depth(&self) -> u32 {
        self.depth
    }

    fn stats(&self) -> &ChannelStats {
        &self.stats
    }
}

impl Drop for NvmeChannel {
    fn drop(&mut self) {
        // What the drive does not know yet is not given to it any more.
        for index in std::mem::take(&mut self.queued) {
            let request = &mut self.requests[index as usize];
            request.given = request.bytes;
        }
        // Every command ends: by its completion, a timeout or a reset. Their memory may be freed
        // then.
        let bus = Arc::clone(self.controller.bus());
        let mut dropped = Vec::new();
        for round in 0.. {
            if self.queue.in_flight() == 0 {
                break;
            }
            let now = bus.now();
            self.follow_reset(now, &mut dropped);
            self.reap(now, &mut dropped);
            self.queue.ring();
            self.watch(now);
            bus.pause(round);
        }
        if self.controller.delete_queues(&self.queue, self.epoch) {
            self.controller.release_queue_pair(&self.queue);
        }
        self.unregister_all();
    }
}
