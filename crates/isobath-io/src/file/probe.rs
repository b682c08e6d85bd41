//! Finding out which backend works: each candidate must read the label of every member, with a
//! queue as long as a worker's.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::device::ChannelOptions;
use crate::error::VolumeError;
use crate::file::aio::AioQueue;
use crate::file::label::LABEL_BLOCK;
use crate::file::member::Member;
use crate::file::queue::{Queue, read_start};
use crate::file::uring::{UringModes, UringQueue};
use crate::options::{Backend, BackendKind};
use crate::sleep::EventWake;

/// How long a probe read may take. A drive that needs longer is broken or fast asleep; the next
/// mode is tried.
const PATIENCE: Duration = Duration::from_secs(10);

/// The backend that works, with a note for each one that was refused.
pub(super) fn choose(
    members: &[Member],
    wish: Backend,
    notes: &mut Vec<String>,
) -> Result<BackendKind, VolumeError> {
    match wish {
        Backend::Pread => Ok(BackendKind::Pread),
        Backend::Auto => Ok(choose_auto(members, notes)),
        Backend::Libaio => match try_aio(members) {
            Ok(()) => Ok(BackendKind::Libaio),
            Err(e) => Err(VolumeError::BackendRefused {
                backend: AioQueue::NAME,
                reason: explain(&e),
            }),
        },
        Backend::IoUring { iopoll, sqpoll } => {
            let refusal = match try_uring(members, iopoll, sqpoll) {
                Ok(()) => return Ok(BackendKind::IoUring { iopoll, sqpoll }),
                Err(refusal) => refusal,
            };
            if !iopoll && !sqpoll {
                return Err(VolumeError::BackendRefused {
                    backend: UringQueue::NAME,
                    reason: explain(&refusal),
                });
            }
            let plain = try_uring(members, false, false);
            plain.map_err(|e| VolumeError::BackendRefused {
                backend: UringQueue::NAME,
                reason: explain(&e),
            })?;
            notes.push(format!(
                "io_uring: {} refused ({}); completions come by interrupt",
                mode_name(iopoll, sqpoll),
                explain(&refusal)
            ));
            Ok(BackendKind::IoUring {
                iopoll: false,
                sqpoll: false,
            })
        }
    }
}

/// What takes the place of `refused`, which was refused to a channel for `reason`, and a note that
/// says so; `None` if the user has asked for it by name.
pub(super) fn next(
    refused: BackendKind,
    wish: Backend,
    reason: &io::Error,
) -> Option<(BackendKind, String)> {
    let reason = explain(reason);
    let plain = BackendKind::IoUring {
        iopoll: false,
        sqpoll: false,
    };
    match refused {
        BackendKind::IoUring { iopoll, sqpoll } if iopoll || sqpoll => {
            let mode = mode_name(iopoll, sqpoll);
            let note =
                format!("io_uring: {mode} refused ({reason}); completions come by interrupt");
            Some((plain, note))
        }
        BackendKind::IoUring { .. } if wish == Backend::Auto => {
            let note =
                format!("io_uring is refused to a worker ({reason}); it and later ones use libaio");
            Some((BackendKind::Libaio, note))
        }
        BackendKind::Libaio if wish == Backend::Auto => {
            let note =
                format!("libaio is refused to a worker ({reason}); it and later ones use pread");
            Some((BackendKind::Pread, note))
        }
        _ => None,
    }
}

/// Whether `backend`, which serves the volume, serves its log device too.
pub(super) fn serves(log: &Member, backend: BackendKind) -> Result<(), VolumeError> {
    let member = std::slice::from_ref(log);
    let (name, tried) = match backend {
        BackendKind::IoUring { iopoll, sqpoll } => {
            (UringQueue::NAME, try_uring(member, iopoll, sqpoll))
        }
        BackendKind::Libaio => (AioQueue::NAME, try_aio(member)),
        _ => return Ok(()),
    };
    tried.map_err(|e| VolumeError::BackendRefused {
        backend: name,
        reason: format!("{}: {}", log.path.display(), explain(&e)),
    })
}

fn choose_auto(members: &[Member], notes: &mut Vec<String>) -> BackendKind {
    let uring = match try_uring(members, false, false) {
        Ok(()) => {
            return BackendKind::IoUring {
                iopoll: false,
                sqpoll: false,
            };
        }
        Err(e) => format!("io_uring cannot be used ({})", explain(&e)),
    };
    match try_aio(members) {
        Ok(()) => {
            notes.push(format!("{uring}; using libaio"));
            BackendKind::Libaio
        }
        Err(e) => {
            let aio = format!("libaio neither ({})", explain(&e));
            notes.push(format!("{uring}, {aio}; using blocking pread"));
            BackendKind::Pread
        }
    }
}

fn mode_name(iopoll: bool, sqpoll: bool) -> &'static str {
    match (iopoll, sqpoll) {
        (true, true) => "IOPOLL with SQPOLL is",
        (true, false) => "IOPOLL is",
        _ => "SQPOLL is",
    }
}

/// Words for the usual refusals.
pub(super) fn explain(e: &io::Error) -> String {
    let hint = match e.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            ": forbidden here, by a container's system call filter or the sysctl kernel.io_uring_disabled"
        }
        Some(libc::ENOSYS) => ": this kernel does not have it",
        Some(libc::ENOMEM) => ": the memory-lock limit (ulimit -l) is too small",
        Some(libc::EMFILE) => ": the limit of open files (ulimit -n) is too small",
        Some(libc::EOPNOTSUPP | libc::EINVAL) => ": the device or file system does not support it",
        _ => "",
    };
    format!("{e}{hint}")
}

fn try_uring(members: &[Member], iopoll: bool, sqpoll: bool) -> io::Result<()> {
    let depth = ChannelOptions::default().depth;
    let wake = Arc::new(EventWake::new()?);
    let fds: Vec<i32> = members.iter().map(|m| m.fd()).collect();
    let mut queue = UringQueue::new(&fds, depth, UringModes { iopoll, sqpoll }, wake)?;
    try_queue(&mut queue, members.len() as u32)
}

fn try_aio(members: &[Member]) -> io::Result<()> {
    let depth = ChannelOptions::default().depth;
    let wake = Arc::new(EventWake::new()?);
    let fds = members.iter().map(|m| m.fd()).collect();
    let blocks = members.iter().map(|m| m.block_device).collect();
    let mut queue = AioQueue::new(fds, blocks, depth, wake)?;
    try_queue(&mut queue, members.len() as u32)
}

/// Reads the first block of every member through `queue`.
fn try_queue<Q: Queue>(queue: &mut Q, members: u32) -> io::Result<()> {
    (0..members).try_for_each(|member| read_start(queue, member, LABEL_BLOCK, PATIENCE))
}
