//! Results of fio (`--output-format=json`), to set beside those of engines.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::LabError;

/// One job of fio.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FioJob {
    /// Its name.
    pub name: String,
    /// I/Os per second, reads.
    pub reads_per_s: f64,
    /// I/Os per second, writes.
    pub writes_per_s: f64,
    /// 99th percentile of the completion latency of reads, microseconds.
    pub read_latency_us_p99: Option<f64>,
    /// The same of writes.
    pub write_latency_us_p99: Option<f64>,
}

#[derive(Deserialize)]
struct File {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    jobname: String,
    #[serde(default)]
    read: Direction,
    #[serde(default)]
    write: Direction,
}

#[derive(Default, Deserialize)]
struct Direction {
    #[serde(default)]
    iops: f64,
    #[serde(default)]
    clat_ns: Latency,
}

#[derive(Default, Deserialize)]
struct Latency {
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

impl Direction {
    fn p99_us(&self) -> Option<f64> {
        let exact = self.clat_ns.percentile.iter().find(|(name, _)| {
            name.parse::<f64>()
                .is_ok_and(|percent| (percent - 99.0).abs() < 1e-6)
        });
        exact.map(|(_, ns)| ns / 1000.0)
    }
}

/// Reads fio's output. What fio prints before the JSON (warnings) is skipped.
///
/// # Errors
/// I/O errors, and that it is not fio's JSON.
pub fn read_fio(path: &Path) -> Result<Vec<FioJob>, LabError> {
    let text = std::fs::read_to_string(path).map_err(LabError::io("read", path))?;
    let json = text.find('{').map_or("", |at| &text[at..]);
    let file: File = serde_json::from_str(json).map_err(|error| {
        LabError::input(
            path,
            format!("is not what `fio --output-format=json` writes: {error}"),
        )
    })?;
    let job = |job: Job| FioJob {
        reads_per_s: job.read.iops,
        writes_per_s: job.write.iops,
        read_latency_us_p99: job.read.p99_us(),
        write_latency_us_p99: job.write.p99_us(),
        name: job.jobname,
    };
    Ok(file.jobs.into_iter().map(job).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_fio_are_read_and_anything_else_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fio.json");
        let text = r#"fio: a warning
            {"fio version": "fio-3.33", "jobs": [
                {"jobname": "randread", "read": {"iops": 81234.5, "clat_ns": {"percentile":
                    {"50.000000": 700000, "99.000000": 3000000}}}, "write": {"iops": 0.0}},
                {"jobname": "randwrite", "write": {"iops": 97000.0}}]}"#;
        std::fs::write(&path, text).unwrap();
        let jobs = read_fio(&path).unwrap();
        assert_eq!(jobs.len(), 2);
        assert_eq!(jobs[0].read_latency_us_p99, Some(3000.0));
        assert!((jobs[1].writes_per_s - 97_000.0).abs() < 1e-9);
        assert_eq!(jobs[1].write_latency_us_p99, None);
        std::fs::write(&path, "no JSON").unwrap();
        let error = read_fio(&path).unwrap_err().to_string();
        assert!(error.contains("--output-format=json"), "{error}");
    }
}
