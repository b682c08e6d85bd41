//! Virtual time: channels × dies, each busy with one operation at a time.

use std::collections::BinaryHeap;

use super::config::FlashError;

/// Virtual time in nanoseconds.
pub type Nanos = u64;

/// How long flash operations take. Pages of a superblock are striped over all dies, and dies over
/// channels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timing {
    /// Channels, each with its own bus.
    pub channels: u32,
    /// Dies per channel.
    pub dies_per_channel: u32,
    /// Sensing a page, ns.
    pub read_ns: Nanos,
    /// Programming a page, ns.
    pub program_ns: Nanos,
    /// Erasing a block on one die, ns.
    pub erase_ns: Nanos,
    /// Suspending a program or an erase for a read, ns.
    pub suspend_ns: Nanos,
    /// Moving a page over a channel, ns.
    pub transfer_ns: Nanos,
    /// Answering from or writing to the drive's memory, ns.
    pub cache_ns: Nanos,
}

impl Timing {
    /// A TLC NVMe drive of 2020s make: 8 channels × 8 dies, reads 60 µs, programs 100 µs per 4 KiB
    /// (600 µs for a multi-plane, multi-level program of 24 KiB), erases 3.5 ms, 20 µs to suspend
    /// either, 1.2 GB/s per channel.
    pub fn nvme_tlc() -> Self {
        Self {
            channels: 8,
            dies_per_channel: 8,
            read_ns: 60_000,
            program_ns: 100_000,
            erase_ns: 3_500_000,
            suspend_ns: 20_000,
            transfer_ns: 3_400,
            cache_ns: 8_000,
        }
    }

    pub(super) fn check(&self) -> Result<(), FlashError> {
        let positive = [
            ("channels", u64::from(self.channels)),
            ("dies per channel", u64::from(self.dies_per_channel)),
            ("read time", self.read_ns),
            ("program time", self.program_ns),
            ("erase time", self.erase_ns),
        ];
        match positive.into_iter().find(|&(_, value)| value == 0) {
            Some((what, _)) => Err(FlashError::Timing { what }),
            None => Ok(()),
        }
    }
}

/// When each die and channel is free again.
///
/// The host's reads overtake operations queued for flash: a program or erase under way is
/// suspended, and all of them end later by what the reads take.
#[derive(Debug, Clone)]
pub(super) struct Clock {
    timing: Timing,
    dies: Vec<Nanos>,
    channels: Vec<Nanos>,
    /// The same for the host's reads alone.
    reading_dies: Vec<Nanos>,
    reading_channels: Vec<Nanos>,
    /// Completion times of programs whose page still occupies the write cache, earliest first.
    draining: BinaryHeap<std::cmp::Reverse<Nanos>>,
}

impl Clock {
    pub(super) fn new(timing: Timing) -> Self {
        let dies = vec![0; (timing.channels * timing.dies_per_channel) as usize];
        let channels = vec![0; timing.channels as usize];
        Self {
            timing,
            reading_dies: dies.clone(),
            reading_channels: channels.clone(),
            dies,
            channels,
            draining: BinaryHeap::new(),
        }
    }

    fn place(&self, slot: u32) -> (usize, usize) {
        let die = slot as usize % self.dies.len();
        (die, die % self.channels.len())
    }

    /// Completion of the host's read of a page that arrives at `at`.
    pub(super) fn read(&mut self, slot: u32, at: Nanos) -> Nanos {
        let (die, channel) = self.place(slot);
        let start = at.max(self.reading_dies[die]);
        let suspends = self.dies[die] > start;
        let suspended = if suspends { self.timing.suspend_ns } else { 0 };
        let sensed = start + suspended + self.timing.read_ns;
        let done = sensed.max(self.reading_channels[channel]) + self.timing.transfer_ns;
        (self.reading_dies[die], self.reading_channels[channel]) = (done, done);
        // An operation on the die goes on where it was; a transfer over the channel waits for one
        // transfer.
        self.dies[die] = match suspends {
            true => self.dies[die] + (done - start),
            false => done,
        };
        self.channels[channel] = self.channels[channel].max(sensed) + self.timing.transfer_ns;
        done
    }

    /// Completion of a page read for cleaning that arrives at `at`.
    pub(super) fn read_for_cleaning(&mut self, slot: u32, at: Nanos) -> Nanos {
        let (die, channel) = self.place(slot);
        let sensed = at.max(self.dies[die]) + self.timing.read_ns;
        let done = sensed.max(self.channels[channel]) + self.timing.transfer_ns;
        (self.dies[die], self.channels[channel]) = (done, done);
        done
    }

    /// Completion of a page program that arrives at `at`.
    pub(super) fn program(&mut self, slot: u32, at: Nanos) -> Nanos {
        let (die, channel) = self.place(slot);
        let sent = at.max(self.channels[channel]).max(self.dies[die]) + self.timing.transfer_ns;
        self.channels[channel] = sent;
        self.dies[die] = sent + self.timing.program_ns;
        self.dies[die]
    }

    /// All dies erase their part of a superblock.
    pub(super) fn erase(&mut self, at: Nanos) {
        for die in &mut self.dies {
            *die = at.max(*die) + self.timing.erase_ns;
        }
    }

    /// The drive's memory answers.
    pub(super) fn cache(&self, at: Nanos) -> Nanos {
        at + self.timing.cache_ns
    }

    /// A cached page is being programmed until `done`; it takes its place in the cache until then.
    pub(super) fn drain(&mut self, done: Nanos) {
        self.draining.push(std::cmp::Reverse(done));
    }

    /// When a write that arrives at `at` finds space in a cache of `capacity` pages that holds
    /// `cached` pages beside those being programmed.
    pub(super) fn room(&mut self, at: Nanos, capacity: usize, cached: usize) -> Nanos {
        let mut at = at;
        while let Some(&std::cmp::Reverse(done)) = self.draining.peek() {
            if done > at && self.draining.len() + cached < capacity {
                break;
            }
            at = at.max(done);
            self.draining.pop();
        }
        at
    }

    /// When everything given to the flash so far is done.
    pub(super) fn idle(&self) -> Nanos {
        self.dies.iter().copied().max().unwrap_or(0)
    }
}
