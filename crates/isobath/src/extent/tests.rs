//! Large values that are written in parts.

use std::sync::Arc;

use isobath_io::{FaultDevice, FaultPlan, Volume};

use super::{ExtentWriter, chunk_ids, free_descriptor, payload_bytes};
use crate::buffer::PagePlace;
use crate::canary::Canary;
use crate::engine::WorkerState;
use crate::page::PageId;
use crate::{Options, Simulation, StorageError};

/// Whether a value uses the id of a chunk again that it gave back because there was no space for
/// the next one.
fn uses_an_id_twice() -> bool {
    let options = Options::new()
        .pool_bytes(1200 << 10)
        .segment_bytes(64 << 10)
        .volume_limit_bytes(Some(24 << 20))
        .log_bytes(4 << 20)
        .workers(2);
    let plan = FaultPlan::new(1).max_bytes(Some(24 << 20));
    let volume = Volume::from_device(FaultDevice::new(0, plan));
    let simulation = Simulation::new(volume, &options, 1).unwrap();
    let inside = Arc::clone(simulation.engine());
    let written = simulation.spawn(0, move || {
        WorkerState::with_current(&inside, |local| {
            let local = local.expect("in a task");
            let engine = &local.engine;
            let payload = vec![1; payload_bytes(&engine.shared.config)];
            let all = (32 << 20) / 4096;
            let mut first = None;
            let mut writer = ExtentWriter::new();
            // More than are written together.
            let chunks = std::iter::repeat_n(&payload[..], 33).enumerate();
            let chunks = chunks.map(|(at, chunk)| {
                if at == 32 {
                    let mut ids = (1..engine.pagestore.high_water()).map(PageId);
                    let is_chunk = |id: &PageId| match engine.buffer.pool.mapping.place(*id) {
                        PagePlace::Stored(address) => address.length() != 4096,
                        _ => false,
                    };
                    first = ids.find(is_chunk);
                    engine.pagestore.reserve_beyond_limit(all);
                }
                chunk
            });
            let full = writer.write_full(local, chunks);
            assert!(
                matches!(full, Err(StorageError::VolumeFull { .. })),
                "{full:?}"
            );
            engine.pagestore.release_pages(all);
            // More than the ids that were taken ahead.
            for _ in 0..40 {
                writer.write(local, &payload).unwrap();
            }
            let value = writer.finish(local).unwrap();
            let ids = chunk_ids(local, value).unwrap();
            free_descriptor(local, &value.encode()).unwrap();
            ids.contains(&first.unwrap())
        })
    });
    let twice = written.join().unwrap();
    simulation.close().unwrap();
    twice
}

#[test]
fn no_two_chunks_of_a_value_have_one_id() {
    assert!(!uses_an_id_twice());
    Canary::UseIdsAgainAtOnce.switch_on();
    assert!(uses_an_id_twice());
}
