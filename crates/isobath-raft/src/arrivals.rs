//! Snapshots that have come and are not installed yet: purging the log waits for them.
//!
//! openraft 0.9 purges what a snapshot covers while the state machine still installs it. A node
//! that is killed between the two would have neither the entries nor the state. The order here:
//!
//! 1. [`SnapshotReceiver::finish`](crate::SnapshotReceiver::finish) makes a [`Guard`], before
//!    openraft hears of the snapshot. The snapshot's files hold it.
//! 2. A synced commit makes the installed state the node's; [`Arrivals::cover`] follows it.
//! 3. The files are dropped, and with them the guard.
//! 4. The purge goes on. It is refused if the installation has failed.
//!
//! A purge of entries that the node's own snapshot covers waits for nothing.

use std::sync::Arc;

use tokio::sync::watch;

#[derive(Debug, Default)]
struct Progress {
    /// Guards that live.
    guards: usize,
    /// The last entry of the node's snapshot.
    covered: Option<u64>,
    /// An installation has begun and not succeeded.
    is_unfinished: bool,
}

/// Shared by the log and the state machine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals(Arc<watch::Sender<Progress>>);

impl Arrivals {
    pub(crate) fn guard(&self) -> Guard {
        self.0.send_modify(|progress| progress.guards += 1);
        Guard(self.clone())
    }

    /// An installation begins.
    pub(crate) fn begin(&self) {
        self.0.send_modify(|progress| progress.is_unfinished = true);
    }

    /// The node has, durably, a snapshot of the entries up to this one, and its state.
    pub(crate) fn cover(&self, index: Option<u64>) {
        self.0.send_modify(|progress| progress.covered = index);
    }

    /// The installation has succeeded.
    pub(crate) fn end(&self) {
        self.0
            .send_modify(|progress| progress.is_unfinished = false);
    }

    /// Waits until no snapshot under way may be needed for purging up to `index`; whether the
    /// entries may go.
    pub(crate) async fn allow_purge(&self, index: u64) -> bool {
        let mut progress = self.0.subscribe();
        let is_covered = |progress: &Progress| progress.covered >= Some(index);
        let has_waited = progress.borrow().guards > 0;
        let end = progress.wait_for(|now| is_covered(now) || now.guards == 0);
        // It fails once the sender is dropped, which `self` holds.
        end.await
            .is_ok_and(|now| is_covered(&now) || !(has_waited || now.is_unfinished))
    }
}

/// A snapshot that was received and is not installed yet.
#[derive(Debug)]
pub(crate) struct Guard(Arrivals);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.send_modify(|progress| progress.guards -= 1);
    }
}
