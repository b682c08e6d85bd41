//! Plans of faults, and when they occur.

use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use crate::error::IoErrorKind;
use crate::io::Op;

/// One way in which a device misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The I/O fails and has no effect.
    Error(IoErrorKind),
    /// Only a prefix of whole [atomic units](FaultPlan::atomic_unit) is transferred, and the I/O
    /// fails with [`IoErrorKind::Short`].
    Short,
    /// A write changes some of its atomic units and not others, and fails with
    /// [`IoErrorKind::Media`]; a read just fails.
    Torn,
    /// A write is acknowledged and not executed. No effect on other operations.
    Lost,
    /// A write is acknowledged and lands at another place; a read gives the bytes of another place.
    Misdirected,
    /// One bit of a write's data changes before it is stored, or of a read's data before it is
    /// given out (the stored data is intact then).
    BitFlip,
    /// The I/O takes longer.
    Delay(Duration),
    /// Power fails when this I/O is submitted: it, all in flight and all later ones fail and have
    /// no further effect. Go on with [`FaultDevice::crash`](crate::FaultDevice::crash).
    PowerLoss,
}

/// When a [`FaultRule`] fires, counting from 0 the I/Os that match its operations and region.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Trigger {
    /// On the n-th matching I/O only.
    At(u64),
    /// On the n-th matching I/O and all later ones.
    From(u64),
    /// On each matching I/O with this probability (0 to 1), drawn from the seed.
    Probability(f64),
}

/// A fault, and the I/Os that it hits.
#[derive(Debug, Clone)]
pub struct FaultRule {
    pub(crate) fault: Fault,
    pub(crate) trigger: Trigger,
    pub(crate) ops: Option<Vec<Op>>,
    pub(crate) region: Range<u64>,
}

impl FaultRule {
    /// A rule for all operations in the whole volume.
    pub fn new(fault: Fault, trigger: Trigger) -> FaultRule {
        FaultRule {
            fault,
            trigger,
            ops: None,
            region: 0..u64::MAX,
        }
    }

    /// Only these operations count and are hit.
    #[must_use]
    pub fn ops(mut self, ops: &[Op]) -> Self {
        self.ops = Some(ops.to_vec());
        self
    }

    /// Only I/Os that begin in this range of logical bytes count and are hit (flushes begin at 0).
    #[must_use]
    pub fn region(mut self, region: Range<u64>) -> Self {
        self.region = region;
        self
    }

    pub(crate) fn matches(&self, op: Op, offset: u64) -> bool {
        self.region.contains(&offset) && self.ops.as_ref().is_none_or(|ops| ops.contains(&op))
    }
}

/// The fate of writes that no flush has made durable, when power fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// None of them: the drive's cache is lost. Those in flight are lost too.
    None,
    /// All that were executed, and none in flight: as if only the process had been killed.
    Executed,
    /// Any of them, drawn from the seed: whole writes survive out of order, some are torn at the
    /// atomic unit, those in flight included. How many survive varies from crash to crash between
    /// none and all.
    Random,
}

/// The behaviour of a [`FaultDevice`](crate::FaultDevice). By default nothing goes wrong: I/Os
/// complete in order at the next poll; unflushed writes are volatile.
#[derive(Debug, Clone)]
pub struct FaultPlan {
    pub(crate) seed: u64,
    pub(crate) rules: Vec<FaultRule>,
    pub(crate) latency_us: RangeInclusive<u64>,
    pub(crate) atomic_unit: u32,
    pub(crate) max_bytes: Option<u64>,
    pub(crate) space_bytes: u64,
    pub(crate) logical_block: u32,
    pub(crate) log_bytes: u64,
    pub(crate) sleeps: bool,
    pub(crate) first_writes_cost_more: bool,
}

impl FaultPlan {
    /// No faults; everything random is drawn from `seed`.
    pub fn new(seed: u64) -> FaultPlan {
        FaultPlan {
            seed,
            rules: Vec::new(),
            latency_us: 0..=0,
            atomic_unit: 512,
            max_bytes: None,
            space_bytes: u64::MAX,
            logical_block: 512,
            log_bytes: 0,
            sleeps: false,
            first_writes_cost_more: false,
        }
    }

    /// Adds a rule. If several fire on one I/O, the first one added counts.
    #[must_use]
    pub fn rule(mut self, rule: FaultRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Simulated microseconds that an I/O takes, drawn evenly from this range, so that I/Os
    /// overtake each other; default 0.
    #[must_use]
    pub fn latency_us(mut self, range: RangeInclusive<u64>) -> Self {
        self.latency_us = range;
        self
    }

    /// Bytes that the device writes entirely or not at all when power fails or a write is torn: 512
    /// (default) or 4096.
    #[must_use]
    pub fn atomic_unit(mut self, bytes: u32) -> Self {
        self.atomic_unit = if bytes >= 4096 { 4096 } else { 512 };
        self
    }

    /// The alignment that the device asks for: 512 (default) or 4096.
    #[must_use]
    pub fn logical_block(mut self, bytes: u32) -> Self {
        self.logical_block = if bytes >= 4096 { 4096 } else { 512 };
        self
    }

    /// Bytes of a log device beside it, a multiple of 4096; default 0, none. A crash image keeps
    /// the one that was there.
    #[must_use]
    pub fn log_bytes(mut self, bytes: u64) -> Self {
        self.log_bytes = bytes / 4096 * 4096;
        self
    }

    /// The most bytes to which it may grow ([`VolumeError::Limit`](crate::VolumeError) beyond);
    /// default none.
    #[must_use]
    pub fn max_bytes(mut self, bytes: Option<u64>) -> Self {
        self.max_bytes = bytes;
        self
    }

    /// Bytes beyond which growing fails for lack of space
    /// ([`VolumeError::NoSpace`](crate::VolumeError)); default none.
    #[must_use]
    pub fn space_bytes(mut self, bytes: u64) -> Self {
        self.space_bytes = bytes;
        self
    }

    /// What the device says of [first writes](crate::Volume::first_writes_cost_more); default
    /// false. They cost no more here.
    #[must_use]
    pub fn first_writes_cost_more(mut self, more: bool) -> Self {
        self.first_writes_cost_more = more;
        self
    }

    /// Whether `wait` with nothing in flight really sleeps until woken, for tests with threads;
    /// default false: it returns at once, and the run is deterministic.
    #[must_use]
    pub fn sleeps(mut self, sleeps: bool) -> Self {
        self.sleeps = sleeps;
        self
    }
}
