//! The log's area on its volume.

use isobath_io::{IoError, Volume};

use super::layout::BLOCK;

/// The log's place: pieces of a volume that hold the log one after another, and
/// then from the beginning again. An LSN modulo the area's size is a position in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LogArea {
    /// Offset and length in bytes.
    extents: Vec<(u64, u64)>,
    /// Position in the area at which each extent ends.
    ends: Vec<u64>,
    /// The area that the log had before it grew, and the LSN, a whole block, below which it lies
    /// there.
    before: Option<(u64, Box<LogArea>)>,
}

impl LogArea {
    /// The area that consists of `extents`, as (volume offset, length) in bytes.
    /// `None` unless they are multiples of 4096 and there is at least one.
    pub(crate) fn new(extents: Vec<(u64, u64)>) -> Option<LogArea> {
        let mut total = 0;
        let mut ends = Vec::with_capacity(extents.len());
        for &(offset, length) in &extents {
            if length == 0 || !(offset | length).is_multiple_of(BLOCK) {
                return None;
            }
            total += length;
            ends.push(total);
        }
        (total > 0).then_some(LogArea {
            extents,
            ends,
            before: None,
        })
    }

    /// This area from the LSN `switch` on, and `before` below it. What `before` has of an earlier
    /// one counts no more.
    pub(crate) fn growing_from(mut self, switch: u64, mut before: LogArea) -> LogArea {
        debug_assert!(switch.is_multiple_of(BLOCK));
        before.before = None;
        self.before = Some((switch, Box::new(before)));
        self
    }

    /// This area alone.
    pub(crate) fn without_before(&self) -> LogArea {
        LogArea {
            before: None,
            ..self.clone()
        }
    }

    /// Whether nothing lies in an earlier area.
    pub(crate) fn is_alone(&self) -> bool {
        self.before.is_none()
    }

    /// The area that holds `lsn`, and where it ends to do so.
    fn holding(&self, lsn: u64) -> (&LogArea, u64) {
        match &self.before {
            Some((switch, before)) if lsn < *switch => (before, *switch),
            _ => (self, u64::MAX),
        }
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
            let (area, until) = self.holding(at);
            let position = at % area.bytes();
            let index = area
                .ends
                .partition_point(|&extent_end| extent_end <= position);
            let (offset, extent) = area.extents[index];
            let within = position + extent - area.ends[index];
            let count = (extent - within).min(end.min(until) - at);
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
        assert!(LogArea::new(vec![]).is_none());
        assert!(LogArea::new(vec![(4096, 0)]).is_none());
        assert!(LogArea::new(vec![(4096, 512)]).is_none());
        assert!(LogArea::new(vec![(512, 4096)]).is_none());
        assert_eq!(
            LogArea::new(vec![(0, 8192), (65536, 4096)])
                .unwrap()
                .bytes(),
            12288
        );
    }

    #[test]
    fn a_log_that_has_grown_lies_in_two_areas() {
        let before = LogArea::new(vec![(1 << 20, 2 * BLOCK)]).unwrap();
        let area = LogArea::new(vec![(2 << 20, 4 * BLOCK)]).unwrap();
        let area = area.growing_from(7 * BLOCK, before);
        assert_eq!(area.bytes(), 4 * BLOCK);
        let found: Vec<_> = area.pieces(5 * BLOCK, 4 * BLOCK).collect();
        let at = |base: u64, block: u64| base + block * BLOCK;
        assert_eq!(
            found,
            [
                (at(1 << 20, 1), BLOCK),
                (at(1 << 20, 0), BLOCK),
                (at(2 << 20, 3), BLOCK),
                (at(2 << 20, 0), BLOCK),
            ]
        );
        let alone = area.without_before();
        assert_eq!(
            alone.pieces(5 * BLOCK, BLOCK).next(),
            Some((at(2 << 20, 1), BLOCK))
        );
    }

    proptest! {
        /// Byte by byte, the area is its extents one after another, repeated.
        #[test]
        fn positions_go_round(
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
            let area = LogArea::new(extents).unwrap();
            let found: Vec<u64> = area
                .pieces(lsn, length)
                .flat_map(|(offset, count)| offset..offset + count)
                .collect();
            let expected: Vec<u64> = (lsn..lsn + length)
                .map(|at| flat[(at % flat.len() as u64) as usize])
                .collect();
            prop_assert_eq!(found, expected);
        }
    }
}
