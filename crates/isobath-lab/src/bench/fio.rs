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
    /// Trims per second.
    pub trims_per_s: f64,
    /// 99th percentile of the completion latency of reads, microseconds.
    pub read_latency_us_p99: Option<f64>,
    /// The same of writes.
    pub write_latency_us_p99: Option<f64>,
}

impl FioJob {
    /// Whether it did anything: the job of a file that is missing ends with zeros, and fio may call
    /// that no error.
    pub(super) fn has_io(&self) -> bool {
        self.reads_per_s > 0.0 || self.writes_per_s > 0.0 || self.trims_per_s > 0.0
    }
}

/// The note about jobs that did nothing and are left out of reports, if there are any.
#[must_use]
pub fn fio_left_out(jobs: &[FioJob]) -> Option<String> {
    let idle = jobs.iter().filter(|job| !job.has_io());
    let idle: Vec<&str> = idle.map(|job| job.name.as_str()).collect();
    (!idle.is_empty()).then(|| {
        format!(
            "Left out are jobs of fio that did no I/O: {}. Look whether their files exist.",
            idle.join(", ")
        )
    })
}

#[derive(Deserialize)]
struct File {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    jobname: String,
    /// The number of the error that ended it.
    #[serde(default)]
    error: i64,
    #[serde(default)]
    read: Direction,
    #[serde(default)]
    write: Direction,
    #[serde(default)]
    trim: Direction,
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
    /// Some versions of fio write percentiles of 0 if there was no I/O.
    fn p99_us(&self) -> Option<f64> {
        let exact = self.clat_ns.percentile.iter().find(|(name, _)| {
            name.parse::<f64>()
                .is_ok_and(|percent| (percent - 99.0).abs() < 1e-6)
        });
        exact.filter(|_| self.iops > 0.0).map(|(_, ns)| ns / 1000.0)
    }
}

/// Reads fio's output. Other text of fio's before and after the JSON (warnings,
/// `--output-format=json,normal`) is skipped; of several documents (`--status-interval`) the last
/// one counts, which is of the whole run.
///
/// # Errors
/// I/O errors, that it is not fio's JSON, and a job that failed.
pub fn read_fio(path: &Path) -> Result<Vec<FioJob>, LabError> {
    let text = std::fs::read_to_string(path).map_err(LabError::io("read", path))?;
    let wrong = |error: String| {
        let what = format!("is not what `fio --output-format=json` writes: {error}");
        LabError::input(path, what)
    };
    let mut lines = text.split_inclusive('\n');
    let before = lines.by_ref().map_while(|line| {
        let is_text = !line.trim_start().starts_with('{');
        is_text.then_some(line.len())
    });
    let json = &text[before.sum()..];
    let mut documents = serde_json::Deserializer::from_str(json).into_iter::<File>();
    let first = documents.next().transpose();
    let first = first.map_err(|error| wrong(error.to_string()))?;
    let first = first.ok_or_else(|| wrong("it holds no JSON".to_owned()))?;
    let file = documents.map_while(Result::ok).last().unwrap_or(first);
    if let Some(job) = file.jobs.iter().find(|job| job.error != 0) {
        let error = std::io::Error::from_raw_os_error(i32::try_from(job.error).unwrap_or(0));
        let what = format!("its job {:?} failed: {error}", job.jobname);
        return Err(LabError::input(path, what));
    }
    let job = |job: Job| FioJob {
        reads_per_s: job.read.iops,
        writes_per_s: job.write.iops,
        trims_per_s: job.trim.iops,
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
                    {"50.000000": 700000, "99.000000": 3000000, "99.900000": 9000000}}}, "write": {"iops": 0.0}},
                {"jobname": "randwrite", "write": {"iops": 97000.0, "clat_ns": {"percentile": {"99.00": 5000}}}}]}"#;
        std::fs::write(&path, text).unwrap();
        let jobs = read_fio(&path).unwrap();
        assert_eq!(jobs.len(), 2);
        assert_eq!(jobs[0].read_latency_us_p99, Some(3000.0));
        assert!((jobs[1].writes_per_s - 97_000.0).abs() < 1e-9);
        assert_eq!(jobs[1].write_latency_us_p99, Some(5.0));
        assert_eq!(jobs[1].read_latency_us_p99, None);
        for broken in ["no JSON", "", r#"{"jobs": [{"jobname": "cut"#] {
            std::fs::write(&path, broken).unwrap();
            let error = read_fio(&path).unwrap_err().to_string();
            assert!(error.contains("--output-format=json"), "{error}");
        }
    }

    /// As fio 3.33 wrote with `--output-format=json,normal` and with `--status-interval`, and 3.1
    /// for a direction without I/O.
    #[test]
    fn text_of_fio_around_its_json_is_skipped_and_the_last_document_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fio.json");
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            read_fio(&path)
        };
        let document = |iops| {
            format!(
                r#"{{"jobs": [{{"jobname": "rr", "read": {{"iops": {iops}, "clat_ns": {{"percentile": {{"99.000000": 2000}}}}}},
                    "write": {{"iops": 0, "clat_ns": {{"percentile": {{"99.000000": 0}}}}}}}}]}}"#
            )
        };
        let around = format!("rr: {{a}} (g=0)\n{}\n\nrr: (groupid=0)\n", document(5));
        let jobs = read(&around).unwrap();
        assert!((jobs[0].reads_per_s - 5.0).abs() < 1e-9);
        assert_eq!(jobs[0].read_latency_us_p99, Some(2.0));
        assert_eq!(jobs[0].write_latency_us_p99, None, "nothing was written");
        let several = format!("{}\n{}\n", document(5), document(7));
        assert!((read(&several).unwrap()[0].reads_per_s - 7.0).abs() < 1e-9);
    }

    /// As fio 3.33 writes of trims alone, and of a missing file that it may not make
    /// (`--allow_file_create=0`).
    #[test]
    fn trims_are_io_and_a_job_without_any_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fio.json");
        let text = r#"{"jobs": [
            {"jobname": "trims", "error": 0, "read": {"iops": 0.0}, "write": {"iops": 0.0}, "trim": {"iops": 5120.75}},
            {"jobname": "missing", "error": 0, "read": {"iops": 0.0}, "write": {"iops": 0.0}, "trim": {"iops": 0.0}}]}"#;
        std::fs::write(&path, text).unwrap();
        let jobs = read_fio(&path).unwrap();
        assert!((jobs[0].trims_per_s - 5120.75).abs() < 1e-9);
        let said = fio_left_out(&jobs).unwrap();
        assert!(said.contains("did no I/O: missing. "), "{said}");
        assert_eq!(fio_left_out(&jobs[..1]), None);
        let html = crate::bench::html(&[], &jobs, &[]);
        let page = crate::report::check::Page::of(&html);
        let rows: Vec<String> = page.rows().iter().map(|row| row.join(" ")).collect();
        assert!(rows.iter().any(|row| row == "trims 0 0 5,121"), "{rows:?}");
        assert!(
            !rows.iter().any(|row| row.starts_with("missing")),
            "{rows:?}"
        );
        assert!(html.contains(&said));
    }

    /// Its zeros are no rate of the drive.
    #[test]
    fn a_job_that_failed_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fio.json");
        let text = r#"{"jobs": [{"jobname": "good", "error": 0, "read": {"iops": 9}},
            {"jobname": "bad", "error": 2, "read": {"iops": 0}}]}"#;
        std::fs::write(&path, text).unwrap();
        let error = read_fio(&path).unwrap_err().to_string();
        assert!(
            error.contains(r#"job "bad" failed: No such file"#),
            "{error}"
        );
    }
}
