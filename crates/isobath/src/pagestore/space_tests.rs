//! What users of a space leave free for cleaning and for checkpoints.

use isobath_flash::policy::{Cause, History, PageWrite, PolicyKind};

use super::*;

const SEGMENT_BYTES: u32 = 64 << 10;

/// A space of 900 segments, one of them the system's.
fn space() -> (Space, ReservedWords) {
    let policy = PolicyKind::Greedy.build(10_000);
    let seqs = ReservedWords::reserve(1 << 20).unwrap();
    (Space::new(900, SEGMENT_BYTES, 4096, 1, policy), seqs)
}

/// Writes new pages until a user finds no segment any more; where they are.
fn fill(space: &mut Space, seqs: &ReservedWords, next_page: &mut u64) -> Vec<Address> {
    let mut addresses = Vec::new();
    loop {
        let request = Request {
            page: PageId(*next_page),
            write: PageWrite {
                token: 0,
                bytes: PAGE_SIZE as u32,
                cause: Cause::User,
                history: History::UNKNOWN,
                rate: 0.0,
            },
        };
        let (mut placed, mut closing) = (Vec::new(), Vec::new());
        let outcome = space.place(Content::Pages, &[request], seqs, &mut placed, &mut closing);
        for closing in closing {
            space.written(closing.segment);
        }
        for placed in placed {
            space.written(placed.address.segment());
            addresses.push(placed.address);
            *next_page += 1;
        }
        if outcome.is_err() {
            return addresses;
        }
    }
}

/// How many victims are cleaned at a time where nobody ends.
fn victims(space: &mut Space) -> u32 {
    std::iter::from_fn(|| space.begin_cleaning()).count() as u32
}

#[test]
fn room_for_a_checkpoint_is_kept_only_while_one_may_come() {
    let (mut space, seqs) = space();
    let reserve = space.reserve();
    // One page in 504 words, and the segment table.
    assert!(reserve > OPEN_LEAST + 900 / 504, "{reserve}");
    let mut page = 1;
    fill(&mut space, &seqs, &mut page);
    assert_eq!(space.free_segments(), reserve);
    space.keep_checkpoint_room(false);
    assert_eq!(space.reserve(), reserve, "what live data must leave stays");
    fill(&mut space, &seqs, &mut page);
    assert_eq!(space.free_segments(), OPEN_LEAST);
    // What is to be cleaned before a checkpoint.
    space.keep_checkpoint_room(true);
    assert_eq!(space.spare_segments(), 0);
    assert!(space.free_segments() < space.reserve());
}

#[test]
fn as_many_victims_are_cleaned_at_a_time_as_users_leave_segments_free() {
    for keeps in [true, false] {
        let (mut space, seqs) = space();
        let addresses = fill(&mut space, &seqs, &mut 1);
        // A page in each of them dies, so that all can be cleaned and none is free.
        for address in addresses.iter().filter(|address| address.offset() == 0) {
            assert!(!space.kill(*address));
        }
        space.keep_checkpoint_room(keeps);
        let left = if keeps { space.reserve() } else { OPEN_LEAST };
        // User writes may take what is free beyond these before the victims are moved.
        assert_eq!(victims(&mut space), left, "{keeps}");
    }
}

#[test]
fn the_smallest_spaces_keep_a_segment_for_cleaning() {
    let (_, seqs) = space();
    let policy = PolicyKind::Greedy.build(100);
    let mut space = Space::new(4, SEGMENT_BYTES, 4096, 1, policy);
    space.keep_checkpoint_room(false);
    fill(&mut space, &seqs, &mut 1);
    assert_eq!(space.free_segments(), 1);
}
