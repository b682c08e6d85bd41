#![allow(unsafe_code)]

use super::*;
use crate::{AlignedBuf, Io, Volume};
use proptest::prelude::*;

const PAGE_LEN: usize = 4096;

fn run(channel: &mut dyn Channel, ios: &[Io]) -> Vec<(u64, Result<(), IoErrorKind>)> {
    let mut out = Vec::new();
    for io in ios {
        // SAFETY: every caller keeps its buffers until this function has reaped all completions.
        unsafe { channel.submit(*io) }.unwrap();
    }
    while channel.in_flight() > 0 {
        channel.wait(1, None, &mut out).unwrap();
    }
    let pairs = out
        .into_iter()
        .map(|c| (c.user_data, c.result.map_err(|e| e.kind())));
    pairs.collect()
}

fn write(channel: &mut dyn Channel, page: u64, pages: usize, value: u8) -> Result<(), IoErrorKind> {
    let mut buf = AlignedBuf::new(pages * PAGE_LEN);
    buf.fill(value);
    let io = Io::write(page * PAGE, buf.as_ptr(), buf.len() as u32, 1);
    run(channel, &[io]).remove(0).1
}

fn read(channel: &mut dyn Channel, page: u64, pages: usize) -> Result<Vec<u8>, IoErrorKind> {
    let mut buf = AlignedBuf::new(pages * PAGE_LEN);
    buf.fill(0xee);
    let io = Io::read(page * PAGE, buf.as_mut_ptr(), buf.len() as u32, 1);
    run(channel, &[io]).remove(0).1.map(|()| buf.to_vec())
}

fn peek(device: &FaultDevice) -> Vec<u8> {
    let mut all = vec![0; device.len() as usize];
    device.peek(0, &mut all);
    all
}

fn open(device: &Arc<FaultDevice>) -> Box<dyn Channel> {
    Volume::from_device(device.clone())
        .channel(&ChannelOptions::with_depth(64))
        .unwrap()
}

fn with(rule: FaultRule) -> Arc<FaultDevice> {
    FaultDevice::new(1 << 20, FaultPlan::new(11).rule(rule))
}

#[test]
fn errors_hit_exactly_the_chosen_io() {
    for n in 0..6 {
        let rule = FaultRule::new(Fault::Error(IoErrorKind::NoSpace), Trigger::At(n));
        let device = with(rule);
        let mut channel = open(&device);
        for i in 0..6 {
            let want = if i == n {
                Err(IoErrorKind::NoSpace)
            } else {
                Ok(())
            };
            assert_eq!(write(&mut *channel, i, 1, 9), want);
        }
        let all = peek(&device);
        for i in 0..6 {
            let value = if i == n { 0 } else { 9 };
            assert!(
                all[i as usize * PAGE_LEN..][..PAGE_LEN]
                    .iter()
                    .all(|b| *b == value)
            );
        }
        assert_eq!((device.io_count(), device.fault_count()), (6, 1));
    }
}

#[test]
fn rules_select_operations_regions_and_times() {
    let fault = Fault::Error(IoErrorKind::Media);
    let device = with(
        FaultRule::new(fault, Trigger::From(1))
            .ops(&[Op::Read])
            .region(8192..12288),
    );
    let mut channel = open(&device);
    write(&mut *channel, 2, 1, 1).unwrap();
    read(&mut *channel, 1, 1).unwrap();
    read(&mut *channel, 2, 1).unwrap();
    assert_eq!(read(&mut *channel, 2, 1), Err(IoErrorKind::Media));
    assert_eq!(read(&mut *channel, 2, 1), Err(IoErrorKind::Media));
    device.clear_rules();
    read(&mut *channel, 2, 1).unwrap();

    device.add_rule(FaultRule::new(fault, Trigger::Probability(0.3)));
    let failed = (0..1000)
        .filter(|_| read(&mut *channel, 2, 1).is_err())
        .count();
    assert!((240..360).contains(&failed), "{failed} of 1000");
}

#[test]
fn blocking_calls_count_and_fail_too() {
    let device = with(FaultRule::new(
        Fault::Error(IoErrorKind::Media),
        Trigger::At(2),
    ));
    let volume = Volume::from_device(device.clone());
    volume.write_at(512, &[3; 1024]).unwrap();
    let mut odd = [0; 5];
    volume.read_at(510, &mut odd).unwrap();
    assert_eq!(odd, [0, 0, 3, 3, 3]);
    assert_eq!(volume.sync().unwrap_err().kind(), IoErrorKind::Media);
    volume.sync().unwrap();
    assert_eq!(device.io_count(), 4);
    assert_eq!(
        volume.read_at(1 << 20, &mut odd).unwrap_err().kind(),
        IoErrorKind::OutOfRange
    );
}

#[test]
fn short_ios_transfer_a_prefix() {
    for seed in 0..40 {
        let plan = FaultPlan::new(seed).rule(FaultRule::new(Fault::Short, Trigger::From(0)));
        let device = FaultDevice::new(1 << 20, plan);
        let mut channel = open(&device);
        let Err(IoErrorKind::Short { done }) = write(&mut *channel, 1, 3, 7) else {
            panic!("not short")
        };
        let done = done as usize;
        assert!(done < 3 * PAGE_LEN && done.is_multiple_of(512));
        let all = peek(&device);
        assert!(all[PAGE_LEN..][..done].iter().all(|b| *b == 7));
        assert!(all[PAGE_LEN + done..].iter().all(|b| *b == 0));
        assert!(matches!(
            read(&mut *channel, 1, 3),
            Err(IoErrorKind::Short { .. })
        ));
    }
}

#[test]
fn torn_writes_change_some_units() {
    for (unit, kinds) in [(512, 30), (4096, 4)] {
        let mut outcomes = std::collections::BTreeSet::new();
        for seed in 0..60 {
            let plan = FaultPlan::new(seed).atomic_unit(unit);
            let plan = plan.rule(FaultRule::new(Fault::Torn, Trigger::At(0)));
            let device = FaultDevice::new(1 << 20, plan);
            let mut channel = open(&device);
            assert_eq!(write(&mut *channel, 0, 2, 7), Err(IoErrorKind::Media));
            let all = peek(&device);
            let units = all[..2 * PAGE_LEN].chunks(unit as usize);
            let whole = |u: &[u8]| u.iter().all(|b| *b == u[0]);
            assert!(units.clone().all(whole));
            outcomes.insert(units.map(|u| u[0]).collect::<Vec<_>>());
        }
        assert!(
            outcomes.len() >= kinds,
            "{unit}: {} outcomes",
            outcomes.len()
        );
    }
}

#[test]
fn lost_and_misdirected_and_flipped_writes_are_acknowledged() {
    let device = with(FaultRule::new(Fault::Lost, Trigger::At(0)));
    let mut channel = open(&device);
    write(&mut *channel, 1, 1, 7).unwrap();
    assert!(peek(&device).iter().all(|b| *b == 0));

    let device = with(FaultRule::new(Fault::Misdirected, Trigger::At(0)));
    let mut channel = open(&device);
    write(&mut *channel, 1, 2, 7).unwrap();
    let all = peek(&device);
    assert_eq!(all.iter().filter(|b| **b == 7).count(), 2 * PAGE_LEN);
    assert!(all[PAGE_LEN..3 * PAGE_LEN].contains(&0));

    let device = with(FaultRule::new(Fault::BitFlip, Trigger::At(0)));
    let mut channel = open(&device);
    write(&mut *channel, 1, 2, 0xff).unwrap();
    let zeros: u32 = peek(&device)[PAGE_LEN..3 * PAGE_LEN]
        .iter()
        .map(|b| b.count_zeros())
        .sum();
    assert_eq!(zeros, 1);
}

#[test]
fn misdirected_and_flipped_reads_leave_the_medium_alone() {
    for fault in [Fault::Misdirected, Fault::BitFlip] {
        let device = with(FaultRule::new(fault, Trigger::At(1)));
        let mut channel = open(&device);
        write(&mut *channel, 3, 1, 5).unwrap();
        let before = peek(&device);
        let wrong = read(&mut *channel, 3, 1).unwrap();
        let right = read(&mut *channel, 3, 1).unwrap();
        assert!(right.iter().all(|b| *b == 5));
        assert_ne!(wrong, right);
        assert!(peek(&device) == before);
    }
}

#[test]
fn latencies_reorder_completions_and_clocks_advance() {
    let device = FaultDevice::new(1 << 20, FaultPlan::new(5).latency_us(50..=150));
    let mut channel = open(&device);
    let bufs: Vec<AlignedBuf> = (0..32).map(|_| AlignedBuf::new(PAGE_LEN)).collect();
    let ios: Vec<Io> = (0u64..)
        .zip(&bufs)
        .map(|(i, b)| Io::write(i * PAGE, b.as_ptr(), 4096, i))
        .collect();
    let order: Vec<u64> = run(&mut *channel, &ios).into_iter().map(|c| c.0).collect();
    assert!(!order.is_sorted());
    let us = device.now().as_micros();
    assert!((50..=152).contains(&us), "{us}");
    let latency = &channel.stats().write.latency;
    assert!(latency.quantile_ns(0.0) >= 50_000 && latency.max_ns() <= 152_000);

    let slow = FaultRule::new(Fault::Delay(Duration::from_millis(70)), Trigger::At(0));
    device.add_rule(slow);
    let before = device.now();
    write(&mut *channel, 0, 1, 1).unwrap();
    assert!(device.now() - before >= Duration::from_millis(70));
}

#[test]
fn waiting_with_a_timeout_lets_time_pass() {
    let device = FaultDevice::new(1 << 20, FaultPlan::new(5).latency_us(500..=500));
    let mut channel = open(&device);
    let mut out = Vec::new();
    channel
        .wait(1, Some(Duration::from_micros(300)), &mut out)
        .unwrap();
    assert_eq!(device.now(), Duration::from_micros(300));
    // SAFETY: a flush has no memory.
    unsafe { channel.submit(Io::flush(1)) }.unwrap();
    assert_eq!(
        channel
            .wait(1, Some(Duration::from_micros(400)), &mut out)
            .unwrap(),
        0
    );
    assert_eq!(device.now(), Duration::from_micros(700));
    assert_eq!(channel.wait(1, None, &mut out).unwrap(), 1);
    assert_eq!(device.now(), Duration::from_micros(800));
    channel.waker().wake();
    channel.wait(1, None, &mut out).unwrap();
    assert_eq!(channel.stats().wakes, 1);
}

#[test]
fn threads_can_sleep_on_it() {
    let device = FaultDevice::new(1 << 20, FaultPlan::new(5).sleeps(true));
    let mut channel = open(&device);
    let waker = channel.waker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        waker.wake();
    });
    while channel.stats().wakes == 0 {
        channel
            .wait(1, Some(Duration::from_secs(10)), &mut Vec::new())
            .unwrap();
    }
    assert!(channel.stats().sleeps < 5);
    thread.join().unwrap();
}

#[test]
fn a_flush_covers_only_writes_whose_completion_was_seen() {
    let device = FaultDevice::new(1 << 20, FaultPlan::new(5));
    let mut channel = open(&device);
    let mut buf = AlignedBuf::new(PAGE_LEN);
    buf.fill(1);
    let io = |page: u64| Io::write(page * PAGE, buf.as_ptr(), 4096, page);
    run(&mut *channel, &[io(0)]);
    // Handed over together: the write is executed first, but its completion is not seen before the
    // flush is submitted.
    run(&mut *channel, &[io(1), Io::flush(9)]);
    let after = peek(&device.crash_image(Survivors::None, 0));
    assert!(after[0] == 1 && after[PAGE_LEN] == 0);
    run(&mut *channel, &[Io::flush(9)]);
    assert_eq!(peek(&device.crash_image(Survivors::None, 0))[PAGE_LEN], 1);
    run(&mut *channel, &[io(2).durable()]);
    assert_eq!(
        peek(&device.crash_image(Survivors::None, 0))[2 * PAGE_LEN],
        1
    );
    run(&mut *channel, &[io(3)]);
    let after = device.crash_image(Survivors::Executed, 0);
    assert_eq!(peek(&after)[3 * PAGE_LEN], 1);
}

#[test]
fn a_crashed_device_fails_everything_and_its_image_works() {
    let device = FaultDevice::new(1 << 20, FaultPlan::new(5).latency_us(10..=20));
    let volume = Volume::from_device(device.clone());
    let mut channel = open(&device);
    let mut buf = AlignedBuf::new(PAGE_LEN);
    // SAFETY: `buf` outlives the channel's use of it.
    unsafe { channel.submit(Io::read(0, buf.as_mut_ptr(), 4096, 1)) }.unwrap();
    let mut out = Vec::new();
    channel.poll(&mut out).unwrap();
    assert!(out.is_empty());
    let after = device.crash(Survivors::Random);
    device.crash(Survivors::Random);
    channel.wait(1, None, &mut out).unwrap();
    assert_eq!(out.len(), 1);
    assert_eq!(
        out[0].result.as_ref().unwrap_err().kind(),
        IoErrorKind::Media
    );
    assert_eq!(write(&mut *channel, 0, 1, 1), Err(IoErrorKind::Media));
    assert!(volume.sync().is_err() && volume.grow(2 << 20).is_err());
    write(&mut *open(&after), 0, 1, 1).unwrap();
}

#[test]
fn power_loss_at_an_io() {
    let device = with(FaultRule::new(Fault::PowerLoss, Trigger::At(2)));
    let mut channel = open(&device);
    write(&mut *channel, 0, 1, 1).unwrap();
    run(&mut *channel, &[Io::flush(1)]).remove(0).1.unwrap();
    assert_eq!(write(&mut *channel, 1, 1, 1), Err(IoErrorKind::Media));
    assert!(read(&mut *channel, 0, 1).is_err());
    let after = peek(&device.crash(Survivors::None));
    assert!(after[0] == 1 && after[PAGE_LEN] == 0);
}

#[test]
fn a_dropped_channel_finishes_its_ios() {
    let device = FaultDevice::new(1 << 20, FaultPlan::new(5).latency_us(10..=20));
    let mut channel = open(&device);
    let mut buf = AlignedBuf::new(PAGE_LEN);
    buf.fill(4);
    // SAFETY: the device copies the data at the hand-over below.
    unsafe { channel.submit(Io::write(0, buf.as_ptr(), 4096, 1)) }.unwrap();
    channel.poll(&mut Vec::new()).unwrap();
    drop(channel);
    assert_eq!(peek(&device)[0], 4);
    // The completion was not reaped and never will be; still a later flush covers the write.
    Volume::from_device(device.clone()).sync().unwrap();
    assert_eq!(peek(&device.crash(Survivors::None))[0], 4);
}

#[test]
fn bit_rot() {
    let device = FaultDevice::new(1 << 20, FaultPlan::new(5));
    Volume::from_device(device.clone())
        .write_at(0, &[1; 8192])
        .unwrap();
    device.corrupt(4000..4200, |bytes| {
        bytes.iter_mut().for_each(|b| *b ^= 0x80)
    });
    for image in [
        peek(&device),
        peek(&device.crash_image(Survivors::Executed, 0)),
    ] {
        assert!(image[4000..4200].iter().all(|b| *b == 0x81));
        assert!(image[3999] == 1 && image[4200] == 1);
    }
}

#[test]
fn growing_has_limits() {
    let plan = FaultPlan::new(5)
        .max_bytes(Some(1 << 22))
        .space_bytes(1 << 21);
    let device = FaultDevice::new(1 << 20, plan);
    device.grow(1 << 21).unwrap();
    assert!(matches!(
        device.grow(1 << 22),
        Err(VolumeError::NoSpace { .. })
    ));
    assert!(matches!(
        device.grow(1 << 23),
        Err(VolumeError::Limit { .. })
    ));
    assert!(matches!(
        device.grow(17),
        Err(VolumeError::BadOption { .. })
    ));
    assert_eq!(device.len(), 1 << 21);
}

/// One step of a random run.
#[derive(Debug, Clone)]
enum Step {
    Write {
        sector: u64,
        sectors: u64,
        durable: bool,
    },
    Flush,
    Discard {
        sector: u64,
        sectors: u64,
    },
    Reap,
    Poll,
}

const SECTORS: u64 = 64;

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..SECTORS, 1u64..24, prop::bool::weighted(0.1))
            .prop_map(|(sector, sectors, durable)| Step::Write { sector, sectors: sectors.min(SECTORS - sector), durable }),
        2 => Just(Step::Flush),
        1 => (0..SECTORS, 1u64..24)
            .prop_map(|(sector, sectors)| Step::Discard { sector, sectors: sectors.min(SECTORS - sector) }),
        2 => Just(Step::Reap),
        2 => Just(Step::Poll),
    ]
}

/// What a sector may hold after a crash, by the plainest rule: everything written to it since the
/// newest value that a covering flush (or a durable write) has fixed.
#[derive(Clone)]
struct Model {
    /// Per sector, in the order of submission: (I/O, value, acknowledged).
    written: Vec<Vec<(u64, u8, bool)>>,
}

struct Runner {
    device: Arc<FaultDevice>,
    channel: Box<dyn Channel>,
    model: Model,
    bufs: Vec<AlignedBuf>,
    next: u64,
    flushes: Vec<(u64, Model)>,
}

impl Runner {
    fn new(seed: u64, latency: u64, unit: u32) -> Runner {
        let plan = FaultPlan::new(seed)
            .latency_us(0..=latency)
            .atomic_unit(unit);
        let device = FaultDevice::new(SECTORS * 512, plan);
        let channel = open(&device);
        Runner {
            device,
            channel,
            model: Model {
                written: vec![vec![(0, 0, true)]; SECTORS as usize],
            },
            bufs: Vec::new(),
            next: 0,
            flushes: Vec::new(),
        }
    }

    fn submit(&mut self, io: Io) {
        while self.channel.in_flight() == self.channel.depth() {
            self.reap(1);
        }
        // SAFETY: `bufs` keeps every buffer to the end of the run.
        unsafe { self.channel.submit(io) }.unwrap();
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Write {
                sector,
                sectors,
                durable,
            } => {
                self.next += 1;
                // Two writes in flight to one sector have no order; the model avoids them by
                // waiting.
                self.reap(64);
                let mut buf = AlignedBuf::new(*sectors as usize * 512);
                buf.fill(self.next as u8);
                let io = Io::write(sector * 512, buf.as_ptr(), buf.len() as u32, self.next);
                self.bufs.push(buf);
                self.submit(if *durable { io.durable() } else { io });
                let value = self.next as u8;
                for s in *sector..sector + sectors {
                    self.model.written[s as usize].push((self.next, value, false));
                }
                if *durable {
                    self.reap(64);
                    for s in *sector..sector + sectors {
                        self.model.written[s as usize].retain(|w| w.0 >= self.next);
                    }
                }
            }
            Step::Discard { sector, sectors } => {
                self.next += 1;
                self.reap(64);
                self.submit(Io::discard(sector * 512, *sectors as u32 * 512, self.next));
                for s in *sector..sector + sectors {
                    self.model.written[s as usize].push((self.next, 0, false));
                }
            }
            Step::Flush => {
                self.next += 1;
                self.submit(Io::flush(self.next));
                let mut fixed = self.model.clone();
                for sector in &mut fixed.written {
                    // Discards leave old or zero: nothing older is ruled out by one that only may
                    // have happened.
                    let newest = sector.iter().rposition(|w| w.2 && w.1 != 0);
                    sector.drain(..newest.unwrap_or(0));
                }
                self.flushes.push((self.next, fixed));
            }
            Step::Reap => self.reap(64),
            Step::Poll => {
                let mut out = Vec::new();
                self.channel.poll(&mut out).unwrap();
                self.acknowledge(&out);
            }
        }
    }

    fn reap(&mut self, n: u32) {
        let mut out = Vec::new();
        self.channel.wait(n, None, &mut out).unwrap();
        self.acknowledge(&out);
    }

    fn acknowledge(&mut self, done: &[crate::Completion]) {
        for c in done {
            c.result.as_ref().unwrap();
            for write in self.model.written.iter_mut().flatten() {
                write.2 |= write.0 == c.user_data;
            }
            if let Some(at) = self.flushes.iter().position(|f| f.0 == c.user_data) {
                let (_, fixed) = self.flushes.remove(at);
                for (sector, fixed) in self.model.written.iter_mut().zip(fixed.written) {
                    let oldest = fixed.first().map_or(0, |w| w.0);
                    sector.retain(|w| w.0 >= oldest);
                }
            }
        }
    }

    /// Checks one crash image; counts sectors that lost their newest value.
    fn check(&self, survivors: Survivors, variant: u64, unit: u64) -> usize {
        let image = peek(&self.device.crash_image(survivors, variant));
        let mut lost = 0;
        for (s, sector) in image.chunks(512).enumerate() {
            let value = sector[0];
            assert!(
                sector.iter().all(|b| *b == value),
                "sector {s} is torn inside"
            );
            let allowed: Vec<u8> = self.model.written[s].iter().map(|w| w.1).collect();
            assert!(
                allowed.contains(&value),
                "sector {s}: {value} is none of {allowed:?}"
            );
            lost += usize::from(allowed.last() != Some(&value));
        }
        let _ = unit;
        lost
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn after_a_crash_every_sector_holds_something_that_it_may_hold(
        seed in any::<u64>(), latency in 0u64..40, wide in any::<bool>(), steps in prop::collection::vec(step(), 1..40),
    ) {
        let unit = if wide { 4096 } else { 512 };
        let mut runner = Runner::new(seed, latency, unit);
        for step in &steps {
            runner.step(step);
            for variant in 0..4 {
                runner.check(Survivors::Random, variant, u64::from(unit));
            }
            runner.check(Survivors::None, 0, u64::from(unit));
            runner.check(Survivors::Executed, 0, u64::from(unit));
        }
    }

    #[test]
    fn equal_runs_are_equal(seed in any::<u64>(), steps in prop::collection::vec(step(), 1..40)) {
        let run = |seed| {
            let mut runner = Runner::new(seed, 30, 512);
            runner.device.add_rule(FaultRule::new(Fault::Delay(Duration::from_micros(99)), Trigger::Probability(0.3)));
            steps.iter().for_each(|s| runner.step(s));
            let image = peek(&runner.device.crash_image(Survivors::Random, 3));
            (runner.device.digest(), runner.device.now(), image)
        };
        prop_assert_eq!(run(seed), run(seed));
        let writes = steps.iter().any(|s| matches!(s, Step::Write { .. }));
        prop_assert!(!writes || run(seed).0 != run(seed ^ 1).0);
    }
}

#[test]
fn random_crashes_lose_and_keep_and_tear() {
    let mut kept = 0;
    let mut lost = 0;
    let mut torn = 0;
    for variant in 0..300 {
        let device = FaultDevice::new(1 << 20, FaultPlan::new(9));
        let mut channel = open(&device);
        for page in 0..8 {
            write(&mut *channel, page, 1, 1).unwrap();
        }
        let image = peek(&device.crash_image(Survivors::Random, variant));
        for page in image[..8 * PAGE_LEN].chunks(PAGE_LEN) {
            let ones = page.iter().filter(|b| **b == 1).count();
            kept += usize::from(ones == PAGE_LEN);
            lost += usize::from(ones == 0);
            torn += usize::from(ones > 0 && ones < PAGE_LEN);
        }
    }
    assert!(
        kept > 500 && lost > 500 && torn > 200,
        "{kept} {lost} {torn}"
    );
}
