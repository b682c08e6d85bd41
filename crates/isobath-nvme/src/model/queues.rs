//! The model's queues: fetching commands, posting completions.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{ModelFault, State};
use crate::bus::register;
use crate::command::{Command, Status};
use crate::queue::{COMPLETION_BYTES, SUBMISSION_BYTES};

#[derive(Debug)]
pub(super) struct SubmissionQueue {
    pub(super) address: u64,
    pub(super) entries: u32,
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) completions: u16,
}

#[derive(Debug)]
pub(super) struct CompletionQueue {
    pub(super) address: u64,
    pub(super) entries: u32,
    head: u32,
    tail: u32,
    phase: bool,
    /// Completions for which the queue has no room.
    waiting: VecDeque<[u32; 4]>,
}

impl CompletionQueue {
    pub(super) fn new(address: u64, entries: u32) -> CompletionQueue {
        CompletionQueue {
            address,
            entries,
            head: 0,
            tail: 0,
            phase: true,
            waiting: VecDeque::new(),
        }
    }
}

/// A command under way.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) queue: u16,
    pub(super) command: Command,
    pub(super) fault: Option<ModelFault>,
}

impl Running {
    pub(super) fn id(&self) -> u16 {
        (self.command.0[0] >> 16) as u16
    }
}

impl State {
    pub(super) fn create_admin_queues(&mut self) {
        let sizes = self.register(register::AQA);
        let submissions = SubmissionQueue {
            address: self.register_u64(register::ASQ),
            entries: (sizes & 0xfff) + 1,
            head: 0,
            tail: 0,
            completions: 0,
        };
        self.submissions.insert(0, submissions);
        let entries = (sizes >> 16 & 0xfff) + 1;
        let completions = CompletionQueue::new(self.register_u64(register::ACQ), entries);
        self.completions.insert(0, completions);
    }

    pub(super) fn doorbell(&mut self, index: u32, value: u32) {
        let id = (index / 2) as u16;
        let (entries, place) = match index % 2 {
            0 => match self.submissions.get_mut(&id) {
                Some(queue) => (queue.entries, &mut queue.tail),
                None => return,
            },
            _ => match self.completions.get_mut(&id) {
                Some(queue) => (queue.entries, &mut queue.head),
                None => return,
            },
        };
        match value < entries {
            true => *place = value,
            false => self.violate(format!("a doorbell of queue {id} is set beyond its end")),
        }
    }

    /// A word of memory that the driver may access at the same time.
    fn word(&self, address: u64) -> Option<&AtomicU32> {
        let pointer = self.memory(address, 4)?;
        // SAFETY: within memory that is mapped, and aligned as queues are; the state is locked, so
        // it is not unmapped.
        Some(unsafe { AtomicU32::from_ptr(pointer.cast()) })
    }

    /// Takes all new commands from the submission queues.
    pub(super) fn fetch(&mut self) {
        let ids: Vec<u16> = self.submissions.keys().copied().collect();
        for id in ids {
            while let Some(command) = self.fetch_from(id) {
                self.begin(id, command);
            }
        }
    }

    fn fetch_from(&mut self, id: u16) -> Option<Command> {
        let queue = self.submissions.get_mut(&id)?;
        if queue.head == queue.tail {
            return None;
        }
        let at = queue.address + u64::from(queue.head) * SUBMISSION_BYTES as u64;
        queue.head = (queue.head + 1) % queue.entries;
        let mut command = Command::default();
        for (offset, word) in (0..).step_by(4).zip(&mut command.0) {
            match self.word(at + offset) {
                Some(value) => *word = u32::from_le(value.load(Ordering::Acquire)),
                None => {
                    self.violate("a submission queue is not in mapped memory");
                    return None;
                }
            }
        }
        Some(command)
    }

    fn begin(&mut self, queue: u16, command: Command) {
        let (least, most) = self.options.latency_steps;
        let mut latency = least + self.chance.below(most - least + 1);
        let mut fault = None;
        if queue != 0 {
            fault = self.injected.pop_front();
            for at in 0..self.options.fault_rates.len() {
                let (kind, rate) = self.options.fault_rates[at];
                if fault.is_none() && self.chance.below(1000) < u64::from(rate) {
                    fault = Some(kind);
                }
            }
        }
        let running = Running {
            queue,
            command,
            fault,
        };
        match fault {
            Some(ModelFault::Never) => {
                self.lost.push((queue, running.id()));
                return;
            }
            Some(ModelFault::Late(steps)) => latency += steps,
            _ => {}
        }
        self.fetched += 1;
        self.running
            .insert((self.now + latency, self.fetched), running);
    }

    /// Posts a completion to the queue that belongs to the submission queue.
    pub(super) fn complete(&mut self, queue: u16, id: u16, status: Status, result: u32) {
        let head = self.submissions.get(&queue).map_or(0, |q| q.head);
        let last = u32::from(id) | u32::from(status.0) << 17;
        self.post(queue, [result, 0, head | u32::from(queue) << 16, last]);
    }

    /// Posts an entry, whose phase bit is set here.
    pub(super) fn post(&mut self, queue: u16, entry: [u32; 4]) {
        let completions = self.submissions.get(&queue).map(|q| q.completions);
        if let Some(to) = completions.and_then(|id| self.completions.get_mut(&id)) {
            to.waiting.push_back(entry);
        }
    }

    /// Writes completions into queues with room.
    pub(super) fn post_waiting(&mut self) {
        let ids: Vec<u16> = self.completions.keys().copied().collect();
        for id in ids {
            while let Some((address, entry)) = self.next_to_post(id) {
                for (offset, word) in (0..).step_by(4).zip(entry) {
                    match self.word(address + offset) {
                        // The last word has the phase bit: it is published after the others.
                        Some(to) => to.store(word.to_le(), Ordering::Release),
                        None => self.violate("a completion queue is not in mapped memory"),
                    }
                }
            }
        }
    }

    fn next_to_post(&mut self, id: u16) -> Option<(u64, [u32; 4])> {
        let queue = self.completions.get_mut(&id)?;
        let next = (queue.tail + 1) % queue.entries;
        if next == queue.head {
            return None;
        }
        let mut entry = queue.waiting.pop_front()?;
        entry[3] = entry[3] & !(1 << 16) | u32::from(queue.phase) << 16;
        let address = queue.address + u64::from(queue.tail) * COMPLETION_BYTES as u64;
        queue.tail = next;
        if next == 0 {
            queue.phase = !queue.phase;
        }
        Some((address, entry))
    }
}
