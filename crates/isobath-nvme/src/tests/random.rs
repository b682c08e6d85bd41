//! Many operations and faults drawn from seeds, and random bytes as answers.

use super::*;
use crate::command::admin;
use crate::identify::{ControllerInfo, NamespaceInfo, PAGE, SmartLog};
use crate::model::ModelFault;

const BLOCKS: u64 = 64;
const BLOCK: usize = 4096;

/// Xorshift.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 11) % limit
    }

    fn page(&mut self) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        for bytes in page.chunks_exact_mut(8) {
            bytes.copy_from_slice(&self.next().to_le_bytes());
        }
        page
    }
}

/// What is known of a block: the number that fills it, or nothing after a failed write.
type Known = Option<u8>;

struct Pending {
    io: Io,
    fill: u8,
    buf: AlignedBuf,
}

struct Run {
    random: Random,
    channel: NvmeChannel,
    known: Vec<Known>,
    /// As of the last flush that succeeded with nothing in flight.
    flushed: Vec<Known>,
    busy: Vec<bool>,
    pending: Vec<Option<Pending>>,
    done: Vec<Completion>,
    failed: u32,
    is_exact: bool,
}

impl Run {
    fn submit_one(&mut self) {
        let first = self.random.below(BLOCKS);
        let count = 1 + self.random.below((BLOCKS - first).min(12));
        let blocks = first as usize..(first + count) as usize;
        if self.busy[blocks.clone()].contains(&true) {
            return;
        }
        let len = count as usize * BLOCK;
        let offset = first * BLOCK as u64;
        let mut buf = AlignedBuf::new(len);
        let fill = 1 + self.random.below(255) as u8;
        let number = self.pending.len() as u64;
        let io = match self.random.below(10) {
            0..4 => Io::read(offset, buf.as_mut_ptr(), len as u32, number),
            4..9 => {
                buf.fill(fill);
                Io::write(offset, buf.as_ptr(), len as u32, number)
            }
            _ => Io::discard(offset, len as u32, number),
        };
        // SAFETY: `pending` keeps the buffer until the channel is dropped.
        if unsafe { self.channel.submit(io) }.is_ok() {
            self.busy[blocks].fill(true);
            self.pending.push(Some(Pending { io, fill, buf }));
        }
    }

    fn take_done(&mut self) {
        for completion in std::mem::take(&mut self.done) {
            let number = completion.user_data as usize;
            let Some(pending) = self.pending[number].take() else {
                panic!("{number} ends twice");
            };
            let first = pending.io.offset as usize / BLOCK;
            let blocks = first..first + pending.buf.len() / BLOCK;
            self.busy[blocks.clone()].fill(false);
            let is_ok = completion.result.is_ok();
            self.failed += u32::from(!is_ok);
            use isobath_io::Op;
            match pending.io.op {
                Op::Read if is_ok && self.is_exact => {
                    for (block, bytes) in blocks.zip(pending.buf.chunks(BLOCK)) {
                        let Some(fill) = self.known[block] else {
                            continue;
                        };
                        assert!(bytes.iter().all(|b| *b == fill), "block {block}");
                    }
                }
                Op::Write if is_ok => self.known[blocks].fill(Some(pending.fill)),
                Op::Discard if is_ok => self.known[blocks].fill(Some(0)),
                Op::Read => {}
                _ => self.known[blocks].fill(None),
            }
            if !self.is_exact {
                // A completion that is a lie leaves the memory to the drive.
                self.pending.push(Some(pending));
            }
        }
    }

    fn drain(&mut self) {
        while self.channel.in_flight() > 0 {
            let mut done = std::mem::take(&mut self.done);
            self.channel.wait(1, None, &mut done).unwrap();
            self.done = done;
            self.take_done();
        }
    }
}

fn options_of(seed: u64, random: &mut Random, rates: &[(ModelFault, u32)]) -> ModelOptions {
    ModelOptions {
        blocks: BLOCKS,
        transfer_shift: random.below(4) as u8,
        max_entries: 2 + random.below(30) as u32,
        volatile_cache: random.below(2) == 0,
        aborts: random.below(2) == 0,
        latency_steps: (1, 1 + random.below(200)),
        fault_rates: rates.to_vec(),
        seed,
        ..ModelOptions::default()
    }
}

/// Many operations with faults; `is_exact` unless completions may lie. Answers how many failed and
/// how often the controller was reset.
fn operations(seed: u64, rates: &[(ModelFault, u32)], is_exact: bool) -> (u32, u64) {
    let mut random = Random::new(seed);
    let options = options_of(seed, &mut random, rates);
    let has_cache = options.volatile_cache;
    let (model, device) = new(options);
    let mut run = Run {
        channel: channel_of(&device, 1 + random.below(24) as u32),
        random,
        known: vec![Some(0); BLOCKS as usize],
        flushed: vec![Some(0); BLOCKS as usize],
        busy: vec![false; BLOCKS as usize],
        pending: Vec::new(),
        done: Vec::new(),
        failed: 0,
        is_exact,
    };
    for _ in 0..600 {
        match run.random.below(12) {
            0..8 => run.submit_one(),
            8..11 => {
                let mut done = std::mem::take(&mut run.done);
                run.channel.poll(&mut done).unwrap();
                run.done = done;
                run.take_done();
            }
            _ if is_exact && run.random.below(5) == 0 => {
                run.drain();
                // Until then, a power loss may keep or lose what was written.
                if super::run(&mut run.channel, &[Io::flush(0)]) == [Ok(())] {
                    run.flushed = run.known.clone();
                    check_image(&model, &run.flushed, run.random.next());
                }
            }
            _ => {}
        }
    }
    run.drain();
    let unfinished = run.pending.iter().flatten().count();
    assert!(!is_exact || unfinished == 0);
    if is_exact && !has_cache {
        check_image(&model, &run.known, seed);
    }
    let (failed, resets) = (run.failed, device.controller().resets());
    drop(run.channel);
    finish(&model, device);
    (failed, resets)
}

/// Checks what is known of blocks after a power loss.
fn check_image(model: &ModelController, known: &[Known], seed: u64) {
    let after = Arc::new(ModelController::new(ModelOptions {
        fault_rates: Vec::new(),
        ..ModelOptions::default()
    }));
    after.take_disk_of(&model.after_power_loss(seed));
    let device = device_of(&after);
    for (block, fill) in known.iter().enumerate() {
        let Some(fill) = fill else { continue };
        let mut bytes = [0; BLOCK];
        device.read_at((block * BLOCK) as u64, &mut bytes).unwrap();
        assert!(
            bytes.iter().all(|b| b == fill),
            "block {block} after a power loss"
        );
    }
    finish(&after, device);
}

#[test]
fn operations_and_faults_of_many_seeds() {
    let rates = [
        (ModelFault::Media, 10),
        (ModelFault::Aborted, 20),
        (ModelFault::Late(60_000), 3),
        (ModelFault::Never, 3),
        (ModelFault::Duplicated, 20),
        (ModelFault::WrongId, 3),
        (ModelFault::Fatal, 3),
    ];
    let (mut failed, mut resets) = (0, 0);
    for seed in 0..60 {
        let (f, r) = operations(seed, &rates, true);
        failed += f;
        resets += r;
    }
    assert!(
        failed > 100 && resets > 20,
        "{failed} failed, {resets} resets"
    );
}

#[test]
fn without_faults_nothing_fails() {
    for seed in 100..140 {
        assert_eq!(operations(seed, &[], true), (0, 0));
    }
}

#[test]
fn random_completions_end_every_command_once() {
    for seed in 200..240 {
        let rates = [(ModelFault::Garbage, 150), (ModelFault::Never, 5)];
        operations(seed, &rates, false);
    }
}

#[test]
fn random_identify_pages_are_used_or_refused() {
    let mut opened = 0;
    for seed in 0..600 {
        let mut random = Random::new(seed);
        let model = Arc::new(ModelController::new(ModelOptions::default()));
        let mut controller = random.page();
        let mut namespace = random.page();
        ControllerInfo::parse(&controller, 4096);
        NamespaceInfo::parse(1, &namespace);
        SmartLog::parse(&controller);
        if seed % 3 > 0 {
            // Good enough to come further.
            controller[512..514].copy_from_slice(&[0x66, 0x44]);
        }
        if seed % 3 > 1 {
            namespace[26] = 0;
            namespace[29] = 0;
            namespace[128..131].copy_from_slice(&[0, 0, 9 + 3 * (seed % 2) as u8]);
            namespace[..8].copy_from_slice(&(random.next() >> random.below(64)).to_le_bytes());
        }
        model.answer_identify(admin::CNS_CONTROLLER, controller);
        model.answer_identify(admin::CNS_NAMESPACE, namespace);
        let Ok(controller) = start(&model) else {
            assert_eq!(model.mapped_regions(), 0);
            continue;
        };
        if let Ok(device) = NvmeDevice::open(&controller, 1) {
            opened += 1;
            // It may fail, as the model has other limits than it says; it ends.
            let mut bytes = vec![0; 300_000];
            for at in [0, 4096, 1 << 40] {
                let _ = device.read_at(at, &mut bytes);
                let _ = device.write_at(at, &bytes[..4096]);
            }
            let _ = device.sync();
        }
        drop(controller);
        assert_eq!(model.mapped_regions(), 0);
    }
    assert!(opened > 50, "{opened} of 600 were opened");
}

#[test]
fn threads_go_on_through_each_others_resets() {
    let model = ModelOptions {
        volatile_cache: false,
        fault_rates: vec![
            (ModelFault::Fatal, 8),
            (ModelFault::Aborted, 10),
            (ModelFault::Duplicated, 10),
            (ModelFault::Never, 2),
        ],
        ..ModelOptions::default()
    };
    let (model, device) = new(model);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let device = &device;
            scope.spawn(move || {
                let mut channel = channel_of(device, 8);
                let mut back = AlignedBuf::new(16 << 10);
                for round in 0..150 {
                    let data = pattern(16 << 10, (thread * 1000 + round) as usize);
                    let offset = (thread * 8 + round % 8) << 14;
                    let write = Io::write(offset, data.as_ptr(), 16 << 10, 0);
                    let read = Io::read(offset, back.as_mut_ptr(), 16 << 10, 0);
                    let is_written = super::run(&mut channel, &[write]) == [Ok(())];
                    let is_read = super::run(&mut channel, &[read]) == [Ok(())];
                    assert!(!is_written || !is_read || back[..] == data[..]);
                }
            });
        }
    });
    assert!(device.controller().resets() > 0);
    finish(&model, device);
}
