//! A namespace as a device of volumes.
#![allow(unsafe_code)]

use std::sync::{Arc, Mutex, PoisonError};

use isobath_io::{
    AlignedBuf, BackendKind, BackendReport, Channel, ChannelOptions, Device, Io, IoError,
    IoErrorKind, Op, VolumeError,
};

use crate::channel::NvmeChannel;
use crate::controller::Controller;
use crate::error::NvmeError;
use crate::identify::NamespaceInfo;

/// Bytes that a blocking call moves at once.
const BOUNCE_BYTES: usize = 256 << 10;

/// A namespace of an NVMe drive. All its bytes are a volume's from the beginning: there is nothing
/// to grow, and no label.
pub struct NvmeDevice {
    controller: Arc<Controller>,
    namespace: NamespaceInfo,
    bytes: u64,
    /// For blocking calls; opened by the first.
    blocking: Mutex<Option<(NvmeChannel, AlignedBuf)>>,
}

impl std::fmt::Debug for NvmeDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmeDevice")
            .field("controller", &self.controller)
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl NvmeDevice {
    /// The namespace of that number.
    ///
    /// # Errors
    /// [`NvmeError::NoNamespace`]; [`NvmeError::Unsupported`] for one with metadata, or with blocks
    /// of other than 512 or 4096 bytes; a failure of the drive.
    pub fn open(controller: &Arc<Controller>, namespace: u32) -> Result<NvmeDevice, NvmeError> {
        let namespace = controller.namespace(namespace)?;
        if let Some(reason) = namespace.refusal() {
            return Err(NvmeError::Unsupported {
                drive: controller.name().to_owned(),
                reason,
            });
        }
        Ok(NvmeDevice {
            controller: Arc::clone(controller),
            namespace,
            bytes: namespace.bytes() / 4096 * 4096,
            blocking: Mutex::default(),
        })
    }

    /// The controller that it belongs to.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// What the drive says of it.
    pub fn namespace(&self) -> &NamespaceInfo {
        &self.namespace
    }

    /// Makes a range read as zeros without sending any. Blocks.
    ///
    /// # Errors
    /// [`IoErrorKind::Unsupported`] where the drive cannot; as a completion would give.
    pub fn zero_at(&self, offset: u64, bytes: u64) -> Result<(), IoError> {
        self.blocking(Op::Write, offset, |channel, _| {
            channel.submit_zeros(offset, bytes)?;
            finish(channel)
        })
    }

    /// Calls `f` with the channel for blocking calls, and its buffer.
    fn blocking(
        &self,
        op: Op,
        offset: u64,
        f: impl FnOnce(&mut NvmeChannel, &mut AlignedBuf) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let mut blocking = self.blocking.lock().unwrap_or_else(PoisonError::into_inner);
        if blocking.is_none() {
            let options = ChannelOptions::with_depth(8);
            let channel = NvmeChannel::open(&self.controller, self.namespace, &options);
            let refused = |error: NvmeError| {
                let kind = match error {
                    NvmeError::Removed { .. } => IoErrorKind::Os(libc::ENODEV),
                    NvmeError::NoQueue { .. } => IoErrorKind::Again,
                    _ => IoErrorKind::Media,
                };
                IoError::new(kind, op, offset, 0).on(self.controller.name().as_ref())
            };
            let mut channel = channel.map_err(refused)?;
            let mut buffer = AlignedBuf::new(BOUNCE_BYTES);
            // Memory that cannot be registered is mapped for each command.
            // SAFETY: the buffer lies behind the channel in the tuple, and is dropped after it.
            unsafe { channel.register_buffers(&[(buffer.as_mut_ptr(), BOUNCE_BYTES)]) };
            *blocking = Some((channel, buffer));
        }
        match blocking.as_mut() {
            Some((channel, buffer)) => f(channel, buffer),
            None => Ok(()),
        }
    }
}

/// Executes one I/O.
///
/// # Safety
/// As for [`Channel::submit`], until this returns.
unsafe fn execute(channel: &mut NvmeChannel, io: Io) -> Result<(), IoError> {
    // SAFETY: by contract.
    let submitted = unsafe { channel.submit(io) };
    let full = |_| IoError::new(IoErrorKind::Again, io.op, io.offset, u64::from(io.len));
    submitted.map_err(full)?;
    finish(channel)
}

/// Waits for the one I/O in flight.
fn finish(channel: &mut NvmeChannel) -> Result<(), IoError> {
    let mut done = Vec::new();
    while channel.in_flight() > 0 {
        let waited = channel.wait(1, None, &mut done);
        debug_assert!(
            waited.is_ok(),
            "a channel with something in flight does not sleep"
        );
    }
    match done.pop() {
        Some(completion) => completion.result,
        None => Ok(()),
    }
}

impl Device for NvmeDevice {
    fn len(&self) -> u64 {
        self.bytes
    }

    fn limit(&self) -> Option<u64> {
        Some(self.bytes)
    }

    fn logical_block(&self) -> u32 {
        self.namespace.block_bytes() as u32
    }

    fn grow(&self, new_len: u64) -> Result<(), VolumeError> {
        if !new_len.is_multiple_of(4096) {
            return Err(VolumeError::BadOption {
                option: "new_len",
                must: "a multiple of 4096",
                found: new_len,
            });
        }
        match new_len > self.bytes {
            true => Err(VolumeError::Limit {
                limit: self.bytes,
                asked: new_len,
            }),
            false => Ok(()),
        }
    }

    fn channel(self: Arc<Self>, options: &ChannelOptions) -> Result<Box<dyn Channel>, VolumeError> {
        Ok(Box::new(NvmeChannel::open(
            &self.controller,
            self.namespace,
            options,
        )?))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        let block = self.namespace.block_bytes();
        self.blocking(Op::Read, offset, |channel, buffer| {
            let mut done = 0;
            while done < buf.len() {
                let at = offset.saturating_add(done as u64);
                let first = at / block * block;
                let skip = (at - first) as usize;
                let count = (buf.len() - done).min(BOUNCE_BYTES - skip);
                let whole = (skip + count).next_multiple_of(block as usize);
                let io = Io::read(first, buffer.as_mut_ptr(), whole as u32, 0);
                // SAFETY: the buffer has at least `whole` bytes, and outlives the call.
                unsafe { execute(channel, io)? };
                buf[done..done + count].copy_from_slice(&buffer[skip..skip + count]);
                done += count;
            }
            Ok(())
        })
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.blocking(Op::Write, offset, |channel, buffer| {
            for (at, piece) in (offset..)
                .step_by(BOUNCE_BYTES)
                .zip(buf.chunks(BOUNCE_BYTES))
            {
                buffer[..piece.len()].copy_from_slice(piece);
                let io = Io::write(at, buffer.as_ptr(), piece.len() as u32, 0);
                // SAFETY: the buffer outlives the call.
                unsafe { execute(channel, io)? };
            }
            Ok(())
        })
    }

    fn discard_at(&self, offset: u64, len: u64) -> Result<(), IoError> {
        self.blocking(Op::Discard, offset, |channel, _| {
            const AT_ONCE: u64 = 1 << 30;
            let mut done = 0;
            while done < len {
                let count = (len - done).min(AT_ONCE);
                // SAFETY: a discard has no memory.
                unsafe { execute(channel, Io::discard(offset + done, count as u32, 0))? };
                done += count;
            }
            Ok(())
        })
    }

    fn sync(&self) -> Result<(), IoError> {
        self.blocking(Op::Flush, 0, |channel, _| {
            // SAFETY: a flush has no memory.
            unsafe { execute(channel, Io::flush(0)) }
        })
    }

    fn backend_report(&self) -> BackendReport {
        BackendReport {
            backend: BackendKind::InProcess("nvme"),
            direct: true,
            notes: Vec::new(),
        }
    }
}
