//! The test that `cargo xtask nvme` runs in a virtual machine: the driver on emulated drives, and
//! stores that outlive a killed machine. It overwrites every NVMe drive of the machine.
//!
//! `guest write`: takes the drives from the kernel, tests the driver, makes stores and writes to
//! them until the machine is killed. `guest check N`: opens the stores and checks them, N being the
//! last acknowledged change of each.
#![allow(clippy::unwrap_used, reason = "it stops at the first failure")]
#![allow(unsafe_code)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use isobath::{Options, Store, Volume};
use isobath_io::{AlignedBuf, ChannelOptions, Device, Io};
use isobath_nvme::{Controller, ControllerOptions, KernelController, Machine, NvmeDevice, VfioBus};

const KEYS: u64 = 2_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let machine = Machine::this();
    let drives = machine.drives();
    assert!(!drives.is_empty(), "there are no drives");
    match &arguments[..] {
        [verb] if verb == "write" => write(&machine),
        [verb, acknowledged] if verb == "check" => check(&machine, acknowledged.parse().unwrap()),
        _ => panic!("guest write, or guest check N"),
    }
}

fn options() -> Options {
    Options::new()
        .pool_bytes(4 << 20)
        .log_bytes(4 << 20)
        .workers(2)
}

fn key(n: u64) -> Vec<u8> {
    format!("{n:08}").into_bytes()
}

fn value(n: u64) -> Vec<u8> {
    (0..100 + n % 900).map(|at| (n * 31 + at) as u8).collect()
}

/// Takes the drive from the kernel, which must say the same of it.
fn open(machine: &Machine, address: &str) -> NvmeDevice {
    let kernels = machine.drive(address).unwrap().controller.unwrap();
    let kernels = KernelController::open(&kernels).unwrap();
    let (info, namespace) = (kernels.info().unwrap(), kernels.namespace(1).unwrap());
    let kernels_smart = kernels.smart().unwrap();
    drop(kernels);
    // The kernel may still be looking for namespaces, and a drive without any is refused.
    let deadline = Instant::now() + Duration::from_secs(10);
    while machine.drive(address).unwrap().blocks.is_empty() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    machine.bind(address, false).unwrap();
    let bus = Arc::new(VfioBus::open(machine, address).unwrap());
    let controller = Controller::open(bus, &ControllerOptions::default()).unwrap();
    println!("{address}: {:?}", controller.info());
    assert_eq!(*controller.info(), info);
    assert_eq!(
        controller.smart().unwrap().spare_percent,
        kernels_smart.spare_percent
    );
    let device = NvmeDevice::open(&controller, 1).unwrap();
    assert_eq!(Some(*device.namespace()), namespace);
    println!("{address}: {:?}", device.namespace());
    device
}

/// Writes and reads ranges of many lengths and alignments.
fn test_data(device: &Arc<NvmeDevice>) {
    let block = device.logical_block() as usize;
    let len = 8 << 20;
    let mut data = AlignedBuf::new(len);
    for (at, byte) in data.iter_mut().enumerate() {
        *byte = (at / 512 * 7 + at) as u8;
    }
    let mut back = AlignedBuf::new(len);
    let volume = Volume::from_device(device.clone());
    let mut channel = volume.channel(&ChannelOptions::with_depth(64)).unwrap();
    let mut done = Vec::new();
    for is_registered in [false, true] {
        let regions = [(data.as_mut_ptr(), len), (back.as_mut_ptr(), len)];
        // SAFETY: both buffers outlive the channel's use of them.
        assert!(!is_registered || unsafe { channel.register_buffers(&regions) });
        back.fill(0);
        let mut at = 0;
        let mut pieces = Vec::new();
        for number in 0.. {
            let count = (block << (number % 11)).min(len - at);
            if count == 0 {
                break;
            }
            pieces.push((at, count));
            at += count;
        }
        for is_read in [false, true] {
            for (at, count) in &pieces {
                let (offset, count) = (*at as u64, *count as u32);
                let io = match is_read {
                    true => Io::read(offset, back[*at..].as_mut_ptr(), count, offset),
                    false => Io::write(offset, data[*at..].as_ptr(), count, offset),
                };
                // SAFETY: the buffers outlive the loop that waits.
                while unsafe { channel.submit(io) }.is_err() {
                    channel.wait(1, None, &mut done).unwrap();
                }
            }
            while channel.in_flight() > 0 {
                channel.wait(1, None, &mut done).unwrap();
            }
            assert_eq!(done.len(), pieces.len());
            for completion in done.drain(..) {
                completion.result.unwrap();
            }
        }
        assert!(back[..] == data[..], "data differs");
    }
    drop(channel);
    volume.sync().unwrap();
    if device.controller().info().write_zeroes {
        device.zero_at(1 << 20, 2 << 20).unwrap();
        device.read_at(0, &mut back).unwrap();
        assert!(back[1 << 20..3 << 20].iter().all(|byte| *byte == 0));
        assert!(back[3 << 20..] == data[3 << 20..]);
    }
    if device.controller().info().deallocate {
        device.discard_at(4 << 20, 1 << 20).unwrap();
    }
    // So that a store finds the beginning empty.
    device.write_at(0, &vec![0; len]).unwrap();
    assert!(device.read_at(device.len(), &mut [0]).is_err());
    assert_eq!(device.controller().resets(), 0);
}

fn write(machine: &Machine) {
    let mut trees = Vec::new();
    for drive in machine.drives() {
        let device = Arc::new(open(machine, &drive.address));
        test_data(&device);
        println!("{}: the driver's test passed", drive.address);
        let store = Store::create_on_volume(Volume::from_device(device), &options()).unwrap();
        let tree = store.create_tree("t").unwrap();
        tree.bulk_load((0..KEYS).map(|n| (key(n), value(n))))
            .unwrap();
        trees.push((tree, store));
    }
    println!("LOADED");
    for n in KEYS.. {
        for (tree, _) in &trees {
            tree.insert(&key(n), &value(n)).unwrap();
        }
        if n % 20 == 0 {
            println!("ACKNOWLEDGED {n}");
        }
    }
}

fn check(machine: &Machine, acknowledged: u64) {
    for drive in machine.drives() {
        let device = Arc::new(open(machine, &drive.address));
        let volume = Volume::from_device(device);
        let store = Store::open_on_volume(volume, &options()).unwrap();
        let tree = store.tree("t").unwrap();
        for n in 0..=acknowledged {
            assert_eq!(tree.get(&key(n)).unwrap().unwrap(), value(n), "key {n}");
        }
        drop(tree);
        store.close().unwrap();
        machine.unbind(&drive.address).unwrap();
        let back = machine.drive(&drive.address).unwrap();
        assert_eq!(back.driver.as_deref(), Some("nvme"));
        println!("{}: {acknowledged} changes are there", drive.address);
    }
    println!("PASSED");
}
