//! A simulated device that misbehaves on purpose and reproducibly.

mod channel;
mod medium;
mod plan;
mod rng;
mod state;

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::device::{Channel, ChannelOptions, Device};
use crate::error::{IoError, IoErrorKind, VolumeError};
use crate::io::Op;
use crate::options::{BackendKind, BackendReport};
use medium::PAGE;
pub use plan::{Fault, FaultPlan, FaultRule, Survivors, Trigger};
use state::{FaultState, Task};

/// An in-process device with a [`FaultPlan`]: failing, short, torn, lost, misdirected and corrupted
/// I/Os, delays and overtaking, and a volatile write cache whose contents a power loss mixes up.
///
/// Everything that it does is a function of the plan (with its seed) and of the sequence of calls,
/// so a run in one thread can be repeated exactly. Its clock is simulated: every poll takes one
/// microsecond, and a `wait` jumps to the next completion. Effects of an I/O happen at its
/// completion; a write's data is taken at its hand-over.
///
/// With [`FaultPlan::log_bytes`] there is a log device too, with a cache of its own; the sequence
/// of I/Os, the clock and the rules are those of both, and the power goes for both at once.
///
/// A write is durable when it is [`durable`](crate::Io::durable) and complete, or when a flush
/// completed that was handed over after the write's completion had been *reaped*; not earlier,
/// which is what callers may assume of a real drive.
///
/// ```
/// use isobath_io::{FaultDevice, FaultPlan, Survivors, Volume};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = FaultDevice::new(1 << 20, FaultPlan::new(42));
/// let volume = Volume::from_device(device.clone());
/// volume.write_at(0, &[1; 4096])?;
/// volume.sync()?;
/// volume.write_at(4096, &[2; 4096])?;
///
/// let after = device.crash(Survivors::None);
/// assert!(volume.sync().is_err());
/// let mut bytes = [9; 8192];
/// Volume::from_device(after).read_at(0, &mut bytes)?;
/// assert!(bytes[..4096] == [1; 4096] && bytes[4096..] == [0; 4096]);
/// # Ok(())
/// # }
/// ```
pub struct FaultDevice {
    state: Mutex<FaultState>,
    plan: FaultPlan,
}

impl std::fmt::Debug for FaultDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FaultDevice").finish_non_exhaustive()
    }
}

impl FaultDevice {
    /// A zeroed device of `bytes` bytes (rounded up to 4096).
    pub fn new(bytes: u64, plan: FaultPlan) -> Arc<FaultDevice> {
        let state = FaultState::new(&plan, bytes.next_multiple_of(PAGE));
        Arc::new(FaultDevice {
            state: Mutex::new(state),
            plan,
        })
    }

    fn lock(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a power loss at this moment would leave: a new device with the same plan, whose rules
    /// have counted nothing yet. This device goes on undisturbed. `variant` draws one of the many
    /// possible outcomes of [`Survivors::Random`]. The log device, if there is one, loses its
    /// cache in the same way, by a draw of its own.
    pub fn crash_image(&self, survivors: Survivors, variant: u64) -> Arc<FaultDevice> {
        self.image([survivors; 2], variant, self.plan.clone())
    }

    /// The same, with another plan for the time after.
    pub fn crash_image_with(
        &self,
        survivors: Survivors,
        variant: u64,
        plan: FaultPlan,
    ) -> Arc<FaultDevice> {
        self.image([survivors; 2], variant, plan)
    }

    /// The same, where the data device and the log device fare differently.
    pub fn crash_image_split(
        &self,
        data: Survivors,
        log: Survivors,
        variant: u64,
        plan: FaultPlan,
    ) -> Arc<FaultDevice> {
        self.image([data, log], variant, plan)
    }

    fn image(&self, survivors: [Survivors; 2], variant: u64, plan: FaultPlan) -> Arc<FaultDevice> {
        let state = self.lock().after_power_loss(&plan, survivors, variant);
        Arc::new(FaultDevice {
            state: Mutex::new(state),
            plan,
        })
    }

    /// Cuts the power: every later I/O on this device fails, in flight or new, and the device that
    /// is returned has what survived.
    pub fn crash(&self, survivors: Survivors) -> Arc<FaultDevice> {
        let image = self.crash_image(survivors, 0);
        self.lock().power_off();
        image
    }

    /// Cuts the power and leaves it so: every later I/O fails, in flight or new.
    /// [`FaultDevice::crash_image`] says what survived.
    pub fn power_off(&self) {
        self.lock().power_off();
    }

    /// Whether the power was cut.
    pub fn is_off(&self) -> bool {
        self.lock().is_off()
    }

    /// Bytes of the device now, the log device excluded.
    pub fn bytes(&self) -> u64 {
        self.lock().len()
    }

    /// Adds a rule now. Its count begins with the next I/O.
    pub fn add_rule(&self, rule: FaultRule) {
        self.lock().add_rule(rule);
    }

    /// Removes all rules.
    pub fn clear_rules(&self) {
        self.lock().clear_rules();
    }

    /// I/Os handed over so far, blocking ones included. The next one has this index.
    pub fn io_count(&self) -> u64 {
        self.lock().io_count()
    }

    /// How often a rule has fired.
    pub fn fault_count(&self) -> u64 {
        self.lock().fault_count()
    }

    /// A number that depends on every I/O handed over and on its outcome, in order: equal for equal
    /// runs.
    pub fn digest(&self) -> u64 {
        self.lock().digest()
    }

    /// The simulated time since the device was made.
    pub fn now(&self) -> Duration {
        Duration::from_micros(self.lock().now_us())
    }

    /// Lets simulated time pass.
    pub fn advance(&self, by: Duration) {
        // 584,000 years of microseconds fit.
        self.lock().advance(by.as_micros() as u64);
    }

    /// Changes stored bytes without an I/O (a media error), durable ones included. `change` gets
    /// the bytes of each page that the range touches, cut to the range.
    pub fn corrupt(&self, range: Range<u64>, change: impl Fn(&mut [u8])) {
        self.lock().corrupt(range, &change);
    }

    /// Reads the stored bytes, without counting as an I/O and without faults.
    pub fn peek(&self, offset: u64, buf: &mut [u8]) {
        self.lock().peek(offset, buf);
    }

    fn blocking(&self, op: Op, offset: u64, len: u64, task: Task) -> Result<Vec<u8>, IoError> {
        let mut state = self.lock();
        state.check(op, offset, len)?;
        state.run_now(op, offset, len, task)
    }
}

/// Refuses a length that ends within a page.
fn whole_pages(new_len: u64) -> Result<(), VolumeError> {
    if new_len.is_multiple_of(PAGE) {
        return Ok(());
    }
    Err(VolumeError::BadOption {
        option: "new_len",
        must: "a multiple of 4096",
        found: new_len,
    })
}

impl Device for FaultDevice {
    fn len(&self) -> u64 {
        self.lock().len()
    }

    fn limit(&self) -> Option<u64> {
        self.plan.max_bytes
    }

    fn logical_block(&self) -> u32 {
        self.plan.logical_block
    }

    fn grow(&self, new_len: u64) -> Result<(), VolumeError> {
        whole_pages(new_len)?;
        let mut state = self.lock();
        if let Some(limit) = self.plan.max_bytes
            && new_len > limit
        {
            return Err(VolumeError::Limit {
                limit,
                asked: new_len,
            });
        }
        if new_len > self.plan.space_bytes {
            return Err(VolumeError::NoSpace {
                path: "the simulated device".into(),
                needed: new_len - state.len(),
            });
        }
        if state.is_off() {
            let kind = IoErrorKind::Media;
            return Err(IoError::new(kind, Op::Write, state.len(), new_len).into());
        }
        state.grow(new_len);
        Ok(())
    }

    fn first_writes_cost_more(&self) -> bool {
        self.plan.first_writes_cost_more
    }

    fn can_shrink(&self) -> bool {
        true
    }

    fn shrink(&self, new_len: u64) -> Result<(), VolumeError> {
        whole_pages(new_len)?;
        let mut state = self.lock();
        if state.is_off() {
            let kind = IoErrorKind::Media;
            return Err(IoError::new(kind, Op::Write, new_len, state.len()).into());
        }
        state.shrink(new_len);
        Ok(())
    }

    fn log_len(&self) -> u64 {
        self.lock().log_len()
    }

    fn channel(self: Arc<Self>, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError> {
        options.check()?;
        channel::open(self, options)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        let len = buf.len() as u64;
        let bytes = self.blocking(Op::Read, offset, len, Task::Read)?;
        buf.copy_from_slice(&bytes);
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let len = buf.len() as u64;
        if !(offset | len).is_multiple_of(u64::from(self.plan.logical_block)) {
            return Err(IoError::new(
                IoErrorKind::Misaligned,
                Op::Write,
                offset,
                len,
            ));
        }
        let mut parts = Vec::new();
        medium::page_writes(offset, buf, &mut parts);
        let task = Task::Write {
            parts,
            durable: false,
        };
        self.blocking(Op::Write, offset, len, task).map(|_| ())
    }

    fn discard_at(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.blocking(Op::Discard, offset, len, Task::Discard)
            .map(|_| ())
    }

    fn sync(&self) -> Result<(), IoError> {
        let flush = Task::Flush { log_too: true };
        self.blocking(Op::Flush, 0, 0, flush).map(|_| ())
    }

    fn backend_report(&self) -> BackendReport {
        BackendReport {
            backend: BackendKind::InProcess("fault injector"),
            direct: true,
            notes: Vec::new(),
        }
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
