//! Users of a space leave segments for cleaning and for checkpoints.

use isobath_flash::policy::{Cause, History, PageWrite, PolicyKind};

use super::*;

const SEGMENT_BYTES: u32 = 64 << 10;

/// A space of 900 segments, one of them the system's.
fn space() -> (SegmentAllocator, ReservedWords) {
    space_of(PolicyKind::Greedy)
}

fn space_of(policy: PolicyKind) -> (SegmentAllocator, ReservedWords) {
    let policy = policy.build(10_000);
    let seqs = ReservedWords::reserve(1 << 20).unwrap();
    (
        SegmentAllocator::new(900, SegmentSize::of(SEGMENT_BYTES), 4096, 1, policy),
        seqs,
    )
}

/// Writes a page; where it is, unless there is no segment for it.
fn write(
    space: &mut SegmentAllocator,
    seqs: &ReservedWords,
    page: u64,
    cause: Cause,
) -> Option<Address> {
    write_with(space, seqs, page, cause, History::UNKNOWN)
}

fn write_with(
    space: &mut SegmentAllocator,
    seqs: &ReservedWords,
    page: u64,
    cause: Cause,
    history: History,
) -> Option<Address> {
    let request = Request {
        page: PageId(page),
        is_run: false,
        write: PageWrite {
            token: 0,
            bytes: PAGE_SIZE as u32,
            cause,
            history,
            rate: 0.0,
        },
    };
    let (mut placed, mut closing) = (Vec::new(), Vec::new());
    let outcome = space.place(Content::Pages, &[request], seqs, &mut placed, &mut closing);
    for closing in closing {
        space.written(closing.segment);
    }
    outcome.ok()?;
    space.written(placed[0].address.segment());
    Some(placed[0].address)
}

/// Writes new pages until a user finds no segment any more; returns their places.
fn fill(space: &mut SegmentAllocator, seqs: &ReservedWords, next_page: &mut u64) -> Vec<Address> {
    std::iter::from_fn(|| {
        let address = write(space, seqs, *next_page, Cause::User)?;
        *next_page += 1;
        Some(address)
    })
    .collect()
}

/// Moves pages once each, as cleaning does.
fn move_all(space: &mut SegmentAllocator, seqs: &ReservedWords, addresses: &mut [Address]) {
    for (page, address) in (1..).zip(addresses) {
        let moved = write(space, seqs, page, Cause::Relocated).unwrap();
        space.invalidate(std::mem::replace(address, moved));
    }
}

/// A victim to clean.
fn begin(space: &mut SegmentAllocator) -> u32 {
    match space.begin_cleaning(false) {
        Victim::Segment(segment) => segment,
        other => panic!("{other:?}"),
    }
}

/// How many victims are cleaned at a time if no task ends.
fn victims(space: &mut SegmentAllocator) -> u32 {
    let next = || match space.begin_cleaning(false) {
        Victim::Segment(segment) => Some(segment),
        Victim::Wait | Victim::None => None,
    };
    std::iter::from_fn(next).count() as u32
}

#[test]
fn space_for_a_checkpoint_is_reserved_only_while_one_may_come() {
    let (mut space, seqs) = space();
    let reserve = space.reserve();
    // One page in 504 words, and the segment table.
    assert!(reserve > MIN_OPEN + 900 / 504, "{reserve}");
    let mut page = 1;
    fill(&mut space, &seqs, &mut page);
    assert_eq!(space.free_segments(), reserve);
    space.reserve_for_checkpoint(false);
    assert_eq!(space.reserve(), reserve, "what live data must leave stays");
    fill(&mut space, &seqs, &mut page);
    assert_eq!(space.free_segments(), MIN_OPEN);
    // What is to be cleaned before a checkpoint.
    space.reserve_for_checkpoint(true);
    assert_eq!(space.spare_segments(), 0);
    assert!(space.free_segments() < space.reserve());
}

#[test]
fn as_many_victims_are_cleaned_at_a_time_as_users_leave_segments_free() {
    for keeps in [true, false] {
        let (mut space, seqs) = space();
        let addresses = fill(&mut space, &seqs, &mut 1);
        // A page in each of them becomes obsolete, so that all can be cleaned and none is free.
        let free = space.free_segments();
        for address in addresses.iter().filter(|address| address.offset() == 0) {
            space.invalidate(*address);
        }
        assert_eq!(space.free_segments(), free);
        space.reserve_for_checkpoint(keeps);
        let left = if keeps { space.reserve() } else { MIN_OPEN };
        // User writes may take what is free beyond these before the victims are moved.
        assert_eq!(victims(&mut space), left, "{keeps}");
    }
}

/// Chooses as many victims as may be cleaned at a time, has a checkpoint take what it gets, and
/// moves what lives in the victims; how many segments the checkpoint got before and after, and
/// whether all could be moved.
fn checkpoint_beside_victims() -> (usize, usize, bool) {
    let (mut space, seqs) = space();
    let mut addresses = fill(&mut space, &seqs, &mut 1);
    let (dead, live): (Vec<_>, Vec<_>) = (1..)
        .zip(addresses.drain(..))
        .partition(|(_, address)| address.offset() == 0);
    dead.iter().for_each(|(_, address)| {
        space.invalidate(*address);
    });
    let chosen: Vec<u32> = (0..space.reserve()).map(|_| begin(&mut space)).collect();
    assert_eq!(space.begin_cleaning(false), Victim::Wait);
    let take =
        |space: &mut SegmentAllocator| std::iter::from_fn(|| space.take_for_checkpoint()).count();
    let before = take(&mut space);
    let mut is_whole = true;
    for (page, address) in live {
        if chosen.contains(&address.segment()) {
            match write(&mut space, &seqs, page, Cause::Relocated) {
                Some(_) => space.invalidate(address),
                None => is_whole = false,
            }
        }
    }
    for &victim in &chosen {
        space.end_cleaning(victim, CleaningEnd::Emptied);
    }
    (before, take(&mut space), is_whole)
}

#[test]
fn a_checkpoint_leaves_victims_the_space_that_they_count_on() {
    let (before, after, is_whole) = checkpoint_beside_victims();
    assert!(before == 0 && after > 0 && is_whole);
    Canary::TakeSpaceOfVictims.switch_on();
    let (before, _, is_whole) = checkpoint_beside_victims();
    assert!(before > 0 && !is_whole);
}

#[test]
fn the_smallest_spaces_keep_a_segment_for_cleaning() {
    let (_, seqs) = space();
    let policy = PolicyKind::Greedy.build(100);
    let mut space = SegmentAllocator::new(4, SegmentSize::of(SEGMENT_BYTES), 4096, 1, policy);
    space.reserve_for_checkpoint(false);
    fill(&mut space, &seqs, &mut 1);
    assert_eq!(space.free_segments(), 1);
}

#[test]
fn cleaning_ends_where_it_has_moved_everything_for_nothing() {
    let (mut space, seqs) = space();
    let mut page = 1;
    let mut addresses = fill(&mut space, &seqs, &mut page);
    // One cannot be cleaned: that ends without having moved anything.
    let victim = begin(&mut space);
    space.end_cleaning(victim, CleaningEnd::Bad);
    assert_eq!(space.bad_segments(), 1);
    addresses.retain(|a| a.segment() != victim);
    for _ in 0..2 {
        move_all(&mut space, &seqs, &mut addresses);
        assert!(
            !space.cleaning_makes_no_progress(),
            "once or twice may be in order"
        );
    }
    move_all(&mut space, &seqs, &mut addresses);
    assert!(space.cleaning_makes_no_progress());
    assert_eq!(space.begin_cleaning(false), Victim::None);

    // A page elsewhere becomes obsolete: that may be enough.
    space.invalidate(addresses.swap_remove(0));
    assert!(!space.cleaning_makes_no_progress());
    move_all(&mut space, &seqs, &mut addresses);
    assert!(
        !space.cleaning_makes_no_progress(),
        "each page was moved once"
    );
    move_all(&mut space, &seqs, &mut addresses);
    move_all(&mut space, &seqs, &mut addresses);
    assert!(space.cleaning_makes_no_progress());

    // A larger volume.
    space.grow(910);
    assert!(!space.cleaning_makes_no_progress());
    for _ in 0..3 {
        move_all(&mut space, &seqs, &mut addresses);
    }
    assert!(space.cleaning_makes_no_progress());
    // A user got a place.
    assert!(write(&mut space, &seqs, page, Cause::User).is_some());
    assert!(!space.cleaning_makes_no_progress());
}

/// Multi-log looks near the log of the last user write: on a full volume that may be where nothing
/// is to be gained.
#[test]
fn before_cleaning_ends_the_emptiest_segment_is_tried() {
    let (mut space, seqs) = space_of(PolicyKind::MultiLog);
    let mut addresses = fill(&mut space, &seqs, &mut 1);
    // Every segment has a page that is obsolete, one has nearly nothing else.
    let last = addresses[addresses.len() / 2];
    let emptiest = last.segment();
    let mut seen = std::collections::HashSet::new();
    addresses.retain(|address| {
        let segment = address.segment();
        let is_first = seen.insert(segment);
        let is_obsolete = *address != last && (is_first || segment == emptiest);
        if is_obsolete {
            space.invalidate(*address);
        }
        !is_obsolete
    });
    let mut chosen = Vec::new();
    // Bound: all of them.
    for _ in 0..space.segments() {
        match space.begin_cleaning(false) {
            Victim::Segment(victim) => {
                chosen.push(victim);
                space.end_cleaning(victim, CleaningEnd::Bad);
            }
            other => panic!("{other:?} after {chosen:?}"),
        }
        let moved = space.live_bytes as u32;
        space.progress.moved(moved + 1);
        if chosen.contains(&emptiest) {
            break;
        }
    }
    assert!(chosen.len() <= 2, "{} others first", chosen.len() - 1);
}

#[test]
fn cleaning_after_opening_is_judged_by_what_lives_there() {
    let (mut before, seqs) = space();
    let mut addresses = fill(&mut before, &seqs, &mut 1);
    let segments = 0..before.segments();
    let words: Vec<[u64; 4]> = segments
        .clone()
        .map(|s| before.to_words(s, &seqs))
        .collect();
    let live = segments.map(|segment| {
        let there = addresses.iter().filter(|a| a.segment() == segment);
        let pages = there.count() as u32;
        (pages * PAGE_SIZE as u32, pages)
    });
    let live: Vec<(u32, u32)> = live.collect();
    let (mut opened, _) = space();
    opened.restore(before.now, &words, &live, 0, &seqs);

    let victim = begin(&mut opened);
    opened.end_cleaning(victim, CleaningEnd::Bad);
    assert_eq!(opened.bad_segments(), 1);
    addresses.retain(|a| a.segment() != victim);
    move_all(&mut opened, &seqs, &mut addresses);
    assert!(
        !opened.cleaning_makes_no_progress(),
        "each page was moved once"
    );
}

#[test]
fn a_summary_outside_its_segment_is_none() {
    let (mut before, seqs) = space();
    let segment = fill(&mut before, &seqs, &mut 1)[0].segment();
    for offset in [SEGMENT_BYTES, u32::MAX, 1] {
        let mut words = vec![[1, 0, 0, 0]; before.segments() as usize];
        words[segment as usize][1] = u64::from(offset);
        let mut live = vec![(0, 0); before.segments() as usize];
        live[segment as usize] = (PAGE_SIZE as u32, 1);
        let (mut opened, seqs) = space();
        opened.restore(before.now, &words, &live, 0, &seqs);
        assert_eq!(opened.summary_offset(segment), 0, "{offset}");
    }
}

/// Writes a chunk of `length` bytes, and the summaries of segments that became full.
fn write_chunk(
    space: &mut SegmentAllocator,
    seqs: &ReservedWords,
    page: u64,
    length: u32,
) -> Address {
    let request = Request {
        page: PageId(page),
        is_run: false,
        write: PageWrite {
            token: 0,
            bytes: length,
            cause: Cause::User,
            history: History::UNKNOWN,
            rate: 0.0,
        },
    };
    let (mut placed, mut closing) = (Vec::new(), Vec::new());
    let outcome = space.place(Content::Chunks, &[request], seqs, &mut placed, &mut closing);
    outcome.unwrap();
    for closing in closing {
        space.written(closing.segment);
    }
    space.written(placed[0].address.segment());
    placed[0].address
}

/// The space after it was closed and opened again; `live` is what lives there.
fn reopened(before: SegmentAllocator, seqs: &ReservedWords, live: &[Address]) -> SegmentAllocator {
    reopened_with(PolicyKind::Greedy, before, seqs, live)
}

fn reopened_with(
    policy: PolicyKind,
    mut before: SegmentAllocator,
    seqs: &ReservedWords,
    live: &[Address],
) -> SegmentAllocator {
    let mut closing = Vec::new();
    before.close_all(&mut closing);
    for closing in closing {
        before.written(closing.segment);
    }
    let segments = 0..before.segments();
    let words = segments.clone().map(|s| before.to_words(s, seqs));
    let words: Vec<[u64; 4]> = words.collect();
    let live_in = |segment| {
        let there = live.iter().filter(|a| a.segment() == segment);
        there.fold((0, 0), |(bytes, pages), a| (bytes + a.length(), pages + 1))
    };
    let live_words: Vec<(u32, u32)> = segments.map(live_in).collect();
    let chunk_bytes = live.iter().map(|a| u64::from(a.length())).sum();
    let (mut opened, _) = space_of(policy);
    opened.restore(before.now, &words, &live_words, chunk_bytes, seqs);
    opened
}

#[test]
fn what_is_unused_of_a_segment_that_was_not_full_is_worth_cleaning() {
    let (mut now, seqs) = space();
    let mut live = Vec::new();
    // Each opening leaves a segment with one chunk in it.
    for page in 1..=20 {
        live.push(write_chunk(&mut now, &seqs, page, 6 << 10));
        now = reopened(now, &seqs, &live);
        let segment = SegmentId(live[live.len() - 1].segment());
        assert_eq!(now.table.live_bytes(segment), 6 << 10, "{page}");
    }
    // A segment that is full: its end is too short for a chunk, and moving those there would not
    // win it back.
    let first = write_chunk(&mut now, &seqs, 100, 6 << 10);
    while now.live_bytes_of(first.segment()) + (6 << 10) < SEGMENT_BYTES {
        live.push(write_chunk(&mut now, &seqs, 101, 6 << 10));
        if live[live.len() - 1].segment() != first.segment() {
            break;
        }
    }
    let end = now.table.live_bytes(SegmentId(first.segment()));
    assert!(end > now.live_bytes_of(first.segment()), "{end}");
    // So a segment with one chunk is cleaned first.
    let victim = begin(&mut now);
    assert_eq!(now.live_bytes_of(victim), 6 << 10);
}

#[test]
fn a_segment_that_was_emptied_but_is_needed_still_is_no_bad_one() {
    let (mut space, seqs) = space();
    let addresses = fill(&mut space, &seqs, &mut 1);
    let victim = begin(&mut space);
    space.retain_obsolete();
    assert_eq!(space.begin_cleaning(false), Victim::Wait);
    for address in addresses.iter().filter(|a| a.segment() == victim) {
        write(&mut space, &seqs, 1, Cause::Relocated).unwrap();
        space.invalidate(*address);
    }
    space.end_cleaning(victim, CleaningEnd::Emptied);
    assert_eq!(space.bad_segments(), 0);
    assert_ne!(space.table.state(SegmentId(victim)), SegmentState::Free);
    space.release_dead();
    assert_eq!(space.table.state(SegmentId(victim)), SegmentState::Free);
}

/// Where a checkpoint says that the summary of a full segment is before that was written, and
/// afterwards; where it is.
fn named_summary() -> (u32, u32, u32) {
    let (mut space, seqs) = space();
    let (mut placed, mut closing) = (Vec::new(), Vec::new());
    for page in 1..=SEGMENT_BYTES / PAGE_SIZE as u32 {
        let request = Request {
            page: PageId(u64::from(page)),
            is_run: false,
            write: PageWrite {
                token: 0,
                bytes: PAGE_SIZE as u32,
                cause: Cause::User,
                history: History::UNKNOWN,
                rate: 0.0,
            },
        };
        let outcome = space.place(Content::Pages, &[request], &seqs, &mut placed, &mut closing);
        outcome.unwrap();
        space.written(placed[placed.len() - 1].address.segment());
    }
    let [full] = &closing[..] else {
        panic!("{closing:?}");
    };
    let named = |space: &SegmentAllocator| space.to_words(full.segment, &seqs)[1] as u32;
    let before = named(&space);
    space.written(full.segment);
    (before, named(&space), full.offset)
}

#[test]
fn a_checkpoint_names_a_summary_once_it_is_written() {
    let (before, after, at) = named_summary();
    assert_eq!((before, after), (0, at));
    Canary::SummaryTooEarly.switch_on();
    assert_eq!(named_summary().0, at);
}

/// Pages of a space under life-table: 1 to 200 are updated ten times each after all of them were
/// written.
fn with_hot_pages() -> (SegmentAllocator, ReservedWords, Vec<Address>) {
    const PAGES: u64 = 2000;
    let (mut space, seqs) = space_of(PolicyKind::LifeTable);
    let hot = (0..2000).map(|n| n % 200);
    let mut addresses = vec![Address::NONE; PAGES as usize];
    for page in (0..PAGES).chain(hot) {
        let old = addresses[page as usize];
        let inherited = space.inherited(PageId(page + 1), old);
        let now = space.now;
        let history = space.policy.updated(inherited, now);
        let new = write_with(&mut space, &seqs, page + 1, Cause::User, history).unwrap();
        addresses[page as usize] = new;
        if !old.is_none() {
            space.invalidate(old);
        }
    }
    (space, seqs, addresses)
}

/// Whether the allocator distinguishes hot pages from cold ones, and all have metadata.
fn tells_hot_pages(space: &SegmentAllocator, addresses: &[Address]) -> bool {
    let history = |page: usize| space.inherited(PageId(page as u64 + 1), addresses[page]);
    let known = |page| history(page).is_known();
    (0..addresses.len()).all(known) && history(100) != history(1500)
}

#[test]
fn histories_of_pages_survive_closing_and_growing_as_their_segments() {
    let (space, seqs, addresses) = with_hot_pages();
    assert!(tells_hot_pages(&space, &addresses));
    let mut opened = reopened_with(PolicyKind::LifeTable, space, &seqs, &addresses);
    assert!(tells_hot_pages(&opened, &addresses));
    // So large that time stamps get a coarser unit.
    opened.grow(4000);
    assert!(tells_hot_pages(&opened, &addresses));
    // A page that is written again has a history of its own; one that is freed has none.
    let inherited = opened.inherited(PageId(101), addresses[100]);
    let now = opened.now + 1000;
    let history = opened.policy.updated(inherited, now);
    let new = write_with(&mut opened, &seqs, 101, Cause::User, history).unwrap();
    assert_eq!(opened.inherited(PageId(101), new), history);
    opened.page_freed(PageId(101), new);
    assert_ne!(opened.inherited(PageId(101), new), history);
}

/// A policy stores a segment's history in MDC's terms, so that another one understands it.
#[test]
fn a_space_can_be_opened_with_another_policy() {
    let (space, seqs, addresses) = with_hot_pages();
    let opened = reopened_with(PolicyKind::Mdc, space, &seqs, &addresses);
    let u_p2 = |page: usize| opened.inherited(PageId(page as u64 + 1), addresses[page]);
    assert!(u_p2(100).0 <= opened.now && u_p2(1500).0 < u_p2(100).0);
    let now = opened.now;
    let opened = reopened_with(PolicyKind::LifeTable, opened, &seqs, &addresses);
    assert!(tells_hot_pages(&opened, &addresses) && opened.now == now);
}
