//! Records of runs as tables of comma-separated values.

use std::path::Path;

use super::record::Record;
use crate::LabError;

/// Writes `records.csv` (one row per run), `operations.csv` (one per run and kind of operation) and
/// `series.csv` (one per sample) beside the records.
///
/// # Errors
/// I/O errors.
pub fn write_csv(directory: &Path, records: &[Record]) -> Result<(), LabError> {
    let path = directory.join("records.csv");
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |error: csv::Error| LabError::input(&path, error.to_string())
    };
    let mut rows = csv::Writer::from_path(&path).map_err(failed(&path))?;
    rows.write_record(COLUMNS).map_err(failed(&path))?;
    for record in records {
        rows.write_record(cells(record)).map_err(failed(&path))?;
    }
    rows.flush().map_err(LabError::io("write", &path))?;
    let path = directory.join("operations.csv");
    let mut rows = csv::Writer::from_path(&path).map_err(failed(&path))?;
    let header = [
        "row",
        "config_hash",
        "round",
        "engine",
        "isolation",
        "workload",
        "operation",
        "operations_per_s",
    ];
    rows.write_record(header).map_err(failed(&path))?;
    for record in records {
        for (operation, per_s) in &record.operations_by_type {
            let row = [
                may(record.row.clone()),
                record.config_hash.clone(),
                record.round.to_string(),
                record.setting.engine.clone(),
                record.setting.tuning.isolation.name().to_owned(),
                record.setting.workload.clone(),
                operation.clone(),
                per_s.to_string(),
            ];
            rows.write_record(row).map_err(failed(&path))?;
        }
    }
    rows.flush().map_err(LabError::io("write", &path))?;
    let path = directory.join("series.csv");
    let mut rows = csv::Writer::from_path(&path).map_err(failed(&path))?;
    let header = [
        "config_hash",
        "round",
        "seconds",
        "operations",
        "user_bytes",
        "host_bytes",
        "nand_bytes",
        "space_bytes",
        "cpu_s",
        "latency_us_p99",
    ];
    rows.write_record(header).map_err(failed(&path))?;
    for record in records {
        for sample in &record.series.samples {
            let row = [
                record.config_hash.clone(),
                record.round.to_string(),
                sample.seconds.to_string(),
                sample.operations.to_string(),
                sample.user_bytes.to_string(),
                sample.host_bytes.to_string(),
                may(sample.nand_bytes),
                sample.space_bytes.to_string(),
                sample.cpu_s.to_string(),
                may(sample.latency_us_p99),
            ];
            rows.write_record(row).map_err(failed(&path))?;
        }
    }
    rows.flush().map_err(LabError::io("write", &path))
}

const COLUMNS: [&str; 46] = [
    "row",
    "config_hash",
    "round",
    "after_gap",
    "isobath_version",
    "engine",
    "isolation",
    "workload",
    "records_count",
    "data_bytes",
    "capacity_bytes",
    "over_provisioning",
    "drive",
    "drive_state",
    "pool_bytes",
    "clients_count",
    "rate_per_s",
    "duration_s",
    "steal_s",
    "operations_per_s",
    "steady_from",
    "latency_us_p50",
    "latency_us_p99",
    "latency_us_p999",
    "latency_us_max",
    "latency_one_in",
    "keys_drawn_before",
    "cpu_us_per_operation",
    "harness_ns_per_operation",
    "harness_share_of_cpu",
    "fill_factor",
    "levels",
    "wa_a",
    "wa_d",
    "modelled_operations_per_s",
    "space_amplification_max",
    "drive_reads_per_s_before",
    "drive_reads_per_s_after",
    "drive_random_writes_per_s_before",
    "drive_random_writes_per_s_after",
    "drive_random_flushed_writes_per_s_before",
    "drive_random_flushed_writes_per_s_after",
    "drive_sequential_mb_per_s_before",
    "drive_sequential_mb_per_s_after",
    "drive_sequential_flushed_mb_per_s_before",
    "drive_sequential_flushed_mb_per_s_after",
];

fn may<T: ToString>(value: Option<T>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

fn cells(r: &Record) -> [String; 46] {
    let medium = &r.setting.medium;
    let limits = r.drive_limits().map(Option::unzip);
    let [
        reads,
        random,
        random_flushed,
        sequential,
        sequential_flushed,
    ] = limits;
    [
        may(r.row.clone()),
        r.config_hash.clone(),
        r.round.to_string(),
        r.after_gap.to_string(),
        r.isobath_version.clone(),
        r.setting.engine.clone(),
        r.setting.tuning.isolation.name().to_owned(),
        r.setting.workload.clone(),
        r.records_count.to_string(),
        r.data_bytes.to_string(),
        may(medium.capacity_bytes()),
        may(medium.over_provisioning()),
        medium.to_string(),
        may(medium.modelled().map(|drive| drive.state.name())),
        r.setting.pool_bytes.to_string(),
        r.clients_count.to_string(),
        may(r.setting.rate_per_s),
        r.duration_s.to_string(),
        r.steal_s.to_string(),
        r.operations_per_s.to_string(),
        may(r.steady_from),
        r.latency_us_p50.to_string(),
        r.latency_us_p99.to_string(),
        r.latency_us_p999.to_string(),
        r.latency_us_max.to_string(),
        may(r.latency_one_in),
        may(r.keys_drawn_before),
        r.cpu_us_per_operation.to_string(),
        may(r.harness_ns_per_operation),
        may(r.harness_share()),
        may(r.setting.space.fill_factor),
        may(r.levels()),
        may(r.wa_a),
        may(r.wa_d),
        may(r.modelled_operations_per_s),
        may(r.space_amplification_max),
        may(reads.0),
        may(reads.1),
        may(random.0),
        may(random.1),
        may(random_flushed.0),
        may(random_flushed.1),
        may(sequential.0),
        may(sequential.1),
        may(sequential_flushed.0),
        may(sequential_flushed.1),
    ]
}
