//! The paper's whole grid measured on simulated drives (the translation layer and timing model of
//! `isobath-flash`, in virtual time, with noise as a measurement has it): models trained on the
//! grid, judged between its points.
#![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]
mod common;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use common::Noise;
use isobath_flash::ftl::{FlashConfig, FlashDevice, NoData, Timing};
use isobath_model::plan::paper_plan;
use isobath_model::{Comparison, HeldOutError, ModelKind, OperatingPoint, Sample};

const PAGE: usize = 4096;

/// A drive, and what stands between it and the host.
struct Drive {
    flash: FlashDevice<NoData>,
    /// Time that the controller takes for a command, one at a time.
    per_command_ns: u64,
    /// Longer I/Os are split into commands of this many pages, which follow each other.
    command_pages: u32,
    now_ns: u64,
}

impl Drive {
    fn new(timing: Timing, per_command_ns: u64, command_pages: u32) -> Self {
        let mut config = FlashConfig::new(128 << 20);
        (config.timing, config.block_bytes) = (Some(timing), 1 << 20);
        let mut flash = FlashDevice::new(config, NoData).unwrap();
        flash.precondition(1.0, 3).unwrap();
        Self {
            flash,
            per_command_ns,
            command_pages,
            // Programs of the preparation are over.
            now_ns: 1_000_000_000_000,
        }
    }

    /// Reads by a closed loop of `k` clients in virtual time: pages per second once it is under
    /// way.
    fn measure(&mut self, point: &OperatingPoint, random: &mut Noise) -> f64 {
        let (clients, pages) = (point.concurrency as u64, point.io_pages as u32);
        let io_count = (12 * clients).max(8_000 / u64::from(pages));
        let mut page = [0u8; PAGE];
        let begun = self.now_ns;
        // Time, client, pages that its I/O still needs, and where.
        let mut due: BinaryHeap<Reverse<(u64, u64, u32, u32)>> = (0..clients)
            .map(|client| Reverse((begun, client, 0, 0)))
            .collect();
        let (mut controller, mut counted, mut ended, mut first) = (begun, 0u64, 0, None);
        while ended < io_count {
            let Reverse((at, client, mut left, mut from)) = due.pop().unwrap();
            if left == 0 {
                ended += 1;
                left = pages;
                from = (random.uniform() * f64::from(self.flash.pages() - pages)) as u32;
                if ended > io_count / 4 {
                    first.get_or_insert(at);
                    counted += u64::from(pages);
                }
            }
            controller = controller.max(at) + self.per_command_ns;
            let own = left.min(self.command_pages);
            let read = |i| self.flash.read(i, &mut page, controller).unwrap();
            let done = (from..from + own).map(read).max().unwrap();
            due.push(Reverse((done, client, left - own, from + own)));
            self.now_ns = at;
        }
        let rate = counted as f64 * 1e9 / (self.now_ns - first.unwrap()) as f64;
        self.now_ns = due.into_iter().map(|d| d.0.0).max().unwrap();
        rate
    }
}

/// Many dies behind a quick controller, and few slow dies behind one that takes 128 KiB at a time.
fn drives() -> [(&'static str, Drive); 2] {
    let large = Timing::nvme_tlc();
    let small = Timing {
        channels: 4,
        dies_per_channel: 4,
        read_ns: 90_000,
        transfer_ns: 6_000,
        ..large
    };
    [
        ("64 dies", Drive::new(large, 1_000, 1_024)),
        ("16 dies", Drive::new(small, 6_000, 32)),
    ]
}

/// Between the points of the paper's grid.
fn between() -> Vec<OperatingPoint> {
    let depths = [1.0, 3.0, 6.0, 12.0, 24.0, 48.0, 96.0];
    let sizes = [1.0, 2.0, 5.0, 20.0, 60.0, 200.0, 600.0];
    depths
        .iter()
        .flat_map(|k| sizes.map(|pages| OperatingPoint::random_reads(*k, pages)))
        .collect()
}

#[test]
fn a_smooth_residual_on_a_whole_grid_of_reads_reaches_the_noise() {
    for (name, mut drive) in drives() {
        let mut random = Noise(11);
        let mut sample = |point: OperatingPoint| {
            let rate = drive.measure(&point, &mut random);
            Sample {
                point,
                throughput_pages_per_s: rate * random.factor(0.015),
            }
        };
        let grid = paper_plan().into_iter().filter(|p| p.read_share > 0.5);
        let grid: Vec<Sample> = grid.map(&mut sample).collect();
        let unseen: Vec<Sample> = between().into_iter().map(&mut sample).collect();
        let comparison = Comparison::of(&grid);
        let best = comparison.best().unwrap();
        println!("{name}: chosen {}", best.model().kind());
        let on_unseen = |kind| {
            let own = comparison.candidates.iter().find(|c| c.kind == kind);
            let own = own.unwrap().outcome.as_ref().unwrap();
            HeldOutError::of(own.model(), &unseen).unwrap().unwrap()
        };
        for kind in [
            ModelKind::MqssdPrintedAdded,
            ModelKind::Mqssd,
            ModelKind::MqssdSmooth,
            ModelKind::Queue,
            ModelKind::Surface,
        ] {
            println!("  {kind}: {:.3?}", on_unseen(kind));
        }
        let error = on_unseen(best.model().kind());
        // The goal is 0.025 and 0.10; measured 0.016 and 0.051, 0.015 and 0.054.
        assert!(
            error.median <= 0.017 && error.p90 <= 0.055,
            "{name}: {error:?}"
        );
        if name == "16 dies" {
            assert_eq!(best.model().kind(), ModelKind::MqssdSmooth);
            // Commands of 128 KiB that follow each other are no straight line in the I/O size.
            let form = on_unseen(ModelKind::Mqssd);
            assert!(form.median > 0.039, "{form:?}");
        }
    }
}
