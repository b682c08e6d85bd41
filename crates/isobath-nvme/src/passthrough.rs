//! Administration commands through the kernel's own driver, for drives that it holds.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::command::admin;
use crate::error::NvmeError;
use crate::identify::{ControllerInfo, NamespaceInfo, PAGE, SmartLog};

/// `NVME_IOCTL_ADMIN_CMD`.
const ADMIN_COMMAND: libc::Ioctl = 0xc048_4e41_u32 as libc::Ioctl;
/// The kernel's own timeout. After a shorter one the kernel resets the controller, under whatever
/// is mounted.
const TIMEOUT_MS: u32 = 0;

/// `struct nvme_admin_cmd`.
#[repr(C)]
#[derive(Default)]
struct AdminCommand {
    opcode: u8,
    flags: u8,
    reserved: u16,
    namespace: u32,
    words_2_3: [u32; 2],
    metadata: u64,
    data: u64,
    metadata_bytes: u32,
    data_bytes: u32,
    words_10_15: [u32; 6],
    timeout_ms: u32,
    result: u32,
}

const _: () = assert!(size_of::<AdminCommand>() == 72);

/// A controller that the kernel drives, such as `/dev/nvme0`. It is asked, never changed.
#[derive(Debug)]
pub struct KernelController {
    file: File,
    path: std::path::PathBuf,
}

impl KernelController {
    /// The controller's device file.
    ///
    /// # Errors
    /// [`NvmeError::PermissionDenied`], or another failure of the system.
    pub fn open(path: &Path) -> Result<KernelController, NvmeError> {
        let opened = File::open(path);
        let file = opened.map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => NvmeError::PermissionDenied { path: path.into() },
            _ => NvmeError::Os {
                path: path.into(),
                action: "open",
                source,
            },
        })?;
        let path = path.into();
        Ok(KernelController { file, path })
    }

    fn ask(
        &self,
        action: &'static str,
        opcode: u8,
        namespace: u32,
        word_10: u32,
        bytes: usize,
    ) -> Result<Box<[u8; PAGE]>, NvmeError> {
        let mut page = Box::new([0; PAGE]);
        let mut command = AdminCommand {
            opcode,
            namespace,
            data: page.as_mut_ptr().expose_provenance() as u64,
            data_bytes: bytes.min(PAGE) as u32,
            timeout_ms: TIMEOUT_MS,
            ..AdminCommand::default()
        };
        command.words_10_15[0] = word_10;
        let fd = self.file.as_raw_fd();
        // SAFETY: the structure is the kernel's, which writes at most `data_bytes` to the page.
        let answer = unsafe { libc::ioctl(fd, ADMIN_COMMAND, &raw mut command) };
        let drive = || self.path.display().to_string();
        match answer {
            0 => Ok(page),
            1.. => Err(NvmeError::Command {
                drive: drive(),
                action,
                status: crate::command::Status(answer as u16),
            }),
            _ => Err(NvmeError::Os {
                path: self.path.clone(),
                action: "send a command to",
                source: io::Error::last_os_error(),
            }),
        }
    }

    /// What the controller says of itself.
    ///
    /// # Errors
    /// A failure of the drive or the system.
    pub fn info(&self) -> Result<ControllerInfo, NvmeError> {
        let (what, action) = (admin::CNS_CONTROLLER, "identify itself");
        let page = self.ask(action, admin::IDENTIFY, 0, what, PAGE)?;
        // The unit of the limit is not in the page; all drives have this one.
        Ok(ControllerInfo::parse(&page, PAGE as u64))
    }

    /// What it says of a namespace; `None` if there is none of that number.
    ///
    /// # Errors
    /// A failure of the drive or the system.
    pub fn namespace(&self, id: u32) -> Result<Option<NamespaceInfo>, NvmeError> {
        let (what, action) = (admin::CNS_NAMESPACE, "identify a namespace");
        match self.ask(action, admin::IDENTIFY, id, what, PAGE) {
            Err(NvmeError::Command { status, .. }) if status.is_invalid_namespace() => Ok(None),
            page => Ok(NamespaceInfo::parse(id, &*page?)),
        }
    }

    /// The drive's own count of its health and use.
    ///
    /// # Errors
    /// A failure of the drive or the system.
    pub fn smart(&self) -> Result<SmartLog, NvmeError> {
        let what = admin::LOG_SMART | (512 / 4 - 1) << 16;
        let page = self.ask("tell its health", admin::GET_LOG_PAGE, u32::MAX, what, 512)?;
        Ok(SmartLog::parse(&page))
    }
}
