//! Advice on the measured virtual drive.

use std::sync::LazyLock;

use isobath_model::advise::{Advice, Advisor, Reason};
use isobath_model::profile::{
    DeviceProfile, DriveState, Hardware, HostCache, HostCacheVerdict, Latency, MeasuredPoint,
    PROFILE_FORMAT, PROFILE_VERSION, Preparation, Regime, RepeatNoise, System, Target, TargetKind,
};
use isobath_model::workload::Workload;

use super::{rows, virtual_drive};

/// The virtual drive's training points as the probe would have written them.
pub(crate) fn profile() -> DeviceProfile {
    let extra: Vec<[f64; 3]> = rows(include_str!("../fixtures/virtual_drive.csv"))
        .iter()
        .filter(|r| r[0] == "train")
        .map(|r| [7, 8, 9].map(|i| r[i].parse().unwrap()))
        .collect();
    let points = virtual_drive("train")
        .iter()
        .zip(extra)
        .map(|((s, spread), [mean, p99, cpu])| MeasuredPoint {
            threads: 1,
            queue_depth: s.point.concurrency as u32,
            random_share: s.point.random_share,
            io_pages: s.point.io_pages,
            read_share: s.point.read_share,
            regime: 0,
            began_s: 0.0,
            duration_s: 6.0,
            throughput_pages_per_s: s.throughput_pages_per_s,
            throughput_spread: *spread,
            repeats: 2,
            reruns: 0,
            disturbed: 0,
            cpu_us_per_io: Some(cpu),
            latency_us: Some(Latency {
                mean,
                p50: mean,
                p90: p99,
                p99,
                p999: p99,
                max: p99,
            }),
        })
        .collect();
    DeviceProfile {
        format: PROFILE_FORMAT.into(),
        version: PROFILE_VERSION,
        tool_version: "0".into(),
        created_unix_s: 0,
        complete: true,
        plan: None,
        target: Target {
            path: "data.bin".into(),
            kind: TargetKind::File,
            size_bytes: 4 << 30,
        },
        hardware: Hardware {
            cpu_count: 2,
            memory_bytes: 24 << 30,
            ..Hardware::default()
        },
        system: System {
            kernel: "6.18".into(),
            file_system: Some("ext4".into()),
            io_scheduler: None,
            io_interface: "io_uring".into(),
            direct_io: true,
        },
        drive_state: DriveState {
            preparation: Preparation::SequentialFill,
            prepared_bytes: 4 << 30,
            fill_share: None,
        },
        host_cache: HostCache {
            verdict: HostCacheVerdict::NoneSeen,
            first_pass_reads_per_s: None,
            repeat_reads_per_s: None,
        },
        steal_share: None,
        flush_us: None,
        repeat_noise: RepeatNoise::default(),
        regimes: vec![Regime {
            name: "steady".into(),
            operation: None,
            usable: true,
            level_pages_per_s: None,
            began_s: 0.0,
            ended_s: 1.0,
        }],
        sentinels: Vec::new(),
        points,
    }
}

pub(crate) fn workload(operations: &str, more: &str) -> Workload {
    let text = format!(
        "[data]\nrecord_count = 33e6\nkey_bytes = 8\nvalue_bytes = 120\n\
         [operations]\n{operations}\nclients = 256\n\
         [machine]\nmemory_bytes = 512e6\ncore_count = 2\n{more}"
    );
    Workload::from_toml(&text).unwrap()
}

/// Fitted once for all tests.
pub(crate) fn advisor() -> &'static Advisor<'static> {
    static PROFILE: LazyLock<DeviceProfile> = LazyLock::new(profile);
    static ADVISOR: LazyLock<Advisor<'static>> = LazyLock::new(|| Advisor::new(&PROFILE).unwrap());
    &ADVISOR
}

pub(crate) fn advice(operations: &str, more: &str) -> Advice {
    advisor().advise(&workload(operations, more)).unwrap()
}

pub(crate) fn because<'a>(reasons: &'a [Reason], setting: &str) -> &'a str {
    &reasons
        .iter()
        .find(|r| r.setting == setting)
        .unwrap()
        .because
}
