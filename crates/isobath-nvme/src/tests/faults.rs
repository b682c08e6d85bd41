//! Each fault alone.

use super::*;
use crate::command::admin;
use crate::controller::State;
use crate::model::ModelFault;

fn plain() -> ModelOptions {
    ModelOptions {
        volatile_cache: false,
        ..ModelOptions::default()
    }
}

/// Results, the drive, and completions that belonged to nothing.
type Outcome = (
    Vec<Result<(), IoErrorKind>>,
    Arc<ModelController>,
    Arc<NvmeDevice>,
    u64,
);

/// Writes three blocks, the first with a fault, and answers the results; what succeeded is read
/// back.
fn write_with(fault: ModelFault, options: ModelOptions) -> Outcome {
    let (model, device) = new(options);
    let mut channel = channel_of(&device, 8);
    model.inject(fault);
    let data = pattern(4096, 5);
    let ios = [0, 4096, 8192].map(|at| Io::write(at, data.as_ptr(), 4096, 0));
    let results = run(&mut channel, &ios);
    for (io, result) in ios.iter().zip(&results) {
        let mut back = AlignedBuf::new(4096);
        let read = Io::read(io.offset, back.as_mut_ptr(), 4096, 0);
        assert_eq!(run(&mut channel, &[read]), [Ok(())]);
        assert!(result.is_err() || back[..] == data[..]);
    }
    let strays = channel.strays();
    (results, model, device, strays)
}

#[test]
fn an_error_of_the_medium_fails_one_command() {
    let (results, model, device, _) = write_with(ModelFault::Media, plain());
    assert_eq!(results, [Err(IoErrorKind::Media), Ok(()), Ok(())]);
    model.spoil(5);
    let mut back = [0; 4096];
    let error = device.read_at(5 * 4096, &mut back).unwrap_err();
    assert_eq!(error.kind(), IoErrorKind::Media);
    device.write_at(5 * 4096, &back).unwrap();
    device.read_at(5 * 4096, &mut back).unwrap();
    assert_eq!(device.controller().resets(), 0);
    finish(&model, device);
}

#[test]
fn a_command_that_the_drive_gives_up_is_given_again() {
    let (results, model, device, _) = write_with(ModelFault::Aborted, plain());
    assert_eq!(results, [Ok(()), Ok(()), Ok(())]);
    // Thrice is too often.
    for _ in 0..3 {
        model.inject(ModelFault::Aborted);
    }
    let error = device.write_at(0, &[0; 4096]).unwrap_err();
    assert_eq!(error.kind(), IoErrorKind::Media);
    device.write_at(0, &[0; 4096]).unwrap();
    finish(&model, device);
}

#[test]
fn a_late_command_is_waited_for_until_its_timeout() {
    let (results, model, device, _) = write_with(ModelFault::Late(20_000), plain());
    assert_eq!(results, [Ok(()), Ok(()), Ok(())]);
    finish(&model, device);
    let (results, model, device, _) = write_with(ModelFault::Late(10_000_000), plain());
    assert_eq!(results, [Err(IoErrorKind::Media), Ok(()), Ok(())]);
    assert_eq!(device.controller().resets(), 0, "the abort is enough");
    finish(&model, device);
}

#[test]
fn a_command_that_never_ends_is_aborted_or_ends_by_a_reset() {
    let (results, model, device, _) = write_with(ModelFault::Never, plain());
    assert_eq!(results, [Err(IoErrorKind::Media), Ok(()), Ok(())]);
    assert_eq!(device.controller().resets(), 0);
    finish(&model, device);
    let stubborn = ModelOptions {
        aborts: false,
        ..plain()
    };
    let (results, model, device, _) = write_with(ModelFault::Never, stubborn);
    assert_eq!(results, [Err(IoErrorKind::Media), Ok(()), Ok(())]);
    assert_eq!(device.controller().resets(), 1);
    finish(&model, device);
}

#[test]
fn a_completion_that_comes_twice_or_with_a_wrong_id_is_ignored() {
    let (results, model, device, strays) = write_with(ModelFault::Duplicated, plain());
    assert_eq!(results, [Ok(()), Ok(()), Ok(())]);
    assert_eq!(strays, 1);
    finish(&model, device);
    let (results, model, device, strays) = write_with(ModelFault::WrongId, plain());
    assert_eq!(results, [Err(IoErrorKind::Media), Ok(()), Ok(())]);
    assert_eq!(strays, 1);
    finish(&model, device);
}

#[test]
fn a_fatal_status_is_reset_and_commands_are_given_again() {
    let (results, model, device, _) = write_with(ModelFault::Fatal, plain());
    assert_eq!(results, [Ok(()), Ok(()), Ok(())]);
    assert_eq!(device.controller().resets(), 1);
    device.sync().unwrap();
    finish(&model, device);
}

#[test]
fn after_a_lost_cache_everything_fails_until_the_drive_is_opened_again() {
    let (model, device) = new(ModelOptions::default());
    let mut channel = channel_of(&device, 8);
    let mut buf = pattern(4096, 5);
    let write = Io::write(0, buf.as_ptr(), 4096, 0);
    let read = Io::read(0, buf.as_mut_ptr(), 4096, 0);
    assert_eq!(run(&mut channel, &[write]), [Ok(())]);
    model.inject(ModelFault::Fatal);
    // Not even the read during which it happens: it may see old data.
    assert_eq!(run(&mut channel, &[read]), [Err(IoErrorKind::Media)]);
    let ios = [read, write, write.durable(), Io::flush(0)];
    for _ in 0..2 {
        assert_eq!(run(&mut channel, &ios), [Err(IoErrorKind::Media); 4]);
    }
    let error = device.read_at(0, &mut buf).unwrap_err();
    assert_eq!(error.kind(), IoErrorKind::Media);
    assert_eq!(device.controller().resets(), 1);
    drop(channel);
    finish(&model, device);
    let device = device_of(&model);
    let mut channel = channel_of(&device, 8);
    assert_eq!(run(&mut channel, &ios), [Ok(()); 4]);
    drop(channel);
    finish(&model, device);
}

#[test]
fn a_refused_queue_leaves_the_drive_as_it_was() {
    for opcode in [admin::CREATE_CQ, admin::CREATE_SQ] {
        let (model, device) = new(ModelOptions::default());
        let open = || {
            let options = ChannelOptions::with_depth(4);
            NvmeChannel::open(device.controller(), *device.namespace(), &options)
        };
        model.refuse(opcode);
        let error = open().err().unwrap();
        assert!(matches!(error, NvmeError::Command { .. }), "{error}");
        assert_eq!(device.controller().resets(), 0);
        // The number can be used again, and no flush fails.
        let channel = open().unwrap();
        device.write_at(0, &[1; 4096]).unwrap();
        device.sync().unwrap();
        drop(channel);
        finish(&model, device);
    }
}

#[test]
fn a_queue_that_is_not_deleted_keeps_its_number() {
    for opcode in [admin::DELETE_SQ, admin::DELETE_CQ] {
        let (model, device) = new(ModelOptions::default());
        let channel = channel_of(&device, 4);
        model.refuse(opcode);
        drop(channel);
        assert_eq!(device.controller().resets(), 0);
        device.sync().unwrap();
        finish(&model, device);
    }
}

#[test]
fn a_hung_drive_is_reset_after_the_first_abort_in_vain() {
    let (model, device) = new(plain());
    let mut channel = channel_of(&device, 32);
    let data = pattern(4096, 5);
    let ios: Vec<Io> = (0..31)
        .map(|n| Io::write(n * 4096, data.as_ptr(), 4096, 0))
        .collect();
    let before = model.now();
    model.inject(ModelFault::Hang);
    let results = run(&mut channel, &ios);
    assert!(model.now() - before < 3 * TIMEOUT);
    assert_eq!(device.controller().resets(), 1);
    let failed = results.iter().filter(|result| result.is_err()).count();
    assert_eq!(failed, 1, "only what was aborted fails");
    drop(channel);
    finish(&model, device);
}

#[test]
fn a_dead_controller_refuses_at_once() {
    let (model, device) = new(plain());
    device.controller().give_up(State::Dead);
    let before = model.now();
    let options = ChannelOptions::with_depth(4);
    let opened = NvmeChannel::open(device.controller(), *device.namespace(), &options);
    let error = opened.err().unwrap();
    assert!(matches!(error, NvmeError::Dead { .. }), "{error}");
    assert!(device.controller().smart().is_err());
    assert_eq!(model.now(), before);
    finish(&model, device);
    // Nor does it wait for one that cannot be restarted.
    let (model, device) = new(plain());
    let controller = device.controller();
    let never = model.now();
    model.break_down();
    let opened = NvmeChannel::open(controller, *device.namespace(), &options);
    assert!(matches!(opened.err(), Some(NvmeError::Dead { .. })));
    // One command, and the ten seconds that the controller names.
    assert!(model.now() - never < Duration::from_secs(11));
    finish(&model, device);
}

#[test]
fn a_reset_reaches_every_channel() {
    let (model, device) = new(plain());
    let mut first = channel_of(&device, 8);
    let mut second = channel_of(&device, 8);
    let data = pattern(4096, 5);
    let write = Io::write(0, data.as_ptr(), 4096, 0);
    // In flight on one while the other sees the fault; lost with the queues.
    model.inject(ModelFault::Late(5_000));
    // SAFETY: the memory outlives the channel.
    unsafe { first.submit(write).unwrap() };
    let mut done = Vec::new();
    first.poll(&mut done).unwrap();
    first.poll(&mut done).unwrap();
    model.inject(ModelFault::Fatal);
    assert_eq!(
        run(&mut second, &[Io::write(4096, data.as_ptr(), 4096, 0)]),
        [Ok(())]
    );
    assert_eq!(device.controller().resets(), 1);
    while first.in_flight() > 0 {
        first.wait(1, None, &mut done).unwrap();
    }
    assert_eq!(done.len(), 1);
    assert!(done[0].result.is_ok());
    assert_eq!(first.stats().resubmitted, 1);
    assert_eq!(run(&mut first, &[write]), [Ok(())]);
    drop((first, second));
    finish(&model, device);
}

#[test]
fn a_controller_that_fails_again_and_again_fails_the_command() {
    let (model, device) = new(plain());
    for _ in 0..3 {
        model.inject(ModelFault::Fatal);
    }
    let error = device.write_at(0, &[0; 4096]).unwrap_err();
    assert_eq!(error.kind(), IoErrorKind::Media);
    assert_eq!(device.controller().resets(), 3);
    device.write_at(0, &[0; 4096]).unwrap();
    finish(&model, device);
}

#[test]
fn a_removed_drive_ends_everything() {
    let (model, device) = new(plain());
    let mut channel = channel_of(&device, 64);
    let mut buf = AlignedBuf::new(64 << 12);
    let reads = (0..64).map(|n| Io::read(n << 12, buf[(n as usize) << 12..].as_mut_ptr(), 4096, n));
    for read in reads {
        // SAFETY: the memory outlives the channel.
        unsafe { channel.submit(read).unwrap() };
    }
    let mut done = Vec::new();
    channel.poll(&mut done).unwrap();
    model.remove();
    while channel.in_flight() > 0 {
        channel.wait(1, None, &mut done).unwrap();
    }
    assert_eq!(done.len(), 64);
    let gone = IoErrorKind::Os(libc::ENODEV);
    let failed = done.iter().filter_map(|c| c.result.as_ref().err());
    let failed: Vec<_> = failed.map(|error| error.kind()).collect();
    assert!(
        !failed.is_empty() && failed.iter().all(|kind| *kind == gone),
        "{failed:?}"
    );
    assert_eq!(run(&mut channel, &[Io::flush(0)]), [Err(gone)]);
    assert_eq!(device.sync().unwrap_err().kind(), gone);
    drop(channel);
    finish(&model, device);
}

#[test]
fn a_channel_that_is_dropped_waits_for_its_commands() {
    for fault in [
        ModelFault::Late(2_000),
        ModelFault::Never,
        ModelFault::Fatal,
    ] {
        let (model, device) = new(plain());
        let mut channel = channel_of(&device, 4);
        let mut buf = AlignedBuf::new(1 << 20);
        model.inject(fault);
        for _ in 0..4 {
            // SAFETY: the memory outlives the channel.
            unsafe {
                channel
                    .submit(Io::read(0, buf.as_mut_ptr(), 1 << 20, 0))
                    .unwrap()
            };
        }
        let mut done = Vec::new();
        channel.poll(&mut done).unwrap();
        drop(channel);
        finish(&model, device);
    }
}
