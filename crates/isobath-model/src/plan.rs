//! Which points of a drive to measure.

use crate::point::OperatingPoint;
use crate::rng::SplitMix64;

/// Twenty points that determine every parameter of the queue form for reads, writes and mixes.
///
/// The corners matter most: one small I/O (latency), many small ones (service per I/O), one large
/// (latency per page), many large (bandwidth). Two mostly sequential points give the share of the
/// setup that those pay. Left out any of these, a fit misses its side of the plane by a factor;
/// more points inside add little. `concurrency_max` is the deepest queue to try, at least 32: 128
/// for most drives.
pub fn quick_plan(concurrency_max: u32) -> Vec<OperatingPoint> {
    let deep = f64::from(concurrency_max.max(32));
    let half = [
        (1.0, 1.0, 1.0),
        (deep, 1.0, 1.0),
        (1.0, 1.0, 64.0),
        (32.0, 1.0, 64.0),
        (8.0, 1.0, 1.0),
        (16.0, 1.0, 8.0),
        (64.0, 0.0, 1.0),
        (2.0, 0.1, 8.0),
    ];
    let pure = |read_share| half.map(|(k, random, pages)| point(k, random, pages, read_share));
    let mut plan = Vec::from(pure(1.0));
    plan.extend(pure(0.0));
    plan.extend([
        point(32.0, 0.1, 4.0, 0.0),
        point(16.0, 1.0, 1.0, 0.5),
        point(64.0, 0.1, 8.0, 0.7),
        point(4.0, 0.0, 2.0, 0.3),
    ]);
    plan
}

/// The quick plan and forty seeded points inside of it: enough to see what the queue form misses.
pub fn default_plan(seed: u64, concurrency_max: u32) -> Vec<OperatingPoint> {
    let mut plan = quick_plan(concurrency_max);
    for point in seeded_plan(4 * DEFAULT_INSIDE, seed, concurrency_max) {
        if plan.len() < quick_plan(concurrency_max).len() + DEFAULT_INSIDE && !plan.contains(&point)
        {
            plan.push(point);
        }
    }
    plan
}

const DEFAULT_INSIDE: usize = 40;

/// Points drawn over k, r, I/O size and mix, all different: what models are judged on. The same
/// seed gives the same points.
///
/// k is uniform on the logarithm up to `concurrency_max`, the I/O size a power of two up to 64
/// pages; half of the points are wholly random, 40% are pure reads, 30% pure writes.
pub fn seeded_plan(count: usize, seed: u64, concurrency_max: u32) -> Vec<OperatingPoint> {
    let mut rng = SplitMix64::new(seed);
    let deep = f64::from(concurrency_max.max(2)).ln();
    let tenths = |n: usize| n as f64 / 10.0;
    let mut plan: Vec<OperatingPoint> = Vec::new();
    // Few queues have few different points, so the rounds are bounded.
    for _ in 0..count * 100 {
        if plan.len() == count {
            break;
        }
        let k = (deep * rng.below(1001) as f64 / 1000.0).exp().round();
        let random = if rng.below(2) == 0 {
            1.0
        } else {
            tenths(rng.below(11))
        };
        let pages = f64::from(1u32 << rng.below(7));
        let reads = match rng.below(10) {
            0..4 => 1.0,
            4..7 => 0.0,
            _ => tenths(1 + rng.below(9)),
        };
        let drawn = point(k, random, pages, reads);
        if !plan.contains(&drawn) {
            plan.push(drawn);
        }
    }
    plan
}

/// The grid of section 3.3: k from 1 to 128 and r from 0.1% to 100% of pages, reads and writes.
///
/// The paper reads 1 GB per thread in r equal runs at random offsets, so r is one over the pages
/// per I/O: 0.1% is runs of 1,000 pages.
pub fn paper_plan() -> Vec<OperatingPoint> {
    const RANDOM_PERCENT: [f64; 7] = [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0];
    let mut plan = Vec::new();
    for read_share in [1.0, 0.0] {
        for exponent in 0..8 {
            for percent in RANDOM_PERCENT {
                let pages = (100.0f64 / percent).round();
                plan.push(point(f64::from(1u32 << exponent), 1.0, pages, read_share));
            }
        }
    }
    plan
}

fn point(concurrency: f64, random_share: f64, io_pages: f64, read_share: f64) -> OperatingPoint {
    OperatingPoint {
        concurrency,
        random_share,
        io_pages,
        read_share,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::QueueCost;
    use crate::{DriveModel, ModelKind, Sample};

    /// A drive that is exactly a queue: the plan must suffice to find it, far from its points too.
    #[test]
    fn the_quick_plan_determines_a_queue() {
        for scale in [0.1, 1.0, 10.0] {
            let read = QueueCost {
                latency_us: 80.0 * scale,
                latency_per_page_us: 1.5 * scale,
                service_us: 2.0 * scale,
                service_per_page_us: 0.6 * scale,
                sharpness: 1.6,
                sequential_service_share: 0.5,
                crowding: 0.05,
            };
            let write = QueueCost {
                latency_us: 25.0 * scale,
                service_us: 8.0 * scale,
                ..read
            };
            let cost = |p: &OperatingPoint| {
                p.read_share * read.page_cost_us(p) + (1.0 - p.read_share) * write.page_cost_us(p)
            };
            let sample = |point: OperatingPoint| Sample {
                point,
                throughput_pages_per_s: 1e6 / cost(&point),
            };
            let samples: Vec<Sample> = quick_plan(128).into_iter().map(sample).collect();
            assert_eq!(samples.len(), 20);
            let model = DriveModel::fit(ModelKind::Queue, &samples).unwrap();
            for (k, random, pages, reads) in [
                (4.0, 1.0, 4.0, 1.0),
                (48.0, 0.5, 3.0, 0.0),
                (128.0, 1.0, 16.0, 0.6),
                (256.0, 1.0, 1.0, 1.0),
            ] {
                let p = point(k, random, pages, reads);
                let ratio = model.page_cost_us(&p).unwrap() / cost(&p);
                // 0.1% to 1.7%, the more the further outside.
                assert!((ratio - 1.0).abs() < 0.018, "scale {scale}, {p:?}: {ratio}");
            }
        }
    }

    #[test]
    fn the_paper_plan_is_a_full_grid_that_determines_the_printed_model() {
        let plan = paper_plan();
        assert_eq!(plan.len(), 2 * 8 * 7);
        let sample = |point: OperatingPoint| Sample {
            point,
            throughput_pages_per_s: 1e6
                / (50.0 / point.concurrency * point.random_accesses_per_page() + 2.0),
        };
        let samples: Vec<Sample> = plan.into_iter().map(sample).collect();
        assert!(DriveModel::fit(ModelKind::MqssdPrinted, &samples).is_ok());
    }

    #[test]
    fn seeded_points_are_different_within_bounds_and_repeatable() {
        let plan = seeded_plan(100, 7, 128);
        assert_eq!(plan.len(), 100);
        assert_eq!(plan, seeded_plan(100, 7, 128));
        assert_ne!(plan, seeded_plan(100, 8, 128));
        for (i, p) in plan.iter().enumerate() {
            assert!((1.0..=128.0).contains(&p.concurrency) && p.concurrency.fract() == 0.0);
            assert!((1.0..=64.0).contains(&p.io_pages));
            assert!(!plan[..i].contains(p), "{p:?}");
        }
        let reads = plan.iter().filter(|p| p.read_share == 1.0).count();
        let writes = plan.iter().filter(|p| p.read_share == 0.0).count();
        assert!((25..55).contains(&reads) && (15..45).contains(&writes));
        assert_eq!(default_plan(7, 128).len(), 60);
        // One queue has 7 sizes × 11 shares × 11 mixes at most; asking for more must end.
        assert!(seeded_plan(5000, 1, 1).len() <= 2 * 7 * 11 * 11);
    }
}
