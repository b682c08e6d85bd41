//! The log's area on its volume.

use isobath_io::{IoError, Volume};

use super::layout::BLOCK;

/// The log's place: extents of a volume. From the LSN `base` on they hold the log one after
/// another, and then from the first one again.
///
/// Where each LSN lies follows from this list alone, so a log can become longer or shorter without
/// moving what a recovery reads ([`LogArea::relaid`]).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LogArea {
    base: u64,
    /// Offset and length in bytes.
    extents: Vec<(u64, u64)>,
    /// Bytes from the base on at which each extent ends.
    ends: Vec<u64>,
}

impl LogArea {
    /// The area that consists of `extents` from the LSN `base` on, as (volume offset, length) in
    /// bytes. `None` unless all are multiples of 4096 and there is at least one extent.
    pub(crate) fn new(base: u64, extents: impl IntoIterator<Item = (u64, u64)>) -> Option<LogArea> {
        let mut area = LogArea {
            base,
            extents: Vec::new(),
            ends: Vec::new(),
        };
        for (offset, length) in extents {
            if length == 0 || !(offset | length | base).is_multiple_of(BLOCK) {
                return None;
            }
            area.push(offset, length);
        }
        (!area.extents.is_empty()).then_some(area)
    }

    fn push(&mut self, offset: u64, length: u64) {
        let end = self.bytes() + length;
        match (self.extents.last_mut(), self.ends.last_mut()) {
            (Some(last), Some(last_end)) if last.0 + last.1 == offset => {
                last.1 += length;
                *last_end = end;
            }
            _ => {
                self.extents.push((offset, length));
                self.ends.push(end);
            }
        }
    }

    /// The LSN at which the list of extents begins.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// The extents, as (volume offset, length) in bytes.
    pub(crate) fn extents(&self) -> &[(u64, u64)] {
        &self.extents
    }

    /// The area in which the log from `start` to `end`, whole blocks, lies where it does now, and
    /// goes on in `rest`.
    pub(crate) fn relaid(
        &self,
        start: u64,
        end: u64,
        rest: impl IntoIterator<Item = (u64, u64)>,
    ) -> Option<LogArea> {
        LogArea::new(start, self.pieces(start, end - start).chain(rest))
    }

    /// The parts of `extents` that hold nothing of the log from `start` to `end`.
    pub(crate) fn without(
        &self,
        start: u64,
        end: u64,
        extents: impl IntoIterator<Item = (u64, u64)>,
    ) -> Vec<(u64, u64)> {
        let mut left: Vec<_> = extents.into_iter().collect();
        for (from, length) in self.pieces(start, end - start) {
            let to = from + length;
            left = left
                .into_iter()
                .flat_map(|(offset, length)| {
                    let after = offset + length;
                    let (a, b) = ((offset, after.min(from)), (offset.max(to), after));
                    [a, b]
                })
                .filter(|(a, b)| a < b)
                .map(|(a, b)| (a, b - a))
                .collect();
        }
        left
    }

    /// Bytes of the area.
    pub(crate) fn bytes(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    /// Where `length` bytes from `lsn` on lie: (volume offset, length), in order.
    pub(crate) fn pieces(&self, lsn: u64, length: u64) -> impl Iterator<Item = (u64, u64)> {
        let (mut at, end) = (lsn, lsn + length);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let position = at.wrapping_sub(self.base) % self.bytes();
            let index = self
                .ends
                .partition_point(|&extent_end| extent_end <= position);
            let (offset, extent) = self.extents[index];
            let within = position + extent - self.ends[index];
            let count = (extent - within).min(end - at);
            at += count;
            Some((offset + within, count))
        })
    }

    /// Fills the area with zeros and makes them durable: on many drives and file
    /// systems a flushed write to blocks that were written before takes half as
    /// long as one to blocks that are merely allocated.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn fill_with_zeros(&self, volume: &Volume) -> Result<(), IoError> {
        for &(offset, length) in &self.extents {
            volume.write_zeros(offset, length)?;
        }
        volume.sync()
    }

    /// Reads what lies in the area from `lsn` on.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn read(&self, volume: &Volume, lsn: u64, into: &mut [u8]) -> Result<(), IoError> {
        let mut rest = into;
        for (offset, count) in self.pieces(lsn, rest.len() as u64) {
            let (now, later) = rest.split_at_mut(count as usize);
            volume.read_at(offset, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Writes `bytes`, whole blocks, to where `lsn` lies in the area. Blocks.
    ///
    /// # Errors
    ///
    /// Any of the volume's.
    pub(crate) fn write(&self, volume: &Volume, lsn: u64, bytes: &[u8]) -> Result<(), IoError> {
        let mut rest = bytes;
        for (offset, count) in self.pieces(lsn, bytes.len() as u64) {
            let (now, later) = rest.split_at(count as usize);
            volume.write_at(offset, now)?;
            rest = later;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_whole_blocks_make_an_area() {
        assert!(LogArea::new(0, []).is_none());
        assert!(LogArea::new(0, [(4096, 0)]).is_none());
        assert!(LogArea::new(0, [(4096, 512)]).is_none());
        assert!(LogArea::new(0, [(512, 4096)]).is_none());
        assert!(LogArea::new(512, [(4096, 4096)]).is_none());
        let area = LogArea::new(0, [(0, 8192), (65536, 4096), (69632, 4096)]).unwrap();
        assert_eq!(area.bytes(), 16384);
        assert_eq!(area.extents(), [(0, 8192), (65536, 8192)]);
    }

    proptest! {
        /// Byte by byte, the area is its extents one after another, repeated from its base on.
        #[test]
        fn positions_go_round(
            base in 0u64..9,
            lengths in prop::collection::vec(1u64..4, 1..5),
            lsn in 0u64..100_000,
            length in 0u64..30_000,
        ) {
            let extents: Vec<(u64, u64)> = lengths
                .iter()
                .enumerate()
                .map(|(i, blocks)| ((10 - i as u64) * (1 << 20), blocks * BLOCK))
                .collect();
            let flat: Vec<u64> = extents.iter().flat_map(|&(offset, length)| offset..offset + length).collect();
            let base = base * BLOCK;
            let lsn = base + lsn;
            let area = LogArea::new(base, extents).unwrap();
            let found: Vec<u64> = area
                .pieces(lsn, length)
                .flat_map(|(offset, count)| offset..offset + count)
                .collect();
            let expected: Vec<u64> = (lsn..lsn + length)
                .map(|at| flat[((at - base) % flat.len() as u64) as usize])
                .collect();
            prop_assert_eq!(found, expected);
        }

        /// What the log has is where it was, and all that is kept is used once.
        #[test]
        fn what_is_kept_stays_where_it_is(
            lengths in prop::collection::vec(1u64..4, 1..5),
            skipped in 0u64..9,
            used in 0u64..9,
            more in 0u64..3,
            others in prop::collection::vec(any::<bool>(), 5),
        ) {
            let extents: Vec<(u64, u64)> = lengths
                .iter()
                .enumerate()
                .map(|(i, blocks)| ((10 - i as u64) * (1 << 20), blocks * BLOCK))
                .collect();
            let area = LogArea::new(0, extents.clone()).unwrap();
            let bytes = area.bytes();
            let start = skipped * BLOCK;
            let end = start + (used * BLOCK).min(bytes);
            let blocks = |area: &LogArea, from: u64, to: u64| -> Vec<u64> {
                area.pieces(from, to - from)
                    .flat_map(|(offset, length)| (offset..offset + length).step_by(BLOCK as usize))
                    .collect()
            };
            // Longer: all of a lap, and a new extent.
            let new = (more > 0).then_some((1 << 30, more * BLOCK));
            let rest: Vec<_> = area.pieces(end, start + bytes - end).chain(new).collect();
            let longer = area.relaid(start, end, rest).unwrap();
            prop_assert_eq!(longer.bytes(), bytes + more * BLOCK);
            prop_assert_eq!(blocks(&longer, start, start + bytes), blocks(&area, start, start + bytes));
            // In some of the extents.
            let chosen = extents.iter().zip(&others).filter(|(_, is)| **is).map(|(extent, _)| *extent);
            let chosen: Vec<_> = chosen.collect();
            let rest = area.without(start, end, chosen.iter().copied());
            if let Some(shorter) = area.relaid(start, end, rest) {
                prop_assert_eq!(blocks(&shorter, start, end), blocks(&area, start, end));
                let mut all = blocks(&shorter, start, start + shorter.bytes());
                let count = all.len();
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), count);
                for (offset, length) in chosen {
                    for block in (offset..offset + length).step_by(BLOCK as usize) {
                        prop_assert!(all.contains(&block));
                    }
                }
            }
        }
    }
}
