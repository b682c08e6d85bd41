//! The machine's side of a mounted drive: its loop device, the file system on that, and taking both
//! away again.

use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

use super::drive::is_in_use;
use super::{
    DeclaredState, DriveStats, OpenAs, VirtualDrive, check_built, fuse_directory, fuse_file,
};
use crate::LabError;
use crate::system::{attach_loop, lacks_for_loop_devices, run};

/// How long a step may take that waits for the kernel or for the serving process.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the serving process may take to write the drive's state and contents to the disk.
const SAVING: Duration = Duration::from_secs(300);
/// Between two looks.
const STEP: Duration = Duration::from_millis(10);
/// Processes named in a message.
const MAX_USERS: usize = 5;

/// How a drive is mounted.
#[derive(Debug, Clone)]
pub struct MountRequest<'r> {
    /// The program and its arguments that call [`super::serve`] and print a line once that is
    /// ready; the drive's directory follows.
    pub serve: (PathBuf, Vec<String>),
    /// The mount point of its file system; `None`: only the block device.
    pub mount_point: Option<&'r Path>,
    /// Make a new file system even if the drive was used before.
    pub format: bool,
    /// Have the file system discard what it frees.
    pub discard: bool,
    /// The state that the drive must be in, unused.
    pub expect: Option<DeclaredState>,
    /// Whether a drive that is not in its declared state is refused.
    pub open_as: OpenAs,
}

/// A drive that is mounted now.
#[derive(Debug, Clone)]
pub struct MountedDrive {
    /// The block device.
    pub device: PathBuf,
    /// Whether a file system was made on it.
    pub formatted: bool,
    /// Whether the loop device passes the page cache by.
    pub direct: bool,
}

/// Checks that the machine can mount a drive, and make a file system on it.
///
/// # Errors
/// [`LabError::CannotMount`] names the missing part; [`LabError::NotBuilt`].
pub fn check_machine(formats: bool) -> Result<(), LabError> {
    check_built()?;
    let mut needs = lacks_for_loop_devices(formats);
    if !Path::new("/dev/fuse").exists() {
        needs.push("the device /dev/fuse (kernel module fuse)");
    }
    match needs.is_empty() {
        true => Ok(()),
        false => Err(LabError::CannotMount {
            needs: needs.join(", and "),
        }),
    }
}

/// Mounts a drive: starts the process that serves it, puts a loop device over its file, and a file
/// system on that.
///
/// # Errors
/// [`LabError::CannotMount`]; [`LabError::Input`] for a mount point that is missing, not empty or
/// in use, a drive that is mounted already, corrupt or not in its declared state, and for what
/// system programs refuse. Nothing stays mounted then.
pub fn mount(directory: &Path, request: &MountRequest<'_>) -> Result<MountedDrive, LabError> {
    check_machine(request.mount_point.is_some())?;
    let directory = canonical(directory)?;
    super::drive::check_is_drive(&directory)?;
    if let Some(mount_point) = request.mount_point {
        check_mount_point(&directory, mount_point)?;
    }
    if is_mount_point(&fuse_directory(&directory)) && !is_in_use(&directory)? {
        return Err(LabError::input(
            &directory,
            "the process that served it was killed; `isobath vssd umount` cleans up after it",
        ));
    }
    let drive = VirtualDrive::open(&directory, request.open_as)?;
    drive.check_declared(request.open_as)?;
    if let Some(state) = request.expect {
        drive.expect(state)?;
    }
    let (declared, used) = drive.declared();
    if request.discard && declared == DeclaredState::Preconditioned {
        return Err(LabError::Request(
            "a preconditioned drive is not discarded from: every page holds data; leave --discard out".into(),
        ));
    }
    drop(drive);
    let mut serving = start(&directory, request)?;
    let formats = request.mount_point.is_some() && (request.format || !used);
    let mounted = put_on_top(&directory, request, declared, formats);
    if mounted.is_err() {
        // The first failure is the one that is reported.
        let _ = take_off(&directory, true);
        let _ = serving.wait();
        return mounted;
    }
    // It ends when the drive is unmounted; a program that goes on must not keep the rest of it.
    std::thread::spawn(move || serving.wait());
    mounted
}

fn put_on_top(
    directory: &Path,
    request: &MountRequest<'_>,
    declared: DeclaredState,
    formats: bool,
) -> Result<MountedDrive, LabError> {
    let device = attach_loop(&fuse_file(directory, "drive"))?;
    if formats {
        // Nothing is left for later that would write to the drive in the middle of a measurement.
        let mut extended = "lazy_itable_init=0,lazy_journal_init=0".to_owned();
        extended += match declared {
            DeclaredState::Trimmed => ",discard",
            _ => ",nodiscard",
        };
        let args = ["-q", "-F", "-b", "4096", "-m", "0", "-E", &extended];
        run("mkfs.ext4", &args, &device)?;
    }
    if let Some(mount_point) = request.mount_point {
        let options = match request.discard {
            true => c"discard",
            false => c"nodiscard",
        };
        let mounted = rustix::mount::mount(
            &device,
            mount_point,
            "ext4",
            MountFlags::empty(),
            Some(options),
        );
        mounted.map_err(|error| match error {
            Errno::INVAL => LabError::input(
                directory,
                "holds no ext4 file system; --format makes one, and what it holds is lost; --raw gives the block device",
            ),
            error => LabError::io("mount a file system at", mount_point)(error.into()),
        })?;
    }
    let direct = fs::read_to_string(sys_of(&device).join("loop/dio"));
    Ok(MountedDrive {
        device,
        formatted: formats,
        direct: direct.is_ok_and(|text| text.trim() == "1"),
    })
}

/// Starts the process that serves the drive, and waits until it does.
fn start(directory: &Path, request: &MountRequest<'_>) -> Result<Child, LabError> {
    let (program, args) = &request.serve;
    let log_path = directory.join("daemon.log");
    let log = fs::File::create(&log_path).map_err(LabError::io("create", &log_path))?;
    let child = Command::new(program)
        .args(args)
        .arg(directory)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn();
    let mut child = child.map_err(LabError::io("run", program))?;
    let mut line = String::new();
    if let Some(out) = child.stdout.take() {
        // The end of its output is an answer too.
        let _ = BufReader::new(out).read_line(&mut line);
    }
    if !line.is_empty() {
        return Ok(child);
    }
    // It has ended, or was never started right.
    let _ = child.wait();
    let said = fs::read_to_string(&log_path).unwrap_or_default();
    let said = said.trim().trim_start_matches("isobath: ");
    let own = format!("{}: ", directory.display());
    let said = said.strip_prefix(&own).unwrap_or(said);
    Err(LabError::input(directory, said))
}

fn canonical(path: &Path) -> Result<PathBuf, LabError> {
    fs::canonicalize(path).map_err(LabError::io("open", path))
}

/// A mount point exists, is an empty directory outside of the drive, and nothing is mounted there.
fn check_mount_point(directory: &Path, mount_point: &Path) -> Result<(), LabError> {
    let refuse = |reason: &str| Err(LabError::input(mount_point, reason));
    let Ok(found) = fs::canonicalize(mount_point) else {
        return refuse("the mount point does not exist; make an empty directory there");
    };
    if !found.is_dir() {
        return refuse("the mount point is no directory");
    }
    if found.starts_with(directory) {
        return refuse("the mount point is inside the drive's own directory; name another one");
    }
    if is_mount_point(&found) {
        return refuse("something is mounted there already");
    }
    let mut entries = fs::read_dir(&found).map_err(LabError::io("read", &found))?;
    if entries.next().is_some() {
        return refuse("the mount point is not empty; what it holds would be hidden");
    }
    Ok(())
}

/// Unmounts a drive, named by its directory or by where it is mounted, and cleans up after a
/// serving process that was killed. With `force` also if that hangs or programs use the file
/// system: they get errors.
///
/// A process whose working directory is on the file system keeps it busy, this one too.
///
/// # Errors
/// [`LabError::Input`] if it is busy, which changes nothing, or not mounted.
pub fn unmount(target: &Path, force: bool) -> Result<DriveStats, LabError> {
    let directory = drive_of(target)?;
    if !rustix::process::geteuid().is_root() {
        return Err(LabError::CannotMount {
            needs: "root's rights, to unmount too".into(),
        });
    }
    let was_mounted = is_mount_point(&fuse_directory(&directory));
    take_off(&directory, force)?;
    if is_in_use(&directory)? {
        return Err(LabError::input(
            &directory,
            "the process that serves it does not end; it may be stopped: kill it, and `isobath vssd umount` again",
        ));
    }
    let drive = VirtualDrive::open(&directory, OpenAs::Declared)?;
    if !was_mounted {
        // A kill that was only just found is not saved.
        let saved = super::state::load(&directory.join("state"))?.header.kills;
        if drive.stats().kills == saved {
            return Err(LabError::input(&directory, "is not mounted"));
        }
    }
    drive.end_use()?;
    Ok(drive.stats())
}

/// The directory of a drive, of which `target` may be the mount point.
fn drive_of(target: &Path) -> Result<PathBuf, LabError> {
    // The root of a file system whose process was killed cannot be looked at any more.
    let target = fs::canonicalize(target).or_else(|_| std::path::absolute(target));
    let target = target.map_err(LabError::io("open", Path::new(".")))?;
    if target.join("state").exists() && target.join("image").exists() {
        return Ok(target);
    }
    let mounts = mounts();
    let here = mounts.iter().filter(|mount| mount.point == target);
    for mount in here {
        let file = backing_file(&sys_of(&mount.source)).unwrap_or_default();
        let directory = file.parent().and_then(Path::parent);
        if let Some(directory) = directory.filter(|d| d.join("state").exists()) {
            return Ok(directory.to_path_buf());
        }
    }
    Err(LabError::input(
        &target,
        "is no virtual SSD, and none is mounted there",
    ))
}

/// Takes file systems, loop devices and FUSE off a drive.
fn take_off(directory: &Path, force: bool) -> Result<(), LabError> {
    let fuse = fuse_directory(directory);
    if force && is_mount_point(&fuse) {
        // Ends the connection, so that nothing waits for the serving process any more; what is busy
        // goes lazily below.
        let _ = rustix::mount::unmount(&fuse, UnmountFlags::FORCE);
    }
    let must_go = force || !is_in_use(directory)?;
    for device in loops_of(directory) {
        let on_it = |mount: &&Mount| mount.source == device;
        for mount in mounts().iter().filter(on_it) {
            unmount_one(&mount.point, must_go)?;
        }
        run("losetup", &["--detach"], &device)?;
    }
    // The kernel releases the file some time after the loop device is detached.
    let began = Instant::now();
    while is_mount_point(&fuse) {
        match unmount_one(&fuse, must_go) {
            Err(_) if began.elapsed() < PATIENCE => sleep(STEP),
            other => other?,
        }
    }
    let limit = if force { PATIENCE } else { SAVING };
    let began = Instant::now();
    while began.elapsed() < limit && is_in_use(directory)? {
        sleep(STEP);
    }
    Ok(())
}

/// Unmounts, lazily if it must go; a busy one goes once its users have gone.
fn unmount_one(point: &Path, must_go: bool) -> Result<(), LabError> {
    match rustix::mount::unmount(point, UnmountFlags::empty()) {
        Ok(()) => Ok(()),
        Err(_) if must_go => rustix::mount::unmount(point, UnmountFlags::DETACH)
            .map_err(|error| LabError::io("unmount", point)(error.into())),
        Err(Errno::BUSY) => Err(LabError::input(
            point,
            format!(
                "is busy{}; end what uses it and try again: nothing was unmounted",
                users_of(point)
            ),
        )),
        Err(error) => Err(LabError::io("unmount", point)(error.into())),
    }
}

/// The processes that have something open below a path, for a message.
fn users_of(point: &Path) -> String {
    let mut users = Vec::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let own = std::process::id().to_string();
    for process in processes {
        let (path, id) = (process.path(), process.file_name());
        let id = id.to_string_lossy();
        if id == own || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let links = ["cwd", "root", "exe"].map(|name| path.join(name));
        let opened = fs::read_dir(path.join("fd"))
            .into_iter()
            .flatten()
            .flatten();
        let mut links = links.into_iter().chain(opened.map(|entry| entry.path()));
        if links.any(|link| fs::read_link(link).is_ok_and(|to| to.starts_with(point))) {
            let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
            users.push(format!("{id} {}", name.trim()));
        }
    }
    let more = users.len().saturating_sub(MAX_USERS);
    users.truncate(MAX_USERS);
    match (users.is_empty(), more) {
        (true, _) => String::new(),
        (_, 0) => format!(" (used by process {})", users.join(", ")),
        _ => format!(" (used by process {} and {more} more)", users.join(", ")),
    }
}

/// A line of the kernel's list of mounts.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    point: PathBuf,
    source: PathBuf,
}

/// The present mounts, the last mounted first.
fn mounts() -> Vec<Mount> {
    parse_mounts(&fs::read("/proc/self/mountinfo").unwrap_or_default())
}

/// The kernel's list is bytes: one mount point of any program that is not UTF-8 must not hide all
/// others.
fn parse_mounts(list: &[u8]) -> Vec<Mount> {
    let line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let point = unescape(fields.nth(4)?);
        // Optional fields end with a dash; type and source follow.
        let source = fields.skip_while(|field| *field != b"-").nth(2)?;
        let source = unescape(source);
        Some(Mount { point, source })
    };
    let lines = list.split(|byte| *byte == b'\n');
    let mut mounts: Vec<Mount> = lines.filter_map(line).collect();
    mounts.reverse();
    mounts
}

/// A field of mountinfo, in which some bytes are a backslash and three octal digits.
fn unescape(field: &[u8]) -> PathBuf {
    let octal = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits.get(..3)?).ok()?;
        u8::from_str_radix(digits, 8).ok()
    };
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, behind)) = rest.split_first() {
        let byte = (*first == b'\\').then(|| octal(behind)).flatten();
        plain.push(byte.unwrap_or(*first));
        let skipped = if byte.is_some() { 3 } else { 0 };
        rest = behind.get(skipped..).unwrap_or_default();
    }
    OsString::from_vec(plain).into()
}

/// The file behind a loop device, by the device's directory in sysfs.
fn backing_file(block: &Path) -> Option<PathBuf> {
    let mut path = fs::read(block.join("loop/backing_file")).ok()?;
    path.pop_if(|last| *last == b'\n');
    Some(OsString::from_vec(path).into())
}

fn is_mount_point(path: &Path) -> bool {
    mounts().iter().any(|mount| mount.point == path)
}

/// The loop devices over a drive's file.
fn loops_of(directory: &Path) -> Vec<PathBuf> {
    let file = fuse_file(directory, "drive");
    let blocks = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let mut devices = Vec::new();
    for block in blocks {
        if backing_file(&block.path()).is_some_and(|backing| backing == file) {
            devices.push(Path::new("/dev").join(block.file_name()));
        }
    }
    devices
}

/// A block device's directory in sysfs.
fn sys_of(device: &Path) -> PathBuf {
    let name = device.file_name().unwrap_or_default();
    Path::new("/sys/block").join(name)
}

/// The block device and mount points of a drive, as they are now.
pub fn where_mounted(directory: &Path) -> Vec<(PathBuf, Vec<PathBuf>)> {
    let Ok(directory) = canonical(directory) else {
        return Vec::new();
    };
    let mounts = mounts();
    let with_points = |device: PathBuf| {
        let on_it = mounts.iter().filter(|m| m.source == device);
        let points = on_it.map(|mount| mount.point.clone()).collect();
        (device, points)
    };
    loops_of(&directory).into_iter().map(with_points).collect()
}

/// The counters of a drive, mounted or not.
///
/// # Errors
/// As for [`VirtualDrive::open`], and [`LabError::Input`] if the process that served it was
/// killed.
pub fn stats(directory: &Path) -> Result<DriveStats, LabError> {
    let directory = canonical(directory)?;
    match mounted_file(&directory, "stats")? {
        Some(path) => {
            let bytes = fs::read(&path).map_err(LabError::io("read", &path))?;
            serde_json::from_slice(&bytes)
                .map_err(|error| LabError::input(&path, format!("is not understood: {error}")))
        }
        None => Ok(VirtualDrive::open(&directory, OpenAs::AsIs)?.stats()),
    }
}

/// The CDF of write frequency of a drive, mounted or not, as CSV.
///
/// # Errors
/// As for [`stats`].
pub fn write_frequency(directory: &Path) -> Result<String, LabError> {
    let directory = canonical(directory)?;
    match mounted_file(&directory, "frequency")? {
        Some(path) => fs::read_to_string(&path).map_err(LabError::io("read", &path)),
        None => Ok(VirtualDrive::open(&directory, OpenAs::AsIs)?.write_frequency_csv()),
    }
}

/// Sets the mark of a drive, mounted or not.
///
/// # Errors
/// As for [`stats`].
pub fn set_mark(directory: &Path) -> Result<(), LabError> {
    let directory = canonical(directory)?;
    match mounted_file(&directory, "control")? {
        Some(path) => {
            let file = fs::OpenOptions::new().write(true).open(&path);
            file.and_then(|mut file| file.write_all(b"mark"))
                .map_err(LabError::io("write", &path))
        }
        None => {
            let drive = VirtualDrive::open(&directory, OpenAs::Declared)?;
            drive.set_mark()
        }
    }
}

/// A file of a drive's FUSE file system, if it is mounted.
fn mounted_file(directory: &Path, name: &str) -> Result<Option<PathBuf>, LabError> {
    if !is_mount_point(&fuse_directory(directory)) {
        return Ok(None);
    }
    if !is_in_use(directory)? {
        return Err(LabError::input(
            directory,
            "the process that served it was killed; `isobath vssd umount` cleans up after it, nothing is lost",
        ));
    }
    Ok(Some(fuse_file(directory, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_mounts_are_understood() {
        let text = b"21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                    91 21 0:50 / /mnt/\xff rw - tmpfs tmpfs rw\n\
                    90 21 7:3 / /mnt/a\\040b\\134040 rw - ext4 /dev/loop3 rw\nrubbish\n";
        let mounts = parse_mounts(text);
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[0].point, Path::new("/mnt/a b\\040"));
        assert_eq!(mounts[0].source, Path::new("/dev/loop3"));
        assert_eq!(mounts[1].point.as_os_str().as_encoded_bytes(), b"/mnt/\xff");
    }

    #[test]
    fn mount_points_must_be_empty_directories_outside_of_the_drive() {
        let place = tempfile::tempdir().unwrap();
        let drive = place.path().join("drive");
        let refused = |mount_point: &Path| {
            let checked = check_mount_point(&drive, mount_point);
            checked.unwrap_err().to_string()
        };
        fs::create_dir_all(drive.join("inside")).unwrap();
        let free = place.path().join("free");
        assert!(refused(&free).contains("does not exist"));
        fs::create_dir(&free).unwrap();
        check_mount_point(&drive, &free).unwrap();
        let file = free.join("file");
        fs::write(&file, "x").unwrap();
        assert!(refused(&free).contains("not empty"));
        assert!(refused(&file).contains("no directory"));
        assert!(refused(&drive.join("inside")).contains("own directory"));
        assert!(refused(Path::new("/proc")).contains("already"));
    }
}
