//! Limits of a case: it may not panic on any thread, take too long, or take too much memory.

use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use crate::targets::Target;
use crate::{HEAP, MAX_SECONDS};

/// Messages of panics since the case began, of all threads.
static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
/// The case that runs, and since when.
static CURRENT: Mutex<Option<(&'static str, u64, Instant)>> = Mutex::new(None);

/// Notes panics from now on, and ends the process if a case takes too long.
pub(crate) fn install() {
    panic::set_hook(Box::new(|info| {
        if let Ok(mut panics) = PANICS.lock() {
            panics.push(info.to_string());
        }
    }));
    thread::spawn(|| {
        loop {
            thread::sleep(Duration::from_secs(1));
            if let Ok(current) = CURRENT.lock()
                && let Some((target, number, since)) = *current
                && since.elapsed() > Duration::from_secs(MAX_SECONDS)
            {
                eprintln!("{target}: case {number} takes over {MAX_SECONDS} s");
                std::process::exit(1);
            }
        }
    });
}

/// Case `number` of `target` begins.
pub(crate) fn begin(target: &'static str, number: u64) {
    if let Ok(mut current) = CURRENT.lock() {
        *current = Some((target, number, Instant::now()));
    }
}

/// Feeds `bytes` to `target`; the most heap, in bytes, that it took in addition to what was in use.
pub(crate) fn run(target: &Target, bytes: &[u8], limit: usize) -> Result<usize, String> {
    let before = HEAP.current_usage();
    HEAP.reset_peak_usage();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(bytes)));
    let heap = HEAP.peak_usage().saturating_sub(before);
    if let Ok(mut panics) = PANICS.lock()
        && !panics.is_empty()
    {
        return Err(std::mem::take(&mut *panics).join("\n"));
    }
    if outcome.is_err() {
        return Err("a panic without a message".to_owned());
    }
    if heap > limit {
        return Err(format!("{heap} bytes of heap, more than {limit}"));
    }
    Ok(heap)
}
