//! A drive behind VFIO: its registers mapped, its memory accesses translated by the IOMMU.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::bus::{Bus, register};
use crate::error::NvmeError;
use crate::identify::PAGE;
use crate::sysfs::Machine;

/// Requests of the kernel's interface (`linux/vfio.h`); structures are arrays of its words.
mod request {
    const fn number(n: libc::Ioctl) -> libc::Ioctl {
        (b';' as libc::Ioctl) << 8 | (100 + n)
    }
    pub(super) const GET_API_VERSION: libc::Ioctl = number(0);
    pub(super) const CHECK_EXTENSION: libc::Ioctl = number(1);
    pub(super) const SET_IOMMU: libc::Ioctl = number(2);
    pub(super) const GROUP_GET_STATUS: libc::Ioctl = number(3);
    pub(super) const GROUP_SET_CONTAINER: libc::Ioctl = number(4);
    pub(super) const GROUP_GET_DEVICE: libc::Ioctl = number(6);
    pub(super) const DEVICE_GET_REGION: libc::Ioctl = number(8);
    pub(super) const DEVICE_RESET: libc::Ioctl = number(11);
    pub(super) const IOMMU_GET_INFO: libc::Ioctl = number(12);
    pub(super) const IOMMU_MAP: libc::Ioctl = number(13);
    pub(super) const IOMMU_UNMAP: libc::Ioctl = number(14);
}

/// The second version of the kernel's first interface to IOMMUs.
const TYPE1_V2: libc::c_ulong = 3;
/// A group whose devices all belong to VFIO.
const GROUP_VIABLE: u32 = 1;
const REGION_BAR0: u32 = 0;
const REGION_CONFIGURATION: u32 = 7;
const REGION_CAN_MAP: u32 = 4;
/// The command word of PCI's configuration space, and its bits for memory and for being master.
const PCI_COMMAND: u64 = 4;
const PCI_MEMORY: u16 = 2;
const PCI_MASTER: u16 = 4;
/// Where addresses for the drive begin: above what is reserved on PCs.
const FIRST_ADDRESS: u64 = 1 << 32;
/// Where they end, if the kernel does not say: what all IOMMUs translate.
const LAST_ADDRESS: u64 = (1 << 39) - 1;
/// Looks in vain before a polling thread sleeps between looks, and how long it sleeps.
const SPINS: u32 = 20_000;
const NAP: Duration = Duration::from_micros(50);

/// A structure that begins with its length.
#[repr(C)]
#[derive(Default)]
struct Region {
    bytes: u32,
    flags: u32,
    index: u32,
    capabilities: u32,
    size: u64,
    offset: u64,
}

#[repr(C)]
struct Map {
    bytes: u32,
    flags: u32,
    memory: u64,
    address: u64,
    size: u64,
}

#[repr(C)]
struct Unmap {
    bytes: u32,
    flags: u32,
    address: u64,
    size: u64,
}

/// Ranges of addresses that are free for the drive, sorted: first and last.
#[derive(Debug)]
struct Addresses(Vec<(u64, u64)>);

impl Addresses {
    fn take(&mut self, bytes: u64) -> Option<u64> {
        let fits = |(first, last): &(u64, u64)| last - first >= bytes - 1;
        let at = self.0.iter().position(fits)?;
        let (first, last) = self.0[at];
        if last - first == bytes - 1 {
            self.0.remove(at);
        } else {
            self.0[at].0 = first + bytes;
        }
        Some(first)
    }

    fn give_back(&mut self, first: u64, bytes: u64) {
        let last = first + (bytes - 1);
        let at = self.0.partition_point(|range| range.0 < first);
        self.0.insert(at, (first, last));
        // Joins neighbours: first with the one behind, then with the one before.
        for at in [at, at.wrapping_sub(1)] {
            if at.checked_add(1).is_some_and(|next| next < self.0.len())
                && self.0[at].1 + 1 == self.0[at + 1].0
            {
                self.0[at].1 = self.0[at + 1].1;
                self.0.remove(at + 1);
            }
        }
    }
}

/// An NVMe drive that vfio-pci holds.
pub struct VfioBus {
    name: String,
    registers: NonNull<u8>,
    register_bytes: usize,
    device: File,
    configuration_at: u64,
    container: File,
    addresses: Mutex<Addresses>,
    /// Keeps the group's devices ours. Closed last, like the container.
    _group: File,
    start: Instant,
}

impl std::fmt::Debug for VfioBus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VfioBus")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

// SAFETY: the mapped registers are accessed with volatile loads and stores of whole words only,
// which is what devices are made for; everything else is files and a mutex.
unsafe impl Send for VfioBus {}
// SAFETY: as above.
unsafe impl Sync for VfioBus {}

fn ioctl(file: &File, request: libc::Ioctl, argument: libc::c_ulong) -> io::Result<i32> {
    // SAFETY: only for requests whose argument is a number.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), request, argument) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

/// A request with a structure.
///
/// # Safety
/// The kernel must take a structure of `T`'s layout for this request, or memory of that length.
unsafe fn ioctl_with<T: ?Sized>(
    file: &File,
    request: libc::Ioctl,
    argument: &mut T,
) -> io::Result<i32> {
    let pointer: *mut c_void = std::ptr::from_mut(argument).cast();
    // SAFETY: by contract.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), request, pointer) };
    if answer < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(answer)
    }
}

fn os(path: &Path, action: &'static str) -> impl Fn(io::Error) -> NvmeError {
    move |source| NvmeError::Os {
        path: path.to_owned(),
        action,
        source,
    }
}

fn open(path: &Path, missing: impl FnOnce() -> NvmeError) -> Result<File, NvmeError> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|source| match source.raw_os_error() {
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => missing(),
        Some(libc::EACCES | libc::EPERM) => NvmeError::PermissionDenied { path: path.into() },
        Some(libc::EBUSY) => NvmeError::GroupBusy { path: path.into() },
        _ => os(path, "open")(source),
    })
}

impl VfioBus {
    /// The drive at a PCI address such as `0000:01:00.0`, which vfio-pci must hold.
    ///
    /// # Errors
    /// [`NvmeError`]: it is no NVMe drive, not bound, its group is shared or busy, there is no
    /// IOMMU, no permission, or a failure of the system.
    pub fn open(machine: &Machine, address: &str) -> Result<VfioBus, NvmeError> {
        let drive = machine.drive(address)?;
        let no_iommu = || NvmeError::NoIommu {
            address: address.to_owned(),
        };
        let group_number = drive.iommu_group.ok_or_else(no_iommu)?;
        if drive.driver.as_deref() != Some("vfio-pci") {
            return Err(NvmeError::NotBound {
                address: address.to_owned(),
                driver: drive.driver.unwrap_or_else(|| "no driver".to_owned()),
            });
        }
        if machine.is_noiommu(group_number) {
            return Err(no_iommu());
        }
        let container_path = machine.path("dev/vfio/vfio");
        let no_module = || NvmeError::NoModule {
            path: container_path.clone(),
            module: "vfio-pci",
        };
        let container = open(&container_path, no_module)?;
        let group_path = machine.path(&format!("dev/vfio/{group_number}"));
        let group = open(&group_path, || NvmeError::NoModule {
            path: group_path.clone(),
            module: "vfio-pci",
        })?;
        let in_container = os(&container_path, "use");
        let in_group = os(&group_path, "use");
        if ioctl(&container, request::GET_API_VERSION, 0).map_err(&in_container)? != 0 {
            let source = io::Error::from_raw_os_error(libc::EPROTO);
            return Err(in_container(source));
        }
        if ioctl(&container, request::CHECK_EXTENSION, TYPE1_V2).map_err(&in_container)? == 0 {
            return Err(no_iommu());
        }
        let mut status = [8u32, 0];
        // SAFETY: the structure is its length and its flags.
        unsafe { ioctl_with(&group, request::GROUP_GET_STATUS, &mut status) }.map_err(&in_group)?;
        if status[1] & GROUP_VIABLE == 0 {
            return Err(NvmeError::GroupShared {
                address: address.to_owned(),
                group: group_number,
                others: machine.group_others(address, group_number),
            });
        }
        let mut number = container.as_raw_fd();
        // SAFETY: the argument is a pointer to a file's number.
        unsafe { ioctl_with(&group, request::GROUP_SET_CONTAINER, &mut number) }
            .map_err(&in_group)?;
        ioctl(&container, request::SET_IOMMU, TYPE1_V2).map_err(&in_container)?;
        let name = format!("{address}\0");
        let mut name = name.into_bytes();
        // SAFETY: the argument is a text that ends with a zero.
        let raw = unsafe { ioctl_with(&group, request::GROUP_GET_DEVICE, &mut name[..]) }
            .map_err(&in_group)?;
        // SAFETY: the kernel has just given this number to us alone.
        let device = File::from(unsafe { OwnedFd::from_raw_fd(raw) });
        Self::with_device(address, &group_path, group, container, device)
    }

    fn with_device(
        address: &str,
        path: &Path,
        group: File,
        container: File,
        device: File,
    ) -> Result<VfioBus, NvmeError> {
        let fail = os(path, "use");
        let region = |index| {
            let mut region = Region {
                bytes: size_of::<Region>() as u32,
                index,
                ..Region::default()
            };
            // SAFETY: the structure is `Region`'s.
            unsafe { ioctl_with(&device, request::DEVICE_GET_REGION, &mut region) }?;
            Ok(region)
        };
        let bar = region(REGION_BAR0).map_err(&fail)?;
        let configuration = region(REGION_CONFIGURATION).map_err(&fail)?;
        let unsupported = |reason: &str| NvmeError::Unsupported {
            drive: address.to_owned(),
            reason: reason.to_owned(),
        };
        let length = usize::try_from(bar.size).unwrap_or(usize::MAX);
        if bar.flags & REGION_CAN_MAP == 0 || length <= register::DOORBELLS as usize {
            return Err(unsupported("its registers cannot be mapped"));
        }
        let addresses = Addresses(free_addresses(&container).map_err(&fail)?);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let offset = bar.offset as libc::off_t;
        let fd = device.as_raw_fd();
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let mapped = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                fd,
                offset,
            )
        };
        let registers = match NonNull::new(mapped.cast()) {
            Some(registers) if mapped != libc::MAP_FAILED => registers,
            _ => return Err(fail(io::Error::last_os_error())),
        };
        let bus = VfioBus {
            name: address.to_owned(),
            registers,
            register_bytes: length,
            configuration_at: configuration.offset,
            device,
            container,
            addresses: Mutex::new(addresses),
            _group: group,
            start: Instant::now(),
        };
        bus.set_command(PCI_MEMORY | PCI_MASTER, 0).map_err(&fail)?;
        Ok(bus)
    }

    fn set_command(&self, set: u16, clear: u16) -> io::Result<()> {
        let at = self.configuration_at + PCI_COMMAND;
        let mut command = [0; 2];
        self.device.read_exact_at(&mut command, at)?;
        let command = (u16::from_le_bytes(command) | set) & !clear;
        self.device.write_all_at(&command.to_le_bytes(), at)
    }

    fn register(&self, offset: u32) -> Option<*mut u32> {
        let at = offset as usize;
        let is_inside = at.is_multiple_of(4) && at.checked_add(4)? <= self.register_bytes;
        // SAFETY: inside the mapping, as just checked.
        is_inside.then(|| unsafe { self.registers.as_ptr().add(at).cast() })
    }
}

/// Addresses that the IOMMU translates, as far as the kernel says.
fn free_addresses(container: &File) -> io::Result<Vec<(u64, u64)>> {
    let mut info = vec![0u64; 512];
    let bytes = info.len() as u64 * 8;
    // The length, with flags 0 in the upper half.
    info[0] = bytes;
    // SAFETY: the structure begins with its length, and fills at most that much.
    unsafe { ioctl_with(container, request::IOMMU_GET_INFO, &mut info[..]) }?;
    let words: Vec<u32> = info
        .iter()
        .flat_map(|w| [*w as u32, (*w >> 32) as u32])
        .collect();
    Ok(address_ranges(&words))
}

/// Finds the ranges in the kernel's answer; a guess if there are none.
fn address_ranges(info: &[u32]) -> Vec<(u64, u64)> {
    const HAS_CAPABILITIES: u32 = 2;
    const RANGES: u32 = 1;
    let word = |byte: u32| info.get(byte as usize / 4).copied().unwrap_or(0);
    let wide = |byte| u64::from(word(byte)) | u64::from(word(byte + 4)) << 32;
    let mut found = Vec::new();
    let mut at = if word(4) & HAS_CAPABILITIES != 0 {
        word(16)
    } else {
        0
    };
    // Capabilities are a list; it goes forwards.
    while at != 0 && (at as usize) < info.len() * 4 {
        if word(at) & 0xffff == RANGES {
            let count = word(at + 8).min(64);
            found = (0..count)
                .map(|n| (wide(at + 16 + n * 16), wide(at + 24 + n * 16)))
                .collect();
        }
        let next = word(at + 4);
        at = if next > at { next } else { 0 };
    }
    for range in &mut found {
        range.0 = range.0.max(FIRST_ADDRESS).next_multiple_of(PAGE as u64);
    }
    found.retain(|(first, last)| first < last);
    found.sort_unstable();
    if found.is_empty() {
        found.push((FIRST_ADDRESS, LAST_ADDRESS));
    }
    found
}

// SAFETY: a disabled controller accesses no memory, as the specification says; one that is not
// allowed to be master of the bus cannot.
unsafe impl Bus for VfioBus {
    fn name(&self) -> &str {
        &self.name
    }

    fn register_bytes(&self) -> u64 {
        self.register_bytes as u64
    }

    fn read(&self, offset: u32) -> u32 {
        match self.register(offset) {
            // SAFETY: a register inside the mapping.
            Some(register) => u32::from_le(unsafe { register.read_volatile() }),
            None => register::GONE,
        }
    }

    fn write(&self, offset: u32, value: u32) {
        write_barrier();
        if let Some(register) = self.register(offset) {
            // SAFETY: a register inside the mapping.
            unsafe { register.write_volatile(value.to_le()) };
        }
    }

    unsafe fn map(&self, start: *mut u8, bytes: usize) -> Result<u64, NvmeError> {
        let fail = |source| NvmeError::Memory { bytes, source };
        let mut addresses = self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let none = || fail(io::Error::from_raw_os_error(libc::ENOSPC));
        let address = addresses.take(bytes as u64).ok_or_else(none)?;
        let mut map = Map {
            bytes: size_of::<Map>() as u32,
            // Readable and writable for the drive.
            flags: 3,
            memory: start.expose_provenance() as u64,
            address,
            size: bytes as u64,
        };
        // SAFETY: the structure is `Map`'s; the kernel pins the pages.
        let mapped = unsafe { ioctl_with(&self.container, request::IOMMU_MAP, &mut map) };
        if let Err(source) = mapped {
            addresses.give_back(address, bytes as u64);
            return Err(fail(source));
        }
        Ok(address)
    }

    fn unmap(&self, address: u64, bytes: usize) {
        let mut unmap = Unmap {
            bytes: size_of::<Unmap>() as u32,
            flags: 0,
            address,
            size: bytes as u64,
        };
        // SAFETY: the structure is `Unmap`'s.
        let unmapped = unsafe { ioctl_with(&self.container, request::IOMMU_UNMAP, &mut unmap) };
        // Pages that stay pinned are not given to anybody else, nor is their address.
        if unmapped.is_ok() {
            let mut addresses = self
                .addresses
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            addresses.give_back(address, bytes as u64);
        }
    }

    fn cut_off(&self) {
        // A drive that is gone has no configuration to write, and no way to memory.
        let cut = self.set_command(0, PCI_MASTER);
        let reset = ioctl(&self.device, request::DEVICE_RESET, 0);
        if cut.is_err() && reset.is_err() && self.read(register::CSTS) != register::GONE {
            eprintln!("{} can be kept neither from memory nor reset", self.name);
            std::process::abort();
        }
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn pause(&self, round: u32) {
        match round < SPINS {
            true => std::hint::spin_loop(),
            false => std::thread::sleep(NAP),
        }
    }
}

/// Orders stores to memory before the store to a register that tells the device of them.
fn write_barrier() {
    std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a barrier changes no state. Rust's own fences order accesses between CPUs only.
    unsafe {
        std::arch::asm!("dmb oshst", options(nostack, preserves_flags));
    }
}

impl Drop for VfioBus {
    fn drop(&mut self) {
        // SAFETY: mapped in `with_device` with this length; nothing refers to it any more.
        unsafe { libc::munmap(self.registers.as_ptr().cast(), self.register_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_used_again() {
        let mut addresses = Addresses(vec![(0x1000, 0x4fff), (0x8000, 0xffff)]);
        let first = addresses.take(0x3000).unwrap();
        let second = addresses.take(0x2000).unwrap();
        assert_eq!((first, second), (0x1000, 0x8000));
        let third = addresses.take(0x1000).unwrap();
        assert_eq!(third, 0x4000);
        assert_eq!(addresses.take(0x7000), None);
        for (at, bytes) in [(first, 0x3000), (second, 0x2000), (third, 0x1000)] {
            addresses.give_back(at, bytes);
        }
        assert_eq!(addresses.0, [(0x1000, 0x4fff), (0x8000, 0xffff)]);
    }

    #[test]
    fn address_ranges_are_read_from_what_the_kernel_says() {
        let mut info = vec![0; 64];
        assert_eq!(address_ranges(&info), [(FIRST_ADDRESS, LAST_ADDRESS)]);
        info[1] = 2;
        info[4] = 24;
        // Another capability, then two ranges.
        info[6] = 2;
        info[7] = 40;
        info[10] = 1;
        info[12] = 2;
        let ranges = [(0u64, 0xfedf_ffffu64), (0xfef0_0000, 0xff_ffff_ffff)];
        for (at, (first, last)) in (14..).step_by(4).zip(ranges) {
            info[at] = first as u32;
            info[at + 1] = (first >> 32) as u32;
            info[at + 2] = last as u32;
            info[at + 3] = (last >> 32) as u32;
        }
        assert_eq!(address_ranges(&info), [(FIRST_ADDRESS, 0xff_ffff_ffff)]);
        // Lists that turn back, or lead outside, end.
        info[11] = 24;
        info[7] = 4_000_000;
        address_ranges(&info);
    }
}
