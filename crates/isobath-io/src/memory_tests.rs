use super::*;
use crate::Volume;

fn run(channel: &mut dyn Channel, io: Io) -> Result<(), IoError> {
    // SAFETY: every caller in this module keeps its buffer until this function has reaped the
    // completion.
    unsafe { channel.submit(io) }.unwrap();
    let mut out = Vec::new();
    assert_eq!(channel.wait(1, None, &mut out).unwrap(), 1);
    assert_eq!(out[0].user_data, io.user_data);
    out.remove(0).result
}

#[test]
fn what_was_written_is_read_across_chunks_and_after_growing() {
    let volume = Volume::in_memory(CHUNK, Some(4 * CHUNK));
    let mut channel = volume.channel(&ChannelOptions::default()).unwrap();
    let mut page = AlignedBuf::new(8192);
    page.iter_mut().enumerate().for_each(|(i, b)| *b = i as u8);
    let at = CHUNK - 4096;
    let out_of_range = run(&mut *channel, Io::write(at, page.as_ptr(), 8192, 1));
    assert_eq!(out_of_range.unwrap_err().kind(), IoErrorKind::OutOfRange);
    volume.grow(2 * CHUNK).unwrap();
    run(&mut *channel, Io::write(at, page.as_ptr(), 8192, 2)).unwrap();
    let mut back = AlignedBuf::new(8192);
    run(&mut *channel, Io::read(at, back.as_mut_ptr(), 8192, 3)).unwrap();
    assert_eq!(&*back, &*page);
    let mut odd = vec![0; 1001];
    volume.read_at(at + 3, &mut odd).unwrap();
    assert_eq!(odd, page[3..1004]);
    run(&mut *channel, Io::discard(at, 8192, 4)).unwrap();
    run(&mut *channel, Io::read(at, back.as_mut_ptr(), 8192, 5)).unwrap();
    assert!(back.iter().all(|b| *b == 0));
    assert!(matches!(
        volume.grow(5 * CHUNK),
        Err(VolumeError::Limit { .. })
    ));
    assert!(matches!(volume.grow(5), Err(VolumeError::BadOption { .. })));
}

#[test]
fn vectored_writes_join_their_ranges() {
    let volume = Volume::in_memory(1 << 20, None);
    let mut channel = volume.channel(&ChannelOptions::default()).unwrap();
    let mut bytes = AlignedBuf::new(4096);
    bytes[..512].fill(1);
    bytes[2048..3072].fill(2);
    let ranges = [
        IoVec {
            buf: bytes[2048..].as_ptr(),
            len: 1024,
        },
        IoVec {
            buf: bytes.as_ptr(),
            len: 512,
        },
    ];
    run(&mut *channel, Io::write_v(512, ranges.as_ptr(), 2, 9)).unwrap();
    let mut back = vec![0; 1536];
    volume.read_at(512, &mut back).unwrap();
    assert!(back[..1024].iter().all(|b| *b == 2) && back[1024..].iter().all(|b| *b == 1));
    let crooked = [IoVec {
        buf: bytes.as_ptr(),
        len: 100,
    }];
    let refused = run(&mut *channel, Io::write_v(512, crooked.as_ptr(), 1, 9));
    assert_eq!(refused.unwrap_err().kind(), IoErrorKind::Misaligned);
}

#[test]
fn the_depth_is_a_limit() {
    let volume = Volume::in_memory(1 << 20, None);
    let mut channel = volume.channel(&ChannelOptions::with_depth(2)).unwrap();
    for want in [Ok(()), Ok(()), Err(QueueFull)] {
        // SAFETY: a flush has no memory.
        assert_eq!(unsafe { channel.submit(Io::flush(0)) }, want);
    }
    assert_eq!(channel.in_flight(), 2);
    assert!(volume.channel(&ChannelOptions::with_depth(0)).is_err());
}

#[test]
fn a_wake_from_another_thread_ends_the_wait() {
    let volume = Volume::in_memory(1 << 20, None);
    let mut channel = volume.channel(&ChannelOptions::default()).unwrap();
    let waker = channel.waker();
    let thread = std::thread::spawn(move || waker.wake());
    channel.wait(1, None, &mut Vec::new()).unwrap();
    thread.join().unwrap();
    assert_eq!(channel.stats().sleeps, 1);
}
