//! The files of a campaign: one line per record, trial and failure, and the latencies.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::IntervalLogWriterBuilder;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bench::{RunRecord, RunReport};
use crate::drive_model::write_whole;
use crate::files::{locked, removed};
use crate::{LabError, write_limit};

pub(super) const RECORDS: &str = "records.jsonl";
pub(super) const TRIALS: &str = "trials.jsonl";
pub(super) const FAILED: &str = "failed.jsonl";
pub(super) const LATENCIES: &str = "latencies.hlog";
/// Which store a run is making.
pub(super) const RUNNING: &str = "running";

/// One line of a campaign's file.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct Line {
    pub(super) case: String,
    pub(super) record: RunRecord,
}

/// One line of the file of a campaign's trials.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(super) struct TrialLine {
    pub(super) trial: String,
    pub(super) operations_per_s: f64,
}

/// The directory of a campaign that this process runs.
#[derive(Debug)]
pub(super) struct Journal {
    directory: PathBuf,
    /// The file of records, locked against a second process that would run the same cases.
    pub(super) lock: File,
}

impl Drop for Journal {
    /// Unlocks the file by itself: a child process that was forked a moment ago holds it open, too,
    /// until it runs its program.
    fn drop(&mut self) {
        // If it fails, closing the file unlocks it.
        let _ = self.lock.unlock();
    }
}

/// The lines of a campaign's file, which stays as it is: it may go on meanwhile.
///
/// # Errors
/// I/O errors, and lines that cannot be read.
pub(super) fn read<L: DeserializeOwned>(directory: &Path, name: &str) -> Result<Vec<L>, LabError> {
    Ok(read_lines(&directory.join(name))?.0)
}

impl Journal {
    /// Makes the directory, or goes on with it.
    pub(super) fn open(directory: &Path) -> Result<Journal, LabError> {
        fs::create_dir_all(directory).map_err(LabError::io("make", directory))?;
        Ok(Journal {
            lock: lock(&directory.join(RECORDS))?,
            directory: directory.to_path_buf(),
        })
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// The records; latencies of a run without one are taken out of their log.
    pub(super) fn records(&self) -> Result<Vec<Line>, LabError> {
        let known = go_on_with(&self.file(RECORDS))?;
        keep_latencies(&self.file(LATENCIES), &known)?;
        Ok(known)
    }

    /// The lines of another file of the directory.
    pub(super) fn lines<L: DeserializeOwned>(&self, name: &str) -> Result<Vec<L>, LabError> {
        go_on_with(&self.file(name))
    }

    pub(super) fn add_record(&self, line: &Line, report: &RunReport) -> Result<(), LabError> {
        // A session that is killed in between runs this case again, and takes its latencies out
        // first.
        append_latencies(&self.file(LATENCIES), &line.case, report)?;
        append(&self.file(RECORDS), line)
    }

    pub(super) fn add(&self, name: &str, line: &impl Serialize) -> Result<(), LabError> {
        append(&self.file(name), line)
    }

    /// Says which store a run makes, and removes what a killed session said so of.
    pub(super) fn mark(&self, store: &Path) -> Result<(), LabError> {
        let mark = self.file(RUNNING);
        let failed = || LabError::io("write", &mark);
        let left = match fs::read_to_string(&mark) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            left => left.map_err(LabError::io("read", &mark))?,
        };
        // A torn line would name another path.
        for path in left.split_inclusive('\n') {
            if let Some(path) = path.strip_suffix('\n') {
                remove_left(Path::new(path))?;
            }
        }
        // Files from before this run are not its own, and stay; so does what a line cannot
        // name.
        let store = std::path::absolute(store).map_err(failed())?;
        let limit = write_limit::file_beside(&store);
        let own = [&store, &limit].map(|path| match path.to_str() {
            Some(text) if !path.exists() && !text.contains('\n') => format!("{text}\n"),
            _ => String::new(),
        });
        fs::write(&mark, own.concat()).map_err(failed())
    }

    /// The run has ended, and has removed its store.
    pub(super) fn unmark(&self) -> Result<(), LabError> {
        let mark = self.file(RUNNING);
        fs::remove_file(&mark).map_err(LabError::io("write", &mark))
    }
}

/// Removes a store, or a file beside one, of a session that was killed.
fn remove_left(path: &Path) -> Result<(), LabError> {
    let outcome = match path.is_dir() {
        true => fs::remove_dir_all(path),
        false => fs::remove_file(path),
    };
    removed(path, outcome)
}

/// The file of records, locked so that no second process writes it.
pub(crate) fn lock(path: &Path) -> Result<File, LabError> {
    let file = OpenOptions::new().create(true).append(true).open(path);
    let file = file.map_err(LabError::io("open", path))?;
    let taken = "another process runs this campaign; wait for it, or choose another directory";
    locked(file, path, taken)
}

/// The lines of a file, and how many bytes they take: an interruption may have torn the one after
/// them. That case is run again.
pub(super) fn read_lines<L: DeserializeOwned>(path: &Path) -> Result<(Vec<L>, u64), LabError> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(LabError::io("read", path)(error)),
    };
    let (mut lines, mut whole) = (Vec::new(), 0);
    for (number, text) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        match serde_json::from_slice(text) {
            Ok(line) if text.ends_with(b"\n") => lines.push(line),
            _ if whole + text.len() == bytes.len() => break,
            _ => {
                let text = format!(
                    "line {} is no record of a campaign, or one of another version",
                    number + 1
                );
                return Err(LabError::input(path, text));
            }
        }
        whole += text.len();
    }
    Ok((lines, whole as u64))
}

/// The same, where the next line will be appended: a torn line is cut off.
pub(crate) fn go_on_with<L: DeserializeOwned>(path: &Path) -> Result<Vec<L>, LabError> {
    let (lines, whole) = read_lines(path)?;
    let cut = || match OpenOptions::new().write(true).open(path) {
        Ok(file) if file.metadata()?.len() > whole => file.set_len(whole),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    cut().map_err(LabError::io("write", path))?;
    Ok(lines)
}

pub(crate) fn append(path: &Path, line: &impl Serialize) -> Result<(), LabError> {
    let mut text = serde_json::to_string(line).map_err(|e| LabError::input(path, e.to_string()))?;
    text.push('\n');
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(LabError::io("write", path))
}

/// Adds the run's latencies to an HdrHistogram log, tagged with the case.
fn append_latencies(path: &Path, case: &str, report: &RunReport) -> Result<(), LabError> {
    let Some(latencies) = &report.latency_ns else {
        return Ok(());
    };
    let mut serializer = V2DeflateSerializer::new();
    let mut text = Vec::new();
    let record = report.record.as_ref();
    let seconds = record.map_or(0.0, |record| record.duration_s);
    let mut builder = IntervalLogWriterBuilder::new();
    builder.with_max_value_divisor(1000.0);
    builder
        .begin_log_with(&mut text, &mut serializer)
        .ok()
        .and_then(|mut log| {
            log.write_histogram(
                latencies,
                Duration::ZERO,
                Duration::from_secs_f64(seconds),
                hdrhistogram::serialization::interval_log::Tag::new(case),
            )
            .ok()
        })
        .ok_or_else(|| LabError::input(path, "the latencies cannot be encoded"))?;
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(&text))
        .map_err(LabError::io("write", path))
}

/// Takes latencies out of a log whose case has no record: a killed session had written nothing but
/// them.
fn keep_latencies(path: &Path, known: &[Line]) -> Result<(), LabError> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        text => text.map_err(LabError::io("read", path))?,
    };
    let is_known = |tag: &str| known.iter().any(|line| line.case == tag);
    let is_kept = |line: &&str| {
        let tag = line.strip_prefix("Tag=").and_then(|l| l.split(',').next());
        line.ends_with('\n') && tag.is_none_or(is_known)
    };
    let kept: String = text.split_inclusive('\n').filter(is_kept).collect();
    if kept != text {
        write_whole(path, &kept)?;
    }
    Ok(())
}
