//! Counters over the time of a run, and the throughput, write amplification and space derived from
//! them.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::clients::Shared;
use super::latencies::Total;
use super::medium::Medium;
use super::plan::Plan;
use super::record::LeftOut;
use super::smart::{self, DriveWrites};
use super::steady::{Steady, SteadyParameters, steady};
use super::verdict::CAPACITIES_MIN;
use crate::cpu_time;
use crate::engine::Engine;
use crate::machine::device_bytes;
use crate::vssd::host;

/// Counters since measuring began, but for the space, which is that of the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since measuring began.
    pub seconds: f64,
    /// Operations.
    pub operations: u64,
    /// Bytes of keys and values that the clients wrote.
    pub user_bytes: u64,
    /// Bytes that were sent to the drive; of a file, what `/proc/self/io` says of this process,
    /// where buffered writes count when they make a page dirty.
    pub host_bytes: u64,
    /// Bytes programmed into flash, if the drive reports them.
    pub nand_bytes: Option<u64>,
    /// Bytes that the engine occupies.
    pub space_bytes: u64,
    /// CPU time of the process, seconds.
    pub cpu_s: f64,
    /// 99th percentile of the latency of calls since the sample before, microseconds; nothing where
    /// none was timed.
    #[serde(default)]
    pub latency_us_p99: Option<f64>,
}

impl Sample {
    /// WA-A up to here: cumulative, as paper 002, section 4.1, asks. Nothing while no write has
    /// reached the drive: what the clients wrote is still to come there.
    #[must_use]
    pub fn wa_a(&self) -> Option<f64> {
        let is_known = self.user_bytes > 0 && self.host_bytes > 0;
        is_known.then(|| self.host_bytes as f64 / self.user_bytes as f64)
    }

    /// WA-D up to here, cumulative.
    #[must_use]
    pub fn wa_d(&self) -> Option<f64> {
        let nand = self.nand_bytes?;
        (self.host_bytes > 0).then(|| nand as f64 / self.host_bytes as f64)
    }
}

/// The samples of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// In the order of time.
    pub samples: Vec<Sample>,
}

impl Series {
    /// The differences between successive samples.
    fn steps(&self) -> impl Iterator<Item = Sample> + '_ {
        let before = std::iter::once(Sample::default()).chain(self.samples.iter().copied());
        before.zip(&self.samples).map(|(before, now)| Sample {
            seconds: now.seconds - before.seconds,
            operations: now.operations - before.operations,
            user_bytes: now.user_bytes - before.user_bytes,
            host_bytes: now.host_bytes.saturating_sub(before.host_bytes),
            nand_bytes: now
                .nand_bytes
                .map(|nand| nand.saturating_sub(before.nand_bytes.unwrap_or(0))),
            space_bytes: now.space_bytes,
            cpu_s: now.cpu_s - before.cpu_s,
            latency_us_p99: now.latency_us_p99,
        })
    }

    /// Operations per second of each interval.
    #[must_use]
    pub fn throughput(&self) -> Vec<f64> {
        let rate = |step: Sample| step.operations as f64 / step.seconds.max(1e-9);
        self.steps().map(rate).collect()
    }

    /// The series judged together, by name: throughput and, for a run that writes to a drive, WA-A
    /// and WA-D; for others, latency.
    fn judged(&self, to_drive: bool) -> Vec<(&'static str, Vec<f64>)> {
        // An interval without writes has no ratio; the cumulative one stands in for it.
        let ratio = |step: Sample, whole: &Sample, of: fn(&Sample) -> Option<f64>| {
            of(&step).or_else(|| of(whole)).unwrap_or(0.0)
        };
        let series_of = |of: fn(&Sample) -> Option<f64>| -> Vec<f64> {
            let steps = self.steps().zip(&self.samples);
            steps.map(|(step, whole)| ratio(step, whole, of)).collect()
        };
        let mut all = vec![("throughput", self.throughput())];
        let counts_flash = self.samples.iter().all(|s| s.nand_bytes.is_some());
        match to_drive {
            true => {
                all.push(("WA-A", series_of(Sample::wa_a)));
                if counts_flash {
                    all.push(("WA-D", series_of(Sample::wa_d)));
                }
            }
            false => all.extend(self.latency().map(|latency| ("p99 latency", latency))),
        }
        all
    }

    /// The 99th percentile of each interval; one in which nothing was timed has that before it.
    /// Nothing if none was timed in any.
    fn latency(&self) -> Option<Vec<f64>> {
        let timed = || self.samples.iter().map(|sample| sample.latency_us_p99);
        let mut last = timed().flatten().next()?;
        let all = timed().map(|latency| {
            last = latency.unwrap_or(last);
            last
        });
        Some(all.collect())
    }

    /// Names of what [`Series::steady`] judges.
    #[must_use]
    pub fn judged_by(&self, to_drive: bool) -> Vec<&'static str> {
        let judged = self.judged(to_drive).into_iter();
        judged.map(|(name, _)| name).collect()
    }

    /// Where all that is judged is steady together. Few operations are none: their counts are
    /// noise, and series of nothing never change. Nor are writes of which none has reached the
    /// drive.
    #[must_use]
    pub fn steady(&self, to_drive: bool) -> Steady {
        let judged = self.judged(to_drive);
        let all: Vec<&[f64]> = judged.iter().map(|(_, series)| &series[..]).collect();
        let parameters = SteadyParameters::default();
        match steady(&all, &parameters) {
            Steady::From(at) if !self.says_enough(at, to_drive, &parameters) => Steady::TooShort,
            found => found,
        }
    }

    fn says_enough(&self, from: usize, to_drive: bool, parameters: &SteadyParameters) -> bool {
        let (before, last) = (self.before(from), self.samples.last().copied());
        let last = last.unwrap_or_default();
        last.operations - before.operations >= parameters.operations_min
            && (!to_drive || last.host_bytes > before.host_bytes)
    }

    pub(super) fn is_steady(&self, to_drive: bool) -> bool {
        matches!(self.steady(to_drive), Steady::From(_))
    }

    /// The counts before this sample.
    fn before(&self, sample: usize) -> Sample {
        let before = sample.checked_sub(1).and_then(|at| self.samples.get(at));
        before.copied().unwrap_or_default()
    }

    /// Operations per second from this sample on.
    #[must_use]
    pub fn rate_from(&self, sample: usize) -> f64 {
        let before = self.before(sample);
        self.samples.last().map_or(0.0, |last| {
            (last.operations - before.operations) as f64 / (last.seconds - before.seconds).max(1e-9)
        })
    }

    /// Most bytes that the engine occupied.
    #[must_use]
    pub fn space_bytes_max(&self) -> u64 {
        let space = self.samples.iter().map(|sample| sample.space_bytes);
        space.max().unwrap_or(0)
    }
}

/// Reads the counters while the clients run.
pub(super) struct Sampler<'r> {
    engine: &'r dyn Engine,
    shared: &'r Shared,
    files: &'r [PathBuf],
    path: Option<&'r Path>,
    medium: Medium,
    /// A real drive that counts its flash writes.
    controller: Option<PathBuf>,
    virtual_ssd: Option<&'r Path>,
    left_out: LeftOut,
    began: Instant,
    first: (u64, u64, f64, u64, Option<DriveWrites>),
    latencies: Total,
    pub(super) series: Series,
}

impl<'r> Sampler<'r> {
    pub(super) fn start(
        plan: &'r Plan,
        engine: &'r dyn Engine,
        shared: &'r Shared,
        files: &'r [PathBuf],
    ) -> Sampler<'r> {
        let path = plan.engine.path.as_deref();
        let controller = path.and_then(|path| smart::controller_of(path).ok());
        let virtual_ssd = plan.virtual_ssd.as_deref();
        let drive = drive_writes(engine, virtual_ssd, controller.as_deref());
        Sampler {
            engine,
            shared,
            files,
            path,
            medium: plan.medium(),
            // A drive that does not answer now is not asked again.
            controller: controller.filter(|_| drive.is_some()),
            virtual_ssd,
            left_out: plan.left_out,
            began: Instant::now(),
            first: (
                shared.progress(),
                shared.bytes_written(),
                cpu_time().as_secs_f64(),
                device_bytes().1,
                drive,
            ),
            latencies: shared.latencies(),
            series: Series::default(),
        }
    }

    /// Whether a run may end: it is steady, and the host has written what the rule asks for.
    pub(super) fn is_enough(&self, plan: &Plan) -> bool {
        let writes = plan.workload.mix.writes();
        let last = self.series.samples.last().copied().unwrap_or_default();
        let to_drive = writes && self.medium.is_drive();
        let has_written = match self.medium.capacity_bytes() {
            Some(capacity) if to_drive => {
                last.host_bytes as f64 >= CAPACITIES_MIN * capacity as f64
            }
            _ => true,
        };
        has_written && self.series.is_steady(to_drive)
    }

    pub(super) fn sample(&mut self) {
        let (operations, written, cpu_s, device, drive) = self.first;
        let counters = self.engine.counters();
        let since =
            |now: u128, before: u128| u64::try_from(now.saturating_sub(before)).unwrap_or(0);
        let drive_now = drive_writes(self.engine, self.virtual_ssd, self.controller.as_deref());
        let (host_bytes, nand_bytes) = match (drive_now, drive) {
            (Some(now), Some(before)) => (
                since(now.host_bytes, before.host_bytes),
                Some(since(now.nand_bytes, before.nand_bytes)),
            ),
            _ => (device_bytes().1.saturating_sub(device), None),
        };
        let written = self.shared.bytes_written() - written;
        let before = std::mem::replace(&mut self.latencies, self.shared.latencies());
        let in_segments = counters
            .space
            .map(|space| space.segments * space.segment_bytes);
        self.series.samples.push(Sample {
            seconds: self.began.elapsed().as_secs_f64(),
            operations: self.shared.progress() - operations,
            user_bytes: written,
            host_bytes,
            nand_bytes: nand_bytes.filter(|_| !self.left_out.flash_writes),
            space_bytes: match self.path {
                _ if self.left_out.space => 0,
                Some(path) => space_of(path, self.files),
                None => in_segments.unwrap_or(0),
            },
            cpu_s: cpu_time().as_secs_f64() - cpu_s,
            latency_us_p99: self.latencies.quantile_us_since(&before, 0.99),
        });
    }
}

/// Counters of the simulated SSD, of the virtual one, or of a real drive by SMART.
fn drive_writes(
    engine: &dyn Engine,
    virtual_ssd: Option<&Path>,
    controller: Option<&Path>,
) -> Option<DriveWrites> {
    let simulated = engine.counters().drive;
    let of_virtual = || {
        let life = host::stats(virtual_ssd?).ok()?.life;
        Some(DriveWrites {
            host_bytes: life.host_written_bytes.into(),
            nand_bytes: life.flash_written_bytes.into(),
        })
    };
    simulated
        .or_else(of_virtual)
        .or_else(|| smart::read(controller?).ok())
}

/// Bytes that files occupy: all of a directory, for engines that add files while they run.
fn space_of(path: &Path, files: &[PathBuf]) -> u64 {
    let occupied = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.blocks() * 512);
    if path.is_dir() {
        let entries = walkdir::WalkDir::new(path).into_iter().flatten();
        return entries
            .filter(|entry| entry.file_type().is_file())
            .map(|entry| occupied(entry.path()))
            .sum();
    }
    files.iter().map(|path| occupied(path)).sum()
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bench::keys::Records;
    use crate::engine::{DriveProfile, DriveState, Session, SimulatedDrive};

    /// A run of `samples` seconds whose throughput and amplification come from functions of the
    /// second.
    pub(crate) fn made(
        samples: usize,
        rate: impl Fn(usize) -> f64,
        wa: impl Fn(usize) -> f64,
    ) -> Series {
        let mut rng = fastrand::Rng::with_seed(9);
        let mut sum = Sample::default();
        let samples = (0..samples).map(|at| {
            let operations = (rate(at) * (0.97 + 0.06 * rng.f64())) as u64;
            sum.seconds += 1.0;
            sum.operations += operations;
            sum.user_bytes += operations * 100;
            sum.host_bytes += (operations as f64 * 100.0 * wa(at)) as u64;
            sum.nand_bytes = Some(sum.host_bytes * 2);
            sum.space_bytes = 1000 + at as u64;
            sum
        });
        Series {
            samples: samples.collect(),
        }
    }

    #[test]
    fn steadiness_needs_throughput_and_amplification() {
        let flat = made(120, |_| 5000.0, |_| 3.0);
        assert_eq!(flat.steady(true), Steady::From(0));
        // 4,981.
        assert!((flat.rate_from(60) / 5000.0 - 1.0).abs() < 0.004);
        assert_eq!(flat.samples[119].wa_d(), Some(2.0));
        assert_eq!(flat.space_bytes_max(), 1119);
        // Throughput alone is steady here; the amplification is not.
        let hidden = made(120, |_| 5000.0, |at| 2.0 + at as f64 / 40.0);
        assert_eq!(hidden.steady(false), Steady::From(0));
        assert_eq!(hidden.steady(true), Steady::Drifting);
        assert_eq!(made(10, |_| 5000.0, |_| 3.0).steady(true), Steady::TooShort);
    }

    #[test]
    fn a_handful_of_operations_and_writes_that_are_still_to_come_are_not_steady() {
        // Series of noughts and ones never drift.
        let few = made(120, |at| if at % 60 == 0 { 2.0 } else { 0.0 }, |_| 0.0);
        assert_eq!(few.steady(false), Steady::TooShort);
        let unwritten = made(120, |_| 5000.0, |_| 0.0);
        assert_eq!(unwritten.samples[119].wa_a(), None);
        assert_eq!(unwritten.steady(true), Steady::TooShort);
        assert_eq!(unwritten.steady(false), Steady::From(0));
        // Only the first half wrote: the steady part begins with it, or there is none.
        assert_eq!(made(120, |_| 5000.0, |_| 3.0).steady(true), Steady::From(0));
    }

    #[test]
    fn runs_that_only_read_are_judged_by_latency_too() {
        let latency = |of: &dyn Fn(usize) -> Option<f64>| {
            let mut series = made(120, |_| 5000.0, |_| 3.0);
            for (at, sample) in series.samples.iter_mut().enumerate() {
                sample.latency_us_p99 = of(at);
            }
            series
        };
        let rising = latency(&|at| Some(200.0 + at as f64));
        assert_eq!(rising.steady(false), Steady::Drifting);
        assert_eq!(rising.judged_by(false), ["throughput", "p99 latency"]);
        // Writes are judged by what they cost the drive.
        assert_eq!(rising.steady(true), Steady::From(0));
        assert_eq!(rising.judged_by(true), ["throughput", "WA-A", "WA-D"]);
        let flat = latency(&|at| (at % 7 > 0).then_some(200.0 + (at % 3) as f64));
        assert_eq!(flat.steady(false), Steady::From(0));
        assert_eq!(latency(&|_| None).judged_by(false), ["throughput"]);
    }

    #[test]
    fn what_is_missing_in_an_interval_is_no_change() {
        // No writes in the second half, of which the ratio up to there is known.
        let mut idle = made(120, |_| 5000.0, |_| 3.0);
        let half = idle.samples[60];
        for sample in &mut idle.samples[60..] {
            sample.user_bytes = half.user_bytes;
            sample.host_bytes = half.host_bytes;
            sample.nand_bytes = half.nand_bytes;
        }
        assert_eq!(idle.steady(true), Steady::From(0));
        // No call was timed in the second half.
        let mut untimed = made(120, |_| 5000.0, |_| 3.0);
        for sample in &mut untimed.samples[..60] {
            sample.latency_us_p99 = Some(200.0);
        }
        assert_eq!(untimed.steady(false), Steady::From(0));
        // Flash writes that are not known of all samples are not judged.
        let mut partly = made(120, |_| 5000.0, |_| 3.0);
        partly.samples[0].nand_bytes = None;
        assert_eq!(partly.judged_by(true), ["throughput", "WA-A"]);
    }

    #[test]
    fn the_rate_and_the_space_are_those_of_the_samples() {
        let mut series = made(100, |at| if at < 40 { 9000.0 } else { 5000.0 }, |_| 3.0);
        series.samples[50].space_bytes = 5000;
        assert_eq!(series.space_bytes_max(), 5000);
        for from in [0, 1, 40, 99] {
            let rates = &series.throughput()[from..];
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            assert!((series.rate_from(from) / mean - 1.0).abs() < 1e-9, "{from}");
        }
        assert_eq!(Series::default().rate_from(0), 0.0);
    }

    #[test]
    fn what_was_done_before_measuring_is_in_no_sample() {
        let mut plan = crate::bench::campaign::tests::case(0, 0).plan;
        plan.workload = crate::bench::Workload::named("fill-unique-random").unwrap();
        let format = (plan.workload.key_format, plan.workload.key_order);
        let records = Records::new(100, plan.workload.value_bytes, format.0, format.1);
        let records = Arc::new(records);
        let engine = crate::engine::open(&plan.engine, true).unwrap();
        engine.begin(&records);
        let run = |shared: &Arc<Shared>| {
            let shared = Arc::clone(shared);
            let client =
                move |index: usize, session: &mut dyn Session| shared.client(index, session);
            engine.run(Arc::new(client)).unwrap();
        };
        let shared = Shared::new(Arc::clone(&records), &plan.workload, 1, None, 1);
        let shared = Arc::new(shared);
        // A client that fills warms up, and ends.
        run(&shared);
        assert_eq!(shared.progress(), 100);
        let mut sampler = Sampler::start(&plan, &*engine, &shared, &[]);
        sampler.sample();
        let sample = sampler.series.samples[0];
        assert_eq!((sample.operations, sample.user_bytes), (0, 0));
    }

    #[test]
    fn a_run_is_enough_once_it_is_steady_and_three_capacities_are_written() {
        let mut plan = crate::bench::campaign::tests::case(0, 0).plan;
        let engine = crate::engine::open(&plan.engine, true).unwrap();
        let format = (plan.workload.key_format, plan.workload.key_order);
        let records = Arc::new(Records::new(100, 10, format.0, format.1));
        let shared = Shared::new(records, &plan.workload, 1, None, 1);
        let enough = |plan: &Plan, series: Series| {
            let mut sampler = Sampler::start(plan, &*engine, &shared, &[]);
            sampler.series = series;
            sampler.is_enough(plan)
        };
        let flat = || made(120, |_| 5000.0, |_| 3.0);
        let falling = || made(120, |at| 9000.0 - 50.0 * at as f64, |_| 3.0);
        let written = flat().samples[119].host_bytes;
        for mix in ["get", "update"] {
            plan.workload.mix = mix.parse().unwrap();
            plan.engine.simulated = None;
            assert!(enough(&plan, flat()) && !enough(&plan, falling()), "{mix}");
            for (capacity_bytes, is_enough) in [(written / 3, true), (written / 2, mix == "get")] {
                plan.engine.simulated = Some(SimulatedDrive {
                    profile: DriveProfile::Tlc,
                    capacity_bytes,
                    over_provisioning: 0.1,
                    state: DriveState::Trimmed,
                    wear_difference_max: None,
                });
                assert_eq!(enough(&plan, flat()), is_enough, "{mix}");
                assert!(!enough(&plan, falling()), "{mix}");
            }
        }
    }
}
