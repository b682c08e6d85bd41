//! Known bugs, to be switched on: the simulator has to find each of them, or
//! it proves nothing. Builds without simulations have none of this.

macro_rules! canaries {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// A bug that a simulation can switch on for itself.
        #[cfg_attr(
            not(any(test, feature = "simulation")),
            allow(unreachable_pub, dead_code)
        )]
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Canary {
            $($(#[$doc])+ $name,)+
        }

        #[cfg(any(test, feature = "simulation"))]
        impl Canary {
            /// All of them.
            pub const ALL: &[Canary] = &[$(Canary::$name,)+];
        }
    };
}

// Each has a row in the table of `cargo xtask canaries`, which says how it is found.
canaries! {
    /// Pages read from the volume are not verified.
    SkipPageChecks,
    /// A commit is acknowledged before its record is durable.
    AcknowledgeEarly,
    /// Pages are written and not flushed before the log says where they are.
    SkipPageFlush,
    /// Segments are reused although a recovery may need what they hold.
    ReuseSegmentsAtOnce,
    /// Commits do not check whether another commit has changed what they write.
    SkipWriteValidation,
    /// Serializable commits do not look whether what they read has changed.
    SkipReadValidation,
    /// A checkpoint shortens the log by changes that are in no page on the
    /// drive yet.
    CutLogEarly,
    /// The log is written and its writes are not flushed.
    SkipLogFlush,
    /// Chunks are written for a commit that may never come, and not noted.
    ForgetProvisional,
    /// A worker clears the flag of its inbox after it has taken the messages.
    ClearInboxFlagLate,
    /// A page id that was noted earlier is taken for that of a page, whatever is there.
    TrustPageIds,
    /// A frame is dirty before its oldest change is set.
    DirtyTooEarly,
    /// A page that was read is unlatched before the mapping table says that it is there.
    UnlatchEarly,
    /// Each look for a tree makes a state of its own, so that some handles do not notice a drop.
    SeparateTreeStates,
    /// Bulk loads appear while commits change the tree.
    LoadBesideCommits,
    /// The unused part of a segment that was sealed before it was full counts as live: no cleaning
    /// wins it back.
    CountUnusedAsLive,
    /// Cleaning goes on although it gains nothing.
    CleanForNothing,
    /// A backup holds the log until it has verified what it wrote.
    HoldLogWhileVerifying,
    /// A recovery frees no log space before it has applied all of the log.
    RecoverAtOnce,
    /// A provisional allocation stays listed after its pages are freed.
    KeepProvisionalOfFreedPages,
    /// The chunks of a loaded value belong to the value instead of the load.
    LoadValuesApart,
    /// A synced commit is seen once it is applied, before it is durable.
    ShowEarly,
    /// The mapping record of copies is complete before a checkpoint can see that their words have
    /// changed.
    MarkLate,
    /// Of a page that is being copied, only frees that are logged after it was claimed count, and a
    /// recovery takes every copy that the log names.
    MissLateEnds,
    /// A checkpoint says where a segment's summary is before that is written.
    SummaryTooEarly,
    /// Recovery repeats commits over records loaded after them.
    ReplayOverLoads,
    /// Of the last page of the mapping table a checkpoint stores the words of those
    /// pages only that existed when it began.
    ForgetNewPages,
    /// A store that is restored from a backup without log records counts as closed, whatever was
    /// provisional.
    RestoreAsClosed,
    /// A backup takes a copy of a page for its newest although the page had been freed when the
    /// copy was recorded.
    CopyEndedPages,
    /// Chunks are free in a checkpoint before there is a record of their free.
    FreeBeforeRecord,
    /// A checkpoint takes the free segments that victims under way count on.
    TakeSpaceOfVictims,
    /// The ids of a value's chunks that were taken back are the value's own again.
    UseIdsAgainAtOnce,
    /// Records go to the log's new extents before the superblocks name them.
    RelayLogEarly,
    /// Space that a record frees is used again before the record is durable.
    FreeEarly,
    /// A tree is dropped without waiting for the commits in flight.
    DropBesideCommits,
    /// A batch of pages is written once the log is durable up to the oldest of them.
    WriteAheadOfLeast,
    /// The log's durable end passes a flush that is still in flight.
    PassFlights,
    /// Of two transactions that change a record, one that deletes it may commit second.
    SkipDeleteValidation,
    /// The torn end of a log is left as it is when a store is opened.
    LeaveTornTail,
    /// An opening keeps the log's epoch of the one before.
    KeepEpoch,
    /// A checkpoint releases the log of changes in pages that are being written.
    IgnoreBatches,
    /// A checkpoint releases the log of changes whose mapping record is not durable.
    IgnoreRecords,
    /// A checkpoint releases the log of commits that are logged and not applied.
    IgnoreUnapplied,
    /// A superblock does not wait for the log.
    SuperblockBeforeLog,
    /// Allocations that a record confirms stay provisional.
    KeepConfirmed,
    /// The cleaner installs an address over whichever is there.
    RelocateBlindly,
    /// The volume is cut while the log and the superblocks still use its tail.
    CutVolumeEarly,
    /// Segments that readers in other processes may need are used again at once.
    ReuseBesideReaders,
    /// A reader beside a writer takes the first gap in the log that it sees for the log's end.
    TrustLiveLogEnd,
    /// A change that is older than its page makes its own LSN the page's version.
    LowerVersion,
    /// The first checkpoint of a recovery covers commits that are not applied yet.
    CoverUnapplied,
    /// A load appears in a tree that another load or its drop has to itself.
    LoadBesideOthers,
    /// Workers may write a checkpoint before the superblocks say that the store is open.
    CheckpointBeforeOpen,
    /// A checkpoint goes on waiting for pages whose records find no space in the log.
    CheckpointWaitsForItself,
    /// The last space in the log is kept from the pages that a checkpoint waits for.
    KeepLastSpace,
    /// Pages that a checkpoint waits for get no segment of the cleaner's reserve.
    KeepReserve,
    /// A structure modification waits behind a record that lacks the area, which commits in flight
    /// hold.
    HoldStructuresUp,
    /// A commit reserves space for fewer splits than it may cause.
    SplitBeyondLog,
    /// Merges take space in a log that is full.
    MergeInFullLog,
    /// Large transactions commit while a backup copies the store.
    LargeBesideBackups,
    /// The empty pages of a tree without records are freed before a load, also while another task
    /// has closed the tree.
    CollapseBesideOthers,
    /// A large transaction does not wait for the commits in flight.
    LargeBesideCommits,
    /// Of a read of several pages that failed, each page is judged as if it had been read.
    TrustFailedReads,
    /// A flush of the log leaves the chunks that its records name in the drive's cache.
    FlushLogAlone,
    /// Chunks are named by the log before their writes have ended.
    NameChunksEarly,
    /// A recovery takes every chunk that the log names for one that is there.
    TrustUnflushedChunks,
    /// A recovery also looks for chunks that the log says are gone.
    VerifyEndedChunks,
    /// A recovery also looks for chunks that no commit has named.
    VerifyOrphans,
    /// A recovery that cuts the log off leaves the rest as it is.
    LeaveCutTail,
    /// The segments that a volume grows by are used before it has grown.
    UseSpaceEarly,
    /// The segments that a volume grows by are used before zeros were written to them.
    InitializeLate,
    /// An opening gives sequence numbers to segments that the one before it gave, of which a crash
    /// left no word.
    GiveSeqsAgain,
    /// A page that is built beside its tree is marked as changed after its place in the log is
    /// complete.
    MarkLoadedLate,
    /// Single reads see the runs of a large commit while earlier commits are not visible.
    ShowRunsEarly,
    /// A checkpoint releases the log of a merge while what that replaced is not free yet.
    IgnoreEnding,
    /// Tasks that wait for a segment are not woken when one is free.
    FreeWithoutWaking,
    /// A commit does not wait for others that validate what they have read.
    PassValidating,
    /// An opening says so in one of the two superblocks.
    OpenOneSuperblock,
    /// One of the two superblocks names the log's new extents when records go there.
    RelayOneSuperblock,
    /// One of the two superblocks says that the volume is shorter when it is cut.
    CutOneSuperblock,
    /// Closing writes one of the two superblocks.
    CloseOneSuperblock,
    /// The log leaves segments of which a recovery still reads a part.
    LeaveLogEarly,
    /// A superblock is written while the checkpoint that it names is in the drive's cache.
    SuperblockBeforePages,
    /// A superblock is not flushed before what it replaces is used again.
    SkipSuperblockFlush,
    /// `remove_range` counts records that others have removed since it saw them.
    CountAbsent,
    /// Two callers may take the same record from the end of a tree.
    PopBlindly,
    /// An update does not look whether the value that it read is still there.
    UpdateBlindly,
    /// Free segments are discarded while writes may take them.
    DiscardFreeSegments,
    /// A backup reads pages in segments that may be used again.
    CopyUnpinned,
    /// Segments become free while a backup copies what the log names in them.
    FreeBesideBackup,
    /// Old versions are dropped although an open snapshot needs them.
    DropVersionsEarly,
    /// Checkpoints shorten the log by what a backup has still to copy.
    CutLogOfBackup,
    /// What a checkpoint replaces is free before the superblock that names the new one is durable.
    ReuseCheckpointEarly,
    /// A checkpoint clears the change bits of mapping words after it has copied the words.
    ClearBitLate,
    /// Of a tree's runs the newest one goes when the oldest one is merged.
    RetireNewest,
    /// A checkpoint shortens the log by changes that are in a memory of overlays alone.
    CheckpointPastMemory,
    /// A record gives a base its new root before the leaves that a merge wrote are durable.
    MergeBeforeLeaves,
    /// A cursor reads a leaf of the base, then which overlays are above it.
    LevelsAfterLeaf,
    /// A run's filter does not have all of its keys.
    ForgetInFilter,
    /// A large value in an overlay is not said: a later change does not free it.
    LargeUnsaid,
    /// A superblock says that the store has never had a large value.
    CheckpointForgetsLarge,
    /// A recovery overlooks that the log has large values.
    RecoveryForgetsLarge,
    /// Of runs that are trimmed the newest one comes first.
    TrimNewestFirst,
    /// Of two runs that become one the older one's records count.
    CombineOlderFirst,
    /// A trim leaves what it takes from others in the run that they become.
    TrimForgetsCombined,
    /// A run is said to have all changes, also those that went to the next memory meanwhile.
    SealBeyondMemory,
    /// A recovery does not repeat what was changed in leaves before the tree had overlays, for a
    /// memory was sealed.
    SealBeforeLeaves,
    /// A recovery does not repeat what a backup has not copied, for a memory was sealed meanwhile.
    SealBesideBackup,
    /// A memory becomes a run while a merge is under way that does not have it.
    SealBesideMerge,
    /// A load does not heed what merges have passed of runs that are still there.
    LoadOverMerged,
    /// Recovery repeats commits above the run of a large transaction that came after them.
    RepeatOverRuns,
    /// A stream of changes leaves out the last change of some transactions.
    StreamSkips,
    /// A stream of changes does not say that some transactions were given out.
    StreamTwice,
    /// A stream of changes gives out what it has read together in the wrong order.
    StreamOutOfOrder,
    /// A stream of changes gives out large values that are gone, as whatever is left of them.
    StreamGoneValues,
    /// A stream of changes reads trees from a snapshot that lacks changes which it has left out.
    StreamOldState,
    /// A stream in the writer's process reads what is not durable yet.
    StreamUndurable,
    /// A stream beside a writer gives out what it finds in the drive's cache.
    StreamUnflushed,
    /// What becomes durable wakes no stream that waits for it.
    StreamUnwoken,
}

#[cfg(any(test, feature = "simulation"))]
thread_local! {
    static ON: std::cell::Cell<Option<Canary>> = std::cell::Cell::new(Canary::of_process());
}

/// The variable that names a bug which all stores of a process have, in all threads.
#[cfg(any(test, feature = "simulation"))]
const VARIABLE: &str = "ISOBATH_CANARY";

#[cfg(any(test, feature = "simulation"))]
impl Canary {
    /// The name of this bug.
    #[must_use]
    pub fn name(self) -> String {
        format!("{self:?}")
    }

    /// The bug that the environment gives to all stores of this process.
    fn of_process() -> Option<Canary> {
        let name = std::env::var(VARIABLE).ok()?;
        Canary::ALL
            .iter()
            .copied()
            .find(|canary| canary.name() == name)
    }

    /// Switches this bug, and no other, on for the stores that this thread
    /// simulates.
    pub fn switch_on(self) {
        ON.set(Some(self));
    }

    /// The bug that this thread's simulations have.
    #[must_use]
    pub fn switched_on() -> Option<Canary> {
        ON.get()
    }
}

/// Whether a bug is switched on for the simulation that this thread runs.
#[inline(always)]
pub(crate) fn is_on(canary: Canary) -> bool {
    #[cfg(any(test, feature = "simulation"))]
    return ON.get() == Some(canary);
    #[cfg(not(any(test, feature = "simulation")))]
    {
        let _ = canary;
        false
    }
}
