//! What every channel must do, over every backend.
#![allow(unsafe_code, missing_docs, clippy::unwrap_used)]

mod common;

use std::time::{Duration, Instant};

use common::*;
use isobath_io::{AlignedBuf, ChannelOptions, Io, IoErrorKind, IoVec, Op, QueueFull};
use proptest::prelude::*;

const MIB: u64 = 1 << 20;

#[test]
fn what_was_written_is_read_back_by_another_channel() {
    each_volume(|name, volume| {
        volume.grow(MIB).unwrap();
        let mut writer = open(volume);
        let pages: Vec<AlignedBuf> = (0..16).map(|i| pattern(32768, i)).collect();
        let ios: Vec<Io> = (0u64..)
            .zip(&pages)
            .map(|(i, p)| Io::write(4096 + i * 65536 % MIB, p.as_ptr(), 32768, i))
            .take(15)
            .collect();
        // SAFETY: `pages` outlives the call.
        for done in unsafe { run_all(&mut *writer, &ios) } {
            done.result.unwrap();
        }
        // SAFETY: a flush has no memory.
        unsafe { run(&mut *writer, Io::flush(7)) }.unwrap();
        let mut reader = open(volume);
        for io in &ios {
            let mut back = AlignedBuf::new(32768);
            let read = Io::read(io.offset, back.as_mut_ptr(), 32768, 1);
            // SAFETY: `back` outlives the call.
            unsafe { run(&mut *reader, read) }.unwrap();
            assert!(
                *back == *pages[io.user_data as usize],
                "{name} at {}",
                io.offset
            );
        }
        let stats = writer.stats();
        assert_eq!(
            (stats.write.completed, stats.write.bytes),
            (15, 15 * 32768),
            "{name}"
        );
        assert_eq!(
            (stats.flush.completed, stats.flush.failed),
            (1, 0),
            "{name}"
        );
        assert_eq!(reader.stats().read.completed, 15, "{name}");
        assert_eq!(reader.in_flight(), 0);
    });
}

#[test]
fn durable_and_vectored_writes_and_discards() {
    each_volume(|name, volume| {
        volume.grow(MIB).unwrap();
        let mut channel = open(volume);
        let buf = pattern(65536, 3);
        let ranges = [
            IoVec {
                buf: buf[32768..].as_ptr(),
                len: 32768,
            },
            IoVec {
                buf: buf.as_ptr(),
                len: 4096,
            },
            IoVec {
                buf: buf[4096..].as_ptr(),
                len: 12288,
            },
        ];
        let io = Io::write_v(4096, ranges.as_ptr(), 3, 1).durable();
        // SAFETY: buffers outlive the calls.
        unsafe {
            run(&mut *channel, io).unwrap();
            run(
                &mut *channel,
                Io::write(57344, buf.as_ptr(), 65536, 2).durable(),
            )
            .unwrap();
        }
        let mut back = vec![0; 49152];
        volume.read_at(4096, &mut back).unwrap();
        assert!(
            back[..32768] == buf[32768..] && back[32768..] == buf[..16384],
            "{name}"
        );
        // SAFETY: a discard has no memory.
        unsafe { run(&mut *channel, Io::discard(8192, 49152, 3)) }.unwrap();
        let mut back = vec![0; 131072];
        volume.read_at(0, &mut back).unwrap();
        assert!(
            back[4096..8192] == buf[32768..36864],
            "{name}: before the discarded range"
        );
        assert!(
            back[8192..57344].iter().all(|b| *b == 0),
            "{name}: the range"
        );
        assert!(back[57344..122880] == *buf, "{name}: after it");
    });
}

#[test]
fn bad_arguments_are_answered_by_typed_completions() {
    each_volume(|name, volume| {
        volume.grow(MIB).unwrap();
        let mut channel = open(volume);
        let mut buf = AlignedBuf::new(8192);
        let odd = buf.as_mut_ptr().wrapping_add(8);
        let p = buf.as_mut_ptr();
        let cases = [
            (Io::read(MIB, p, 4096, 1), IoErrorKind::OutOfRange),
            (Io::read(MIB - 4096, p, 8192, 1), IoErrorKind::OutOfRange),
            (
                Io::write(u64::MAX - 4095, p, 4096, 1),
                IoErrorKind::OutOfRange,
            ),
            (Io::discard(MIB, 4096, 1), IoErrorKind::OutOfRange),
            (Io::read(100, p, 4096, 1), IoErrorKind::Misaligned),
            (Io::read(0, p, 100, 1), IoErrorKind::Misaligned),
            (Io::read(0, odd, 4096, 1), IoErrorKind::Misaligned),
            (Io::read(0, p, 0, 1), IoErrorKind::Misaligned),
            (Io::discard(0, 0, 1), IoErrorKind::Misaligned),
            (
                Io::write_v(0, std::ptr::null(), 0, 1),
                IoErrorKind::Misaligned,
            ),
        ];
        for (io, want) in cases {
            // SAFETY: `buf` outlives the call.
            let error = unsafe { run(&mut *channel, io) }.unwrap_err();
            assert_eq!(error.kind(), want, "{name}: {io:?}");
            assert_eq!(error.offset(), io.offset);
            assert!(error.to_string().contains(io.op.name()), "{error}");
        }
        assert_eq!(
            volume.read_at(MIB - 1, &mut [0; 2]).unwrap_err().kind(),
            IoErrorKind::OutOfRange
        );
        assert_eq!(
            volume.write_at(7, &[0; 512]).unwrap_err().kind(),
            IoErrorKind::Misaligned
        );
    });
}

#[test]
fn the_depth_bounds_what_is_in_flight() {
    each_volume(|name, volume| {
        volume.grow(MIB).unwrap();
        let mut channel = volume.channel(&ChannelOptions::with_depth(3)).unwrap();
        let mut buf = AlignedBuf::new(65536);
        let io = Io::read(0, buf.as_mut_ptr(), 65536, 1);
        for _ in 0..10 {
            for want in [Ok(()), Ok(()), Ok(()), Err(QueueFull)] {
                // SAFETY: `buf` outlives the channel's use of it, and its contents are not looked
                // at.
                assert_eq!(unsafe { channel.submit(io) }, want, "{name}");
            }
            let mut out = Vec::new();
            while channel.in_flight() > 0 {
                channel.wait(3, None, &mut out).unwrap();
            }
            assert!(
                out.len() == 3 && out.iter().all(|c| c.result.is_ok()),
                "{name}"
            );
        }
        assert_eq!(channel.stats().in_flight_max, 3);
    });
}

#[test]
fn polling_alone_completes_everything() {
    each_volume(|name, volume| {
        volume.grow(MIB).unwrap();
        let mut channel = open(volume);
        let mut buf = AlignedBuf::new(65536);
        // SAFETY: `buf` outlives the loop below.
        unsafe { channel.submit(Io::read(4096, buf.as_mut_ptr(), 65536, 5)) }.unwrap();
        let mut out = Vec::new();
        let start = Instant::now();
        while channel.poll(&mut out).unwrap() == 0 {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "{name} never completes"
            );
        }
        assert_eq!(out[0].user_data, 5);
        let calls = channel.stats().system_calls;
        channel.poll(&mut out).unwrap();
        assert_eq!(
            channel.stats().system_calls,
            calls,
            "{name}: an idle poll is free"
        );
    });
}

#[test]
fn waiting_ends_by_timeout_and_by_wakes() {
    each_volume(|name, volume| {
        volume.grow(MIB).unwrap();
        let mut channel = open(volume);
        let mut out = Vec::new();
        let start = Instant::now();
        let n = channel
            .wait(1, Some(Duration::from_millis(30)), &mut out)
            .unwrap();
        assert_eq!(n, 0);
        assert!(start.elapsed() >= Duration::from_millis(29), "{name}");
        // A wake before the wait, one during it, and many.
        for delay in [0, 0, 20, 0, 1, 5] {
            let waker = channel.waker();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(delay));
                waker.wake();
                waker.wake();
            });
            let start = Instant::now();
            let wakes = channel.stats().wakes;
            while channel.stats().wakes == wakes {
                channel
                    .wait(8, Some(Duration::from_secs(20)), &mut out)
                    .unwrap();
                assert!(
                    start.elapsed() < Duration::from_secs(10),
                    "{name}: not woken"
                );
            }
            thread.join().unwrap();
        }
        // The channel still works.
        let mut buf = AlignedBuf::new(4096);
        // SAFETY: `buf` outlives the call.
        unsafe { run(&mut *channel, Io::read(0, buf.as_mut_ptr(), 4096, 1)) }.unwrap();
    });
}

/// A caller that hands work to a sleeping worker, again and again, each time waiting until it was
/// taken.
#[test]
fn no_wake_is_ever_lost() {
    use std::sync::atomic::{AtomicU64, Ordering};
    each_volume(|name, volume| {
        const ROUNDS: u64 = 3000;
        volume.grow(MIB).unwrap();
        let mut channel = open(volume);
        let waker = channel.waker();
        let (given, taken) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    given.store(round, Ordering::SeqCst);
                    waker.wake();
                    while taken.load(Ordering::SeqCst) < round {
                        // Sometimes early, sometimes late in the worker's way to sleep.
                        std::hint::spin_loop();
                        if round % 3 == 0 {
                            std::thread::yield_now();
                        }
                    }
                }
            });
            let mut buf = AlignedBuf::new(4096);
            let mut out = Vec::new();
            while taken.load(Ordering::SeqCst) < ROUNDS {
                let seen = given.load(Ordering::SeqCst);
                if seen % 5 == 0 && channel.in_flight() == 0 {
                    // SAFETY: `buf` outlives the channel's use of it, for the loop below waits for
                    // everything.
                    unsafe { channel.submit(Io::read(0, buf.as_mut_ptr(), 4096, 0)) }.unwrap();
                }
                if taken.swap(seen, Ordering::SeqCst) == seen {
                    let start = Instant::now();
                    channel
                        .wait(4, Some(Duration::from_secs(20)), &mut out)
                        .unwrap();
                    assert!(
                        start.elapsed() < Duration::from_secs(10),
                        "{name}: a wake was lost"
                    );
                }
            }
            while channel.in_flight() > 0 {
                channel.wait(1, None, &mut out).unwrap();
            }
        });
    });
}

#[test]
fn an_idle_wait_costs_no_cpu() {
    each_volume(|name, volume| {
        volume.grow(MIB).unwrap();
        let mut channel = open(volume);
        let waker = channel.waker();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            waker.wake();
        });
        let before = channel.stats().system_calls;
        while channel.stats().wakes == 0 {
            channel.wait(1, None, &mut Vec::new()).unwrap();
        }
        let calls = channel.stats().system_calls - before;
        assert!(calls <= 3, "{name}: {calls} system calls while idle");
        thread.join().unwrap();
    });
}

#[test]
fn registered_buffers_and_others_mix() {
    each_volume(|name, volume| {
        volume.grow(MIB).unwrap();
        let mut pool = pattern(4 * 65536, 1);
        let other = pattern(65536, 2);
        let mut channel = open(volume);
        let start = pool.as_mut_ptr();
        let regions = [(start.wrapping_add(131072), 65536), (start, 65536)];
        // SAFETY: `pool` is declared before the channel and so outlives it.
        let registered = unsafe { channel.register_buffers(&regions) };
        if name.contains("IoUring") {
            assert!(registered, "{:?}", volume.backend_report());
        }
        // Inside the first region, across its end, inside the second, and in foreign memory.
        let sources = [start, start.wrapping_add(32768), start.wrapping_add(131072)];
        let mut ios: Vec<Io> = (0u64..)
            .zip(sources)
            .map(|(i, p)| Io::write(i * 65536, p, 65536, i))
            .collect();
        ios.push(Io::write(3 * 65536, other.as_ptr(), 65536, 3));
        // SAFETY: all buffers outlive the call.
        for done in unsafe { run_all(&mut *channel, &ios) } {
            done.result.unwrap();
        }
        let mut back = vec![0; 4 * 65536];
        volume.read_at(0, &mut back).unwrap();
        assert!(back[..65536] == pool[..65536], "{name}");
        assert!(back[65536..131072] == pool[32768..98304], "{name}");
        assert!(back[131072..196608] == pool[131072..196608], "{name}");
        assert!(back[196608..] == *other, "{name}");
    });
}

#[test]
fn memory_is_registered_piece_by_piece() {
    each_volume(|name, volume| {
        volume.grow(MIB).unwrap();
        let mut pool = pattern(6 * 65536, 3);
        let mut channel = open(volume);
        let start = pool.as_mut_ptr();
        // Three pieces of one size with a shorter one behind them, another one apart, and replacing
        // what was there before.
        let piece = |at: usize, len| (start.wrapping_add(at * 65536), len);
        let all = [
            piece(0, 65536),
            piece(1, 65536),
            piece(2, 32768),
            piece(4, 65536),
        ];
        let uring = name.contains("IoUring");
        // SAFETY: `pool` is declared before the channel and so outlives it.
        let registered = unsafe { channel.register_buffers(&all[..1]) };
        assert!(registered || !uring, "{:?}", volume.backend_report());
        for region in all {
            // SAFETY: as above.
            let registered = unsafe { channel.register_more(region) };
            assert!(registered || !uring, "{:?}", volume.backend_report());
        }
        // Within each piece, across two, beyond the last one's end, in none, and in the one apart.
        let places = [0, 65536, 32768, 2 * 65536, 3 * 65536, 4 * 65536];
        let ios: Vec<Io> = (0u64..)
            .zip(places)
            .map(|(i, at)| Io::write(i * 65536, start.wrapping_add(at), 65536, i))
            .collect();
        // SAFETY: all buffers outlive the call.
        for done in unsafe { run_all(&mut *channel, &ios) } {
            done.result.unwrap();
        }
        let mut back = vec![0; 6 * 65536];
        volume.read_at(0, &mut back).unwrap();
        for (i, at) in places.into_iter().enumerate() {
            assert!(
                back[i * 65536..][..65536] == pool[at..][..65536],
                "{name} {i}"
            );
        }
    });
}

#[test]
fn dropping_a_channel_with_io_in_flight_is_safe() {
    each_volume(|_, volume| {
        volume.grow(MIB).unwrap();
        let mut buf = AlignedBuf::new(65536);
        let mut channel = open(volume);
        for i in 0..16 {
            // SAFETY: `buf` outlives the channel.
            unsafe { channel.submit(Io::read(i * 4096, buf.as_mut_ptr(), 65536, i)) }.unwrap();
        }
        channel.poll(&mut Vec::new()).unwrap();
        drop(channel);
        buf.fill(1);
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    /// Random reads, writes, vectored writes and discards against an array of bytes.
    #[test]
    fn agrees_with_an_array(ops in proptest::collection::vec((0u8..4, 0u64..64, 1u64..24, any::<u64>()), 1..24)) {
        const BLOCK: u64 = 4096;
        let len = 64 * BLOCK;
        each_volume(|name, volume| {
            volume.grow(len).unwrap();
            let mut model = vec![0u8; len as usize];
            let mut channel = open(volume);
            volume.write_at(0, &model).unwrap();
            for (op, block, blocks, seed) in &ops {
                let offset = block * BLOCK;
                let n = (blocks * BLOCK).min(len - offset) as usize;
                let range = offset as usize..offset as usize + n;
                let mut buf = pattern(n, *seed);
                match op {
                    0 => {
                        // SAFETY: `buf` outlives the call.
                        unsafe { run(&mut *channel, Io::read(offset, buf.as_mut_ptr(), n as u32, 1)) }.unwrap();
                        assert!(*buf == model[range], "{name}: read at {offset}, {n} bytes");
                    }
                    1 => {
                        // SAFETY: `buf` outlives the call.
                        unsafe { run(&mut *channel, Io::write(offset, buf.as_ptr(), n as u32, 1)) }.unwrap();
                        model[range].copy_from_slice(&buf);
                    }
                    2 => {
                        let ranges: Vec<IoVec> =
                            buf.chunks(BLOCK as usize).rev().map(|c| IoVec { buf: c.as_ptr(), len: c.len() }).collect();
                        let io = Io::write_v(offset, ranges.as_ptr(), ranges.len() as u32, 1);
                        // SAFETY: `buf` outlives the call.
                        unsafe { run(&mut *channel, io) }.unwrap();
                        let chunks = buf.chunks(BLOCK as usize).rev();
                        let joined: Vec<u8> = chunks.flatten().copied().collect();
                        model[range].copy_from_slice(&joined);
                    }
                    _ => {
                        // SAFETY: a discard has no memory.
                        unsafe { run(&mut *channel, Io::discard(offset, n as u32, 1)) }.unwrap();
                        // Undefined until written again; all devices here give zeros.
                        model[range].fill(0);
                    }
                }
            }
            let mut all = vec![0; len as usize];
            volume.read_at(0, &mut all).unwrap();
            assert!(all == model, "{name}");
            let writes = ops.iter().filter(|o| o.0 == 1 || o.0 == 2).count() as u64;
            assert_eq!(channel.stats().of(Op::Write).completed, writes);
        });
    }
}
