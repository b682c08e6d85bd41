//! What a controller says of itself and its namespaces. Every byte may be wrong: nothing here
//! panics, and what cannot be used is refused by the caller.

/// Bytes of a page of the identify command.
pub(crate) const PAGE: usize = 4096;

fn u16_at(page: &[u8; PAGE], at: usize) -> u16 {
    u16::from_le_bytes([page[at], page[at + 1]])
}

fn u32_at(page: &[u8; PAGE], at: usize) -> u32 {
    u32::from(u16_at(page, at)) | u32::from(u16_at(page, at + 2)) << 16
}

fn u64_at(page: &[u8; PAGE], at: usize) -> u64 {
    u64::from(u32_at(page, at)) | u64::from(u32_at(page, at + 4)) << 32
}

/// Text that is padded with spaces; what is no printable ASCII becomes a question mark.
fn text(bytes: &[u8]) -> String {
    let printable = |b: &u8| match b {
        b' '..=b'~' => char::from(*b),
        0 => ' ',
        _ => '?',
    };
    let text: String = bytes.iter().map(printable).collect();
    text.trim().to_owned()
}

/// What a controller says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControllerInfo {
    /// Serial number.
    pub serial: String,
    /// Model.
    pub model: String,
    /// Revision of its firmware.
    pub firmware: String,
    /// Most bytes that one command transfers, if there is a limit.
    pub max_transfer_bytes: Option<u64>,
    /// The largest number of a namespace.
    pub namespaces: u32,
    /// Whether completed writes may be in a volatile cache until they are flushed.
    pub volatile_cache: bool,
    /// Whether it can be told what is no longer needed.
    pub deallocate: bool,
    /// Whether it writes zeros without being sent any.
    pub write_zeroes: bool,
    /// Entry sizes of queues that it needs and allows, as powers of two: submission, completion.
    pub(crate) entry_sizes: (u8, u8),
}

impl ControllerInfo {
    /// Reads the page. `min_page` is the unit of the transfer limit.
    pub(crate) fn parse(page: &[u8; PAGE], min_page: u64) -> ControllerInfo {
        let transfer = page[77];
        let optional = u16_at(page, 520);
        ControllerInfo {
            serial: text(&page[4..24]),
            model: text(&page[24..64]),
            firmware: text(&page[64..72]),
            // A power of two beyond any memory is as good as none.
            max_transfer_bytes: match transfer {
                1..=40 => Some(min_page.saturating_mul(1 << transfer)),
                _ => None,
            },
            namespaces: u32_at(page, 516),
            volatile_cache: page[525] & 1 == 1,
            deallocate: optional & 1 << 2 != 0,
            write_zeroes: optional & 1 << 3 != 0,
            entry_sizes: (page[512], page[513]),
        }
    }

    /// Whether queue entries may have the sizes of the NVM command set: 64 and 16 bytes.
    pub(crate) fn takes_entry_sizes(&self) -> bool {
        let fits = |sizes: u8, wanted: u8| sizes & 0xf <= wanted && wanted <= sizes >> 4;
        fits(self.entry_sizes.0, 6) && fits(self.entry_sizes.1, 4)
    }
}

/// What a controller says of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its number.
    pub id: u32,
    /// Logical blocks.
    pub blocks: u64,
    /// Bytes of a logical block, as a power of two.
    pub(crate) block_shift: u8,
    /// Bytes of metadata with each block.
    pub metadata_bytes: u16,
    /// Whether blocks are protected by information that the host must supply.
    pub protected: bool,
    /// Whether deallocated blocks read as old data or zeros, and never as ones.
    pub(crate) deallocates_to_zeros: bool,
}

impl NamespaceInfo {
    /// Reads the page; `None` for one that is all zeros, of a namespace that is not there.
    pub(crate) fn parse(id: u32, page: &[u8; PAGE]) -> Option<NamespaceInfo> {
        let blocks = u64_at(page, 0);
        if blocks == 0 {
            return None;
        }
        // Two more bits of the format's number lie above the bit for metadata.
        let format = usize::from(page[26] & 0xf | page[26] >> 1 & 0x30);
        let described = u32_at(page, 128 + 4 * format);
        Some(NamespaceInfo {
            id,
            blocks,
            block_shift: (described >> 16) as u8,
            metadata_bytes: described as u16,
            protected: page[29] & 7 != 0,
            deallocates_to_zeros: page[33] & 7 != 2,
        })
    }

    /// Bytes of a logical block; 0 for a size that no drive has.
    pub fn block_bytes(&self) -> u64 {
        1u64.checked_shl(u32::from(self.block_shift)).unwrap_or(0)
    }

    /// Bytes that can be stored.
    pub fn bytes(&self) -> u64 {
        self.blocks.saturating_mul(self.block_bytes())
    }

    /// Why a store cannot lie on it.
    pub(crate) fn refusal(&self) -> Option<String> {
        if self.metadata_bytes != 0 || self.protected {
            return Some(format!(
                "namespace {} is formatted with {} bytes of metadata per block{}: format it without (nvme format)",
                self.id,
                self.metadata_bytes,
                if self.protected {
                    " and protection information"
                } else {
                    ""
                },
            ));
        }
        if !matches!(self.block_shift, 9 | 12) {
            return Some(format!(
                "namespace {} has blocks of 2^{} bytes: format it with blocks of 512 or 4096 bytes (nvme format)",
                self.id, self.block_shift,
            ));
        }
        if self
            .blocks
            .checked_mul(self.block_bytes())
            .is_none_or(|bytes| bytes >= 1 << 62)
        {
            return Some(format!(
                "namespace {} says that it has {} blocks",
                self.id, self.blocks
            ));
        }
        None
    }
}

/// The drive's own count of its health and use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SmartLog {
    /// Bits that warn: spare, temperature, reliability, read-only, volatile backup, persistent
    /// memory.
    pub critical_warning: u8,
    /// Temperature in degrees Celsius.
    pub temperature_c: i32,
    /// Spare blocks left, in percent.
    pub spare_percent: u8,
    /// The percentage of its life that is used, which may be over 100.
    pub used_percent: u8,
    /// Bytes read by hosts.
    pub read_bytes: u128,
    /// Bytes written by hosts.
    pub written_bytes: u128,
    /// Read commands.
    pub reads: u128,
    /// Write commands.
    pub writes: u128,
    /// Times that power came.
    pub power_cycles: u128,
    /// Hours that power was there.
    pub power_on_hours: u128,
    /// Times that power went without notice.
    pub unsafe_shutdowns: u128,
    /// Errors of the medium.
    pub media_errors: u128,
}

impl SmartLog {
    /// Reads the first 512 bytes of the page.
    pub(crate) fn parse(page: &[u8; PAGE]) -> SmartLog {
        let wide = |at| u128::from(u64_at(page, at)) | u128::from(u64_at(page, at + 8)) << 64;
        // Units of a thousand blocks of 512 bytes.
        let data = |at| wide(at).saturating_mul(512_000);
        SmartLog {
            critical_warning: page[0],
            temperature_c: i32::from(u16_at(page, 1)) - 273,
            spare_percent: page[3],
            used_percent: page[5],
            read_bytes: data(32),
            written_bytes: data(48),
            reads: wide(64),
            writes: wide(80),
            power_cycles: wide(112),
            power_on_hours: wide(128),
            unsafe_shutdowns: wide(144),
            media_errors: wide(160),
        }
    }
}
