//! A submission queue and its completion queue, with an id and a page of memory for each command
//! that can be in flight.

use std::sync::Arc;
use std::time::Duration;

use crate::bus::{Bus, Capabilities, register};
use crate::command::{Command, Entry, Status};
use crate::dma::DmaMemory;
use crate::error::NvmeError;
use crate::identify::PAGE;

/// Bytes of a submission queue entry.
pub(crate) const SUBMISSION_BYTES: usize = 64;
/// Bytes of a completion queue entry.
pub(crate) const COMPLETION_BYTES: usize = 16;
/// Most entries of a queue: a command's id is its slot and the generation of its use, in 16 bits.
pub(crate) const MAX_ENTRIES: u32 = 1 << SLOT_BITS;
const SLOT_BITS: u32 = 10;

/// One command's place.
#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    command: Command,
    /// Counts the uses, so that a completion that comes twice is not taken for the next command's.
    generation: u16,
    in_flight: bool,
}

/// A pair of queues of equal length. Queue 0 is the administration queue.
pub(crate) struct QueuePair {
    bus: Arc<dyn Bus>,
    id: u16,
    entries: u16,
    doorbells: (u32, u32),
    /// The submission queue, the completion queue, and a page for each slot.
    memory: DmaMemory,
    completions_at: usize,
    pages_at: usize,
    slots: Vec<Slot>,
    free: Vec<u16>,
    tail: u16,
    head: u16,
    phase: bool,
    has_new_entries: bool,
    /// Completions that belonged to no command in flight.
    strays: u64,
}

impl QueuePair {
    /// A pair that the controller does not know yet.
    pub(crate) fn new(
        bus: &Arc<dyn Bus>,
        capabilities: Capabilities,
        id: u16,
        entries: u16,
    ) -> Result<QueuePair, NvmeError> {
        debug_assert!(entries >= 2 && u32::from(entries) <= MAX_ENTRIES);
        let count = usize::from(entries);
        let completions_at = (count * SUBMISSION_BYTES).next_multiple_of(PAGE);
        let pages_at = completions_at + (count * COMPLETION_BYTES).next_multiple_of(PAGE);
        // One entry of a ring stays free, so that a full one differs from an empty one.
        let slots = count - 1;
        let stride = capabilities.doorbell_stride();
        let doorbell = |n: u32| register::DOORBELLS.saturating_add(n.saturating_mul(stride));
        Ok(QueuePair {
            bus: Arc::clone(bus),
            id,
            entries,
            doorbells: (doorbell(2 * u32::from(id)), doorbell(2 * u32::from(id) + 1)),
            memory: DmaMemory::new(bus, pages_at + slots * PAGE)?,
            completions_at,
            pages_at,
            slots: vec![Slot::default(); slots],
            free: (0..entries - 1).rev().collect(),
            tail: 0,
            head: 0,
            phase: true,
            has_new_entries: false,
            strays: 0,
        })
    }

    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    pub(crate) fn entries(&self) -> u16 {
        self.entries
    }

    /// Bus addresses of the submission queue and the completion queue.
    pub(crate) fn addresses(&self) -> (u64, u64) {
        (
            self.memory.address(0),
            self.memory.address(self.completions_at),
        )
    }

    /// Commands in flight.
    pub(crate) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn slots(&self) -> usize {
        self.slots.len()
    }

    #[cfg(test)]
    pub(crate) fn strays(&self) -> u64 {
        self.strays
    }

    /// Begins anew, as the controller does with a queue that is created: nothing is in its memory,
    /// while the slots of commands that were in flight stay taken.
    pub(crate) fn restart(&mut self) {
        let bytes = usize::from(self.entries) * COMPLETION_BYTES;
        self.memory.clear(self.completions_at, bytes);
        self.tail = 0;
        self.head = 0;
        self.phase = true;
        self.has_new_entries = false;
    }

    /// Takes a slot; `None` when all are in flight.
    pub(crate) fn take_slot(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Gives a slot back whose command has ended, or was never pushed.
    pub(crate) fn give_back(&mut self, slot: u16) {
        self.slots[usize::from(slot)].in_flight = false;
        self.free.push(slot);
    }

    /// Where the drive finds the slot's page.
    pub(crate) fn page_address(&self, slot: u16) -> u64 {
        self.memory
            .address(self.pages_at + usize::from(slot) * PAGE)
    }

    /// Writes a 64-bit word of the slot's page.
    pub(crate) fn write_page(&self, slot: u16, word: usize, value: u64) {
        assert!(word < PAGE / 8);
        self.memory
            .store_u64(self.pages_at + usize::from(slot) * PAGE + word * 8, value);
    }

    /// The contents of the slot's page.
    pub(crate) fn page(&self, slot: u16) -> Box<[u8; PAGE]> {
        self.memory.page(self.pages_at + usize::from(slot) * PAGE)
    }

    /// Clears the slot's page.
    pub(crate) fn clear_page(&self, slot: u16) {
        self.memory
            .clear(self.pages_at + usize::from(slot) * PAGE, PAGE);
    }

    /// Puts a command into the queue; [`ring`](Self::ring) tells the drive.
    pub(crate) fn push(&mut self, slot: u16, command: Command) {
        let state = &mut self.slots[usize::from(slot)];
        state.generation = state.generation.wrapping_add(1);
        state.in_flight = true;
        state.command = command;
        let command = command.with_id(self.command_id(slot));
        for (word, value) in command.0.iter().enumerate() {
            let at = usize::from(self.tail) * SUBMISSION_BYTES + word * 4;
            self.memory.store(at, *value);
        }
        // There are fewer slots than entries, so the tail never reaches what is not yet fetched.
        self.tail = (self.tail + 1) % self.entries;
        self.has_new_entries = true;
    }

    /// Puts the slot's command into the queue once more.
    pub(crate) fn push_again(&mut self, slot: u16) {
        self.push(slot, self.slots[usize::from(slot)].command);
    }

    /// The id of the slot's command.
    pub(crate) fn command_id(&self, slot: u16) -> u16 {
        slot | self.slots[usize::from(slot)].generation << SLOT_BITS
    }

    /// Tells the drive of the commands that were pushed.
    pub(crate) fn ring(&mut self) {
        if self.has_new_entries {
            self.has_new_entries = false;
            self.bus.write(self.doorbells.0, u32::from(self.tail));
        }
    }

    /// Appends the commands that have ended: slot, status, result. Their slots stay taken.
    /// Completions that belong to nothing in flight are counted and dropped.
    pub(crate) fn reap(&mut self, out: &mut Vec<(u16, Status, u32)>) {
        let mut found = 0;
        // A drive that never stops completing must not hold the caller.
        while found < self.entries {
            let at = self.completions_at + usize::from(self.head) * COMPLETION_BYTES;
            let last = self.memory.load_acquire(at + 12);
            if (last >> 16 & 1 == 1) != self.phase {
                break;
            }
            let entry = Entry {
                result: self.memory.load(at),
                queue: (self.memory.load(at + 8) >> 16) as u16,
                id: last as u16,
                status: Status((last >> 17) as u16),
            };
            found += 1;
            self.head += 1;
            if self.head == self.entries {
                self.head = 0;
                self.phase = !self.phase;
            }
            match self.slot_of(&entry) {
                Some(slot) => {
                    self.slots[usize::from(slot)].in_flight = false;
                    out.push((slot, entry.status, entry.result));
                }
                None => self.strays += 1,
            }
        }
        if found > 0 {
            self.bus.write(self.doorbells.1, u32::from(self.head));
        }
    }

    fn slot_of(&self, entry: &Entry) -> Option<u16> {
        let slot = entry.id & (MAX_ENTRIES - 1) as u16;
        let is_in_flight = self
            .slots
            .get(usize::from(slot))
            .is_some_and(|s| s.in_flight);
        let is_it = is_in_flight && self.command_id(slot) == entry.id && entry.queue == self.id;
        is_it.then_some(slot)
    }

    /// The slots of commands in flight.
    pub(crate) fn slots_in_flight(&self) -> Vec<u16> {
        let all = self.slots.iter().zip(0u16..);
        all.filter(|(slot, _)| slot.in_flight)
            .map(|(_, at)| at)
            .collect()
    }
}

/// The longest time that waiting for a drive lasts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline(Duration);

impl Deadline {
    pub(crate) fn after(bus: &dyn Bus, time: Duration) -> Deadline {
        Deadline(bus.now().saturating_add(time))
    }

    pub(crate) fn has_passed(self, bus: &dyn Bus) -> bool {
        bus.now() >= self.0
    }
}
