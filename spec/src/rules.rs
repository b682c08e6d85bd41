//! The rules that the protocol rests on.

/// A rule of the protocol; a model without it must lose something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rule {
    /// A page is written only when the log is durable up to its version (`wait_durable` in
    /// `write_placed`).
    WriteAhead,
    /// Pages are flushed before the mapping record that names them (`flush_volume` in `write_out`).
    FlushBeforeMapping,
    /// An address is reused only when the record that replaces it is durable
    /// (`drain_pending_frees`).
    ReuseAfterDurable,
    /// A checkpoint starts the log at or before the oldest change of every dirty page
    /// (`oldest_unflushed`).
    DirtyPages,
    /// The same for pages that are being written (`hold`).
    PagesBeingWritten,
    /// The same for written pages whose mapping record is not durable (`release`).
    RecordsInFlight,
    /// These three are read in this order, in which changes move through them (`oldest_unflushed`).
    OrderOfReads,
    /// The same for commits that were logged and not yet applied (`oldest_commit`).
    UnappliedCommits,
    /// The log never starts between the record that frees a page and a later mapping record of that
    /// page (`before_late_records`).
    OutOfOrderRecords,
    /// A page is marked as freed before the record that frees it can be read back.
    FreedBeforeRecord,
    /// The change bit of a mapping word is set before its record counts as complete (`log_copies`).
    MarkBeforeComplete,
    /// A superblock is written when the log is durable up to the end of the checkpoint's scan
    /// (`flush_log`).
    LogBeforeSuperblock,
    /// Provisional allocations are listed for checkpoints (`add_provisional`).
    ProvisionalListed,
    /// What confirms a provisional allocation removes it from that list (`confirm_allocations`).
    ConfirmedRemoved,
    /// What recovery frees, it logs as freed before its ids are used again (`give_up`).
    FreedByRecoveryLogged,
    /// A change that is older than its page takes a new version (`changed`).
    VersionsGrow,
    /// The cleaner installs an address only over the one that it copied from (`relocate`).
    CompareAndSwap,
    /// The first checkpoint after a recovery covers all that was recovered (`run`).
    RecoveredCovered,
    /// A flush of the log with a record of a copy that was not flushed flushes the volume, too
    /// (`flush_log`).
    FlushWithRecord,
    /// Recovery ends the log before the first record of such a copy that is not there
    /// (`first_missing`).
    MissingEndsLog,
    /// It does not look for copies that the log says are gone or elsewhere: their places may be in
    /// use again (`note`).
    EndedNotVerified,
    /// Nor for those that nothing has confirmed: an earlier recovery may have freed them
    /// (`first_missing`).
    OrphansNotVerified,
}

/// All of them.
pub const RULES: [Rule; 22] = [
    Rule::WriteAhead,
    Rule::FlushBeforeMapping,
    Rule::ReuseAfterDurable,
    Rule::DirtyPages,
    Rule::PagesBeingWritten,
    Rule::RecordsInFlight,
    Rule::OrderOfReads,
    Rule::UnappliedCommits,
    Rule::OutOfOrderRecords,
    Rule::FreedBeforeRecord,
    Rule::MarkBeforeComplete,
    Rule::LogBeforeSuperblock,
    Rule::ProvisionalListed,
    Rule::ConfirmedRemoved,
    Rule::FreedByRecoveryLogged,
    Rule::VersionsGrow,
    Rule::CompareAndSwap,
    Rule::RecoveredCovered,
    Rule::FlushWithRecord,
    Rule::MissingEndsLog,
    Rule::EndedNotVerified,
    Rule::OrphansNotVerified,
];
