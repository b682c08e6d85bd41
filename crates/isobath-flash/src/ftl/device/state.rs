//! The state that a drive keeps when it is switched off, so that it can be switched on again.

use super::{Cached, FlashConfig, FlashDevice, FlashError, Smart};
use crate::ftl::PageData;
use crate::log_space::{CLOSED, OpenSegment};
use crate::policy::{SegmentId, SegmentRecord, SegmentState, StreamId, Tick};
use crate::space::{BUFFERED, NOWHERE};

/// A drive without its contents: mapping, counters and the records of its superblocks.
///
/// What a cleaning policy has learned beyond these records begins again, as after a power cycle.
#[derive(Debug, Clone, PartialEq)]
pub struct FlashState {
    /// The counters.
    pub smart: Smart,
    /// The update clock.
    pub now: Tick,
    /// Of each logical page the slot that holds it (superblock × pages per superblock, rounded up
    /// to a power of two of at least 64, + page); `u32::MAX` if it has none.
    pub map: Vec<u32>,
    /// Erases of each superblock.
    pub wear: Vec<u32>,
    /// The record of each superblock.
    pub segments: Vec<SegmentRecord>,
    /// Erased superblocks, in the order in which they are used.
    pub free: Vec<u32>,
    /// Of each stream the open superblock and the number of its pages that are programmed.
    pub open: Vec<Option<(u32, u32)>>,
    /// Of each page the policy's history, where it keeps one.
    pub histories: Vec<u32>,
}

fn inconsistent(reason: impl Into<String>) -> FlashError {
    FlashError::State {
        reason: reason.into(),
    }
}

impl<D: PageData> FlashDevice<D> {
    /// Moves the write cache to flash, as a drive does at an orderly shutdown, and returns what it
    /// keeps.
    ///
    /// # Errors
    /// If cleaning finds no space.
    pub fn shut_down(&mut self) -> Result<FlashState, FlashError> {
        self.destage(0)?;
        let segments = 0..self.log.table.len();
        Ok(FlashState {
            smart: self.smart,
            now: self.log.now,
            map: (0..self.pages)
                .map(|page| self.log.space.get(page))
                .collect(),
            wear: self.wear.clone(),
            segments: segments
                .map(|s| self.log.table.record(SegmentId(s)))
                .collect(),
            free: self.log.free.iter().copied().collect(),
            open: self
                .log
                .open
                .iter()
                .map(|open| {
                    let used = open.used_bytes / self.config.page_bytes;
                    (!open.is_closed()).then_some((open.segment, used))
                })
                .collect(),
            histories: self.log.histories.clone(),
        })
    }

    /// A drive as [`shut_down`](Self::shut_down) left it. `data` holds its contents still.
    ///
    /// # Errors
    /// If the configuration's numbers do not fit each other, or [`FlashError::State`] if the state
    /// is not one of such a drive.
    pub fn switch_on(config: FlashConfig, data: D, state: &FlashState) -> Result<Self, FlashError> {
        let mut drive = Self::new(config, data)?;
        state.check_shape(&drive)?;
        for (page, &slot) in (0u32..).zip(&state.map) {
            if slot != NOWHERE {
                drive.log.space.put(slot, page);
            }
        }
        let mut sealed = Vec::new();
        for (segment, record) in (0u32..).zip(&state.segments) {
            drive.check_segment(state, SegmentId(segment), record)?;
            drive.log.table.restore(SegmentId(segment), record);
            if record.state == SegmentState::Sealed {
                sealed.push((record.seal_seq, segment));
            }
        }
        sealed.sort_unstable();
        for (_, segment) in sealed {
            drive
                .log
                .policy
                .sealed(&drive.log.table, SegmentId(segment));
        }
        drive.log.free = state.free.clone().into();
        let open = |&(segment, used): &(u32, u32)| OpenSegment {
            segment,
            next_slot: drive.log.space.first_slot(segment) + used,
            used_bytes: used * drive.config.page_bytes,
        };
        let streams = state.open.iter();
        drive.log.open = streams
            .map(|stream| stream.as_ref().map_or(CLOSED, open))
            .collect();
        drive.log.histories.clone_from(&state.histories);
        drive.wear.clone_from(&state.wear);
        (drive.smart, drive.log.now) = (state.smart, state.now);
        Ok(drive)
    }

    /// Pages that hold data as the host sees them: written and not trimmed since.
    pub fn valid_pages(&self) -> u64 {
        let on_flash = (0..self.log.table.len())
            .map(|segment| u64::from(self.log.table.live_pages(SegmentId(segment))))
            .sum::<u64>();
        let (mut more, mut fewer) = (0, 0);
        for (&page, cached) in &self.cache {
            let is_on_flash = self.log.space.get(page) < BUFFERED;
            match cached {
                Cached::Written(_) => more += u64::from(!is_on_flash),
                Cached::Trimmed => fewer += u64::from(is_on_flash),
            }
        }
        on_flash + more - fewer
    }

    /// A superblock's record agrees with the mapping and with the lists of free and open
    /// superblocks.
    fn check_segment(
        &self,
        state: &FlashState,
        segment: SegmentId,
        record: &SegmentRecord,
    ) -> Result<(), FlashError> {
        let mut slots = Vec::new();
        self.log.space.valid_slots(segment.0, &mut slots);
        let live = slots.len() as u32;
        if record.live_pages != live || record.live_bytes != live * self.config.page_bytes {
            return Err(inconsistent(format!(
                "superblock {} has {live} mapped pages and counts {}",
                segment.0, record.live_pages
            )));
        }
        let programmed = match record.state {
            SegmentState::Free => 0,
            SegmentState::Sealed => self.pages_per_block,
            SegmentState::Open => {
                let open = state.open.iter().flatten();
                let mut open = open.filter(|open| open.0 == segment.0);
                open.next().map_or(0, |open| open.1)
            }
            SegmentState::Cleaning => 0,
        };
        let end = self.log.space.first_slot(segment.0) + programmed;
        if slots.last().is_some_and(|&last| last >= end) {
            return Err(inconsistent(format!(
                "superblock {} has mapped pages that were never programmed",
                segment.0
            )));
        }
        Ok(())
    }
}

impl FlashState {
    /// Lengths and numbers fit a fresh drive of the configuration.
    fn check_shape<D>(&self, drive: &FlashDevice<D>) -> Result<(), FlashError> {
        let blocks = drive.wear.len();
        let lengths = [
            ("pages", self.map.len(), drive.pages as usize),
            ("superblocks", self.segments.len(), blocks),
            ("erase counts", self.wear.len(), blocks),
            ("streams", self.open.len(), drive.log.open.len()),
            ("histories", self.histories.len(), drive.log.histories.len()),
        ];
        if let Some((what, found, needed)) = lengths.into_iter().find(|(_, a, b)| a != b) {
            return Err(inconsistent(format!("{found} {what} instead of {needed}")));
        }
        let stride = drive.pages_per_block.next_power_of_two().max(64);
        let mut used = vec![false; blocks * stride as usize];
        for (page, &slot) in self
            .map
            .iter()
            .enumerate()
            .filter(|(_, slot)| **slot != NOWHERE)
        {
            match used.get_mut(slot as usize) {
                Some(taken) if !*taken => *taken = true,
                _ => {
                    return Err(inconsistent(format!(
                        "page {page} is mapped to slot {slot}"
                    )));
                }
            }
        }
        self.check_lists(drive)
    }

    /// Every superblock is free, open, or sealed, and listed once where it says.
    fn check_lists<D>(&self, drive: &FlashDevice<D>) -> Result<(), FlashError> {
        let mut expected = vec![SegmentState::Sealed; self.segments.len()];
        let streams = self.open.iter().enumerate();
        let open = streams.filter_map(|(stream, open)| Some((stream, (*open)?)));
        let free = self.free.iter().map(|&block| (block, SegmentState::Free));
        let listed = free.chain(open.clone().map(|(_, open)| (open.0, SegmentState::Open)));
        for (block, state) in listed {
            match expected.get_mut(block as usize) {
                Some(slot) if *slot == SegmentState::Sealed => *slot = state,
                _ => {
                    return Err(inconsistent(format!(
                        "superblock {block} is listed wrongly"
                    )));
                }
            }
        }
        for (block, (record, expected)) in self.segments.iter().zip(&expected).enumerate() {
            let has_stream = record.stream.index() < drive.log.open.len();
            if record.state != *expected || !has_stream {
                return Err(inconsistent(format!(
                    "superblock {block} is {:?} of stream {} and should be {expected:?}",
                    record.state, record.stream.0
                )));
            }
        }
        for (stream, (block, used)) in open {
            let record = &self.segments[block as usize];
            if record.stream != StreamId(stream as u16) || used >= drive.pages_per_block {
                return Err(inconsistent(format!("open superblock {block}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ftl::{MemoryData, NoData};
    use crate::policy::PolicyKind;
    use crate::rng::Rng;

    fn config(policy: PolicyKind) -> FlashConfig {
        let mut config = FlashConfig::new(1500 * 512);
        config.page_bytes = 512;
        config.block_bytes = 64 * 512;
        config.over_provisioning = 0.35;
        config.cache_pages = 16;
        config.policy = policy;
        config
    }

    /// Writes, trims and flushes at random, and keeps what must be read.
    fn work(drive: &mut FlashDevice<MemoryData>, model: &mut [u8], rng: &mut Rng, steps: u32) {
        for _ in 0..steps {
            let page = rng.below(1500);
            let value = rng.below(255) as u8 + 1;
            match rng.below(100) {
                0..=2 => {
                    drive.trim(page, 1, 0).unwrap();
                    model[page as usize] = 0;
                }
                3 => drop(drive.flush(0).unwrap()),
                _ => {
                    drive.write(page, &[value; 512], 0).unwrap();
                    model[page as usize] = value;
                }
            }
        }
    }

    #[test]
    fn a_drive_goes_on_where_it_was_switched_off() {
        for policy in [
            PolicyKind::Greedy,
            PolicyKind::Age,
            PolicyKind::CostBenefit,
            PolicyKind::MultiLog,
            PolicyKind::Mdc,
            PolicyKind::LifeTable,
        ] {
            let mut drive = FlashDevice::new(config(policy), MemoryData::new()).unwrap();
            let (mut model, mut rng) = (vec![0; 1500], Rng::new(7));
            for round in 0..6 {
                work(&mut drive, &mut model, &mut rng, 4000);
                let valid = model.iter().filter(|&&value| value > 0).count() as u64;
                assert_eq!(drive.valid_pages(), valid, "{policy} with a write cache");
                let state = drive.shut_down().unwrap();
                let data = std::mem::take(drive.data_mut());
                drive = FlashDevice::switch_on(config(policy), data, &state).unwrap();
                assert_eq!(drive.valid_pages(), valid, "{policy} switched on");
                assert_eq!(drive.shut_down().unwrap(), state, "{policy} {round}");
                let mut out = [0; 512];
                for (page, &value) in (0u32..).zip(&model) {
                    drive.read(page, &mut out, 0).unwrap();
                    assert_eq!(out, [value; 512], "{policy} round {round} page {page}");
                }
            }
            assert!(drive.smart().erases > 200, "{policy} cleaned");
        }
    }

    #[test]
    fn the_same_operations_after_the_same_state_give_the_same_drive() {
        let mut drive = FlashDevice::new(config(PolicyKind::Greedy), NoData).unwrap();
        drive.precondition(2.0, 1).unwrap();
        let state = drive.shut_down().unwrap();
        let run = || {
            let mut drive =
                FlashDevice::switch_on(config(PolicyKind::Greedy), NoData, &state).unwrap();
            let mut rng = Rng::new(3);
            for _ in 0..5000 {
                drive.write(rng.below(1500), &[0; 512], 0).unwrap();
            }
            drive.shut_down().unwrap()
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn states_that_contradict_themselves_are_refused() {
        let mut drive = FlashDevice::new(config(PolicyKind::Greedy), NoData).unwrap();
        drive.precondition(1.0, 1).unwrap();
        let good = drive.shut_down().unwrap();
        let refused = |change: &dyn Fn(&mut FlashState)| {
            let mut state = good.clone();
            change(&mut state);
            let error = FlashDevice::switch_on(config(PolicyKind::Greedy), NoData, &state);
            error.map(drop).unwrap_err().to_string()
        };
        assert!(refused(&|s| s.map.truncate(1499)).contains("1499 pages instead of 1500"));
        assert!(refused(&|s| s.map[1] = s.map[0]).contains("page 1 is mapped"));
        assert!(refused(&|s| s.map[1] = 1 << 30).contains("page 1 is mapped"));
        assert!(refused(&|s| s.map[1] = NOWHERE).contains("counts"));
        assert!(refused(&|s| s.free.push(s.free[0])).contains("listed wrongly"));
        assert!(refused(&|s| s.free.truncate(s.free.len() - 1)).contains("should be Sealed"));
        assert!(refused(&|s| s.segments[0].stream = StreamId(99)).contains("stream 99"));
        let refused_open = refused(&|s| {
            let open = s.open.iter_mut().flatten().next().unwrap();
            open.1 = 0;
        });
        assert!(refused_open.contains("never programmed"), "{refused_open}");
    }
}
