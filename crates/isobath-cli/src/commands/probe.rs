//! probe.

use isobath_lab::drive_model::{DeviceProfile, HostCacheVerdict, MeasuredPoint};
use isobath_lab::probe::{self, Estimate, Grid, ProbePlan};
use isobath_lab::{Monitor, Sheet};

use super::drive::percent;
use crate::args::{GlobalArgs, ProbeArgs};
use crate::failure::Failure;
use crate::output::{Output, count, counted, size};
use crate::progress::Progress;

pub(crate) fn probe(
    args: &ProbeArgs,
    global: &GlobalArgs,
    out: &mut Output,
) -> Result<(), Failure> {
    let prepared = probe::prepare(plan(args))?;
    let estimate = prepared.estimate();
    if args.estimate {
        if out.json() {
            return out.document(&estimate);
        }
        return announcement(&estimate).iter().try_for_each(|l| out.line(l));
    }
    // The test file has no name once it is open, so there is nothing to remove.
    let progress = Progress::in_order(global, &[])?;
    for line in announcement(&estimate) {
        progress.say(&line);
    }
    let outcome = prepared.run(&progress);
    progress.clear();
    let profile = match outcome {
        Ok(profile) => profile,
        Err(error) => {
            if args.output.exists() {
                progress.say(&format!(
                    "What was measured is in {}; add --resume to go on.",
                    args.output.display()
                ));
            }
            return Err(error.into());
        }
    };
    if out.json() {
        return out.document(&profile);
    }
    print(args, &profile, out)
}

fn plan(args: &ProbeArgs) -> ProbePlan {
    let grid = match (args.quick, args.paper, args.seeded) {
        (true, _, _) => Grid::Quick,
        (_, true, _) => Grid::Paper,
        (_, _, Some(points)) => Grid::Seeded(points),
        _ => Grid::Default,
    };
    let mut plan = ProbePlan::new(&args.path, &args.output, grid);
    plan.bytes = args.size.map_or(plan.bytes, |s| s.0);
    plan.concurrency_max = args.max_depth;
    plan.confidence = args.confidence.map_or(plan.confidence, |c| c / 100.0);
    plan.slice = args.slice.unwrap_or(plan.slice);
    if let Some(repeats) = args.repeats {
        plan.repeats_max = repeats.max(1);
        plan.repeats_min = plan.repeats_min.min(plan.repeats_max);
    }
    plan.seed = args.seed;
    plan.precondition = args.precondition;
    plan.destroy = args.destroy;
    plan.resume = args.resume;
    plan
}

fn announcement(estimate: &Estimate) -> Vec<String> {
    let mut lines = vec![format!(
        "This {} ({}, {}, {:.0} to {:.0} s).",
        estimate.action,
        size(estimate.bytes),
        counted(estimate.points as u64, "point"),
        estimate.seconds_min,
        estimate.seconds_max
    )];
    if estimate.prepare_writes_bytes > 0 {
        lines.push(format!(
            "It writes {} to prepare, then for {:.0} s or more as fast as the drive can.",
            size(estimate.prepare_writes_bytes),
            estimate.measuring_writes_s
        ));
    }
    lines
}

fn print(args: &ProbeArgs, profile: &DeviceProfile, out: &mut Output) -> Result<(), Failure> {
    let usable = profile.points.iter();
    let usable: Vec<&MeasuredPoint> = usable
        .filter(|p| profile.regimes[p.regime].usable)
        .collect();
    out.sheet(&Sheet::of(
        &usable,
        &[
            ("in flight", |p| (p.threads * p.queue_depth).to_string()),
            ("random", |p| format!("{:.0}%", 100.0 * p.random_share)),
            ("pages", |p| format!("{:.0}", p.io_pages)),
            ("reads", |p| format!("{:.0}%", 100.0 * p.read_share)),
            ("4 KiB pages/s", |p| count(p.throughput_pages_per_s as u64)),
            ("spread", |p| percent(Some(p.throughput_spread))),
            ("repeats", |p| p.repeats.to_string()),
            ("reruns", |p| p.reruns.to_string()),
            ("CPU µs/I/O", |p| {
                p.cpu_us_per_io
                    .map_or_else(String::new, |c| format!("{c:.1}"))
            }),
            ("p99 µs", |p| {
                p.latency_us
                    .map_or_else(String::new, |l| format!("{:.0}", l.p99))
            }),
        ],
    ))?;
    for (index, regime) in profile
        .regimes
        .iter()
        .enumerate()
        .filter(|(_, r)| !r.usable)
    {
        let points = profile.points.iter().filter(|p| p.regime == index).count();
        out.line(&format!(
            "set aside, {}: {}, {:.0} to {:.0} s",
            regime.name,
            counted(points as u64, "point"),
            regime.began_s,
            regime.ended_s
        ))?;
    }
    let verdict = match profile.host_cache.verdict {
        HostCacheVerdict::Suspected => "suspected",
        HostCacheVerdict::NoneSeen => "none seen",
        HostCacheVerdict::NotTested => "not tested",
    };
    let rate = |r: Option<f64>| r.map_or_else(|| "?".to_owned(), |r| count(r as u64));
    out.line(&format!(
        "host cache: {verdict} (first pass {} reads/s, repeat {})",
        rate(profile.host_cache.first_pass_reads_per_s),
        rate(profile.host_cache.repeat_reads_per_s)
    ))?;
    if let Some(us) = profile.flush_us {
        out.line(&format!("a page written and flushed: {us:.0} µs"))?;
    }
    out.line(&format!(
        "repeats differ by {} (reads), {} (writes); {} measurements thrown away; stolen CPU {}",
        percent(profile.repeat_noise.read),
        percent(profile.repeat_noise.write),
        profile.points.iter().map(|p| p.reruns).sum::<u32>(),
        percent(profile.steal_share)
    ))?;
    let file = args.output.display();
    out.line(&format!("profile: {file}; next: isobath model {file}"))
}
