//! Writers that wait for a free segment for ever.
//!
//! Cleaning makes room as long as what is live is less than the volume holds. But
//! a segment with a damaged page is given up, with all its room: once too many
//! are, no writer gets a place any more, and no delete, which would have to write
//! too. The store then says so and goes on reading, instead of waiting.

use std::sync::Arc;
use std::time::{Duration, Instant};

use isobath_io::VolumeError;

use super::{Engine, Local};
use crate::Error;
use crate::sched::clock;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};

/// Time without any page written or segment freed after which writers are told.
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a worker looks.
pub(super) const PERIOD: Duration = Duration::from_secs(1);

/// What is known of writers that wait.
#[derive(Default)]
pub(crate) struct Stall {
    is_watched: AtomicBool,
    seen: Mutex<Option<Seen>>,
}

/// What the last look has found.
struct Seen {
    next_look: Instant,
    /// Since when the state is the same.
    since: Instant,
    /// Pages written, segments opened, segments free.
    state: [u64; 3],
}

impl Stall {
    /// Somebody waits for a segment.
    pub(super) fn watch(&self) {
        self.is_watched.store(true, Ordering::Release);
    }

    #[inline]
    pub(super) fn is_watched(&self) -> bool {
        self.is_watched.load(Ordering::Relaxed)
    }
}

impl Local {
    /// Looks whether writers have waited for too long.
    pub(super) fn look_at_stall(&self) {
        let engine = &self.engine;
        let stall = &engine.stall;
        let now = clock::now();
        let Some(mut seen) = stall.seen.try_lock() else {
            return;
        };
        if seen.as_ref().is_some_and(|seen| now < seen.next_look) {
            return;
        }
        if engine.segment_waiters.lock().is_empty() {
            *seen = None;
            stall.is_watched.store(false, Ordering::Release);
            return;
        }
        let space = engine.space.lock();
        let state = [space.now, space.next_seq, u64::from(space.free_segments())];
        let since = match &*seen {
            Some(seen) if seen.state == state => seen.since,
            _ => now,
        };
        *seen = Some(Seen {
            next_look: now + PERIOD,
            since,
            state,
        });
        let given_up = if now - since > PATIENCE {
            space.given_up()
        } else {
            0
        };
        drop(space);
        if given_up > 0 {
            engine.poison(engine.no_room_beside(given_up));
        }
    }
}

impl Engine {
    fn no_room_beside(&self, given_up: u32) -> Error {
        let used = self.allocated_bytes.load(Ordering::Relaxed);
        let reason = format!(
            "{given_up} segments hold damaged pages and cannot be cleaned; salvage the store"
        );
        Error::VolumeFull {
            used,
            limit: self.capacity_bytes.load(Ordering::Relaxed),
            reason: Arc::new(VolumeError::Device(reason)),
        }
    }
}
