//! Waiting for a file or block device that another process holds.

use std::fs::TryLockError;
use std::time::Duration;

use crate::file::sys;

/// Attempts to claim a busy block device, and the pause between them.
pub(super) const BUSY_TRIES: u32 = 20;
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(10);
/// Attempts to lock a file whose holder has ended, at such pauses: ten seconds.
const GONE_TRIES: u32 = 1000;
/// The same if the system does not report the holder, which may have ended: two seconds.
const UNKNOWN_TRIES: u32 = 200;

/// Takes a lock by `attempt`, waiting for a `holder` that has ended: a process that was killed is
/// gone before the kernel has taken down its ring, which holds the file until then. In a namespace
/// of processes of its own the system does not report the holder of a lock once that process is
/// gone, so an unknown holder is waited for too. Any holder is waited for `patience` attempts.
pub(super) fn wait_for_lock(
    mut attempt: impl FnMut() -> Result<(), TryLockError>,
    holder: impl Fn() -> Option<(u32, bool)>,
    patience: u32,
) -> Result<(), TryLockError> {
    let mut tries = 0;
    loop {
        let result = attempt();
        if !matches!(result, Err(TryLockError::WouldBlock)) {
            return result;
        }
        let worth = match holder() {
            None => UNKNOWN_TRIES,
            Some((pid, _)) if sys::is_gone(pid) => GONE_TRIES,
            Some(_) => 0,
        };
        if tries >= worth.max(patience) {
            return result;
        }
        std::thread::sleep(BUSY_PAUSE);
        tries += 1;
    }
}

/// Attempts to lock a file that take so long.
pub(super) fn tries_in(timeout: Duration) -> u32 {
    let tries = timeout.as_millis().div_ceil(BUSY_PAUSE.as_millis());
    u32::try_from(tries).unwrap_or(u32::MAX)
}

/// How often /proc/locks is read for a holder: it is read in pieces, so that one read may miss a
/// lock while others come and go.
pub(super) const LOCKS_READS: u32 = 3;

/// The holder named by a line of /proc/locks, if it is about the file at `place`:
/// `1: FLOCK  ADVISORY  WRITE 708 fe:00:262150 0 EOF`.
pub(super) fn parse_lock(line: &str, place: &str) -> Option<(u32, bool)> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    if fields.next()? != "FLOCK" {
        return None;
    }
    let writer = fields.nth(1)? == "WRITE";
    let pid = fields.next()?.parse().ok()?;
    // 0 and -1 stand for a process outside this container.
    (fields.next()? == place && pid > 0).then_some((pid, writer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_is_waited_for_where_its_holder_may_have_died() {
        let taken_within = |refusals: u32, holder: Option<(u32, bool)>, patience| {
            let mut left = refusals;
            let attempt = || match left {
                0 => Ok(()),
                _ => {
                    left -= 1;
                    Err(TryLockError::WouldBlock)
                }
            };
            wait_for_lock(attempt, || holder, patience).is_ok()
        };
        let taken_after = |refusals, holder| taken_within(refusals, holder, 0);
        // No process has this number: it is above the largest that the kernel gives out.
        let (gone, here) = (u32::MAX / 2, std::process::id());
        assert!(taken_after(0, Some((here, true))));
        assert!(!taken_after(1, Some((here, true))));
        assert!(taken_after(5, Some((gone, true))));
        assert!(
            taken_after(5, None),
            "the system does not report the holder"
        );
        assert!(!taken_after(UNKNOWN_TRIES + 1, None), "not without end");
        let patience = tries_in(Duration::from_millis(15));
        assert!(taken_within(patience, Some((here, true)), patience));
        assert!(!taken_within(patience + 1, Some((here, true)), patience));
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_is_gone() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while !sys::is_gone(child.id()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(!sys::is_gone(std::process::id()));
    }

    #[test]
    fn lock_lines() {
        let line = "1: FLOCK  ADVISORY  WRITE 708 fe:00:262150 0 EOF";
        assert_eq!(parse_lock(line, "fe:00:262150"), Some((708, true)));
        assert_eq!(parse_lock(line, "fe:00:26215"), None);
        let shared = "2: FLOCK  ADVISORY  READ 9 08:01:7 0 EOF";
        assert_eq!(parse_lock(shared, "08:01:7"), Some((9, false)));
        assert_eq!(
            parse_lock("3: OFDLCK ADVISORY READ -1 08:01:7 0 EOF", "08:01:7"),
            None
        );
        assert_eq!(
            parse_lock("4: FLOCK ADVISORY WRITE 0 08:01:7 0 EOF", "08:01:7"),
            None
        );
        assert_eq!(parse_lock("1: -> FLOCK", "08:01:7"), None);
    }
}
