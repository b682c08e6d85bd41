//! The channel over a scripted queue: every way in which a kernel may answer.

use super::*;
use crate::options::VolumeOptions;
use std::collections::HashMap;

const BLOCK: u32 = 4096;

/// Answers requests from a script, in order; without one, fully. Moves no data, but notes what was
/// asked for.
#[derive(Default)]
struct Script {
    answers: VecDeque<i32>,
    pending: Vec<Request>,
    /// (operation, member, offset in it, bytes or iovecs)
    asked: Vec<(Op, u32, u64, u64)>,
    /// Iovecs of vectored writes, as (address, bytes).
    ranges: Vec<Vec<(usize, usize)>>,
    room: usize,
    reverse: bool,
}

impl Queue for Script {
    const NAME: &'static str = "script";

    fn has_room(&mut self) -> bool {
        self.pending.len() < self.room
    }

    unsafe fn push(&mut self, r: &Request) {
        self.asked.push((r.op, r.member, r.offset, r.len));
        if r.op == Op::WriteV {
            let first: *const libc::iovec = r.buf.cast_const().cast();
            // SAFETY: `push` gets `len` valid iovecs.
            let vec = unsafe { std::slice::from_raw_parts(first, r.len as usize) };
            let pairs = vec.iter().map(|v| (v.iov_base.addr(), v.iov_len));
            self.ranges.push(pairs.collect());
        }
        self.pending.push(*r);
    }

    fn submit(&mut self, done: &mut Vec<Done>) -> io::Result<u32> {
        if self.reverse {
            self.pending.reverse();
        }
        for r in self.pending.drain(..) {
            let bytes = match r.op {
                Op::WriteV => self
                    .ranges
                    .last()
                    .map_or(0, |v| v.iter().map(|p| p.1).sum()),
                _ => r.len as usize,
            };
            let result = self.answers.pop_front().unwrap_or(bytes as i32);
            done.push(Done {
                token: r.token,
                result,
            });
        }
        Ok(1)
    }

    fn wait(&mut self, _wait: WaitFor, done: &mut Vec<Done>) -> io::Result<(u32, bool)> {
        self.submit(done).map(|calls| (calls, false))
    }

    unsafe fn register(&mut self, _regions: &[(*mut u8, usize)]) -> io::Result<bool> {
        Err(io::Error::from_raw_os_error(libc::ENOMEM))
    }
}

struct Fixture {
    _dir: tempfile::TempDir,
    device: Arc<FileDevice>,
}

impl Fixture {
    fn new(members: usize) -> Fixture {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..members)
            .map(|i| dir.path().join(i.to_string()))
            .collect();
        let options = VolumeOptions::new().stripe_unit(8192);
        let mut device = FileDevice::create(&paths, &options).unwrap();
        device.block = BLOCK;
        crate::Device::grow(&device, 1 << 20).unwrap();
        Fixture {
            _dir: dir,
            device: Arc::new(device),
        }
    }

    fn channel(&self, answers: &[i32]) -> FileChannel<Script> {
        let script = Script {
            answers: answers.iter().copied().collect(),
            room: 8,
            ..Script::default()
        };
        let wake = Arc::new(EventWake::new().unwrap());
        let device = Arc::clone(&self.device);
        FileChannel::new(device, script, wake, &ChannelOptions::with_depth(64))
    }
}

fn run(channel: &mut FileChannel<Script>, io: Io) -> Result<(), IoErrorKind> {
    let mut out = Vec::new();
    // SAFETY: the scripted queue touches no memory but the iovecs.
    unsafe { channel.submit(io) }.unwrap();
    for _ in 0..1000 {
        channel.wait(1, None, &mut out).unwrap();
        if let Some(done) = out.pop() {
            assert_eq!((channel.in_flight, channel.pushed), (0, 0));
            assert_eq!(channel.free.len(), channel.slots.len(), "a slot leaked");
            assert_eq!(channel.free_parents.len(), channel.parents.len());
            return done.result.map_err(|e| e.kind());
        }
    }
    panic!("no completion")
}

fn address(pages: usize) -> *mut u8 {
    std::ptr::without_provenance_mut(pages * BLOCK as usize)
}

#[test]
fn a_short_transfer_is_finished_from_the_last_whole_block() {
    let fixture = Fixture::new(1);
    let d = crate::file::label::DATA_OFFSET;
    for (op, io) in [
        (Op::Read, Io::read(0, address(9), 32768, 1)),
        (Op::Write, Io::write(0, address(9), 32768, 1)),
    ] {
        let mut channel = fixture.channel(&[5000, 12288]);
        run(&mut channel, io).unwrap();
        let rest = |done: u64| (op, 0, d + done, 32768 - done);
        assert_eq!(channel.queue.asked, [rest(0), rest(4096), rest(16384)]);
        assert_eq!(channel.stats.resubmitted, 2);
        assert_eq!(channel.stats.of(op).bytes, 32768);
        assert_eq!(channel.stats.of(op).completed, 1);
    }
}

#[test]
fn no_progress_is_a_typed_error() {
    let fixture = Fixture::new(1);
    for (answers, done) in [(&[0][..], 0), (&[8192, 0], 8192), (&[8192, 700], 8892)] {
        let mut channel = fixture.channel(answers);
        let result = run(&mut channel, Io::read(0, address(9), 32768, 1));
        assert_eq!(result, Err(IoErrorKind::Short { done }));
        assert_eq!(channel.stats.read.failed, 1);
    }
}

#[test]
fn again_and_interrupted_are_retried_within_a_limit() {
    let fixture = Fixture::new(1);
    let io = Io::write(0, address(9), 4096, 1);
    for errno in [libc::EAGAIN, libc::EINTR] {
        let mut channel = fixture.channel(&[-errno; RETRIES as usize]);
        run(&mut channel, io).unwrap();
        assert_eq!(channel.stats.resubmitted, u64::from(RETRIES));
        let mut channel = fixture.channel(&[-errno; RETRIES as usize + 1]);
        let kind = IoErrorKind::from_errno(errno);
        assert_eq!(run(&mut channel, io), Err(kind));
    }
}

#[test]
fn every_error_number_reaches_the_caller() {
    let fixture = Fixture::new(1);
    for (errno, kind) in [
        (libc::EIO, IoErrorKind::Media),
        (libc::ENOSPC, IoErrorKind::NoSpace),
        (libc::EDQUOT, IoErrorKind::NoSpace),
        (libc::EOPNOTSUPP, IoErrorKind::Unsupported),
        (libc::EROFS, IoErrorKind::ReadOnly),
        (libc::EFAULT, IoErrorKind::Os(libc::EFAULT)),
    ] {
        for io in [
            Io::read(0, address(9), 4096, 1),
            Io::write(0, address(9), 4096, 1),
            Io::flush(1),
            Io::discard(0, 4096, 1),
        ] {
            let mut channel = fixture.channel(&[-errno]);
            assert_eq!(run(&mut channel, io), Err(kind), "{io:?}");
        }
    }
}

#[test]
fn a_split_io_completes_once_and_only_after_its_last_part() {
    let fixture = Fixture::new(3);
    let d = crate::file::label::DATA_OFFSET;
    let mut channel = fixture.channel(&[4096, -libc::EIO, 8192]);
    channel.queue.room = 2;
    // Units of 8 KiB: 4 KiB on member 0, whole units on 1 and 2, 4 KiB on 0 again.
    let io = Io::write(4096, address(9), 24576, 1);
    assert_eq!(run(&mut channel, io), Err(IoErrorKind::Media));
    let mut asked = channel.queue.asked.clone();
    asked.sort_unstable_by_key(|a| (a.1, a.2));
    let want = [
        (Op::Write, 0, d + 4096, 4096),
        (Op::Write, 0, d + 8192, 4096),
        (Op::Write, 1, d, 8192),
        (Op::Write, 2, d, 8192),
    ];
    assert_eq!(
        asked.iter().filter(|a| want.contains(a)).count(),
        asked.len()
    );
    for part in want {
        assert!(asked.contains(&part), "{part:?}");
    }
    assert_eq!(
        (channel.stats.write.completed, channel.stats.write.failed),
        (1, 1)
    );
}

#[test]
fn flushes_reach_every_member_and_discards_are_joined_per_member() {
    let fixture = Fixture::new(3);
    let d = crate::file::label::DATA_OFFSET;
    let mut channel = fixture.channel(&[]);
    run(&mut channel, Io::flush(1)).unwrap();
    let members: Vec<u32> = channel.queue.asked.drain(..).map(|a| a.1).collect();
    assert_eq!(members, [0, 1, 2]);
    run(&mut channel, Io::discard(0, 65536, 1)).unwrap();
    let want = [
        (Op::Discard, 0, d, 24576),
        (Op::Discard, 1, d, 24576),
        (Op::Discard, 2, d, 16384),
    ];
    assert_eq!(channel.queue.asked, want);
    assert_eq!(channel.stats.discard.bytes, 65536);
}

#[test]
fn a_short_vectored_write_goes_on_inside_its_ranges() {
    let fixture = Fixture::new(1);
    let page = BLOCK as usize;
    let ranges = [
        IoVec {
            buf: address(10),
            len: page,
        },
        IoVec {
            buf: address(20),
            len: 3 * page,
        },
        IoVec {
            buf: address(30),
            len: page,
        },
    ];
    let mut channel = fixture.channel(&[2 * BLOCK as i32 + 5]);
    run(&mut channel, Io::write_v(0, ranges.as_ptr(), 3, 1)).unwrap();
    let rest = vec![(21 * page, 2 * page), (30 * page, page)];
    assert_eq!(channel.queue.ranges[1], rest);
}

#[test]
fn a_vectored_write_is_cut_at_stripe_units() {
    let fixture = Fixture::new(2);
    let page = BLOCK as usize;
    let ranges = [
        IoVec {
            buf: address(10),
            len: page,
        },
        IoVec {
            buf: address(20),
            len: 3 * page,
        },
    ];
    let mut channel = fixture.channel(&[]);
    // Answers of the script are per request; every part is complete here.
    channel.queue.answers = [4096, 8192, 4096].into();
    run(&mut channel, Io::write_v(4096, ranges.as_ptr(), 2, 1)).unwrap();
    let parts = [
        vec![(10 * page, page)],
        vec![(20 * page, 2 * page)],
        vec![(22 * page, page)],
    ];
    assert_eq!(channel.queue.ranges, parts);
}

#[test]
fn completions_in_any_order_keep_their_user_data() {
    let fixture = Fixture::new(3);
    let mut channel = fixture.channel(&[]);
    channel.queue.reverse = true;
    let mut expected = HashMap::new();
    for i in 0..40u64 {
        let io = Io::read(i * 20480 % 786432, address(9), 20480, i);
        // SAFETY: the scripted queue touches no memory.
        unsafe { channel.submit(io) }.unwrap();
        expected.insert(i, ());
    }
    let mut out = Vec::new();
    while channel.in_flight > 0 {
        channel.wait(7, None, &mut out).unwrap();
    }
    for done in out {
        assert!(done.result.is_ok());
        assert!(
            expected.remove(&done.user_data).is_some(),
            "twice: {}",
            done.user_data
        );
    }
    assert!(expected.is_empty());
    assert_eq!(channel.stats.in_flight_max, 40);
}

#[test]
fn refused_registration_is_noted_once() {
    let fixture = Fixture::new(1);
    let mut channel = fixture.channel(&[]);
    for _ in 0..2 {
        // SAFETY: the scripted queue registers nothing.
        assert!(!unsafe { channel.register_buffers(&[(address(1), 4096)]) });
    }
    let notes = crate::Device::backend_report(&*fixture.device).notes;
    assert_eq!(
        notes
            .iter()
            .filter(|n| n.contains("not registered"))
            .count(),
        1
    );
}
