//! The state machine of a faulty device: one sequence of I/Os, a simulated clock, and rules.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

use crate::device::LOG_OFFSET;
use crate::error::{IoError, IoErrorKind};
use crate::fault::medium::{
    Medium, PAGE, Page, PageMap, PageWrite, SECTOR, page_writes, random_units,
};
use crate::fault::plan::{Fault, FaultPlan, FaultRule, Survivors, Trigger};
use crate::fault::rng::{Purpose, Rng};
use crate::io::Op;

/// An I/O's operation, with a write's data.
pub(super) enum Task {
    Read,
    Write {
        parts: Vec<PageWrite>,
        durable: bool,
    },
    Flush {
        /// The log device is flushed as well.
        log_too: bool,
    },
    Discard,
}

impl Task {
    /// A number that differs, most likely, where the data differs: from the ends of every sector.
    fn fingerprint(&self) -> u64 {
        let Task::Write { parts, durable } = self else {
            return 0;
        };
        let mut sum = u64::from(*durable);
        for part in parts {
            for sector in part.data.chunks_exact(SECTOR as usize) {
                let ends = [&sector[..8], &sector[SECTOR as usize - 8..]];
                for end in ends {
                    let word = end.iter().fold(0, |w, b| w << 8 | u64::from(*b));
                    sum = (sum ^ word)
                        .wrapping_mul(0xff51_afd7_ed55_8ccd)
                        .rotate_left(31);
                }
            }
        }
        sum
    }
}

/// The pages that a read saw, first to last.
pub(super) type Seen = Vec<Option<Page>>;

/// A finished I/O, waiting for its channel.
pub(super) struct Finished {
    pub(super) index: u64,
    /// The channel's own number for it.
    pub(super) slot: u32,
    pub(super) result: Result<(), IoErrorKind>,
    /// For a read: what it saw, from which byte on, and how many bytes to copy (fewer than asked
    /// for a short one).
    pub(super) seen: Seen,
    pub(super) seen_from: u64,
    pub(super) bytes: u64,
    /// The bit of a read's data to invert.
    pub(super) flip: Option<u64>,
}

struct Flying {
    channel: usize,
    slot: u32,
    offset: u64,
    len: u64,
    task: Task,
    fault: Option<Fault>,
    /// For a flush: it covers writes with a smaller index ...
    before: u64,
    /// ... but these, whose completion was never seen.
    except: Vec<u64>,
}

struct Rule {
    rule: FaultRule,
    seen: u64,
}

pub(super) struct FaultState {
    seed: u64,
    latency_us: (u64, u64),
    unit: u64,
    len: u64,
    /// Bytes of the log device.
    log_len: u64,
    medium: Medium,
    rules: Vec<Rule>,
    off: bool,
    next: u64,
    now_us: u64,
    /// When which I/O completes; ties in the order of submission.
    due: BinaryHeap<Reverse<(u64, u64)>>,
    flying: PageMap<Flying>,
    /// Writes handed over and not yet reaped, sorted.
    unreaped: Vec<u64>,
    inboxes: Vec<Option<VecDeque<Finished>>>,
    faults: u64,
    digest: u64,
}

impl FaultState {
    pub(super) fn new(plan: &FaultPlan, len: u64) -> FaultState {
        let mut medium = Medium::default();
        medium.grow(len);
        medium.grow_log(plan.log_bytes);
        FaultState::over(plan, medium, (len, plan.log_bytes))
    }

    fn over(plan: &FaultPlan, medium: Medium, (len, log_len): (u64, u64)) -> FaultState {
        let rules = plan.rules.iter().cloned();
        FaultState {
            seed: plan.seed,
            latency_us: (*plan.latency_us.start(), *plan.latency_us.end()),
            unit: u64::from(plan.atomic_unit),
            len,
            log_len,
            medium,
            rules: rules.map(|rule| Rule { rule, seen: 0 }).collect(),
            off: false,
            next: 0,
            now_us: 0,
            due: BinaryHeap::new(),
            flying: PageMap::default(),
            unreaped: Vec::new(),
            inboxes: Vec::new(),
            faults: 0,
            digest: plan.seed,
        }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn log_len(&self) -> u64 {
        self.log_len
    }

    /// The bytes of the device on which `offset` lies.
    fn device_of(&self, offset: u64) -> Range<u64> {
        if offset >= LOG_OFFSET {
            LOG_OFFSET..LOG_OFFSET + self.log_len
        } else {
            0..self.len
        }
    }

    pub(super) fn grow(&mut self, len: u64) {
        self.len = self.len.max(len);
        self.medium.grow(self.len);
    }

    pub(super) fn shrink(&mut self, len: u64) {
        self.len = self.len.min(len);
        self.medium.shrink(self.len);
    }

    pub(super) fn is_off(&self) -> bool {
        self.off
    }

    pub(super) fn io_count(&self) -> u64 {
        self.next
    }

    pub(super) fn fault_count(&self) -> u64 {
        self.faults
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn now_us(&self) -> u64 {
        self.now_us
    }

    pub(super) fn add_rule(&mut self, rule: FaultRule) {
        self.rules.push(Rule { rule, seen: 0 });
    }

    pub(super) fn clear_rules(&mut self) {
        self.rules.clear();
    }

    pub(super) fn check(&self, op: Op, offset: u64, len: u64) -> Result<(), IoError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.device_of(offset).end => Ok(()),
            _ => Err(IoError::new(IoErrorKind::OutOfRange, op, offset, len)),
        }
    }

    pub(super) fn open_inbox(&mut self) -> usize {
        self.inboxes.push(Some(VecDeque::new()));
        self.inboxes.len() - 1
    }

    /// Executes what a channel has in flight, as the kernel does after a process was killed, and
    /// forgets the channel.
    pub(super) fn close_inbox(&mut self, channel: usize) {
        while !self.off && self.flying.values().any(|f| f.channel == channel) {
            let Some(due) = self.next_due_us() else { break };
            self.advance_to(due);
        }
        // These completions will never be seen; a later flush covers them all the same.
        while self.pop(channel).is_some() {}
        self.inboxes[channel] = None;
    }

    pub(super) fn pop(&mut self, channel: usize) -> Option<Finished> {
        let finished = self.inboxes[channel].as_mut()?.pop_front()?;
        if let Ok(at) = self.unreaped.binary_search(&finished.index) {
            self.unreaped.remove(at);
        }
        Some(finished)
    }

    /// When the next I/O of any channel is due.
    pub(super) fn next_due_us(&self) -> Option<u64> {
        self.due.peek().map(|Reverse((due, _))| *due)
    }

    pub(super) fn advance(&mut self, us: u64) {
        self.advance_to(self.now_us.saturating_add(us));
    }

    /// Lets time pass and executes, in their order, the I/Os that are due.
    pub(super) fn advance_to(&mut self, until_us: u64) {
        while let Some(Reverse((due, index))) = self.due.peek().copied()
            && due <= until_us
        {
            self.due.pop();
            self.now_us = self.now_us.max(due);
            self.execute(index);
        }
        self.now_us = self.now_us.max(until_us);
    }

    /// Accepts an I/O of a channel. It completes when its time has come, or here if `at_once`.
    pub(super) fn start(
        &mut self,
        (channel, slot): (usize, u32),
        (op, offset, len): (Op, u64, u64),
        task: Task,
        at_once: bool,
    ) {
        let index = self.next;
        self.next += 1;
        let fault = self.draw_fault(op, offset, index);
        if fault == Some(Fault::PowerLoss) {
            self.power_off();
        }
        let (low, high) = self.latency_us;
        let mut rng = Rng::new(self.seed, Purpose::Latency, index);
        let mut latency = low + rng.below(high - low + 1);
        if let Some(Fault::Delay(extra)) = fault {
            latency += extra.as_micros() as u64;
        }
        self.note(&[index, op as u64, offset, len, task.fingerprint()]);
        let flush = op == Op::Flush;
        let flying = Flying {
            channel,
            slot,
            offset,
            len,
            task,
            fault,
            before: index,
            except: if flush {
                self.unreaped.clone()
            } else {
                Vec::new()
            },
        };
        if matches!(op, Op::Write | Op::WriteV | Op::Discard) {
            // Indices rise, so this keeps the list sorted.
            self.unreaped.push(index);
        }
        self.flying.insert(index, flying);
        if self.off || at_once {
            self.execute(index);
        } else {
            self.due.push(Reverse((self.now_us + latency, index)));
        }
    }

    /// Executes an I/O at once, for the blocking calls.
    pub(super) fn run_now(
        &mut self,
        op: Op,
        offset: u64,
        len: u64,
        task: Task,
    ) -> Result<Vec<u8>, IoError> {
        let inbox = self.open_inbox();
        self.start((inbox, 0), (op, offset, len), task, true);
        let finished = self.pop(inbox);
        self.inboxes.pop();
        let Some(finished) = finished else {
            return Err(IoError::new(IoErrorKind::Media, op, offset, len));
        };
        let mut bytes = vec![0; if op == Op::Read { len as usize } else { 0 }];
        finished.copy_to(&mut |at, part| bytes[at..at + part.len()].copy_from_slice(part));
        let error = |kind| IoError::new(kind, op, offset, len);
        finished.result.map(|()| bytes).map_err(error)
    }

    fn draw_fault(&mut self, op: Op, offset: u64, index: u64) -> Option<Fault> {
        let mut fired = None;
        for (number, entry) in self.rules.iter_mut().enumerate() {
            if !entry.rule.matches(op, offset) {
                continue;
            }
            let count = entry.seen;
            entry.seen += 1;
            let fires = match entry.rule.trigger {
                Trigger::At(n) => count == n,
                Trigger::From(n) => count >= n,
                Trigger::Probability(p) => {
                    let seed = self.seed ^ (number as u64) << 32;
                    Rng::new(seed, Purpose::Rule, index).chance(p)
                }
            };
            if fires && fired.is_none() {
                fired = Some(entry.rule.fault);
            }
        }
        self.faults += u64::from(fired.is_some());
        fired
    }

    fn note(&mut self, values: &[u64]) {
        for value in values {
            let mixed = (self.digest ^ *value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            self.digest = mixed ^ (mixed >> 29);
        }
    }

    /// Ends an I/O: its effect, its result, and the message to its channel.
    fn execute(&mut self, index: u64) {
        let Some(io) = self.flying.remove(&index) else {
            return;
        };
        let finished = if self.off {
            Finished::failed(index, io.slot, IoErrorKind::Media)
        } else {
            self.effect(index, &io)
        };
        let failed = u64::from(finished.result.is_err());
        let flip = finished.flip.unwrap_or(0);
        self.note(&[index, self.now_us, failed, finished.bytes, flip]);
        if let Some(Some(inbox)) = self.inboxes.get_mut(io.channel) {
            inbox.push_back(finished);
        } else if let Ok(at) = self.unreaped.binary_search(&index) {
            self.unreaped.remove(at);
        }
    }

    fn effect(&mut self, index: u64, io: &Flying) -> Finished {
        let mut rng = Rng::new(self.seed, Purpose::Effect, index);
        let mut finished = Finished {
            index,
            slot: io.slot,
            result: Ok(()),
            seen: Vec::new(),
            seen_from: io.offset,
            bytes: io.len,
            flip: None,
        };
        if let Some(Fault::Error(kind)) = io.fault {
            return Finished::failed(index, io.slot, kind);
        }
        match &io.task {
            Task::Read => self.effect_of_read(io, &mut rng, &mut finished),
            Task::Write { parts, durable } => {
                self.effect_of_write((index, io), parts, *durable, &mut rng, &mut finished);
            }
            Task::Flush { log_too } => {
                if matches!(io.fault, Some(Fault::Short | Fault::Torn)) {
                    return Finished::failed(index, io.slot, IoErrorKind::Media);
                }
                let covered = |w: u64| w < io.before && io.except.binary_search(&w).is_err();
                if io.fault != Some(Fault::Lost) {
                    self.medium.flush(covered, *log_too);
                }
            }
            Task::Discard => self.effect_of_discard(index, io),
        }
        finished
    }

    fn effect_of_read(&mut self, io: &Flying, rng: &mut Rng, finished: &mut Finished) {
        match io.fault {
            Some(Fault::Torn) => {
                finished.result = Err(IoErrorKind::Media);
                finished.bytes = 0;
            }
            Some(Fault::Short) => {
                finished.bytes = rng.below(io.len / self.unit) * self.unit;
                let done = finished.bytes as u32;
                finished.result = Err(IoErrorKind::Short { done });
            }
            Some(Fault::Misdirected) => finished.seen_from = self.elsewhere(io, rng),
            Some(Fault::BitFlip) => finished.flip = Some(rng.below(io.len * 8)),
            _ => {}
        }
        if finished.bytes > 0 {
            let first = finished.seen_from / PAGE;
            let last = (finished.seen_from + finished.bytes - 1) / PAGE;
            finished.seen = (first..=last).map(|p| self.medium.page(p)).collect();
        }
    }

    fn effect_of_write(
        &mut self,
        (index, io): (u64, &Flying),
        parts: &[PageWrite],
        durable: bool,
        rng: &mut Rng,
        finished: &mut Finished,
    ) {
        let mut changed = parts.to_vec();
        match io.fault {
            Some(Fault::Lost) => return,
            Some(Fault::Short) => {
                let done = rng.below(io.len / self.unit) * self.unit;
                finished.bytes = done;
                finished.result = Err(IoErrorKind::Short { done: done as u32 });
                cut(&mut changed, io.offset + done);
            }
            Some(Fault::Torn) => {
                finished.result = Err(IoErrorKind::Media);
                for part in &mut changed {
                    part.mask &= random_units(rng, self.unit);
                }
            }
            Some(Fault::Misdirected) => {
                let to = self.elsewhere(io, rng);
                let mut bytes = vec![0; io.len as usize];
                gather(parts, io.offset, &mut bytes);
                changed.clear();
                page_writes(to, &bytes, &mut changed);
            }
            Some(Fault::BitFlip) => {
                let bit = rng.below(io.len * 8);
                let at = io.offset + bit / 8;
                for part in changed.iter_mut().filter(|p| p.page == at / PAGE) {
                    let data = std::sync::Arc::make_mut(&mut part.data);
                    data[(at % PAGE) as usize] ^= 1 << (bit % 8);
                }
            }
            _ => {}
        }
        self.medium.write(index, &changed, durable);
    }

    /// The place of a misdirected I/O: anywhere on its device, in steps of the atomic unit.
    fn elsewhere(&self, io: &Flying, rng: &mut Rng) -> u64 {
        let device = self.device_of(io.offset);
        let places = (device.end - device.start - io.len) / self.unit + 1;
        device.start + rng.below(places) * self.unit
    }

    /// The bytes of a discarded range are undefined: each page keeps them or becomes zero, as the
    /// seed says.
    fn effect_of_discard(&mut self, index: u64, io: &Flying) {
        if io.fault == Some(Fault::Lost) {
            return;
        }
        let zeros = vec![0; PAGE as usize];
        let mut parts = Vec::new();
        let end = io.offset + io.len;
        let mut at = io.offset;
        while at < end {
            let n = (PAGE - at % PAGE).min(end - at);
            let mut rng = Rng::new(self.seed, Purpose::Discard, index ^ at);
            if rng.chance(0.5) {
                page_writes(at, &zeros[..n as usize], &mut parts);
            }
            at += n;
        }
        self.medium.write(index, &parts, false);
    }

    /// All I/Os in flight fail from now on, and so do new ones.
    pub(super) fn power_off(&mut self) {
        if std::mem::replace(&mut self.off, true) {
            return;
        }
        self.due.clear();
        let mut flying: Vec<u64> = self.flying.keys().copied().collect();
        flying.sort_unstable();
        // Writes in flight may still be found on the medium, by `after_power_loss`, which needs
        // its data: it stays.
        for index in flying {
            let Some(io) = self.flying.get(&index) else {
                continue;
            };
            let failed = Finished::failed(index, io.slot, IoErrorKind::Media);
            let channel = io.channel;
            if let Some(Some(inbox)) = self.inboxes.get_mut(channel) {
                inbox.push_back(failed);
            }
        }
    }

    pub(super) fn after_power_loss(
        &self,
        plan: &FaultPlan,
        survivors: [Survivors; 2],
        variant: u64,
    ) -> FaultState {
        let mut in_flight: Vec<(u64, &[PageWrite])> = Vec::new();
        for (index, io) in &self.flying {
            if let Task::Write { parts, .. } = &io.task {
                in_flight.push((*index, parts));
            }
        }
        in_flight.sort_unstable_by_key(|(index, _)| *index);
        let rng = Rng::new(
            self.seed ^ variant.rotate_left(32),
            Purpose::Crash,
            self.next,
        );
        let medium = self
            .medium
            .after_power_loss(survivors, &in_flight, self.unit, rng);
        FaultState::over(plan, medium, (self.len, self.log_len))
    }

    pub(super) fn corrupt(&mut self, range: Range<u64>, change: &impl Fn(&mut [u8])) {
        let end = range.end.min(self.device_of(range.start).end);
        let mut at = range.start;
        while at < end {
            let start = (at % PAGE) as usize;
            let n = (PAGE - at % PAGE).min(end - at);
            self.medium.alter(at / PAGE, |page| {
                change(&mut page[start..start + n as usize])
            });
            at += n;
        }
    }

    pub(super) fn peek(&self, offset: u64, buf: &mut [u8]) {
        let len = buf.len() as u64;
        let last = (offset + len).div_ceil(PAGE);
        let seen = (offset / PAGE..last).map(|p| self.medium.page(p)).collect();
        copy_seen(&seen, offset, len, &mut |at, part| {
            buf[at..at + part.len()].copy_from_slice(part);
        });
    }
}

impl Finished {
    fn failed(index: u64, slot: u32, kind: IoErrorKind) -> Finished {
        Finished {
            index,
            slot,
            result: Err(kind),
            seen: Vec::new(),
            seen_from: 0,
            bytes: 0,
            flip: None,
        }
    }

    /// Hands out what a read saw, piece by piece: (offset in the buffer, bytes).
    pub(super) fn copy_to(&self, put: &mut impl FnMut(usize, &[u8])) {
        if self.seen.is_empty() {
            return;
        }
        let Some(bit) = self.flip else {
            return copy_seen(&self.seen, self.seen_from, self.bytes, put);
        };
        let at = (bit / 8) as usize;
        copy_seen(
            &self.seen,
            self.seen_from,
            self.bytes,
            &mut |start, part| {
                if (start..start + part.len()).contains(&at) {
                    let mut flipped = part.to_vec();
                    flipped[at - start] ^= 1 << (bit % 8);
                    put(start, &flipped);
                } else {
                    put(start, part);
                }
            },
        );
    }
}

/// Cuts `len` bytes from byte `from` of the volume out of the pages that hold them.
fn copy_seen(seen: &Seen, from: u64, len: u64, put: &mut impl FnMut(usize, &[u8])) {
    const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];
    let mut start = (from % PAGE) as usize;
    let mut at = 0;
    for page in seen {
        let n = (PAGE as usize - start).min(len as usize - at);
        let bytes = page.as_ref().map_or(&ZEROS, |p| &**p);
        put(at, &bytes[start..start + n]);
        at += n;
        start = 0;
    }
}

/// Cuts a write off at byte `end` of the volume.
fn cut(parts: &mut Vec<PageWrite>, end: u64) {
    for part in parts.iter_mut() {
        let start = part.page * PAGE;
        let kept = end.saturating_sub(start).min(PAGE) / SECTOR;
        part.mask &= ((1u16 << kept) - 1) as u8;
    }
    parts.retain(|p| p.mask != 0);
}

/// The data of a write, in one piece.
fn gather(parts: &[PageWrite], offset: u64, bytes: &mut [u8]) {
    let end = offset + bytes.len() as u64;
    for part in parts {
        let start = (part.page * PAGE).max(offset);
        let stop = (part.page * PAGE + PAGE).min(end);
        let from = (start % PAGE) as usize;
        let n = (stop - start) as usize;
        let to = (start - offset) as usize;
        bytes[to..to + n].copy_from_slice(&part.data[from..from + n]);
    }
}
