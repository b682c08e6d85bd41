//! Recording the page writes of a store in the binary trace format that `isobath sim clean` reads.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use isobath::{OutputFile, PAGE_SIZE, PageTrace, Store};
use isobath_flash::trace::BinaryWriter;
use isobath_flash::workload::Op;

use crate::LabError;

/// A recording under way.
pub(crate) struct Recording {
    output: OutputFile,
    writer: Arc<Mutex<Writer>>,
}

struct Writer {
    out: BinaryWriter<BufWriter<File>>,
    failure: Option<std::io::Error>,
}

struct Recorder(Arc<Mutex<Writer>>);

impl Recorder {
    fn push(&self, page: u64, op: impl FnOnce(u32) -> Op) {
        let mut writer = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Numbers that the format cannot name belong to stores of over 8 TiB.
        let Some(page) = u32::try_from(page)
            .ok()
            .filter(|&page| page < Op::MAX_PAGES)
        else {
            return;
        };
        if writer.failure.is_none()
            && let Err(error) = writer.out.push(op(page))
        {
            writer.failure = Some(error);
        }
    }
}

impl PageTrace for Recorder {
    fn written(&mut self, page: u64) {
        self.push(page, Op::write);
    }
    fn freed(&mut self, page: u64) {
        self.push(page, Op::trim);
    }
}

impl Recording {
    /// Records every page write of `store` from now on, after a write of every page that it holds.
    pub(crate) fn start(store: &Store, path: &Path) -> Result<Recording, LabError> {
        let output = store.output_file(path, true)?;
        let file = output
            .file()
            .try_clone()
            .map_err(LabError::io("open", path))?;
        let out = BinaryWriter::new(BufWriter::new(file), PAGE_SIZE as u32)
            .map_err(LabError::io("write", path))?;
        let writer = Arc::new(Mutex::new(Writer { out, failure: None }));
        store.trace_pages(Some(Box::new(Recorder(Arc::clone(&writer)))));
        Ok(Recording { output, writer })
    }

    /// Ends the recording; the file is whole then.
    pub(crate) fn finish(self, store: &Store) -> Result<(), LabError> {
        store.trace_pages(None);
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = writer.failure.take();
        let result = failed.map_or_else(|| writer.out.finish(), Err);
        result.map_err(LabError::io("write", self.output.path()))?;
        Ok(self.output.finish()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isobath::Options;
    use isobath_flash::trace::{TraceFormat, read_trace};

    #[test]
    fn a_recording_reads_back_with_every_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.trace");
        let store = Store::in_memory(&Options::new().pool_bytes(4 << 20).workers(1)).unwrap();
        let tree = store.create_tree("t").unwrap();
        let insert = |from: u32| {
            for n in from..from + 60_000 {
                tree.insert(&n.wrapping_mul(0x9e37_79b9).to_le_bytes(), &[1; 100])
                    .unwrap();
            }
        };
        insert(0);
        let recording = Recording::start(&store, &path).unwrap();
        let before = store.stats().page_writes;
        insert(60_000);
        recording.finish(&store).unwrap();
        let written = store.stats().page_writes - before;
        insert(120_000);
        let source = std::io::BufReader::new(File::open(&path).unwrap());
        let trace = read_trace(TraceFormat::Binary, source, 4096, Some(1 << 30)).unwrap();
        let pages = u64::from(trace.pages());
        assert!(written > 1000 && trace.writes() > written);
        assert!(
            trace.writes() <= written + pages + 100,
            "{} {written} {pages}",
            trace.writes()
        );
        store.close().unwrap();
        let nowhere = dir.path().join("none/t.trace");
        let store = Store::in_memory(&Options::new().pool_bytes(4 << 20).workers(1)).unwrap();
        assert!(Recording::start(&store, &nowhere).is_err());
        store.close().unwrap();
    }
}

#[cfg(test)]
mod prediction {
    //! The engine against the simulator, on the engine's own trace.

    use super::*;
    use isobath::{Options, PolicyKind, Simulation, Volume};
    use isobath_flash::rng::Rng;
    use isobath_flash::sim::{RunLength, SimConfig, SimError, simulate_workload};
    use isobath_flash::trace::{TraceFormat, read_trace};
    use isobath_flash::workload::Zipf;

    /// How often it is looked at how many segments are free.
    const STEPS: u32 = 50;

    /// What the engine's cleaner moves per page written under skewed updates, and what the
    /// simulator predicts from the engine's own page writes.
    fn measured_and_predicted(policy: PolicyKind) -> (f64, Result<f64, SimError>) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.trace");
        let options = Options::new()
            .pool_bytes(4 << 20)
            .workers(1)
            .tasks_per_worker(8)
            .segment_bytes(128 << 10)
            .cleaning_policy(policy)
            .log_bytes(0);
        // How far the cleaner gets between two updates is drawn from a seed, instead of by what
        // else the machine does.
        let simulation = Simulation::new(Volume::in_memory(0, None), &options, 1).unwrap();
        let store = simulation.store();
        let tree = store.create_tree("t").unwrap();
        let records = 240_000u32;
        let key = |n: u32| format!("{n:08}").into_bytes();
        tree.bulk_load((0..records).map(|n| (key(n), vec![0; 100])))
            .unwrap();
        let recording = Recording::start(store, &path).unwrap();
        let update = |mut rng: Rng, count: u32| {
            let tree = tree.clone();
            let updates = simulation.spawn(0, move || {
                let zipf = Zipf::new(records, 0.99);
                for n in 0..count {
                    let rank = u64::from(zipf.sample(&mut rng));
                    let record = (rank * 74_161 % u64::from(records)) as u32;
                    tree.insert(key(record), [n as u8; 100]).unwrap();
                }
                rng
            });
            updates.join().unwrap()
        };
        let mut rng = update(Rng::new(1), 100_000);
        let before = store.stats();
        // The cleaner begins and ends by how many segments are free: what lies free is a mean.
        let mut free = 0;
        for _ in 0..STEPS {
            rng = update(rng, 100_000 / STEPS);
            free += store.stats().free_segments;
        }
        let after = store.stats();
        recording.finish(store).unwrap();
        simulation.close().unwrap();
        let writes = (after.page_writes - before.page_writes) as f64;
        let measured = (after.relocations - before.relocations) as f64 / writes;
        let source = std::io::BufReader::new(File::open(&path).unwrap());
        let trace = read_trace(TraceFormat::Binary, source, 4096, None).unwrap();
        // Segment 0 holds the superblocks, and the last page of each other one its summary.
        let (segments, segment_bytes) = (after.segments as u32 - 1, (128 << 10) - 4096);
        let bytes = f64::from(segments) * f64::from(segment_bytes);
        let config = SimConfig {
            segments,
            segment_bytes,
            fill: (after.live_bytes as f64 + 100.0 * 4096.0) / bytes,
            spare_segments: 0,
            matches_reserve: false,
            clean_below: (free as f64 / f64::from(STEPS)).round() as u32,
            clean_batch: Some(1),
            // As the engine: a 32nd of the volume's segments, and four at least.
            open_segments_max: Some((after.segments as u32 / 32).max(4)),
            sort_buffer_segments: 0,
            ..SimConfig::paper(1, 0.5)
        };
        let run = trace.replay(1);
        let report = simulate_workload(policy, &config, run, RunLength::ToEnd, &mut |_| true);
        (measured, report.map(|report| report.steady.wamp()))
    }

    #[test]
    fn the_engines_cleaner_moves_what_the_simulator_predicts() {
        let [greedy, mdc, life_table] =
            [PolicyKind::Greedy, PolicyKind::Mdc, PolicyKind::LifeTable].map(|policy| {
                let (measured, predicted) = measured_and_predicted(policy);
                let predicted = predicted.unwrap();
                let ratio = measured / predicted;
                // The goal is 5%. Seeds 1 to 6: 0.990 to 0.996, 0.987 to 0.998, 0.982 to 1.009.
                assert!(
                    (0.97..1.03).contains(&ratio),
                    "{policy}: engine {measured:.3}, simulator {predicted:.3}: {ratio:.3}"
                );
                measured
            });
        assert!(
            mdc < greedy && life_table < mdc,
            "{greedy} {mdc} {life_table}"
        );
    }
}
