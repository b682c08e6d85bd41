//! Each canary, the rule that it breaks, and how it is found.

use isobath::Canary;

use super::directed::Directed;
use crate::clients::plan::{FaultKind, Scenario, Shape};
use crate::simulate::switching::Wanted;

/// One canary.
pub(super) struct Row {
    pub(super) canary: Canary,
    /// The rule that it breaks.
    pub(super) rule: &'static str,
    /// The decision that has the rule.
    pub(super) record: &'static str,
    pub(super) found_by: FoundBy,
}

/// How a canary is found.
pub(super) enum FoundBy {
    /// By simulations with many seeds.
    Seeds(Hunt),
    /// By a test, for the reason given.
    Test(Directed, &'static str),
    /// By nothing: the other rules suffice, which the test proves, and why.
    Implied(Directed, &'static str),
}

/// A campaign of simulations.
pub(super) struct Hunt {
    faults: &'static [FaultKind],
    shape: Shape,
    /// How many times as much clients do.
    scale: u64,
    pub(super) switches: Wanted,
    /// The first seed.
    pub(super) first: u64,
    /// It takes a second or so.
    pub(super) is_quick: bool,
}

impl Hunt {
    const fn shape(self, shape: Shape) -> Hunt {
        Hunt { shape, ..self }
    }

    const fn scale(self, scale: u64) -> Hunt {
        Hunt { scale, ..self }
    }

    const fn switching(self) -> Hunt {
        let switches = Wanted::Always;
        Hunt { switches, ..self }
    }

    const fn from(self, first: u64) -> Hunt {
        Hunt { first, ..self }
    }

    const fn quick(self) -> Hunt {
        let is_quick = true;
        Hunt { is_quick, ..self }
    }

    /// The scenario of `seed`.
    pub(super) fn scenario(&self, seed: u64) -> Scenario {
        let mut scenario = Scenario::draw(seed, self.faults);
        scenario.operations *= self.scale;
        scenario.shaped(self.shape)
    }
}

impl std::fmt::Display for FoundBy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FoundBy::Seeds(hunt) => {
                let mut words = vec![format!("{:?}", hunt.shape).to_lowercase()];
                let faults = hunt.faults.iter();
                words.extend(faults.map(|fault| format!("{fault:?}").to_lowercase()));
                if hunt.scale > 1 {
                    words.push(format!("scale {}", hunt.scale));
                }
                if hunt.switches == Wanted::Always {
                    words.push("switches".to_owned());
                }
                write!(out, "simulation: {}", words.join(", "))
            }
            FoundBy::Test(test, why) => write!(out, "test {test}: {why}"),
            FoundBy::Implied(test, why) => write!(out, "harmless: {why} ({test})"),
        }
    }
}

const fn campaign(faults: &'static [FaultKind]) -> Hunt {
    Hunt {
        faults,
        shape: Shape::Drawn,
        scale: 1,
        switches: Wanted::Off,
        first: 1,
        is_quick: false,
    }
}

const fn row(canary: Canary, record: &'static str, rule: &'static str, hunt: Hunt) -> Row {
    let found_by = FoundBy::Seeds(hunt);
    Row {
        canary,
        rule,
        record,
        found_by,
    }
}

const fn test(
    canary: Canary,
    record: &'static str,
    rule: &'static str,
    (package, file, name): (&'static str, Option<&'static str>, &'static str),
    why: &'static str,
) -> Row {
    let found_by = FoundBy::Test(
        Directed {
            package,
            file,
            name,
        },
        why,
    );
    Row {
        canary,
        rule,
        record,
        found_by,
    }
}

const fn implied(canary: Canary, rule: &'static str, why: &'static str) -> Row {
    let name = "tests::some_rules_are_implied_by_the_others";
    let model = Directed {
        package: "isobath-spec",
        file: None,
        name,
    };
    let found_by = FoundBy::Implied(model, why);
    Row {
        canary,
        rule,
        record: "0014",
        found_by,
    }
}

const POWER: &[FaultKind] = &[FaultKind::Power];

/// All canaries.
#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row(Canary::SkipPageChecks, "0005", "A page is verified when it is read.",
        campaign(&[FaultKind::Rot]).quick()),
    row(Canary::AcknowledgeEarly, "0014", "A synced commit is acknowledged once its record is durable.",
        campaign(POWER).quick()),
    // Some seconds: the flushes of records that name new chunks flush pages, too.
    row(Canary::SkipPageFlush, "0020", "Pages are flushed before the mapping record that names them is logged.",
        campaign(POWER)),
    row(Canary::ReuseSegmentsAtOnce, "0020", "An address is used again once the record that replaces it is durable.",
        campaign(POWER).scale(4)),
    row(Canary::SkipWriteValidation, "0015", "Of two transactions that change a record, the first to commit wins.",
        campaign(&[]).quick()),
    row(Canary::SkipReadValidation, "0015", "A serializable commit validates what it has read.",
        campaign(&[]).quick()),
    row(Canary::CutLogEarly, "0020", "A checkpoint starts the log before the oldest change that is in no page.",
        campaign(POWER).scale(20).quick()),
    row(Canary::SkipLogFlush, "0014", "A flush of the log reaches the drive.",
        campaign(POWER).quick()),
    row(Canary::ForgetProvisional, "0020", "Chunks of a commit that may never come are listed as provisional.",
        campaign(POWER).scale(8)),
    test(Canary::ClearInboxFlagLate, "0002", "A worker clears the flag of its inbox before it takes the messages.",
        ("isobath", Some("engine"), "switches::every_task_runs_however_workers_are_interrupted"),
        "in campaigns a later message wakes the worker for the lost one"),
    test(Canary::TrustPageIds, "0004", "A page id that was noted earlier may belong to another page by now.",
        ("isobath", None, "buffer::page_miss_tests::a_chunk_is_read_and_removed_beside_reads_by_stale_ids"),
        "no client notes ids for so long"),
    row(Canary::SeparateTreeStates, "0015", "A tree has one state, which all its handles share.",
        campaign(&[]).shape(Shape::More).quick()),
    test(Canary::LoadBesideCommits, "0011", "No commit changes a tree while a load of it is linked.",
        ("isobath", Some("engine"), "tree_states::loads_beside_commits_of_the_same_keys"),
        "it takes a load and a commit of one key at the same moment"),
    test(Canary::CountUnusedAsLive, "0005", "What is unused of a segment that was not full is worth cleaning.",
        ("isobath", None, "pagestore::allocator::tests::what_is_unused_of_a_segment_that_was_not_full_is_worth_cleaning"),
        "nothing is lost, closing takes too long"),
    test(Canary::CleanForNothing, "0005", "Cleaning that gains nothing ends.",
        ("isobath", None, "pagestore::allocator::tests::cleaning_ends_where_it_has_moved_everything_for_nothing"),
        "nothing is lost, cleaning never ends"),
    test(Canary::HoldLogWhileVerifying, "0016", "A backup lets go of the log once it has copied it.",
        ("isobath", Some("engine"), "space::writers_go_on_beside_a_slow_target"),
        "nothing is lost, writers stand still"),
    test(Canary::RecoverAtOnce, "0020", "A recovery frees log space as it goes on.",
        ("isobath", Some("engine"), "space::a_recovery_frees_space_in_a_log_that_is_too_full_for_it"),
        "nothing is lost, the store does not open"),
    test(Canary::KeepProvisionalOfFreedPages, "0020", "A provisional allocation ends with its page.",
        ("isobath", None, "checkpoint::tests::a_provisional_allocation_ends_with_its_page"),
        "an id that is freed while its token is open has to become that of a page without one"),
    row(Canary::LoadValuesApart, "0020", "Chunks of a loaded value belong to the load.",
        campaign(POWER).shape(Shape::More).quick()),
    row(Canary::ShowEarly, "0024", "A synced commit is seen once it is durable.",
        campaign(POWER).shape(Shape::Restless)),
    row(Canary::MarkLate, "0020", "The change bit of a mapping word is set before its record is complete.",
        campaign(POWER).shape(Shape::More).switching()),
    test(Canary::MissLateEnds, "0020", "A copy that is logged after its page has ended is not taken for the page.",
        ("isobath", None, "checkpoint::tests::what_ended_before_the_log_begins_stays_dead"),
        "it takes a checkpoint between two records of one page"),
    test(Canary::SummaryTooEarly, "0005", "A checkpoint names a segment's summary once that is written.",
        ("isobath", None, "pagestore::allocator::tests::a_checkpoint_names_a_summary_once_it_is_written"),
        "nothing is lost: a summary that is not there is rebuilt from the mapping table"),
    test(Canary::DirtyTooEarly, "0020", "A frame is dirty once its oldest change is set.",
        ("isobath", None, "checkpoint::tests::a_frame_is_dirty_once_its_oldest_change_is_set"),
        "no log begins before the place where it began"),
    test(Canary::UnlatchEarly, "0003", "A page that was read is latched until the mapping table says that it is there.",
        ("isobath", None, "buffer::page_miss_tests::a_page_is_latched_until_its_word_says_that_it_is_there"),
        "a frame that no queue holds yet is taken by nothing"),
    row(Canary::ReplayOverLoads, "0020", "Recovery repeats no commit over what was loaded after it.",
        campaign(POWER).shape(Shape::Restless)),
    test(Canary::ForgetNewPages, "0020", "A checkpoint that takes a change bit stores every word that the bit covers.",
        ("isobath", None, "checkpoint::tests::a_page_that_is_written_beside_a_checkpoint_is_stored"),
        "campaigns of a minute do not hold a checkpoint long enough between two looks at one page of the table"),
    test(Canary::RestoreAsClosed, "0016", "A restored store gives up what was provisional in its backup.",
        ("isobath", Some("engine"), "backup::of_values_that_no_commit_names_nothing_is_restored"),
        "it takes a backup without log records"),
    test(Canary::CopyEndedPages, "0016", "A backup takes no copy for a page that had ended when the copy was recorded.",
        ("isobath", None, "backup::log::tests::a_copy_of_what_has_ended_is_not_wanted"),
        "it takes an id that is given again between two rounds of a backup"),
    test(Canary::FreeBeforeRecord, "0020", "Chunks leave a checkpoint with the record of their end, or not at all.",
        ("isobath", None, "checkpoint::tests::of_a_value_all_chunks_are_free_in_a_checkpoint_or_none"),
        "it takes a checkpoint between two chunks of one value"),
    test(Canary::TakeSpaceOfVictims, "0005", "A checkpoint leaves victims under way the space that they count on.",
        ("isobath", None, "pagestore::allocator::tests::a_checkpoint_leaves_victims_the_space_that_they_count_on"),
        "nothing is lost, cleaning stands still"),
    test(Canary::UseIdsAgainAtOnce, "0020", "A value takes no id of a chunk that it took back.",
        ("isobath", None, "extent::tests::no_two_chunks_of_a_value_have_one_id"),
        "it takes a value that is taken back while it is written"),
    test(Canary::RelayLogEarly, "0014", "Records go to the log's new extents once the superblocks name them.",
        ("isobath", None, "checkpoint::log_extents_tests::a_log_that_leaves_segments_loses_nothing"),
        "the logs of campaigns do not grow"),
    test(Canary::CutVolumeEarly, "0031", "The volume is cut once neither log nor superblocks name what lies behind its end.",
        ("isobath", None, "checkpoint::shrink_tests::a_store_that_becomes_shorter_loses_nothing"),
        "campaigns do not compact"),
    test(Canary::FreeEarly, "0020", "What a record frees is used again once the record is durable.",
        ("isobath", Some("engine"), "large_values::a_removed_value_stays_until_its_removal_is_durable"),
        "in campaigns most frees are durable before their segment is used again"),
    test(Canary::DropBesideCommits, "0015", "A tree is dropped once the commits in flight have ended.",
        ("isobath", Some("engine"), "tree_states::transactions_beside_the_drop_of_one_of_their_trees"),
        "commits that wait until they are durable wait for those before them, the drop's own among them"),
    implied(Canary::WriteAheadOfLeast, "A page is written once the log is durable up to its version.",
        "pages are named only by mapping records and superblocks, which wait for the log"),
    row(Canary::PassFlights, "0014", "The durable end of the log waits for every flush before it.",
        campaign(POWER)),
    row(Canary::SkipDeleteValidation, "0015", "The first committer wins over deletes too.",
        campaign(&[]).shape(Shape::More)),
    test(Canary::LeaveTornTail, "0014", "A recovery seals the torn end of the log before it goes on behind it.",
        ("isobath", None, "log::testing::what_an_older_open_epoch_left_behind_a_hole_is_not_read"),
        "the checkpoint after a recovery covers all but an empty one"),
    test(Canary::KeepEpoch, "0014", "Each opening logs with an epoch of its own.",
        ("isobath", None, "log::testing::what_an_older_open_epoch_left_behind_a_hole_is_not_read"),
        "it takes a log that ends just before what an older opening has left"),
    row(Canary::IgnoreBatches, "0020", "A checkpoint keeps the log of changes in pages that are being written.",
        campaign(POWER).shape(Shape::More)),
    implied(Canary::IgnoreRecords, "A checkpoint keeps the log of changes whose mapping record is not durable.",
        "a superblock waits for the log, and so for that record"),
    row(Canary::IgnoreUnapplied, "0020", "A checkpoint keeps the log of commits that are not applied.",
        campaign(POWER).shape(Shape::More)),
    row(Canary::SuperblockBeforeLog, "0020", "A superblock is written once the log is durable up to the end of its checkpoint.",
        campaign(POWER).shape(Shape::More)),
    row(Canary::KeepConfirmed, "0020", "What a record confirms is provisional no longer.",
        campaign(POWER).shape(Shape::More)),
    row(Canary::RelocateBlindly, "0005", "The cleaner installs an address only over the one that it copied from.",
        campaign(POWER).shape(Shape::Crowded)),
    test(Canary::ReuseBesideReaders, "0029", "A freed segment that a reader may need is not used again at once.",
        ("isobath", Some("engine"), "readers::what_a_reader_needs_is_kept_for_it_and_then_used_again"),
        "simulated volumes have no readers in other processes"),
    test(Canary::TrustLiveLogEnd, "0029", "A reader beside a writer reads the log again up to where it is known to be durable.",
        ("isobath", Some("engine"), "readers::a_corrupt_log_beside_a_writer_is_called_corrupt"),
        "simulated volumes have no readers in other processes"),
    row(Canary::LowerVersion, "0014", "A change that is older than its page gives the page a new version.",
        campaign(POWER).shape(Shape::More)),
    row(Canary::CoverUnapplied, "0020", "A checkpoint of a recovery covers what is applied.",
        campaign(POWER).shape(Shape::Restless)),
    test(Canary::LoadBesideOthers, "0015", "Loads of one tree, and its drop, change it one after the other.",
        ("isobath", Some("engine"), "tree_states::loads_of_one_tree_beside_each_other"),
        "campaigns load a tree from one client"),
    test(Canary::CheckpointBeforeOpen, "0020", "No checkpoint is written before the superblocks say that the store is open.",
        ("isobath", None, "checkpoint::tests::no_checkpoint_is_due_before_the_store_is_open"),
        "it takes a checkpoint that is due in a log from which nothing is recovered; one seed in some thousands has it"),
    test(Canary::CheckpointWaitsForItself, "0020", "A checkpoint does not wait for pages whose records find no space in the log.",
        ("isobath", None, "log::space_tests::a_checkpoint_frees_a_full_log_without_the_pages_that_wait_for_it"),
        "the log has to be full of mapping records before the checkpoint that frees it has the pages written"),
    test(Canary::KeepLastSpace, "0014", "Pages that the only checkpoint waits for that can free the log get the last space in it.",
        ("isobath", None, "log::space_tests::pages_that_a_checkpoint_waits_for_get_the_last_space"),
        "the log has to be full of mapping records while pages with changes at its start are dirty"),
    test(Canary::KeepReserve, "0014", "Pages that the only checkpoint waits for that can free the log get a part of the cleaner's reserve.",
        ("isobath", None, "log::space_tests::pages_that_a_checkpoint_waits_for_get_a_part_of_the_reserve"),
        "cleaning has to fill the log in a volume that may not grow"),
    test(Canary::HoldStructuresUp, "0014", "Structure modifications of commits in flight do not wait behind a record that lacks the area.",
        ("isobath", None, "log::space_tests::structure_modifications_pass_what_lacks_the_area"),
        "the log has to be full of what commits in flight hold when a mapping record comes"),
    test(Canary::SplitBeyondLog, "0014", "A commit has log space for all that applying it logs.",
        ("isobath", Some("engine"), "log_full::a_transaction_that_splits_more_leaves_than_the_log_has_space_for"),
        "nothing is lost, the store takes no more writes, and does not open again"),
    test(Canary::MergeInFullLog, "0014", "Merges, for which no commit has log space, are left out where the log is nearly full.",
        ("isobath", Some("engine"), "log_full::removals_that_could_merge_more_leaves_than_the_log_has_space_for"),
        "nothing is lost, the store takes no more writes, and does not open again"),
    row(Canary::RepeatOverRuns, "0033", "Recovery repeats no commits above a large transaction's run.",
        campaign(POWER).shape(Shape::Spilling)),
    row(Canary::LargeBesideBackups, "0033", "No large transaction commits while a backup copies the store.",
        campaign(&[]).shape(Shape::Spilling).from(400).quick()),
    row(Canary::LargeBesideCommits, "0033", "A large transaction adds its runs once the commits in flight have ended.",
        campaign(&[]).shape(Shape::Spilling)),
    test(Canary::CollapseBesideOthers, "0033", "A load frees no pages of a tree that is closed.",
        ("isobath", None, "api::bulk::tests::a_load_does_not_begin_while_its_tree_is_closed"),
        "trees without records rarely have more than one page: removals merge them"),
    test(Canary::TrustFailedReads, "0012", "A read of several pages that failed says nothing about any of them.",
        ("isobath", None, "buffer::long_read_tests::pages_of_a_failed_read_are_read_alone"),
        "campaigns read few neighbours ahead, and an error of a page that is not wanted ends nothing"),
    row(Canary::FlushLogAlone, "0086", "The flush that makes a record durable makes the chunks durable that it names.",
        campaign(POWER).quick()),
    row(Canary::NameChunksEarly, "0086", "The log names a chunk once its write has ended.",
        campaign(POWER)),
    row(Canary::TrustUnflushedChunks, "0086", "A recovery ends the log before the first record that names a chunk which is not there.",
        campaign(POWER)),
    test(Canary::VerifyEndedChunks, "0086", "A recovery does not look for chunks that the log says are gone.",
        ("isobath", None, "recovery::unflushed_chunks::tests::a_chunk_has_to_be_there_until_the_log_says_that_it_is_gone"),
        "its place has to be used again before a record knows that the chunk's own was durable"),
    test(Canary::VerifyOrphans, "0086", "A recovery does not look for chunks that nothing has confirmed.",
        ("isobath", None, "recovery::unflushed_chunks::tests::a_chunk_that_no_commit_names_need_not_be_there"),
        "a recovery has to be cut off after it has used the place again"),
    test(Canary::LeaveCutTail, "0086", "Where a recovery cuts the log off it seals it.",
        ("isobath", None, "log::testing::cut::what_lies_behind_a_cut_is_never_read_again"),
        "campaigns of many short rounds find it, but not always in a minute"),
    test(Canary::UseSpaceEarly, "0031", "Space is used once the volume has grown by it, durably.",
        ("isobath", Some("engine"), "growth_beside::of_tasks_that_wait_for_growth_all_learn_that_there_is_no_space"),
        "a call takes milliseconds in simulations, and what a volume had before is used first"),
    row(Canary::InitializeLate, "0031", "Space is used once the zeros that are written to it are there.",
        campaign(&[]).shape(Shape::More).from(311).quick()),
    test(Canary::GiveSeqsAgain, "0086", "No two openings give a segment the same sequence number.",
        ("isobath", None, "recovery::unflushed_chunks::tests::an_opening_that_gives_sequence_numbers_again_finds_chunks_of_another"),
        "two crashes without a checkpoint between them have to take the log of the one value and the chunk of the other"),
    test(Canary::MarkLoadedLate, "0020", "A page that is built beside its tree is dirty before its place in the log is complete.",
        ("isobath", None, "checkpoint::tests::beside_loads::a_checkpoint_beside_a_load_loses_none_of_its_pages"),
        "a checkpoint has to begin between two instructions, and to last until the load is linked"),
    test(Canary::ShowRunsEarly, "0033", "Single reads see a large commit once they see all commits before it.",
        ("isobath", None, "txn::large::tests::nobody_sees_a_large_commit_before_an_earlier_one"),
        "campaigns do not compare single reads of two keys"),
    test(Canary::IgnoreEnding, "0033", "A checkpoint keeps the log of a merge until what that replaced is free.",
        ("isobath", None, "checkpoint::tests::beside_loads::a_checkpoint_while_a_merge_frees_pages_leaves_none_behind"),
        "a checkpoint has to begin and end while pages are freed one after another, and the power has to go soon after"),
    row(Canary::FreeWithoutWaking, "0029", "Tasks that wait for a segment are woken when one is free, whatever made it free.",
        campaign(&[]).shape(Shape::Crowded).from(25).quick()),
    test(Canary::PassValidating, "0015", "A commit that publishes while others validate gets its LSN after theirs.",
        ("isobath", Some("engine"), "transaction_prefixes::what_is_left_is_a_state_that_serializable_transactions_agree_on"),
        "the power has to go between two records, of which the second was acknowledged and need not be durable"),
    row(Canary::OpenOneSuperblock, "0020", "Both superblocks say that a store is open before anything is written.",
        campaign(&[]).shape(Shape::Calls)),
    row(Canary::RelayOneSuperblock, "0028", "Both superblocks name the log's new extents before a record lies there.",
        campaign(POWER).shape(Shape::Calls)),
    row(Canary::CutOneSuperblock, "0031", "Both superblocks say that the volume is shorter before it is cut.",
        campaign(&[]).shape(Shape::Calls)),
    row(Canary::CloseOneSuperblock, "0020", "Either superblock of a closed store is enough to open it.",
        campaign(&[]).shape(Shape::Calls)),
    test(Canary::LeaveLogEarly, "0028", "The log leaves a segment once no recovery reads what is there.",
        ("isobath", None, "checkpoint::log_extents_tests::a_log_that_leaves_segments_loses_nothing"),
        "it takes a power cut between two changes of the log's extents"),
    row(Canary::SuperblockBeforePages, "0020", "A checkpoint's pages are flushed before the superblock that names them is written.",
        campaign(POWER).shape(Shape::More)),
    row(Canary::SkipSuperblockFlush, "0020", "A superblock is durable before what it replaces is used again.",
        campaign(POWER).shape(Shape::Calls)),
    row(Canary::CountAbsent, "0027", "A removal counts the records that it has removed itself.",
        campaign(&[]).shape(Shape::Calls)),
    row(Canary::PopBlindly, "0027", "Of several callers that take the end of a tree each gets another record.",
        campaign(&[]).shape(Shape::Calls)),
    row(Canary::UpdateBlindly, "0027", "An update replaces the value that it has read, and no other one.",
        campaign(&[]).shape(Shape::Calls)),
    row(Canary::DiscardFreeSegments, "0005", "No write takes a segment while it is discarded.",
        campaign(&[]).shape(Shape::Calls)),
    row(Canary::CopyUnpinned, "0016", "A segment that a backup reads is not used again meanwhile.",
        campaign(&[]).shape(Shape::Copied)),
    test(Canary::FreeBesideBackup, "0016", "What the log names stays readable until a backup has copied it.",
        ("isobath", Some("engine"), "space::what_a_backup_has_still_to_copy_stays"),
        "a backup has to wait between two batches of what only the log names"),
    row(Canary::DropVersionsEarly, "0015", "A version stays while an open snapshot is older than it.",
        campaign(&[]).shape(Shape::More)),
    test(Canary::CutLogOfBackup, "0016", "The log stays until a backup has copied it.",
        ("isobath", Some("engine"), "backup::a_log_that_fills_up_meanwhile_is_kept_in_the_end"),
        "a backup has to last until the log has come round"),
    test(Canary::ReuseCheckpointEarly, "0020", "A checkpoint stays until the superblock of the next one is durable.",
        ("isobath", None, "checkpoint::tests::a_checkpoint_stays_until_the_next_superblock_is_durable"),
        "its segment has to be filled again, and the power to go, before a superblock is written and flushed"),
    row(Canary::ClearBitLate, "0020", "A checkpoint clears a change bit before it copies the words that the bit covers.",
        campaign(POWER).shape(Shape::More)),
    row(Canary::RetireNewest, "0105", "Of a tree's runs the oldest one goes first.",
        campaign(&[]).shape(Shape::Overlaid)),
    row(Canary::CheckpointPastMemory, "0105", "The log stays while changes of it are in a memory of overlays alone.",
        campaign(POWER).shape(Shape::Overlaid)),
    row(Canary::MergeBeforeLeaves, "0105", "Leaves of a merge are durable before a record names them.",
        campaign(POWER).shape(Shape::Overlaid)),
    row(Canary::LevelsAfterLeaf, "0105", "A cursor takes the levels before it reads a leaf.",
        campaign(&[]).shape(Shape::Overlaid)),
    row(Canary::ForgetInFilter, "0105", "A run's filter has all of its keys.",
        campaign(&[]).shape(Shape::Overlaid)),
    row(Canary::LargeUnsaid, "0105", "A blind change frees no large value, for there is none.",
        campaign(&[]).shape(Shape::Overlaid)),
    row(Canary::CheckpointForgetsLarge, "0105", "A superblock says whether the store has had a large value.",
        campaign(POWER).shape(Shape::Overlaid)),
    test(Canary::RecoveryForgetsLarge, "0105", "So does the log behind it.",
        ("isobath", Some("engine"), "overlays::crashes::a_crash_before_the_first_checkpoint_forgets_no_large_value"),
        "the power has to go between a store's first large value and its first checkpoint"),
    row(Canary::TrimNewestFirst, "0105", "Of runs the oldest one is trimmed first.",
        campaign(POWER).shape(Shape::Overlaid)),
    row(Canary::CombineOlderFirst, "0105", "Where two runs become one the newer one counts.",
        campaign(&[]).shape(Shape::Overlaid)),
    row(Canary::TrimForgetsCombined, "0105", "What is trimmed of runs is trimmed of the one that they become.",
        campaign(POWER).shape(Shape::Overlaid)),
    row(Canary::SealBeyondMemory, "0105", "Recovery repeats all changes that no run has.",
        campaign(POWER).shape(Shape::Overlaid)),
    test(Canary::SealBeforeLeaves, "0105", "Recovery repeats what leaves may not have, whatever is sealed.",
        ("isobath", Some("engine"), "overlays::crashes::a_crash_after_sealing_keeps_what_was_changed_before_the_tree_had_overlays"),
        "a memory has to be sealed before leaves are written that were changed when the tree had none"),
    test(Canary::SealBesideBackup, "0105", "The log repeats what a backup has older copies of.",
        ("isobath", Some("engine"), "overlays::backups::a_backup_has_what_was_changed_before_the_tree_had_overlays"),
        "a tree has to get overlays, and a memory to be sealed, between a backup's last copy and its end"),
    row(Canary::SealBesideMerge, "0105", "A run is added between two merges.",
        campaign(&[]).shape(Shape::Overlaid)),
    test(Canary::LoadOverMerged, "0105", "Nothing is loaded where a run has something, merged or not.",
        ("isobath", Some("engine"), "overlays::what_is_loaded_again_is_there_whatever_merges_have_passed"),
        "a load has to come to keys that were removed, merged and not yet trimmed, and the store to be opened again"),
    row(Canary::StreamSkips, "0106", "A stream gives out all changes of a transaction.",
        campaign(&[]).shape(Shape::Streamed).quick()),
    row(Canary::StreamTwice, "0106", "A stream goes on behind what it has given out.",
        campaign(&[]).shape(Shape::Streamed).quick()),
    row(Canary::StreamOutOfOrder, "0106", "A stream keeps the order of commits.",
        campaign(&[]).shape(Shape::Streamed).quick()),
    row(Canary::StreamGoneValues, "0106", "A large value that is gone is not given out.",
        campaign(&[]).shape(Shape::Streamed)),
    row(Canary::StreamOldState, "0106", "A snapshot from which a stream reads has all changes that the stream leaves out.",
        campaign(&[]).shape(Shape::Streamed)),
    test(Canary::StreamUndurable, "0106", "A stream gives out what is durable.",
        ("isobath", Some("engine"), "streams::what_a_stream_gives_out_survives_a_power_cut"),
        "the power has to go between a write of the log and its flush, right after a look"),
    test(Canary::StreamUnflushed, "0106", "A stream beside a writer flushes what no record says to be durable.",
        ("isobath", Some("engine"), "streams::what_a_stream_beside_a_writer_gives_out_survives_a_power_cut"),
        "no simulated client reads beside the writer"),
    test(Canary::StreamUnwoken, "0106", "A stream that waits is woken by what becomes durable.",
        ("isobath", Some("engine"), "streams::a_stream_that_waits_is_woken_by_each_commit"),
        "simulated streams do not wait"),
];
