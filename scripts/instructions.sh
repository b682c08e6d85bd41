#!/usr/bin/env bash
# Compares what the compiler makes of code that shares state through `crate::sync` with what it makes of the same code on
# `std` and `parking_lot` alone: in builds without simulations the two have to be the same, instruction by instruction.
#
#   scripts/instructions.sh             prints how many functions were compared; fails at the first difference
#
# The code is the engine's own: the latch, the log's LSNs in flight, the words of a frame, and a few functions with each type that
# `crate::sync` offers.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
work=$root/target/instructions
engine=$root/crates/isobath/src
rm -rf "$work/src" "$work"/*.s
mkdir -p "$work/src"
cp Cargo.lock "$work/"

cat >"$work/Cargo.toml" <<EOF
[package]
name = "instructions"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
parking_lot = "0.12"

[lints.rust]
unexpected_cfgs = "allow"

[profile.release]
codegen-units = 1
EOF

# Both variants are one crate with one name, so that symbols are the same too.
cat >"$work/src/lib.rs" <<EOF
#![allow(dead_code, unused_imports, missing_docs, private_interfaces)]
#[cfg(through_sync)]
#[path = "$engine/sync.rs"]
mod sync;
#[cfg(not(through_sync))]
#[path = "$work/src/plain.rs"]
mod sync;
#[path = "$engine/buffer/latch.rs"]
mod latch;
#[path = "$engine/log/in_flight.rs"]
mod in_flight;
#[path = "$engine/node/words.rs"]
mod words;
mod page {
    pub const PAGE_SIZE: usize = 4096;
}
include!("$work/src/functions.rs");
EOF

cat >"$work/src/plain.rs" <<'EOF'
pub mod atomic {
    pub use std::sync::atomic::*;
}
pub use atomic as modelled;
pub use parking_lot::{Condvar, Mutex, MutexGuard};
pub use std::hint::spin_loop;
pub use std::sync::OnceLock;
pub mod bytes {
    pub use std::sync::atomic::AtomicU64;
    #[inline(always)]
    pub fn point() {}
}
EOF

cat >"$work/src/functions.rs" <<'EOF'
use sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::*, fence};
use sync::{Mutex, OnceLock, spin_loop};

macro_rules! functions {
    ($($name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)? $body:block)+) => {
        $(#[unsafe(no_mangle)] pub fn $name($($arg: $type),*) $(-> $result)? $body)+
    };
}

functions! {
    shared_flag(flag: &AtomicBool) -> bool { flag.swap(true, AcqRel) }
    shared_byte(byte: &AtomicU8) -> u8 { byte.fetch_or(3, AcqRel) }
    shared_word(word: &AtomicU32) -> bool { word.compare_exchange(1, 2, AcqRel, Acquire).is_ok() }
    shared_count(count: &AtomicUsize) -> usize { count.fetch_add(1, Relaxed) }
    shared_least(least: &AtomicU64, lsn: u64) -> u64 { least.fetch_min(lsn, AcqRel) }
    shared_most(most: &AtomicU64, lsn: u64) -> u64 { most.fetch_max(lsn, AcqRel) }
    published(word: &AtomicU64, flag: &AtomicBool, to: u64) { word.store(to, Relaxed); flag.store(true, Release); }
    fenced(word: &AtomicU64, flag: &AtomicBool) -> u64 { flag.store(true, Relaxed); fence(SeqCst); word.load(Relaxed) }
    waited(flag: &AtomicBool) { while !flag.load(Acquire) { spin_loop(); } }
    locked(list: &Mutex<Vec<u64>>, item: u64) -> usize { let mut list = list.lock(); list.push(item); list.len() }
    tried(list: &Mutex<Vec<u64>>) -> Option<u64> { list.try_lock()?.pop() }
    once(cell: &OnceLock<u64>) -> u64 { *cell.get_or_init(|| 7) }
    once_set(cell: &OnceLock<u64>) -> bool { cell.set(7).is_ok() && cell.get().is_some() }
    latch_read(latch: &latch::Latch) -> bool { latch.optimistic().is_some_and(|version| latch.validate(version)) }
    latch_shared(latch: &latch::Latch) -> bool { latch.try_shared() }
    latch_unshared(latch: &latch::Latch) { latch.unlock_shared() }
    latch_exclusive(latch: &latch::Latch) -> bool { latch.try_exclusive() }
    latch_upgraded(latch: &latch::Latch) -> bool { latch.optimistic().is_some_and(|version| latch.try_upgrade(version)) }
    latch_unlocked(latch: &latch::Latch) { latch.unlock_exclusive() }
    latch_unchanged(latch: &latch::Latch) { latch.unlock_unchanged() }
    page_out(words: &words::Words, into: &mut [u8; 4096]) { words.load_all(into) }
    page_in(words: &words::Words, from: &[u8; 4096]) { words.store_all(from) }
    bytes_out(words: &words::Words, at: usize, into: &mut [u8]) -> bool { words.copy_out(at, into) }
    bytes_in(words: &words::Words, at: usize, from: &[u8]) { words.write(at, from) }
    log_taken(lsns: &in_flight::InFlightLsns, writer: usize) -> u64 { lsns.begin(writer); let at = lsns.take(64); lsns.end(writer); at }
    log_complete(lsns: &in_flight::InFlightLsns) -> u64 { lsns.contiguous_lsn() }
    bytes_compared(words: &words::Words, at: usize, key: &[u8]) -> Option<std::cmp::Ordering> { words.compare(at, 32, key) }
}
EOF

compile() {
    local out=$1
    shift
    # The same paths and names for both, so that nothing else differs.
    CARGO_TARGET_DIR="$work/target" cargo rustc --quiet --release --manifest-path "$work/Cargo.toml" --lib -- \
        --emit asm="$work/$out.s" -C debuginfo=0 -C strip=none "$@"
    # Names of source files stand in messages of panics; hashes of symbols differ with the modules that a name is in.
    sed -E -e 's/17h[0-9a-f]{16}E/17hE/g' -e '/^\t\.(file|ident|section)/d' "$work/$out.s" >"$work/$out.plain"
}

compile sync --cfg through_sync
compile std
if ! diff -u "$work/std.plain" "$work/sync.plain"; then
    echo "crate::sync compiles to other instructions than std" >&2
    exit 1
fi
functions=$(grep -cE '^    [a-z_]+\(.*\{ .* \}$' "$work/src/functions.rs")
instructions=$(grep -cE $'^\t[a-z]' "$work/sync.plain")
echo "$functions functions, $instructions instructions: the same through crate::sync and std"
