//! Opens the drive without its newest superblock.
//!
//! Each superblock is written twice where the older one would lead to something else: by an
//! opening, when the log changes its extents, when the volume is cut, by closing. So a store whose
//! newest superblock is corrupt is there with all that was acknowledged, or it says that something
//! is corrupt; it is never there with less. One that logs nothing is not there until it is closed.

use std::sync::Arc;

use isobath::Error;
use isobath_io::{FaultDevice, Survivors};

use super::run::{Failure, Run, beside};
use crate::clients::plan::Scenario;
use crate::clients::recorder::Recorder;
use crate::clients::state;
use crate::history::History;
use crate::random::Steps;

/// Offsets of the two superblocks, and of the number in each.
const PLACES: [u64; 2] = [0, 32_768];
const MAGIC: &[u8; 8] = b"ISOBATH\0";
const SEQUENCE: usize = 16;
/// Steps from one look to the next, at most.
const WITHIN: u64 = 6000;

/// When a round looks.
pub(super) struct Superblocks {
    left: u64,
    steps: Steps,
    /// The device's length so far.
    length: u64,
    /// The log's place in the last superblocks.
    log: [u8; 4],
}

/// The offset of the log's place in each superblock.
const LOG_PLACE: u64 = 4096 - 32;
/// Steps between two looks at where the log lies, and from a move to the look at what it has left.
const LOOK_EVERY: u64 = 64;
const AFTER_MOVE: u64 = 300;

impl Superblocks {
    pub(super) fn new(scenario: &Scenario, round: u64) -> Superblocks {
        let faults = &scenario.faults;
        let looks = faults.io.is_none() && faults.corruption.is_none();
        Superblocks {
            left: if looks { scenario.more.superblocks } else { 0 },
            steps: Steps::new(scenario.seed ^ 0x7375_7065, round, WITHIN),
            length: 0,
            log: [0; 4],
        }
    }

    /// Whether the log has moved since the last look.
    fn has_moved(&mut self, step: u64, device: &FaultDevice) -> bool {
        if !step.is_multiple_of(LOOK_EVERY) {
            return false;
        }
        let mut log = [[0; 4]; 2];
        for (place, log) in PLACES.iter().zip(&mut log) {
            device.peek(place + LOG_PLACE, log);
        }
        // The one that is new, whichever superblock names it.
        let news = log.into_iter().find(|first| *first != self.log);
        let is_first = self.log == [0; 4];
        self.log = news.unwrap_or(self.log);
        news.is_some() && !is_first
    }

    /// Whether to look now: at drawn steps, and whenever the volume was cut.
    pub(super) fn is_due(&mut self, step: u64, device: &FaultDevice) -> bool {
        if self.left == 0 {
            return false;
        }
        let before = std::mem::replace(&mut self.length, device.bytes());
        if self.length < before {
            return true;
        }
        if self.has_moved(step, device) {
            self.steps.at = self.steps.at.min(step + AFTER_MOVE);
        }
        let is_due = self.steps.are_due(step);
        self.left -= u64::from(is_due);
        is_due
    }
}

/// Describes both superblocks, to explain a failure.
fn describe(image: &FaultDevice) -> String {
    let word = |place: u64| {
        let mut bytes = [0; 8];
        image.peek(place, &mut bytes);
        u64::from_le_bytes(bytes)
    };
    let each = PLACES.map(|place| {
        format!(
            "number {}, {} segments, log from {} durable to {}",
            word(place + 16),
            word(place + 48) as u32,
            word(place + 152),
            word(place + 168)
        )
    });
    format!("superblocks: {}; {} bytes", each.join("; "), image.bytes())
}

/// Changes a bit of the newer superblock; `false` if there are not two.
fn corrupt_newest(image: &FaultDevice) -> bool {
    let number = |place: u64| {
        let mut bytes = [0; SEQUENCE + 8];
        image.peek(place, &mut bytes);
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let sequence = rest[SEQUENCE - 8..].first_chunk::<8>()?;
        (magic == MAGIC).then_some(u64::from_le_bytes(*sequence))
    };
    let (Some(first), Some(second)) = (number(PLACES[0]), number(PLACES[1])) else {
        return false;
    };
    let at = PLACES[usize::from(second > first)] + 100;
    image.corrupt(at..at + 1, |bytes| bytes[0] ^= 1);
    true
}

/// Whether an error says that something on the drive is corrupt.
fn says_corrupt(error: &Error) -> bool {
    matches!(
        error,
        Error::CorruptPage { .. }
            | Error::Structure { .. }
            | Error::SuperblockCorrupt { .. }
            | Error::LogCorrupt { .. }
            | Error::UnknownLogRecord { .. }
    )
}

impl Run {
    /// Opens what a power cut would leave on the drive now, without its newest superblock.
    pub(super) fn open_by_older(
        &mut self,
        device: &FaultDevice,
        recorder: &Recorder,
    ) -> Result<(), Failure> {
        let number = self.report.counts.superblocks;
        let survivors = match number % 2 {
            0 => Survivors::Executed,
            _ => Survivors::Random,
        };
        let plan = self.scenario.device(500 + number);
        let image = device.crash_image_split(survivors, survivors, number, plan);
        if !corrupt_newest(&image) {
            return Ok(());
        }
        let history = recorder.history();
        let history = history.until(history.now());
        let opens = self.scenario.log;
        self.report.counts.superblocks += 1;
        let created = recorder.created();
        beside(|| self.open_image(&image, &history, &created, opens, false))
    }

    /// The same of a store that was closed: either superblock is enough.
    pub(super) fn open_closed_by_older(
        &mut self,
        device: &FaultDevice,
        recorder: &Recorder,
    ) -> Result<(), Failure> {
        let faults = &self.scenario.faults;
        if self.scenario.more.superblocks == 0 || faults.io.is_some() || faults.corruption.is_some()
        {
            return Ok(());
        }
        let plan = self.scenario.device(600);
        let image = device.crash_image_with(Survivors::None, 0, plan);
        if !corrupt_newest(&image) {
            return Ok(());
        }
        self.report.counts.superblocks += 1;
        let (history, created) = (recorder.history(), recorder.created());
        beside(|| self.open_image(&image, &history, &created, true, true))
    }

    fn open_image(
        &mut self,
        image: &Arc<FaultDevice>,
        history: &History,
        created: &state::Created,
        opens: bool,
        was_closed: bool,
    ) -> Result<(), Failure> {
        let simulation = match self.open(image, 1) {
            Ok(simulation) if opens => simulation,
            Ok(_) => {
                return Err(Failure::of(
                    "a store opens that has no log and was not closed",
                ));
            }
            Err(Error::NotClosedCleanly { .. }) if !opens => return Ok(()),
            Err(error) if says_corrupt(&error) && !was_closed => return Ok(()),
            Err(error) => {
                let what = format!("opening: {error} ({})", describe(image));
                return Err(Failure::of(what));
            }
        };
        let state = state::read(simulation.store(), &self.records.universe, created);
        let is_corrupt = |(_, error): &(_, Error)| says_corrupt(error);
        if !was_closed && state.unreadable.iter().any(is_corrupt) {
            return Ok(());
        }
        self.judge(state, history.clone(), was_closed).map(drop)
    }
}
