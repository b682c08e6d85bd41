//! When the channel makes durable writes and flushes by blocking calls, and what it answers then.

use super::*;
use crate::file::label::DATA_OFFSET;

/// Opportunities that the first pause passes over.
const PAUSE: usize = 64;

impl Fixture {
    fn blocking_channel(&self, answers: &[i32]) -> FileChannel<Script> {
        self.channel_over(answers, Some(BlockingCalls::new()))
    }
}

fn submit(channel: &mut FileChannel<Script>, ios: &[Io]) {
    for io in ios {
        // SAFETY: the scripted queue touches no memory.
        unsafe { channel.submit(*io) }.unwrap();
    }
}

/// The results in the order of the user data, once all have completed.
fn results(channel: &mut FileChannel<Script>) -> Vec<Result<(), IoErrorKind>> {
    let mut out = Vec::new();
    while channel.in_flight > 0 {
        channel.wait(1, None, &mut out).unwrap();
    }
    assert_eq!(channel.pushed, 0);
    assert_eq!(channel.free.len(), channel.slots.len(), "a slot leaked");
    out.sort_by_key(|done| done.user_data);
    let kind = |done: Completion| done.result.map_err(|e| e.kind());
    out.into_iter().map(kind).collect()
}

fn record() -> Io {
    Io::write(0, address(9), 4096, 1).durable()
}

#[test]
fn a_lone_durable_write_is_a_blocking_call() {
    let fixture = Fixture::new(1);
    let mut channel = fixture.blocking_channel(&[]);
    submit(&mut channel, &[record()]);
    assert_eq!(results(&mut channel), [Ok(())]);
    assert_eq!(channel.queue.called, [(Op::Write, DATA_OFFSET, true)]);
    assert_eq!(channel.queue.asked, []);
    let stats = &channel.stats;
    assert_eq!((stats.blocking_calls, stats.sleeps), (1, 0));
    assert_eq!((stats.write.completed, stats.write.bytes), (1, 4096));
    assert_eq!(stats.write.latency.count(), 1);
    assert!(channel.slots[0].start > channel.epoch, "its clock ran");
}

#[test]
fn one_flush_serves_the_write_before_it() {
    for ios in [[record(), Io::flush(2)], [Io::flush(2), record()]] {
        let fixture = Fixture::new(1);
        let mut channel = fixture.blocking_channel(&[]);
        submit(&mut channel, &ios);
        assert_eq!(results(&mut channel), [Ok(()), Ok(())]);
        let calls = [(Op::Write, DATA_OFFSET, false), (Op::Flush, 0, false)];
        assert_eq!(channel.queue.called, calls);
        assert_eq!(channel.queue.asked, []);
    }
}

#[test]
fn a_poll_makes_no_blocking_call() {
    let fixture = Fixture::new(1);
    let mut channel = fixture.blocking_channel(&[]);
    submit(&mut channel, &[record()]);
    let mut out = Vec::new();
    assert_eq!(channel.poll(&mut out).unwrap(), 1);
    assert_eq!(
        (channel.queue.called.len(), channel.queue.asked.len()),
        (0, 1)
    );
}

/// What is under way at the same time elsewhere stays so.
#[test]
fn beside_other_work_nothing_blocks() {
    let long = Io::write(0, address(9), 512 << 10, 1).durable();
    let read = Io::read(8192, address(9), 4096, 2);
    for (members, ios) in [
        (1, vec![record(), read]),
        (1, vec![record(), record()]),
        (1, vec![record(), Io::flush(2), Io::flush(3)]),
        (1, vec![record(), record(), Io::flush(3)]),
        (1, vec![Io::flush(1)]),
        (1, vec![long]),
        (1, vec![Io::write(0, address(9), 4096, 1)]),
        // The members are flushed at the same time.
        (3, vec![record(), Io::flush(2)]),
    ] {
        let fixture = Fixture::new(members);
        let mut channel = fixture.blocking_channel(&[]);
        submit(&mut channel, &ios);
        let results = results(&mut channel);
        assert_eq!(results, vec![Ok(()); ios.len()], "{ios:?}");
        assert_eq!(channel.queue.called, [], "{ios:?}");
    }
}

#[test]
fn what_is_in_flight_from_before_forbids_blocking() {
    let fixture = Fixture::new(1);
    let mut channel = fixture.blocking_channel(&[]);
    submit(&mut channel, &[Io::read(8192, address(9), 4096, 2)]);
    channel.hand_over();
    submit(&mut channel, &[record()]);
    assert_eq!(results(&mut channel), [Ok(()), Ok(())]);
    assert_eq!(channel.queue.called, []);
}

#[test]
fn a_timer_or_a_wake_that_is_due_forbids_blocking() {
    let fixture = Fixture::new(1);
    let mut channel = fixture.blocking_channel(&[]);
    let mut out = Vec::new();
    submit(&mut channel, &[record()]);
    let soon = Some(Duration::from_micros(50));
    while channel.in_flight > 0 {
        channel.wait(1, soon, &mut out).unwrap();
    }
    submit(&mut channel, &[record()]);
    channel.waker().wake();
    while channel.in_flight > 0 {
        channel.wait(1, None, &mut out).unwrap();
    }
    assert_eq!(
        (channel.queue.called.len(), channel.queue.asked.len()),
        (0, 2)
    );
    channel.wake.take();
    submit(&mut channel, &[record()]);
    let later = Some(Duration::from_secs(5));
    assert_eq!(channel.wait(1, later, &mut out).unwrap(), 1);
    assert_eq!(channel.queue.called.len(), 1);
}

#[test]
fn an_error_of_a_blocking_call_is_that_of_the_operation() {
    let (eio, full) = (-libc::EIO, -libc::ENOSPC);
    let (media, space) = (Err(IoErrorKind::Media), Err(IoErrorKind::NoSpace));
    for (answers, expected) in [
        (vec![eio], vec![media]),
        (vec![0], vec![Err(IoErrorKind::Short { done: 0 })]),
        // What the flush does not make durable has failed.
        (vec![4096, eio], vec![media, media]),
        // A failed durable write fails every later flush of its member, as it does where both are handed over.
        (vec![full, 0], vec![space, space]),
        (vec![full, eio], vec![space, media]),
    ] {
        let fixture = Fixture::new(1);
        let mut channel = fixture.blocking_channel(&answers);
        submit(&mut channel, &[record(), Io::flush(2)][..expected.len()]);
        assert_eq!(results(&mut channel), expected, "{answers:?}");
        assert_eq!(channel.queue.called.len(), answers.len(), "{answers:?}");
        assert_eq!(channel.queue.asked, [], "{answers:?}");
        submit(&mut channel, &[record()]);
        assert_eq!(results(&mut channel), [expected[0]], "{answers:?}");
    }
}

#[test]
fn a_failure_that_another_flush_has_met_fails_blocking_calls_too() {
    let fixture = Fixture::new(1);
    let failed = fixture.device.member(0).flushed(Err(IoErrorKind::Media));
    assert!(failed.is_err());
    let mut channel = fixture.blocking_channel(&[]);
    submit(&mut channel, &[record()]);
    assert_eq!(results(&mut channel), [Err(IoErrorKind::Media)]);
    assert_eq!(channel.queue.called.len(), 1);
}

#[test]
fn the_rest_of_a_short_blocking_write_is_written_durably() {
    let fixture = Fixture::new(1);
    for flushes in [0, 1] {
        let answers: &[i32] = match flushes {
            0 => &[8192, -libc::EINTR],
            _ => &[8192, 0, -libc::EINTR],
        };
        let mut channel = fixture.blocking_channel(answers);
        let write = Io::write(0, address(9), 16384, 1).durable();
        submit(&mut channel, &[write, Io::flush(2)][..=flushes]);
        assert_eq!(results(&mut channel), vec![Ok(()); 1 + flushes]);
        let rest = (Op::Write, 0, DATA_OFFSET + 8192, 8192);
        assert_eq!(channel.queue.asked, [rest, rest]);
        assert!(channel.queue.durable.iter().all(|durable| *durable));
        assert_eq!(channel.stats.resubmitted, 2);
        assert_eq!(channel.stats.write.bytes, 16384);
    }
}

/// Counts; the only thing about time is that a sleep is not shorter than it says.
#[test]
fn a_slow_drive_is_asked_less_and_less_often() {
    let fixture = Fixture::new(1);
    let mut channel = fixture.blocking_channel(&[]);
    channel.queue.call_time = Duration::from_millis(1);
    let mut runs = |count: usize| {
        let (before, asked) = (channel.queue.called.len(), channel.queue.asked.len());
        for _ in 0..count {
            submit(&mut channel, &[record()]);
            assert_eq!(results(&mut channel), [Ok(())]);
        }
        let called = channel.queue.called.len() - before;
        assert_eq!(channel.queue.asked.len() - asked, count - called);
        called
    };
    assert_eq!(runs(1), 1);
    assert_eq!(runs(PAUSE), 0);
    assert_eq!(runs(1), 1);
    assert_eq!(runs(2 * PAUSE), 0);
    assert_eq!(runs(1), 1);
    // 256 pass, then 512, 1024, 2048 and 4096.
    assert_eq!(runs(100 * PAUSE), 4);
}

#[test]
fn a_worker_that_others_need_sleeps() {
    let fixture = Fixture::new(1);
    let mut channel = fixture.blocking_channel(&[]);
    let waker = channel.waker();
    channel.queue.during_call = Some(Box::new(move || waker.wake()));
    for _ in 0..3 {
        submit(&mut channel, &[record()]);
        assert_eq!(results(&mut channel), [Ok(())]);
        assert!(!channel.wake.is_signalled(), "the wake is taken");
    }
    assert_eq!(channel.queue.called.len(), 3);
    assert_eq!(channel.stats.wakes, 3);
    for _ in 0..PAUSE {
        submit(&mut channel, &[record()]);
        assert_eq!(results(&mut channel), [Ok(())]);
    }
    assert_eq!(channel.queue.called.len(), 3);
    channel.queue.during_call = None;
    for _ in 0..10 {
        submit(&mut channel, &[record()]);
        assert_eq!(results(&mut channel), [Ok(())]);
    }
    assert!(channel.queue.called.len() > 3);
}
