use super::*;
use crate::aligned::AlignedBuf;
use crate::fault::{Fault, FaultDevice, FaultPlan, FaultRule, Trigger};
use proptest::prelude::*;

const BYTES: u64 = 64 << 10;

/// A volume whose byte `n` is a function of `n`, and its bytes.
fn below() -> (Volume, Vec<u8>) {
    let bytes: Vec<u8> = (0..BYTES).map(|n| (n / 512 * 7 + n % 5) as u8).collect();
    let volume = Volume::in_memory(BYTES, Some(BYTES));
    volume.write_at(0, &bytes).unwrap();
    (volume, bytes)
}

fn all_of(volume: &Volume) -> Vec<u8> {
    let mut bytes = vec![0; volume.len() as usize];
    volume.read_at(0, &mut bytes).unwrap();
    bytes
}

fn run(channel: &mut dyn Channel, io: Io) -> Result<(), IoError> {
    // SAFETY: every caller in this module keeps its buffer until this function has reaped the
    // completion.
    unsafe { channel.submit(io) }.unwrap();
    let mut out = Vec::new();
    assert_eq!(channel.wait(1, None, &mut out).unwrap(), 1);
    assert_eq!((out[0].user_data, channel.in_flight()), (io.user_data, 0));
    out.remove(0).result
}

/// One change or look: at which half KiB, how many, and what.
#[derive(Debug, Clone)]
enum Step {
    Write(u64, u64, u8),
    WriteTwo(u64, u64, u8),
    Blocking(u64, u64, u8),
    Read(u64, u64),
    Clear(u64, u64),
    Keep(u64, u64),
    Below(u64, u64, u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let place = || (0..240u64, 1..16u64);
    let step = prop_oneof![
        (place(), any::<u8>()).prop_map(|((at, n), b)| Step::Write(at, n, b)),
        (place(), any::<u8>()).prop_map(|((at, n), b)| Step::WriteTwo(at, n, b)),
        (place(), any::<u8>()).prop_map(|((at, n), b)| Step::Blocking(at, n, b)),
        place().prop_map(|(at, n)| Step::Read(at, n)),
        (0..30u64, 1..4u64).prop_map(|(at, n)| Step::Clear(at, n)),
        (0..12u64, 1..4u64).prop_map(|(at, n)| Step::Keep(at, n)),
        ((0..112u64, 1..16u64), any::<u8>()).prop_map(|((at, n), b)| Step::Below(at, n, b)),
    ];
    prop::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]
    /// An overlay that has grown to twice the length of what is below it, with space for three
    /// blocks in memory, against two arrays of bytes.
    #[test]
    fn an_overlay_is_what_was_written_over_what_is_below(steps in steps()) {
        let (volume, mut under) = below();
        let device = Arc::new(OverlayDevice::new(volume.clone(), 3 * BLOCK));
        let overlay = Volume::from_device(device.clone());
        overlay.grow(2 * BYTES).unwrap();
        let mut channel = overlay.channel(&ChannelOptions::default()).unwrap();
        // What was written here, by half KiB; the rest shows what is below, or zeros behind its
        // end.
        let mut over: Vec<Option<Vec<u8>>> = vec![None; (2 * BYTES / 512) as usize];
        let mut buf = AlignedBuf::new(16 * 512);
        let half = |n: u64| (n * 512) as usize;
        for step in steps {
            // A block is here as a whole once a part of it was written.
            let own = |over: &mut Vec<Option<Vec<u8>>>, under: &[u8], at: u64, n: u64| {
                for unit in at / 8 * 8..(at + n).next_multiple_of(8) {
                    over[unit as usize].get_or_insert_with(|| {
                        let shown = under.get(half(unit)..half(unit + 1));
                        shown.map_or(vec![0; 512], <[u8]>::to_vec)
                    });
                }
            };
            match step {
                Step::Write(at, n, byte) | Step::WriteTwo(at, n, byte) | Step::Blocking(at, n, byte) => {
                    own(&mut over, &under, at, n);
                    (at..at + n).for_each(|unit| over[unit as usize] = Some(vec![byte; 512]));
                    buf.fill(byte);
                    let (offset, len) = (at * 512, n as u32 * 512);
                    match step {
                        Step::Write(..) => run(&mut *channel, Io::write(offset, buf.as_ptr(), len, 1)).unwrap(),
                        Step::WriteTwo(..) => {
                            let ranges = [
                                IoVec { buf: buf.as_ptr(), len: 512 },
                                IoVec { buf: buf.as_ptr(), len: half(n) - 512 },
                            ];
                            let count = 1 + u32::from(n > 1);
                            run(&mut *channel, Io::write_v(offset, ranges.as_ptr(), count, 2)).unwrap();
                        }
                        _ => overlay.write_at(offset, &buf[..half(n)]).unwrap(),
                    }
                }
                Step::Read(at, n) => {
                    run(&mut *channel, Io::read(at * 512, buf.as_mut_ptr(), n as u32 * 512, 3)).unwrap();
                    for unit in at..at + n {
                        let shown = &buf[half(unit - at)..half(unit - at + 1)];
                        let below = under.get(half(unit)..half(unit + 1));
                        let wanted = over[unit as usize].as_deref().or(below).unwrap_or(&[0; 512]);
                        prop_assert!(shown == wanted, "half KiB {unit}");
                    }
                }
                Step::Clear(at, n) => {
                    device.clear(at * BLOCK, n * BLOCK);
                    (8 * at..8 * (at + n)).for_each(|unit| over[unit as usize] = Some(vec![0; 512]));
                }
                Step::Keep(at, n) => {
                    device.keep(at * BLOCK, n * BLOCK).unwrap();
                    for unit in 8 * at..8 * (at + n) {
                        over[unit as usize] = Some(under[half(unit)..half(unit + 1)].to_vec());
                    }
                }
                Step::Below(at, n, byte) => {
                    volume.write_at(at * 512, &vec![byte; half(n)]).unwrap();
                    under[half(at)..half(at + n)].fill(byte);
                }
            }
        }
        let wanted: Vec<u8> = over
            .iter()
            .enumerate()
            .flat_map(|(unit, own)| {
                let below = under.get(half(unit as u64)..half(unit as u64 + 1));
                own.as_deref().or(below).unwrap_or(&[0; 512]).to_vec()
            })
            .collect();
        prop_assert!(all_of(&overlay) == wanted);
        prop_assert!(all_of(&volume) == under, "nothing reaches the volume below");
    }
}

#[test]
fn parts_of_one_block_may_be_written_at_a_time() {
    let (volume, _) = below();
    let overlay = Volume::from_device(Arc::new(OverlayDevice::new(volume, BYTES)));
    for round in 0..200u8 {
        std::thread::scope(|scope| {
            for part in 0..4 {
                let overlay = &overlay;
                scope.spawn(move || overlay.write_at(part * 512, &[round; 512]).unwrap());
            }
        });
        let mut bytes = [0; 2048];
        overlay.read_at(0, &mut bytes).unwrap();
        assert!(bytes == [round; 2048], "round {round}");
    }
}

#[test]
fn a_failed_read_below_is_reported() {
    let device = FaultDevice::new(BYTES, FaultPlan::new(1));
    device.add_rule(
        FaultRule::new(Fault::Error(IoErrorKind::Media), Trigger::From(0)).ops(&[Op::Read]),
    );
    let overlay = OverlayDevice::new(Volume::from_device(device), BYTES);
    let mut bytes = [0; 512];
    assert!(overlay.read_at(0, &mut bytes).is_err());
    assert!(overlay.write_at(0, &[1; 512]).is_err(), "a part of a block");
    assert!(overlay.keep(0, BLOCK).is_err());
    overlay.write_at(0, &[1; BLOCK_BYTES]).unwrap();
    overlay.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [1; 512]);
}

#[test]
fn what_is_misaligned_or_outside_is_refused() {
    let (volume, _) = below();
    let overlay = Volume::from_device(Arc::new(OverlayDevice::new(volume, BYTES)));
    let mut channel = overlay.channel(&ChannelOptions::with_depth(2)).unwrap();
    let mut buf = AlignedBuf::new(4096);
    let kind = |result: Result<(), IoError>| result.unwrap_err().kind();
    let far = run(&mut *channel, Io::read(BYTES, buf.as_mut_ptr(), 4096, 1));
    assert_eq!(kind(far), IoErrorKind::OutOfRange);
    let odd = run(&mut *channel, Io::write(7, buf.as_ptr(), 4096, 1));
    assert_eq!(kind(odd), IoErrorKind::Misaligned);
    let log = run(&mut *channel, Io::write(LOG_OFFSET, buf.as_ptr(), 4096, 1));
    assert_eq!(kind(log), IoErrorKind::OutOfRange);
    assert_eq!(
        kind(overlay.write_at(7, &[0; 512])),
        IoErrorKind::Misaligned
    );
    assert!(overlay.grow(BYTES + 1).is_err());
    let io = Io::write(0, buf.as_ptr(), 4096, 1);
    // SAFETY: the buffer outlives the channel's use below.
    let accepted = (0..3)
        .filter(|_| unsafe { channel.submit(io) }.is_ok())
        .count();
    assert_eq!(accepted, 2);
    let mut out = Vec::new();
    assert_eq!(channel.poll(&mut out).unwrap(), 2);
}
