//! `isobath nvme` on a machine of files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::support::{Answer, Place};

const DRIVE: &str = "0000:01:00.0";
const OTHER: &str = "0000:02:00.0";

/// A machine with a drive alone in group 7, and one beside a network card in group 8.
struct FakeMachine(Place);

impl FakeMachine {
    fn new() -> FakeMachine {
        let machine = FakeMachine(Place::new());
        let root = machine.0.path("root");
        for directory in ["nvme", "vfio-pci", "e1000e", "pcieport"] {
            fs::create_dir_all(root.join("sys/bus/pci/drivers").join(directory)).unwrap();
        }
        machine.device(DRIVE, "0x010802", "nvme", 7);
        machine.device("0000:00:01.0", "0x060400", "pcieport", 7);
        machine.device(OTHER, "0x010802", "nvme", 8);
        machine.device("0000:02:00.1", "0x020000", "e1000e", 8);
        machine.controller(DRIVE, "nvme0");
        machine.controller(OTHER, "nvme1");
        machine.write("sys/bus/pci/drivers_probe", "");
        machine.write(
            "proc/self/mountinfo",
            "25 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
        );
        machine.write("proc/swaps", "Filename Type Size Used Priority\n");
        machine.write("dev/vfio/vfio", "");
        machine
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        self.0.write(&format!("root/{path}"), content);
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        self.0.path("root").join(path)
    }

    fn device(&self, address: &str, class: &str, driver: &str, group: u32) {
        let device = format!("sys/bus/pci/devices/{address}");
        self.write(&format!("{device}/class"), format!("{class}\n"));
        self.write(&format!("{device}/driver_override"), "(null)\n");
        self.write(&format!("sys/bus/pci/drivers/{driver}/unbind"), "");
        symlink(
            format!("../../drivers/{driver}"),
            self.path(&format!("{device}/driver")),
        )
        .unwrap();
        let link = format!("../../../../kernel/iommu_groups/{group}");
        symlink(link, self.path(&format!("{device}/iommu_group"))).unwrap();
        self.write(
            &format!("sys/kernel/iommu_groups/{group}/devices/{address}"),
            "",
        );
    }

    fn controller(&self, address: &str, name: &str) {
        let directory = format!("sys/bus/pci/devices/{address}/nvme/{name}");
        self.write(&format!("{directory}/model"), "A drive of files   \n");
        fs::create_dir_all(self.path(&format!("{directory}/{name}n1"))).unwrap();
        let block = format!("sys/class/block/{name}n1");
        self.write(&format!("{block}/size"), "2097152\n");
        let minor = if address == DRIVE { 0 } else { 8 };
        self.write(&format!("{block}/dev"), format!("259:{minor}\n"));
        fs::create_dir_all(self.path(&format!("{block}/holders"))).unwrap();
        self.write(&format!("dev/{name}n1"), vec![0; 2 << 20]);
    }

    fn nvme(&self, args: &[&str]) -> Answer {
        self.0
            .run_in_columns("200", &[&["nvme", "--root", "root"], args].concat())
    }

    /// Runs a verb while the kernel's part is played: whatever is probed gets the driver that its
    /// override names.
    fn nvme_with_kernel(&self, args: &[&str]) -> Answer {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let probe = self.path("sys/bus/pci/drivers_probe");
                while !is_over.load(Ordering::Relaxed) {
                    let address = fs::read_to_string(&probe).unwrap();
                    if !address.is_empty() {
                        fs::write(&probe, "").unwrap();
                        self.probe(&self.path("sys/bus/pci/devices").join(address));
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let answer = self.nvme(args);
            is_over.store(true, Ordering::Relaxed);
            answer
        })
    }

    fn probe(&self, device: &Path) {
        let wanted = fs::read_to_string(device.join("driver_override")).unwrap();
        let driver = match wanted.trim() {
            "" => "nvme",
            wanted => wanted,
        };
        fs::remove_file(device.join("driver")).unwrap();
        symlink(format!("../../drivers/{driver}"), device.join("driver")).unwrap();
    }
}

#[test]
fn drives_are_listed_with_who_uses_them() {
    let machine = FakeMachine::new();
    let list = machine.nvme(&["list"]).ok();
    for word in [
        DRIVE,
        OTHER,
        "A drive of files",
        "nvme0n1 (1.0 GiB)",
        "0000:02:00.1 (e1000e)",
    ] {
        assert!(list.text().contains(word), "{word}: {}", list.text());
    }
    assert!(
        !list.text().contains("pcieport"),
        "bridges are in nobody's way"
    );
    machine.write(
        "proc/self/mountinfo",
        "30 25 259:0 / /data rw - xfs /dev/nvme0n1 rw\n",
    );
    fs::create_dir_all(machine.path("sys/class/block/nvme1n1/holders/dm-0")).unwrap();
    let list = machine.nvme(&["list", "--json"]).ok().json();
    assert_eq!(list.len(), 2);
    assert_eq!(list[0]["users"][0], "nvme0n1 is mounted at /data");
    assert_eq!(list[0]["driver"], "nvme");
    assert_eq!(list[0]["iommu_group"], 7);
    assert_eq!(list[1]["users"][0], "nvme1n1 is part of dm-0");
    assert_eq!(list[1]["group_others"][0], "0000:02:00.1 (e1000e)");

    let none = Place::new();
    let text = none.run(&["nvme", "--root", "nowhere", "list"]).ok();
    assert_eq!(text.text(), "there are no NVMe drives\n");
}

#[test]
fn a_drive_goes_to_vfio_and_back() {
    let machine = FakeMachine::new();
    machine.nvme_with_kernel(&["bind", DRIVE]).ok();
    let list = machine.nvme(&["list", "--json"]).ok().json();
    assert_eq!(list[0]["driver"], "vfio-pci");
    let unbound = fs::read_to_string(machine.path("sys/bus/pci/drivers/nvme/unbind")).unwrap();
    assert_eq!(unbound, DRIVE);
    // Once more changes nothing.
    machine.nvme(&["bind", DRIVE]).ok();
    // While a process uses it, it is not given back.
    fs::create_dir_all(machine.path("proc/4711/fd")).unwrap();
    symlink("/dev/vfio/7", machine.path("proc/4711/fd/5")).unwrap();
    machine
        .nvme(&["unbind", DRIVE])
        .fails(3, "in use: process 4711; stop using it first");
    fs::remove_dir_all(machine.path("proc/4711")).unwrap();
    let told = machine
        .nvme_with_kernel(&["unbind", DRIVE, "--json"])
        .ok()
        .json();
    assert_eq!(told[0]["driver"], "nvme");
    let only = machine.path(&format!("sys/bus/pci/devices/{DRIVE}/driver_override"));
    assert_eq!(fs::read_to_string(only).unwrap(), "\n");
}

#[test]
fn a_drive_with_something_on_it_is_taken_only_by_force() {
    let machine = FakeMachine::new();
    let mut start = vec![0; 2 << 20];
    for (at, bytes, what) in [
        (0, &b"XFSB"[..], "a file system (XFS)"),
        (1080, b"\x53\xef", "a file system (ext2, ext3 or ext4)"),
        (510, b"\x55\xaa", "a partition table"),
        (512, b"EFI PART", "a partition table (GPT)"),
        (70_000, b"x", "data at its start"),
    ] {
        start.fill(0);
        start[at..at + bytes.len()].copy_from_slice(bytes);
        machine.write("dev/nvme0n1", &start);
        machine
            .nvme(&["bind", DRIVE])
            .fails(3, &format!("nvme0n1 has {what}"));
    }
    machine.nvme_with_kernel(&["bind", DRIVE, "--force"]).ok();

    let machine = FakeMachine::new();
    let part = "sys/class/block/nvme0n1/nvme0n1p1";
    machine.write(&format!("{part}/partition"), "1\n");
    machine.write(&format!("{part}/dev"), "259:1\n");
    machine
        .nvme(&["bind", DRIVE])
        .fails(3, "has a partition table: nvme0n1p1; stop using it");
    // What is in use is in use.
    for (file, content, what) in [
        (
            "proc/self/mountinfo",
            "30 25 259:1 / /data rw - xfs /dev/nvme0n1p1 rw\n",
            "nvme0n1p1 is mounted at /data",
        ),
        (
            "proc/swaps",
            "F\n/dev/nvme0n1p1 partition 1 0 -2\n",
            "nvme0n1p1 is swap space",
        ),
    ] {
        machine.write(file, content);
        machine.nvme(&["bind", DRIVE, "--force"]).fails(3, what);
        machine.write(file, "");
    }
    let driver = fs::read_link(machine.path(&format!("sys/bus/pci/devices/{DRIVE}/driver")));
    assert!(driver.unwrap().ends_with("nvme"), "nothing was changed");
    // What cannot be looked into is not taken.
    let machine = FakeMachine::new();
    let device = machine.path(&format!("sys/bus/pci/devices/{DRIVE}"));
    fs::remove_file(device.join("driver")).unwrap();
    machine
        .nvme(&["bind", DRIVE])
        .fails(3, "no driver holds it");
    // A store may be used again.
    for superblock in [0, 32768] {
        let machine = FakeMachine::new();
        start.fill(0);
        start[superblock..superblock + 8].copy_from_slice(b"ISOBATH\0");
        start[60_000..].fill(7);
        machine.write("dev/nvme0n1", &start);
        let list = machine.nvme(&["list"]).ok();
        assert!(list.text().contains("nvme0n1 has a store of Isobath"));
        machine.nvme_with_kernel(&["bind", DRIVE]).ok();
        // A file system that was made over one is a file system.
        let machine = FakeMachine::new();
        start[..4].copy_from_slice(b"XFSB");
        machine.write("dev/nvme0n1", &start);
        let refused = machine.nvme(&["bind", DRIVE]);
        refused.fails(3, "a file system (XFS)");
    }
}

#[test]
fn what_keeps_a_drive_from_a_program_is_named() {
    let machine = FakeMachine::new();
    machine
        .nvme(&["bind", "1:0"])
        .fails(2, "\"1:0\" is not a PCI address");
    machine
        .nvme(&["bind", "../../etc"])
        .fails(2, "is not a PCI address");
    machine
        .nvme(&["bind", "0000:09:00.0"])
        .fails(3, "there is no PCI device 0000:09:00.0");
    machine
        .nvme(&["bind", "0000:02:00.1"])
        .fails(3, "is not an NVMe drive");
    machine.nvme(&["bind", OTHER]).fails(
        3,
        "IOMMU group 8 of 0000:02:00.0 has other devices in use: 0000:02:00.1 (e1000e)",
    );
    fs::remove_dir_all(machine.path("sys/bus/pci/drivers/vfio-pci")).unwrap();
    machine.nvme(&["bind", DRIVE]).fails(3, "modprobe vfio-pci");
    machine.write("sys/kernel/iommu_groups/7/name", "vfio-noiommu\n");
    machine
        .nvme(&["bind", DRIVE])
        .fails(3, "the noiommu mode of VFIO is not used");
    fs::remove_file(machine.path(&format!("sys/bus/pci/devices/{DRIVE}/iommu_group"))).unwrap();
    machine
        .nvme(&["bind", DRIVE])
        .fails(3, "has no IOMMU group");
    // The kernel's device is missing, and is no device.
    machine
        .nvme(&["smart", DRIVE])
        .fails(3, "cannot open root/dev/nvme0");
    machine.write("dev/nvme0", "");
    machine
        .nvme(&["identify", DRIVE])
        .fails(3, "cannot send a command to root/dev/nvme0");

    let machine = FakeMachine::new();
    machine.nvme_with_kernel(&["bind", DRIVE]).ok();
    let device = machine.path(&format!("sys/bus/pci/devices/{DRIVE}"));
    fs::remove_dir_all(device.join("nvme")).unwrap();
    machine
        .nvme(&["identify", DRIVE])
        .fails(3, "root/dev/vfio/7 is missing");
    machine.write("dev/vfio/7", "");
    machine
        .nvme(&["identify", DRIVE])
        .fails(3, "cannot use root/dev/vfio/vfio");
}

/// A process that has a file open, to the machine of files.
fn process(machine: &FakeMachine, pid: u32, target: &str) {
    let files = machine.path(&format!("proc/{pid}/fd"));
    // Of the process before it, if there was one.
    fs::remove_dir_all(&files).ok();
    fs::create_dir_all(&files).unwrap();
    symlink(target, files.join("9")).unwrap();
    machine.write(&format!("proc/{pid}/comm"), "reader\n");
}

#[test]
fn a_drive_with_open_files_is_not_taken() {
    let machine = FakeMachine::new();
    let part = "sys/class/block/nvme0n1/nvme0n1p1";
    machine.write(&format!("{part}/partition"), "1\n");
    let mut store = vec![0; 2 << 20];
    store[..8].copy_from_slice(b"ISOBATH\0");
    machine.write("dev/nvme0n1", store);
    let controller = format!("sys/bus/pci/devices/{DRIVE}/nvme/nvme0");
    // `/dev/null` has the number of a namespace's character device here.
    fs::create_dir_all(machine.path(&controller).join("ng0n1")).unwrap();
    machine.write("sys/class/nvme-generic/ng0n1/dev", "1:3\n");
    for file in [
        "/dev/nvme0n1",
        "/dev/nvme0n1p1",
        "/dev/nvme0",
        "/dev/ng0n1",
        "/dev/null",
    ] {
        process(&machine, 4711, file);
        machine
            .nvme(&["bind", DRIVE, "--force"])
            .fails(3, "in use: process 4711 (reader); stop using it first");
    }
    let list = machine.nvme(&["list", "--json"]).ok().json();
    assert_eq!(list[0]["users"][0], "process 4711 (reader)");
    // Other files are nobody's business.
    for file in ["/dev/nvme1n1", "/dev/zero", "/dev/nvme0n10", "socket:[1]"] {
        process(&machine, 4711, file);
        let list = machine.nvme(&["list", "--json"]).ok().json();
        assert_eq!(list[0]["users"].as_array().unwrap().len(), 0, "{file}");
    }
    // The kernel's own users have no process.
    let loops = "sys/block/loop3/loop/backing_file";
    machine.write(loops, "/dev/nvme0n1p1\n");
    machine
        .nvme(&["bind", DRIVE, "--force"])
        .fails(3, "in use: nvme0n1p1 is used by loop3; stop");
    machine.write(loops, "/srv/image\n");
    let target = "sys/kernel/config/nvmet/subsystems/there/namespaces/1";
    machine.write(&format!("{target}/device_path"), "/dev/nvme0n1\n");
    machine.write(&format!("{target}/enable"), "1\n");
    machine
        .nvme(&["bind", DRIVE, "--force"])
        .fails(3, "nvme0n1 is used by the NVMe target there; stop");
    machine.write(&format!("{target}/enable"), "0\n");
    machine.nvme_with_kernel(&["bind", DRIVE, "--force"]).ok();
    // Users by way of iommufd.
    let device = format!("sys/bus/pci/devices/{DRIVE}/vfio-dev/vfio0");
    machine.write(&format!("{device}/dev"), "511:0\n");
    process(&machine, 4711, "/dev/vfio/devices/vfio0");
    machine
        .nvme(&["unbind", DRIVE])
        .fails(3, "in use: process 4711 (reader)");
}

#[test]
fn only_the_kernels_driver_and_vfio_give_a_drive_away() {
    let machine = FakeMachine::new();
    let link = machine.path(&format!("sys/bus/pci/devices/{DRIVE}/driver"));
    fs::remove_file(&link).unwrap();
    symlink("../../drivers/uio_pci_generic", &link).unwrap();
    machine
        .nvme(&["unbind", DRIVE])
        .fails(3, "in use: uio_pci_generic holds it; stop");
    machine
        .nvme(&["bind", DRIVE, "--force"])
        .fails(3, "in use: uio_pci_generic holds it; stop");
    assert!(fs::read_link(&link).unwrap().ends_with("uio_pci_generic"));
}

#[test]
fn a_drive_whose_namespaces_are_not_seen_is_taken_only_by_force() {
    let machine = FakeMachine::new();
    let controller = format!("sys/bus/pci/devices/{DRIVE}/nvme/nvme0");
    machine.write(&format!("{controller}/state"), "resetting\n");
    machine
        .nvme(&["bind", DRIVE])
        .fails(3, "its controller is not live, but resetting");
    machine.write(&format!("{controller}/state"), "live\n");
    fs::create_dir_all(machine.path(&controller).join("ng0n2")).unwrap();
    machine
        .nvme(&["bind", DRIVE])
        .fails(3, "ng0n2 has no block device");
    fs::remove_dir(machine.path(&controller).join("ng0n2")).unwrap();
    fs::remove_dir_all(machine.path("sys/class/block/nvme0n1")).unwrap();
    machine
        .nvme(&["bind", DRIVE])
        .fails(3, "the kernel shows no namespace of it");
    machine.nvme_with_kernel(&["bind", DRIVE, "--force"]).ok();
}

#[test]
fn a_drive_that_vfio_does_not_take_is_given_back() {
    let machine = FakeMachine::new();
    let probe = machine.path("sys/bus/pci/drivers_probe");
    fs::remove_file(&probe).unwrap();
    fs::create_dir(&probe).unwrap();
    let refused = machine.nvme(&["bind", DRIVE]);
    refused.fails(3, &format!("nvme has {DRIVE} again"));
    let only = machine.path(&format!("sys/bus/pci/devices/{DRIVE}/driver_override"));
    assert_eq!(fs::read_to_string(&only).unwrap(), "\n");
    // What was preferred before is preferred again.
    fs::write(&only, "nvme\n").unwrap();
    machine.nvme(&["bind", DRIVE]).fails(3, "drivers_probe");
    assert_eq!(fs::read_to_string(&only).unwrap(), "nvme");
}

#[test]
fn a_drive_is_claimed_until_the_kernels_driver_has_let_it_go() {
    let machine = FakeMachine::new();
    let unbind = machine.path("sys/bus/pci/drivers/nvme/unbind");
    fs::remove_file(&unbind).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&unbind).status();
    assert!(made.unwrap().success());
    let disk = fs::canonicalize(machine.path("dev/nvme0n1")).unwrap();
    let is_open = || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let files = processes.filter_map(|process| fs::read_dir(process.path().join("fd")).ok());
        let mut links = files
            .flatten()
            .flatten()
            .filter_map(|file| fs::read_link(file.path()).ok());
        links.any(|link| link == disk)
    };
    assert!(!is_open());
    let only = machine.path(&format!("sys/bus/pci/devices/{DRIVE}/driver_override"));
    std::thread::scope(|scope| {
        let bind = scope.spawn(|| machine.nvme_with_kernel(&["bind", DRIVE]));
        for _ in 0..10_000 {
            if fs::read_to_string(&only).unwrap() == "vfio-pci" {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // It waits for a reader of the pipe, and goes on to the probe then.
        let is_claimed = is_open();
        assert_eq!(fs::read_to_string(&unbind).unwrap(), DRIVE);
        bind.join().unwrap().ok();
        assert!(is_claimed);
    });
    assert!(!is_open());
}
