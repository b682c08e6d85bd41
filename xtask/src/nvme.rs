//! `cargo xtask nvme`: the user-space NVMe driver in a virtual machine with emulated drives.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long one boot may take, under software emulation.
const BOOT: Duration = Duration::from_secs(240);
/// Acknowledged changes before the machine is killed.
const CHANGES: u64 = 200;
const DISK_BYTES: u64 = 256 << 20;
/// The machine, but for its disks.
const MACHINE: &str = "-machine q35,kernel-irqchip=split -accel tcg -cpu max -smp 2 -m 1024 \
    -nographic -no-reboot -net none -device intel-iommu";
/// The drivers that the machine loads.
const MODULES: [&str; 3] = ["nvme", "vfio-pci", "vfio_iommu_type1"];

const INIT: &str = "\
#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
while read module; do /bin/busybox insmod $module; done < /modules
/bin/busybox sleep 2
/guest $what $acknowledged || echo FAILED
/bin/busybox poweroff -f
";

/// Run the user-space NVMe driver in a virtual machine (QEMU, software emulation): its test, a
/// store, a kill of the machine, and the store's check in the next one
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Needs qemu-system-x86_64, a static busybox, and a kernel with its modules \
(Debian: qemu-system-x86, busybox-static, linux-image-amd64)."
)]
pub(crate) struct Args {
    /// Kernel image [default: the newest in /boot]
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// Its directory of modules [default: the one in /lib/modules]
    #[arg(long, value_name = "DIRECTORY")]
    modules: Option<PathBuf>,
    /// Print what the machine prints
    #[arg(long)]
    console: bool,
}

type Failed = Box<dyn std::error::Error>;

pub(crate) fn run(args: &Args) -> bool {
    match try_run(args) {
        Ok(acknowledged) => {
            println!("passed: {acknowledged} changes outlived a killed machine, on each drive");
            true
        }
        Err(error) => {
            eprintln!("failed: {error}");
            false
        }
    }
}

fn try_run(args: &Args) -> Result<u64, Failed> {
    let kernel = match &args.kernel {
        Some(kernel) => kernel.clone(),
        None => newest_kernel()?,
    };
    let version = kernel.file_name().unwrap_or_default().to_string_lossy();
    let version = version.trim_start_matches("vmlinuz-");
    let modules = match &args.modules {
        Some(modules) => modules.clone(),
        None => Path::new("/lib/modules").join(version),
    };
    let guest = build_guest()?;
    let place = tempfile::tempdir()?;
    let initramfs = place.path().join("initramfs");
    write_initramfs(&initramfs, &guest, &modules)?;
    let disks = [512, 4096].map(|block| (place.path().join(format!("disk{block}")), block));
    for (disk, _) in &disks {
        File::create(disk)?.set_len(DISK_BYTES)?;
    }
    let boot = |what: &str| -> Result<Machine, Failed> {
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(MACHINE.split_whitespace());
        for (number, (disk, block)) in disks.iter().enumerate() {
            let file = format!("file={},if=none,format=raw,id=d{number}", disk.display());
            let controller = format!("nvme,serial=test{number},id=c{number}");
            let namespace = format!(
                "nvme-ns,drive=d{number},bus=c{number},logical_block_size={block},physical_block_size={block}"
            );
            qemu.args(["-drive", &file, "-device", &controller]);
            qemu.args(["-device", &namespace]);
        }
        qemu.arg("-kernel")
            .arg(&kernel)
            .arg("-initrd")
            .arg(&initramfs);
        let line = format!("console=ttyS0 quiet panic=-1 intel_iommu=on {what}");
        qemu.args(["-append", &line]);
        Machine::start(qemu, args.console)
    };
    println!("a machine tests the driver and writes stores");
    let mut machine = boot("what=write")?;
    machine.wait_for("LOADED")?;
    let acknowledged = loop {
        let line = machine.wait_for("ACKNOWLEDGED ")?;
        let number: u64 = line.trim().rsplit(' ').next().unwrap_or_default().parse()?;
        if number >= 2_000 + CHANGES {
            break number;
        }
    };
    machine.kill()?;
    println!("killed after change {acknowledged}; another machine checks the stores");
    let mut machine = boot(&format!("what=check acknowledged={acknowledged}"))?;
    machine.wait_for("PASSED")?;
    machine.kill()?;
    Ok(acknowledged)
}

fn newest_kernel() -> Result<PathBuf, Failed> {
    let entries = fs::read_dir("/boot")?.flatten().map(|entry| entry.path());
    let is_kernel = |path: &PathBuf| path.to_string_lossy().contains("/vmlinuz-");
    let newest = entries.filter(is_kernel).max();
    newest.ok_or_else(|| {
        "no kernel in /boot: install linux-image-amd64, or name one (--kernel)".into()
    })
}

/// Builds the program that runs in the machine, which has no libraries.
fn build_guest() -> Result<PathBuf, Failed> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    let directory = "target/guest";
    let mut build = crate::cargo();
    build.args(["build", "-p", "isobath-nvme", "--example", "guest"]);
    build.args(["--target", TARGET, "--target-dir", directory]);
    build.env("RUSTFLAGS", "-C target-feature=+crt-static");
    if !build.status()?.success() {
        return Err("the machine's program cannot be built".into());
    }
    Ok(Path::new(directory)
        .join(TARGET)
        .join("debug/examples/guest"))
}

/// A file system in memory, in cpio's newc format.
fn write_initramfs(to: &Path, guest: &Path, modules: &Path) -> Result<(), Failed> {
    const DIRECTORY: u32 = 0o040_755;
    const PROGRAM: u32 = 0o100_755;
    let mut archive = Vec::new();
    for name in ["bin", "dev", "proc", "sys"] {
        append(&mut archive, name, DIRECTORY, b"");
    }
    append(&mut archive, "init", PROGRAM, INIT.as_bytes());
    append(&mut archive, "guest", PROGRAM, &fs::read(guest)?);
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .iter()
        .find_map(|path| fs::read(path).ok());
    let busybox = busybox.ok_or("there is no busybox: install busybox-static")?;
    append(&mut archive, "bin/busybox", PROGRAM, &busybox);
    let mut all = Vec::new();
    find_modules(modules, &mut all)?;
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for name in MODULES {
        add_module(name, &all, &mut seen, &mut order)?;
    }
    let mut list = String::new();
    for (name, content) in order {
        append(&mut archive, &name, PROGRAM, &content);
        list.push_str(&format!("/{name}\n"));
    }
    append(&mut archive, "modules", PROGRAM, list.as_bytes());
    append(&mut archive, "TRAILER!!!", 0, b"");
    fs::write(to, archive)?;
    Ok(())
}

fn append(archive: &mut Vec<u8>, name: &str, mode: u32, content: &[u8]) {
    let fields = [
        archive.len() as u32 + 1,
        mode,
        0,
        0,
        1,
        0,
        content.len() as u32,
        0,
        0,
        0,
        0,
        name.len() as u32 + 1,
        0,
    ];
    archive.extend_from_slice(b"070701");
    for field in fields {
        archive.extend_from_slice(format!("{field:08x}").as_bytes());
    }
    archive.extend_from_slice(name.as_bytes());
    archive.push(0);
    archive.resize(archive.len().next_multiple_of(4), 0);
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(4), 0);
}

fn find_modules(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), Failed> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            find_modules(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "ko") {
            found.push(path);
        }
    }
    Ok(())
}

/// Adds a module behind those that it needs. One that is not there is part of the kernel.
fn add_module(
    name: &str,
    all: &[PathBuf],
    seen: &mut BTreeSet<String>,
    order: &mut Vec<(String, Vec<u8>)>,
) -> Result<(), Failed> {
    // Both characters stand for the same in names of modules.
    let plain = |name: &str| name.replace('-', "_");
    if !seen.insert(plain(name)) {
        return Ok(());
    }
    let is_it = |path: &&PathBuf| {
        path.file_stem()
            .is_some_and(|stem| plain(&stem.to_string_lossy()) == plain(name))
    };
    let Some(path) = all.iter().find(is_it) else {
        return Ok(());
    };
    let content = fs::read(path)?;
    let key = b"depends=";
    if let Some(at) = content.windows(key.len()).position(|window| window == key) {
        let rest = &content[at + key.len()..];
        let end = rest
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(rest.len());
        let needed = String::from_utf8_lossy(&rest[..end]).into_owned();
        for other in needed.split(',').filter(|other| !other.is_empty()) {
            add_module(other, all, seen, order)?;
        }
    }
    order.push((format!("{name}.ko"), content));
    Ok(())
}

/// A running machine and the lines of its console.
struct Machine {
    qemu: Child,
    lines: Receiver<String>,
    deadline: Instant,
    console: bool,
    last: Vec<String>,
}

impl Machine {
    fn start(mut qemu: Command, console: bool) -> Result<Machine, Failed> {
        qemu.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut qemu = qemu
            .spawn()
            .map_err(|e| format!("qemu-system-x86_64 cannot be started: {e}"))?;
        let output = qemu.stdout.take().ok_or("the machine has no console")?;
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            while output
                .read_until(b'\n', &mut line)
                .is_ok_and(|count| count > 0)
            {
                // Who stops reading has what it waits for.
                if sender
                    .send(String::from_utf8_lossy(&line).into_owned())
                    .is_err()
                {
                    return;
                }
                line.clear();
            }
        });
        Ok(Machine {
            qemu,
            lines,
            deadline: Instant::now() + BOOT,
            console,
            last: Vec::new(),
        })
    }

    /// The next line that contains `text`.
    fn wait_for(&mut self, text: &str) -> Result<String, Failed> {
        loop {
            let left = self.deadline.saturating_duration_since(Instant::now());
            let fault = match self.lines.recv_timeout(left) {
                Ok(line) => {
                    if self.console {
                        print!("    {line}");
                    }
                    if line.contains(text) {
                        return Ok(line);
                    }
                    self.last.push(line);
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => "it takes too long",
                Err(RecvTimeoutError::Disconnected) => "it has ended",
            };
            let from = self.last.len().saturating_sub(30);
            let last = self.last[from..].concat();
            return Err(
                format!("the machine did not say {text:?}: {fault}. It said:\n{last}").into(),
            );
        }
    }

    fn kill(&mut self) -> Result<(), Failed> {
        self.qemu.kill()?;
        self.qemu.wait()?;
        Ok(())
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.kill();
    }
}
