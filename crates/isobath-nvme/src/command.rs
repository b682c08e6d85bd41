//! Commands and completions as the drive reads and writes them: 64 and 16 bytes, little-endian.

use isobath_io::IoErrorKind;

/// A submission queue entry: sixteen 32-bit words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Command(pub(crate) [u32; 16]);

/// Opcodes of the administration queue.
pub(crate) mod admin {
    pub(crate) const DELETE_SQ: u8 = 0x00;
    pub(crate) const CREATE_SQ: u8 = 0x01;
    pub(crate) const GET_LOG_PAGE: u8 = 0x02;
    pub(crate) const DELETE_CQ: u8 = 0x04;
    pub(crate) const CREATE_CQ: u8 = 0x05;
    pub(crate) const IDENTIFY: u8 = 0x06;
    pub(crate) const ABORT: u8 = 0x08;
    pub(crate) const SET_FEATURES: u8 = 0x09;

    /// The feature with the number of I/O queues.
    pub(crate) const NUMBER_OF_QUEUES: u32 = 0x07;
    /// The page of [`IDENTIFY`] that describes a namespace.
    pub(crate) const CNS_NAMESPACE: u32 = 0;
    /// The page of [`IDENTIFY`] that describes the controller.
    pub(crate) const CNS_CONTROLLER: u32 = 1;
    /// The log page with the drive's health.
    pub(crate) const LOG_SMART: u32 = 2;
}

/// Opcodes of the NVM command set.
pub(crate) mod nvm {
    pub(crate) const FLUSH: u8 = 0x00;
    pub(crate) const WRITE: u8 = 0x01;
    pub(crate) const READ: u8 = 0x02;
    pub(crate) const WRITE_ZEROES: u8 = 0x08;
    pub(crate) const DATASET_MANAGEMENT: u8 = 0x09;

    /// Word 12 of a write that is durable when it completes.
    pub(crate) const FUA: u32 = 1 << 30;
    /// Word 11 of dataset management: the ranges are no longer needed.
    pub(crate) const DEALLOCATE: u32 = 1 << 2;
}

impl Command {
    pub(crate) fn new(opcode: u8, namespace: u32) -> Command {
        let mut words = [0; 16];
        words[0] = u32::from(opcode);
        words[1] = namespace;
        Command(words)
    }

    /// The command with word `index` set.
    pub(crate) fn word(mut self, index: usize, value: u32) -> Command {
        self.0[index] = value;
        self
    }

    /// The command with the data at these addresses of the drive's bus: PRP entries 1 and 2.
    pub(crate) fn data(mut self, prp1: u64, prp2: u64) -> Command {
        for (at, prp) in [(6, prp1), (8, prp2)] {
            self.0[at] = prp as u32;
            self.0[at + 1] = (prp >> 32) as u32;
        }
        self
    }

    /// The command on `blocks` logical blocks from `first` on.
    pub(crate) fn blocks(mut self, first: u64, blocks: u32) -> Command {
        self.0[10] = first as u32;
        self.0[11] = (first >> 32) as u32;
        // The drive counts from 0.
        self.0[12] |= blocks.wrapping_sub(1) & 0xffff;
        self
    }

    pub(crate) fn with_id(mut self, id: u16) -> Command {
        self.0[0] = self.0[0] & 0xffff | u32::from(id) << 16;
        self
    }
}

/// A completion queue entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// What some commands answer.
    pub(crate) result: u32,
    /// The submission queue that the command came from.
    pub(crate) queue: u16,
    /// The command's id.
    pub(crate) id: u16,
    pub(crate) status: Status,
}

/// How a drive says that a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub(crate) u16);

impl Status {
    #[cfg(any(test, feature = "model"))]
    pub(crate) const SUCCESS: Status = Status(0);
    #[cfg(any(test, feature = "model"))]
    pub(crate) const INVALID_OPCODE: Status = Status(0x01 | Status::DO_NOT_RETRY);
    #[cfg(any(test, feature = "model"))]
    pub(crate) const INVALID_FIELD: Status = Status(0x02 | Status::DO_NOT_RETRY);
    #[cfg(any(test, feature = "model"))]
    pub(crate) const DATA_TRANSFER_ERROR: Status = Status(0x04 | Status::DO_NOT_RETRY);
    #[cfg(any(test, feature = "model"))]
    pub(crate) const ABORTED: Status = Status(0x07);
    #[cfg(any(test, feature = "model"))]
    pub(crate) const OUT_OF_RANGE: Status = Status(0x80 | Status::DO_NOT_RETRY);
    #[cfg(any(test, feature = "model"))]
    pub(crate) const WRITE_FAULT: Status = Status(0x280 | Status::DO_NOT_RETRY);
    #[cfg(any(test, feature = "model"))]
    pub(crate) const UNRECOVERED_READ: Status = Status(0x281 | Status::DO_NOT_RETRY);

    const DO_NOT_RETRY: u16 = 1 << 14;

    pub(crate) fn is_success(self) -> bool {
        self.code() == 0
    }

    /// Type and code, without the flags.
    fn code(self) -> u16 {
        self.0 & 0x7ff
    }

    /// Whether there is no namespace of the command's number.
    pub(crate) fn is_invalid_namespace(self) -> bool {
        self.code() == 0x0b
    }

    /// Whether the same command may succeed if it is given again: a generic error that the drive
    /// does not call final.
    pub(crate) fn is_passing(self) -> bool {
        self.0 & Self::DO_NOT_RETRY == 0 && (0x01..0x80).contains(&self.code())
    }

    pub(crate) fn kind(self) -> IoErrorKind {
        match self.code() {
            0x01 => IoErrorKind::Unsupported,
            0x20 | 0x182 => IoErrorKind::ReadOnly,
            0x80 => IoErrorKind::OutOfRange,
            0x81 => IoErrorKind::NoSpace,
            _ => IoErrorKind::Media,
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, code) = (self.code() >> 8, self.code() & 0xff);
        let name = match self.code() {
            0x01 => "invalid opcode",
            0x02 => "invalid field",
            0x04 => "data transfer error",
            0x06 => "internal error",
            0x07 => "aborted",
            0x0b => "invalid namespace",
            0x20 => "namespace is write-protected",
            0x80 => "beyond the namespace",
            0x81 => "capacity exceeded",
            0x101 => "invalid queue identifier",
            0x102 => "invalid queue size",
            0x280 => "write fault",
            0x281 => "unrecovered read error",
            _ => return write!(f, "status type {kind}, code {code:#04x}"),
        };
        write!(f, "{name} (status type {kind}, code {code:#04x})")
    }
}
