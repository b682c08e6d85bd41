//! The driver on the model of a controller.
#![allow(unsafe_code)]

mod faults;
mod random;

use std::sync::Arc;
use std::time::Duration;

use isobath_io::{
    AlignedBuf, Channel, ChannelOptions, Completion, Device, Io, IoErrorKind, IoVec, Volume,
    VolumeError,
};

use crate::bus::Bus;
use crate::channel::NvmeChannel;
use crate::controller::{Controller, ControllerOptions};
use crate::device::NvmeDevice;
use crate::error::NvmeError;
use crate::model::{ModelController, ModelOptions};

/// Short enough that the model's steps reach it.
const TIMEOUT: Duration = Duration::from_millis(30);

fn start(model: &Arc<ModelController>) -> Result<Arc<Controller>, NvmeError> {
    let bus: Arc<dyn Bus> = model.clone();
    let options = ControllerOptions {
        timeout: TIMEOUT,
        ..ControllerOptions::default()
    };
    Controller::open(bus, &options)
}

fn device_of(model: &Arc<ModelController>) -> Arc<NvmeDevice> {
    let controller = start(model).unwrap();
    Arc::new(NvmeDevice::open(&controller, 1).unwrap())
}

fn new(options: ModelOptions) -> (Arc<ModelController>, Arc<NvmeDevice>) {
    let model = Arc::new(ModelController::new(options));
    let device = device_of(&model);
    (model, device)
}

fn channel_of(device: &NvmeDevice, depth: u32) -> NvmeChannel {
    let options = ChannelOptions::with_depth(depth);
    NvmeChannel::open(device.controller(), *device.namespace(), &options).unwrap()
}

/// Executes I/Os whose memory outlives this, and answers their results in their order.
fn run(channel: &mut dyn Channel, ios: &[Io]) -> Vec<Result<(), IoErrorKind>> {
    let mut done: Vec<Completion> = Vec::new();
    for (number, io) in ios.iter().enumerate() {
        let io = Io {
            user_data: number as u64,
            ..*io
        };
        // SAFETY: by the callers.
        while unsafe { channel.submit(io) }.is_err() {
            channel.wait(1, None, &mut done).unwrap();
        }
    }
    while channel.in_flight() > 0 {
        channel.wait(1, None, &mut done).unwrap();
    }
    assert_eq!(done.len(), ios.len(), "each ends once");
    done.sort_by_key(|completion| completion.user_data);
    let kinds = done.into_iter().zip(0..).map(|(completion, number)| {
        assert_eq!(completion.user_data, number);
        completion.result.map_err(|error| error.kind())
    });
    kinds.collect()
}

fn pattern(len: usize, seed: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::new(len);
    for (at, byte) in buf.iter_mut().enumerate() {
        *byte = (at / 512 * 31 + at + seed * 7) as u8;
    }
    buf
}

/// Ends what uses the model, and checks that it found nothing to complain of.
fn finish(model: &ModelController, device: Arc<NvmeDevice>) {
    drop(device);
    assert_eq!(model.violations(), [""; 0]);
    assert_eq!(model.mapped_regions(), 0, "memory is left to the drive");
}

#[test]
fn a_controller_says_what_it_is() {
    let (model, device) = new(ModelOptions::default());
    let info = device.controller().info();
    assert_eq!(info.model, "Isobath model of a controller");
    assert_eq!(info.serial, "0001");
    assert_eq!(info.max_transfer_bytes, Some(128 << 10));
    assert!(info.volatile_cache && info.deallocate && info.write_zeroes);
    assert_eq!(device.namespace().bytes(), 64 << 20);
    assert_eq!(device.controller().queue_pairs(), 16);
    let smart = device.controller().smart().unwrap();
    assert_eq!((smart.temperature_c, smart.spare_percent), (37, 100));
    finish(&model, device);
}

#[test]
fn data_comes_back_whatever_its_place_and_length() {
    for (block_shift, transfer_shift, max_entries) in [
        (9, 0, 256),
        (9, 1, 2),
        (12, 5, 64),
        (12, 0, 2),
        (9, 3, 3),
        (12, 10, 64),
    ] {
        let (model, device) = new(ModelOptions {
            blocks: (16 << 20) >> block_shift,
            block_shift,
            transfer_shift,
            max_entries,
            ..ModelOptions::default()
        });
        let block = 1usize << block_shift;
        let mut channel = channel_of(&device, 32);
        for (number, (offset, skip, len)) in [
            (0, 0, block),
            (block, block % 4096, 4096),
            (8192, 0, 8192),
            (3 * block, block * 3 % 4096, 12288),
            (0, block % 4096, (2 << 20) + 4096),
            (65536, 0, 5 << 20),
        ]
        .into_iter()
        .enumerate()
        {
            let data = pattern(skip + len, number);
            let mut back = AlignedBuf::new(skip + len + 4096);
            back.fill(0xee);
            let write = Io::write(offset as u64, data[skip..].as_ptr(), len as u32, 0);
            let to = back[skip..].as_mut_ptr();
            let read = Io::read(offset as u64, to, len as u32, 0);
            assert_eq!(run(&mut channel, &[write]), [Ok(())]);
            assert_eq!(run(&mut channel, &[read]), [Ok(())]);
            assert!(
                data[skip..] == back[skip..skip + len],
                "{number}, blocks of {block}"
            );
            let around = back[..skip].iter().chain(&back[skip + len..]);
            assert!(
                around.copied().all(|byte| byte == 0xee),
                "memory around is left alone"
            );
        }
        drop(channel);
        finish(&model, device);
    }
}

#[test]
fn ranges_of_any_alignment_are_written_one_after_another() {
    let (model, device) = new(ModelOptions {
        blocks: 1 << 15,
        block_shift: 9,
        ..ModelOptions::default()
    });
    let data = pattern(1 << 20, 3);
    let cuts = [
        (0, 4096),
        (8192, 4096),
        (512, 1024),
        (40960, 512),
        (65536, 300 << 10),
        (4096, 512),
    ];
    let ranges = cuts.map(|(at, len)| IoVec {
        buf: data[at..].as_ptr(),
        len,
    });
    let mut expected = Vec::new();
    for (at, len) in cuts {
        expected.extend_from_slice(&data[at..at + len]);
    }
    let mut channel = channel_of(&device, 4);
    // Once with memory that is mapped for each command, once with registered memory.
    for is_registered in [false, true] {
        if is_registered {
            let region = (data.as_ptr().cast_mut(), data.len());
            // SAFETY: the memory outlives the channel's use.
            assert!(unsafe { channel.register_buffers(&[region]) });
        }
        let write = Io::write_v(1024, ranges.as_ptr(), ranges.len() as u32, 0).durable();
        assert_eq!(run(&mut channel, &[write]), [Ok(())]);
        let mut back = vec![0; expected.len()];
        device.read_at(1024, &mut back).unwrap();
        assert!(back == expected);
        device.write_at(0, &vec![0; 1 << 20]).unwrap();
    }
    drop(channel);
    finish(&model, device);
}

#[test]
fn wrong_arguments_end_with_what_is_wrong() {
    let (model, device) = new(ModelOptions::default());
    let mut buf = AlignedBuf::new(8192);
    let to = buf.as_mut_ptr();
    let mut channel = channel_of(&device, 8);
    let results = run(
        &mut channel,
        &[
            Io::read(1, to, 4096, 0),
            Io::read(0, to, 0, 0),
            Io::read(0, to.wrapping_add(1), 4096, 0),
            Io::write(64 << 20, to, 4096, 0),
            Io::write((64 << 20) - 4096, to, 4096, 0),
            Io::discard(u64::MAX - 4095, 8192, 0),
            Io::write_v(0, std::ptr::null(), 0, 0),
        ],
    );
    use IoErrorKind::{Misaligned, OutOfRange};
    let expected = [
        Err(Misaligned),
        Err(Misaligned),
        Err(Misaligned),
        Err(OutOfRange),
        Ok(()),
        Err(OutOfRange),
        Err(Misaligned),
    ];
    assert_eq!(results, expected);
    let volume = Volume::from_device(device.clone());
    volume.grow(64 << 20).unwrap();
    let error = volume.grow((64 << 20) + 4096).unwrap_err();
    assert!(matches!(error, VolumeError::Limit { .. }), "{error}");
    drop(volume);
    drop(channel);
    finish(&model, device);
}

#[test]
fn discarded_and_zeroed_ranges_read_as_zeros() {
    let (model, device) = new(ModelOptions {
        block_shift: 9,
        blocks: 1 << 18,
        ..ModelOptions::default()
    });
    device.write_at(0, &[7; 1 << 20]).unwrap();
    device.discard_at(4096, 8192).unwrap();
    device.zero_at(512 << 10, 512 << 10).unwrap();
    // More blocks than one command has.
    device.zero_at(1 << 20, 40 << 20).unwrap();
    let mut back = vec![1; 1 << 20];
    device.read_at(0, &mut back).unwrap();
    for (at, byte) in back.iter().enumerate() {
        let is_zero = (4096..12288).contains(&at) || at >= 512 << 10;
        assert_eq!(*byte == 0, is_zero, "byte {at}");
    }
    // Any alignment.
    let mut part = [1; 1000];
    device.read_at(4000, &mut part).unwrap();
    assert!(part[..96].iter().all(|b| *b == 7) && part[96..].iter().all(|b| *b == 0));
    finish(&model, device);

    let (model, device) = new(ModelOptions {
        optional_commands: false,
        ..ModelOptions::default()
    });
    for result in [device.discard_at(0, 4096), device.zero_at(0, 4096)] {
        assert_eq!(result.unwrap_err().kind(), IoErrorKind::Unsupported);
    }
    finish(&model, device);
}

#[test]
fn what_was_flushed_survives_a_power_loss() {
    let (model, device) = new(ModelOptions::default());
    let mut channel = channel_of(&device, 64);
    let data = pattern(4096, 1);
    let at = |block: u64| Io::write(block * 4096, data.as_ptr(), 4096, 0);
    let first: Vec<Io> = (0..32).map(at).collect();
    assert!(run(&mut channel, &first).iter().all(Result::is_ok));
    assert_eq!(run(&mut channel, &[Io::flush(0)]), [Ok(())]);
    let second: Vec<Io> = (32..64).map(|block| at(block).durable()).collect();
    assert!(run(&mut channel, &second).iter().all(Result::is_ok));
    let third: Vec<Io> = (64..128).map(at).collect();
    assert!(run(&mut channel, &third).iter().all(Result::is_ok));
    let after = Arc::new(model.after_power_loss(9));
    let found = device_of(&after);
    let mut lost = 0;
    for block in 0..128 {
        let mut back = [0; 4096];
        found.read_at(block * 4096, &mut back).unwrap();
        match back == data[..] {
            true => {}
            false if block >= 64 && back == [0; 4096] => lost += 1,
            false => panic!("block {block} is lost or torn"),
        }
    }
    assert!(
        (1..64).contains(&lost),
        "{lost} of 64 cached blocks are lost"
    );
    drop(channel);
    finish(&model, device);
    finish(&after, found);
}

#[test]
fn without_a_volatile_cache_a_flush_is_no_command() {
    for volatile_cache in [false, true] {
        let (model, device) = new(ModelOptions {
            volatile_cache,
            ..ModelOptions::default()
        });
        let mut channel = channel_of(&device, 4);
        assert_eq!(run(&mut channel, &[Io::flush(0)]), [Ok(())]);
        assert_eq!(channel.stats().device_requests, u64::from(volatile_cache));
        assert_eq!(channel.stats().flush.completed, 1);
        drop(channel);
        finish(&model, device);
    }
}

fn refusal(options: ModelOptions) -> String {
    let model = Arc::new(ModelController::new(options));
    let opened = start(&model).and_then(|controller| NvmeDevice::open(&controller, 1));
    let error = opened.expect_err("it is refused").to_string();
    assert_eq!(model.violations(), [""; 0]);
    assert_eq!(model.mapped_regions(), 0);
    error
}

#[test]
fn what_cannot_be_used_is_refused_with_the_reason() {
    let base = ModelOptions::default;
    let with_metadata = ModelOptions {
        metadata_bytes: 8,
        ..base()
    };
    assert!(refusal(with_metadata).contains("8 bytes of metadata per block"));
    let odd_blocks = ModelOptions {
        block_shift: 13,
        ..base()
    };
    assert!(refusal(odd_blocks).contains("blocks of 2^13 bytes"));
    let never_ready = ModelOptions {
        becomes_ready: false,
        ..base()
    };
    assert!(refusal(never_ready).contains("did not start within 10 s"));
    let one_entry = ModelOptions {
        max_entries: 1,
        ..base()
    };
    assert!(refusal(one_entry).contains("have one entry, and need two"));

    let model = Arc::new(ModelController::new(base()));
    model.remove();
    assert!(matches!(start(&model), Err(NvmeError::Removed { .. })));

    let (model, device) = new(base());
    let error = NvmeDevice::open(device.controller(), 2).unwrap_err();
    assert!(error.to_string().contains("has no namespace 2"), "{error}");
    let error = NvmeDevice::open(device.controller(), 5).unwrap_err();
    assert!(error.to_string().contains("up to 4"), "{error}");
    finish(&model, device);
}

#[test]
fn each_channel_takes_a_queue_pair_and_gives_it_back() {
    let (model, device) = new(ModelOptions {
        queue_pairs: 3,
        ..ModelOptions::default()
    });
    let volume = Volume::from_device(device.clone());
    for _ in 0..3 {
        let options = ChannelOptions::with_depth(4);
        let channels: Vec<_> = (0..3).map(|_| volume.channel(&options).unwrap()).collect();
        let error = volume.channel(&options).err().unwrap();
        assert!(
            error.to_string().contains("3 queue pairs, all in use"),
            "{error}"
        );
        let error = volume.sync().unwrap_err();
        assert_eq!(error.kind(), IoErrorKind::Again);
        drop(channels);
    }
    volume.sync().unwrap();
    drop(volume);
    finish(&model, device);
}

#[test]
fn a_wake_ends_a_wait_and_a_full_channel_says_so() {
    let (model, device) = new(ModelOptions::default());
    let mut channel = channel_of(&device, 2);
    let mut done = Vec::new();
    let waker = channel.waker();
    let thread = std::thread::spawn(move || waker.wake());
    while channel.stats().wakes == 0 {
        channel.wait(1, None, &mut done).unwrap();
    }
    thread.join().unwrap();
    let none = channel.wait(1, Some(Duration::from_millis(1)), &mut done);
    assert_eq!(none.unwrap(), 0);
    // SAFETY: a flush has no memory.
    let mut submit = || unsafe { channel.submit(Io::flush(1)) };
    assert!(submit().is_ok() && submit().is_ok() && submit().is_err());
    while channel.in_flight() > 0 {
        channel.poll(&mut done).unwrap();
    }
    assert_eq!(done.len(), 2);
    drop(channel);
    finish(&model, device);
}

#[test]
fn threads_share_a_controller() {
    let (model, device) = new(ModelOptions::default());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                let mut channel = channel_of(device, 8);
                let data = pattern(32 << 10, thread as usize);
                let mut back = AlignedBuf::new(32 << 10);
                for round in 0..20 {
                    let offset = (thread * 20 + round) << 15;
                    let write = Io::write(offset, data.as_ptr(), 32 << 10, 0);
                    let read = Io::read(offset, back.as_mut_ptr(), 32 << 10, 0);
                    assert_eq!(run(&mut channel, &[write]), [Ok(())]);
                    assert_eq!(run(&mut channel, &[read, Io::flush(0)]), [Ok(()), Ok(())]);
                    assert!(back[..] == data[..]);
                    back.fill(0);
                }
            });
        }
    });
    finish(&model, device);
}
