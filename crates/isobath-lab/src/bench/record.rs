//! One run as a campaign keeps it: flat, with units in the names, readable again.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::row::{Calls, LoadRow, Setting, SpaceRow};
use super::run::{Measured, per};
use super::search::Search;
use super::series::Series;
use super::smart;
use super::steady::{Steady, SteadyParameters};
use super::tpcc::Report as TpccReport;
use super::verdict::{Pitfall, Verdict};
use crate::{Machine, WriteLimit};

/// Measurements that a run leaves out although they are possible.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// The drive's counters of flash writes.
    pub flash_writes: bool,
    /// The bytes that the engine occupies.
    pub space: bool,
}

/// The record of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunRecord {
    /// Row of the campaign that it belongs to, where the campaign has named rows.
    #[serde(default)]
    pub row: Option<String>,
    /// Hash of the configuration: equal for repeats.
    pub config_hash: String,
    /// Round of repeats, from 0.
    pub round: usize,
    /// Whether the campaign was interrupted before this run; its drive was brought into its state
    /// again.
    pub after_gap: bool,
    /// Version of the laboratory.
    pub isobath_version: String,
    /// The setting: the engine, its configuration, and the medium of its data.
    pub setting: Setting,
    /// Records loaded.
    pub records_count: u64,
    /// Bytes of their keys and values.
    pub data_bytes: u64,
    /// Clients at the same time.
    pub clients_count: usize,
    /// Every setting of the engine.
    pub settings: Vec<(String, String)>,
    /// The search for the settings, if there was one.
    #[serde(default)]
    pub search: Option<Search>,
    /// Seconds measured.
    pub duration_s: f64,
    /// CPU time that the hypervisor took during the run, seconds.
    pub steal_s: f64,
    /// Operations per second: of the steady part, where there is one.
    pub operations_per_s: f64,
    /// The sorted load before the run, where one was needed.
    #[serde(default)]
    pub load: Option<LoadRow>,
    /// The calls of each kind, over the whole run.
    #[serde(default)]
    pub calls: Vec<Calls>,
    /// Further results of the TPC-C-derived workload.
    #[serde(default)]
    pub tpcc: Option<TpccReport>,
    /// Sample from which on the run is steady.
    pub steady_from: Option<usize>,
    /// The parameters of that judgement; none in records that are older than this field.
    #[serde(default)]
    pub steady_parameters: Option<SteadyParameters>,
    /// Median latency of calls, microseconds.
    pub latency_us_p50: f64,
    /// 99th percentile.
    pub latency_us_p99: f64,
    /// 99.9th percentile.
    pub latency_us_p999: f64,
    /// Longest.
    pub latency_us_max: f64,
    /// Calls of a client of which one is timed.
    #[serde(default)]
    pub latency_one_in: Option<u32>,
    /// Keys that were drawn before the run, by all clients together, and are used in turn; nothing
    /// where each call draws its own.
    #[serde(default)]
    pub keys_drawn_before: Option<u64>,
    /// Points of the distribution of latencies: microseconds and share of calls at or below.
    pub latency_cdf: Vec<(f64, f64)>,
    /// CPU time per operation, microseconds.
    pub cpu_us_per_operation: f64,
    /// Reads of the device per operation, 4 KiB each if the engine does not count them.
    #[serde(default)]
    pub device_reads_per_operation: f64,
    /// Bytes read from block devices per operation, as the kernel counts them for this process.
    #[serde(default)]
    pub device_bytes_read_per_operation: f64,
    /// Bytes written to block devices per operation, as the kernel counts them for this process:
    /// direct writes when they are sent, buffered ones when they make a page dirty.
    #[serde(default)]
    pub device_bytes_written_per_operation: f64,
    /// Bytes of the engine's files.
    #[serde(default)]
    pub space_bytes: u64,
    /// Isobath's space counters of the run.
    #[serde(default)]
    pub space: Option<SpaceRow>,
    /// The machine and the drive.
    #[serde(default)]
    pub machine: Option<Machine>,
    /// Time per operation of the benchmark itself with no engine, nanoseconds.
    pub harness_ns_per_operation: Option<f64>,
    /// Parts of that CPU time, microseconds: those that were sampled, the largest first, where they
    /// were asked for; otherwise what the benchmark takes with no engine, what the drive's reads
    /// take with no engine, and the rest, unless one of them was not measured.
    #[serde(default)]
    pub cpu_by_component: Vec<(String, f64)>,
    /// Whether those parts were sampled.
    #[serde(default)]
    pub cpu_sampled: bool,
    /// WA-A at the end, cumulative.
    pub wa_a: Option<f64>,
    /// WA-D at the end, cumulative.
    pub wa_d: Option<f64>,
    /// Why WA-D is unknown.
    pub wa_d_unknown: Option<String>,
    /// Largest space amplification.
    pub space_amplification_max: Option<f64>,
    /// Operations per second that the flash of a simulated or virtual SSD would allow: its
    /// sequential writes over WA-A times WA-D, in other words over the flash bytes of an operation.
    /// Modelled from counts.
    #[serde(default)]
    pub modelled_operations_per_s: Option<f64>,
    /// Host writes over the capacity.
    pub capacities_written: Option<f64>,
    /// The drive's own random 4 KiB reads per second before and after.
    pub drive_reads_per_s: Option<(f64, f64)>,
    /// CPU time per read of those runs, microseconds.
    #[serde(default)]
    pub drive_cpu_us_per_read: Option<f64>,
    /// The drive's limit of writes before and after, if the clients write.
    #[serde(default)]
    pub drive_writes: Option<(WriteLimit, WriteLimit)>,
    /// Measurements of the drive or the engine's files that were possible and left out.
    #[serde(default)]
    pub left_out: LeftOut,
    /// Whether the clients write.
    pub writes: bool,
    /// Counters over time.
    pub series: Series,
}

impl RunRecord {
    /// Whether the drive was a simulated or virtual one, so that rates and latencies are no
    /// measurements.
    #[must_use]
    pub fn is_modelled(&self) -> bool {
        self.setting.medium.modelled().is_some()
    }

    /// Whether there was no engine.
    #[must_use]
    pub fn is_baseline(&self) -> bool {
        self.setting.kind.is_baseline()
    }

    /// Whether the clients write to a drive.
    pub(super) fn writes_to_drive(&self) -> bool {
        self.setting.writes_to_drive(self.writes)
    }

    /// Its name among others: its engine, and the settings that make it a second row of it.
    #[must_use]
    pub fn side(&self) -> String {
        self.setting.side()
    }

    /// Its heading in a report: its row, or its workload.
    #[must_use]
    pub fn heading(&self) -> &str {
        self.row.as_deref().unwrap_or(&self.setting.workload)
    }

    /// The drive's own limit before and after, as far as it was measured: random reads per second,
    /// random writes per second and the same flushed, sequential writes in megabytes per second and
    /// the same flushed.
    #[must_use]
    pub fn drive_limits(&self) -> [Option<(f64, f64)>; 5] {
        let writes = |of: fn(&WriteLimit) -> f64| {
            let both = self.drive_writes.as_ref();
            both.map(|(before, after)| (of(before), of(after)))
        };
        [
            self.drive_reads_per_s,
            writes(|limit| limit.random_writes_per_s),
            writes(|limit| limit.random_flushed_writes_per_s),
            writes(|limit| limit.sequential_mb_per_s),
            writes(|limit| limit.sequential_flushed_mb_per_s),
        ]
    }

    /// The record of what the clients did; the run and its campaign say the rest.
    pub(super) fn of(
        plan: &Plan,
        setting: Setting,
        measured: Measured,
        components: &[(String, f64)],
        latencies: &Histogram<u64>,
    ) -> RunRecord {
        let results = &measured.results;
        let all: u64 = results.operations.iter().sum();
        let per_operation = |number: u64| number as f64 / all.max(1) as f64;
        let (before, after) = &measured.counters;
        let device_reads = match (before.device_reads, after.device_reads) {
            (Some(before), Some(after)) => after.saturating_sub(before),
            _ => measured.device.0 / 4096,
        };
        let kinds = plan.workload.mix.present();
        let calls = kinds.map(|operation| Calls::of(results, operation, measured.seconds));
        let calls = calls.collect();
        let cpu_us_per_operation = per(measured.cpu, all);
        let writes = plan.workload.mix.writes();
        let to_drive = setting.writes_to_drive(writes);
        let simulated = setting.medium.modelled().copied();
        let data_bytes = plan.records * plan.workload.record_bytes();
        let capacity_bytes = setting.medium.capacity_bytes();
        let spaces = before.space.as_ref().zip(after.space.as_ref());
        let space = spaces.map(|(from, to)| SpaceRow::between(from, to, results.written()));
        let series = measured.series;
        let last = series.samples.last().copied().unwrap_or_default();
        let steady_from = match series.steady(to_drive) {
            Steady::From(sample) => Some(sample),
            _ => None,
        };
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        let space_max = series.space_bytes_max();
        let wa_d = last.wa_d().filter(|_| to_drive);
        RunRecord {
            row: None,
            config_hash: setting.hash(),
            round: 0,
            after_gap: false,
            isobath_version: env!("CARGO_PKG_VERSION").to_owned(),
            records_count: plan.records,
            data_bytes,
            clients_count: setting.clients,
            settings: Vec::new(),
            search: None,
            duration_s: last.seconds,
            steal_s: 0.0,
            operations_per_s: series.rate_from(steady_from.unwrap_or(0)),
            load: None,
            calls,
            tpcc: None,
            steady_from,
            steady_parameters: Some(SteadyParameters::default()),
            latency_us_p50: at(0.5),
            latency_us_p99: at(0.99),
            latency_us_p999: at(0.999),
            latency_us_max: latencies.max() as f64 / 1e3,
            latency_one_in: Some(plan.timed_one_in()),
            keys_drawn_before: measured.keys_drawn_before,
            latency_cdf: cdf(latencies),
            cpu_us_per_operation,
            device_reads_per_operation: per_operation(device_reads),
            device_bytes_read_per_operation: per_operation(measured.device.0),
            device_bytes_written_per_operation: per_operation(measured.device.1),
            space_bytes: 0,
            space,
            machine: Some(Machine::here(
                plan.engine.path.as_deref().unwrap_or("/".as_ref()),
            )),
            harness_ns_per_operation: None,
            cpu_by_component: components
                .iter()
                .map(|(name, share)| (name.clone(), share * cpu_us_per_operation))
                .collect(),
            cpu_sampled: !components.is_empty(),
            wa_a: last.wa_a().filter(|_| to_drive),
            wa_d,
            wa_d_unknown: match &plan.engine.path {
                Some(path) if wa_d.is_none() && simulated.is_none() => smart::controller_of(path)
                    .and_then(|drive| smart::read(&drive))
                    .err(),
                _ => None,
            },
            space_amplification_max: (space_max > 0)
                .then(|| space_max as f64 / data_bytes.max(1) as f64),
            modelled_operations_per_s: simulated.zip(last.nand_bytes).and_then(|(drive, nand)| {
                let per_operation = nand as f64 / last.operations.max(1) as f64;
                (per_operation > 0.0)
                    .then(|| drive.profile.sequential_mb_per_s() * 1e6 / per_operation)
            }),
            capacities_written: capacity_bytes.map(|c| last.host_bytes as f64 / c.max(1) as f64),
            drive_reads_per_s: None,
            drive_cpu_us_per_read: None,
            drive_writes: None,
            left_out: plan.left_out,
            writes,
            series,
            setting,
        }
    }

    /// Operations over the drive's limit of reads (mean of before and after).
    #[must_use]
    pub fn operations_per_drive_read(&self) -> Option<f64> {
        let (before, after) = self.drive_reads_per_s?;
        Some(2.0 * self.operations_per_s / (before + after))
    }

    /// Sets the cost of the same workload with no engine and one client, and the shares derived
    /// from it.
    pub(super) fn set_harness(&mut self, ns_per_operation: Option<f64>) {
        self.harness_ns_per_operation = ns_per_operation;
        let cpu = self.drive_cpu_us_per_read;
        let reads = cpu.map(|cpu| cpu * self.device_reads_per_operation);
        if let (Some(ns), Some(reads), true) =
            (ns_per_operation, reads, self.cpu_by_component.is_empty())
        {
            let harness = ns / 1e3;
            let rest = self.cpu_us_per_operation - harness - reads;
            self.cpu_by_component = [
                ("the benchmark", harness),
                ("reads of the drive", reads),
                ("engine and writes", rest),
            ]
            .map(|(name, us)| (name.to_owned(), us))
            .into();
        }
    }

    /// The benchmark's own share of the CPU time.
    #[must_use]
    pub fn harness_share(&self) -> Option<f64> {
        let ns = self.harness_ns_per_operation?;
        (self.cpu_us_per_operation > 0.0).then(|| ns / 1e3 / self.cpu_us_per_operation)
    }

    /// What the run's steadiness was judged with, and by what; nothing of records that do not know
    /// it.
    #[must_use]
    pub fn steady_line(&self) -> Option<String> {
        let judged = self.series.judged_by(self.writes_to_drive()).join(", ");
        let parameters = self.steady_parameters?;
        Some(format!("{parameters}; judged: {judged}"))
    }

    /// Levels of an LSM tree that held files at the end.
    #[must_use]
    pub fn levels(&self) -> Option<&str> {
        let mut settings = self.settings.iter();
        let levels = settings.find(|(name, _)| name.starts_with("levels_with_"));
        levels.map(|(_, levels)| levels.as_str())
    }

    /// How latencies were taken, where not of every call, and where the keys came from; nothing
    /// if there is nothing to say.
    #[must_use]
    pub fn sampling_line(&self) -> Option<String> {
        let latencies = match self.latency_one_in {
            Some(calls) if calls > 1 => format!("latencies of one call in {calls}"),
            _ => String::new(),
        };
        let keys = self.keys_drawn_before.map(|keys| {
            format!(
                "{} keys drawn before, shared out among the clients, which use theirs in turn",
                crate::report::grouped(keys as f64)
            )
        });
        let parts = [Some(latencies), keys].into_iter().flatten();
        let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// The verdicts on one run alone.
    #[must_use]
    pub fn verdicts(&self) -> Vec<(Pitfall, Verdict)> {
        super::evidence::verdicts(std::slice::from_ref(self))
    }
}

fn cdf(latencies: &Histogram<u64>) -> Vec<(f64, f64)> {
    let quantiles = (0..100).map(|p| f64::from(p) / 100.0);
    let tail = [0.99, 0.995, 0.999, 0.9995, 0.9999, 1.0];
    quantiles
        .chain(tail)
        .map(|q| (latencies.value_at_quantile(q) as f64 / 1e3, q))
        .collect()
}
