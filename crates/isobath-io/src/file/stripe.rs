//! RAID-0: maps a logical range to members. The log device, which is not striped, comes behind the
//! members.

use crate::device::LOG_OFFSET;

/// How a volume's bytes are spread over its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StripeMap {
    pub(crate) members: u32,
    pub(crate) unit: u64,
    pub(crate) data_offset: u64,
}

/// A part of a logical range that lies on one member in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) member: u32,
    /// Byte offset in the member.
    pub(crate) at: u64,
    pub(crate) len: u64,
}

impl StripeMap {
    /// The member and its byte at which logical byte `x` lies.
    pub(crate) fn locate(&self, x: u64) -> (u32, u64) {
        if x >= LOG_OFFSET {
            return (self.members, x - LOG_OFFSET);
        }
        if self.members == 1 {
            return (0, self.data_offset + x);
        }
        let stripe = x / self.unit;
        let n = u64::from(self.members);
        let member = (stripe % n) as u32;
        (
            member,
            self.data_offset + stripe / n * self.unit + x % self.unit,
        )
    }

    /// Bytes from logical byte `x` on that lie on one member in one piece.
    pub(crate) fn run(&self, x: u64) -> u64 {
        if self.members == 1 || x >= LOG_OFFSET {
            u64::MAX - x
        } else {
            self.unit - x % self.unit
        }
    }

    /// The pieces of a logical range, in its order.
    pub(crate) fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + '_ {
        let end = offset + len;
        let mut x = offset;
        std::iter::from_fn(move || {
            if x >= end {
                return None;
            }
            let (member, at) = self.locate(x);
            let len = self.run(x).min(end - x);
            x += len;
            Some(Piece { member, at, len })
        })
    }

    /// The share of a logical range on every member that has one: a contiguous range of the volume
    /// is one contiguous range of each member.
    pub(crate) fn shares(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + '_ {
        let log = (offset >= LOG_OFFSET).then(|| Piece {
            member: self.members,
            at: offset - LOG_OFFSET,
            len,
        });
        let striped = if log.is_some() { 0 } else { self.members };
        let shares = (0..striped).filter_map(move |member| {
            let start = self.share_len(member, offset);
            let end = self.share_len(member, offset + len);
            (end > start).then_some(Piece {
                member,
                at: self.data_offset + start,
                len: end - start,
            })
        });
        shares.chain(log)
    }

    /// Bytes of data on `member` in a volume of `len` bytes.
    pub(crate) fn share_len(&self, member: u32, len: u64) -> u64 {
        let row = self.unit * u64::from(self.members);
        let rest = (len % row).saturating_sub(u64::from(member) * self.unit);
        len / row * self.unit + rest.min(self.unit)
    }

    /// The longest volume whose members all have at most the sizes given (bytes, labels included).
    pub(crate) fn capacity(&self, sizes: impl Iterator<Item = u64>) -> u64 {
        let smallest = sizes.min().unwrap_or(0);
        let units = smallest.saturating_sub(self.data_offset) / self.unit;
        if self.members == 1 {
            return smallest.saturating_sub(self.data_offset) / 4096 * 4096;
        }
        units * self.unit * u64::from(self.members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The plainest possible model: walk the volume block by block.
    fn place(map: &StripeMap, block: u64) -> (u32, u64) {
        let per_unit = map.unit / 4096;
        let mut next = vec![map.data_offset; map.members as usize];
        let mut last = (0, 0);
        for b in 0..=block {
            let member = (b / per_unit) % u64::from(map.members);
            last = (member as u32, next[member as usize]);
            next[member as usize] += 4096;
        }
        last
    }

    proptest! {
        #[test]
        fn agrees_with_walking_block_by_block(
            members in 1u32..6, unit_blocks in 1u64..5, block in 0u64..200, blocks in 1u64..60,
        ) {
            let map = StripeMap { members, unit: unit_blocks * 4096, data_offset: 8192 };
            prop_assert_eq!(map.locate(block * 4096), place(&map, block));
            let mut at = block;
            for piece in map.pieces(block * 4096, blocks * 4096) {
                for b in 0..piece.len / 4096 {
                    prop_assert_eq!((piece.member, piece.at + b * 4096), place(&map, at));
                    at += 1;
                }
            }
            prop_assert_eq!(at, block + blocks);
            let mut share_bytes = 0;
            for share in map.shares(block * 4096, blocks * 4096) {
                share_bytes += share.len;
                let mine: Vec<u64> = map
                    .pieces(block * 4096, blocks * 4096)
                    .filter(|p| p.member == share.member)
                    .flat_map(|p| (0..p.len / 4096).map(move |b| p.at + b * 4096))
                    .collect();
                let covered: Vec<u64> =
                    (0..share.len / 4096).map(|b| share.at + b * 4096).collect();
                prop_assert_eq!(mine, covered);
            }
            prop_assert_eq!(share_bytes, blocks * 4096);
        }

        #[test]
        fn the_log_device_is_in_one_piece(members in 1u32..6, block in 0u64..200, blocks in 1u64..60) {
            let map = StripeMap { members, unit: 4096, data_offset: 8192 };
            let (offset, len) = (LOG_OFFSET + block * 4096, blocks * 4096);
            let whole = vec![Piece { member: members, at: block * 4096, len }];
            prop_assert_eq!(map.pieces(offset, len).collect::<Vec<_>>(), whole.clone());
            prop_assert_eq!(map.shares(offset, len).collect::<Vec<_>>(), whole);
            prop_assert!(map.run(offset) >= len);
        }

        #[test]
        fn a_volume_of_its_capacity_fits(
            members in 1u32..6, unit_blocks in 1u64..5, sizes in proptest::collection::vec(0u64..1_000_000, 6),
        ) {
            let map = StripeMap { members, unit: unit_blocks * 4096, data_offset: 8192 };
            let sizes = &sizes[..members as usize];
            let len = map.capacity(sizes.iter().copied());
            for (member, size) in sizes.iter().enumerate() {
                let share = map.share_len(member as u32, len);
                prop_assert!(share == 0 || 8192 + share <= *size);
            }
        }
    }
}
