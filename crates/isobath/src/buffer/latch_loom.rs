//! The latch under loom, which runs every interleaving that the memory model
//! allows: `RUSTFLAGS="--cfg loom" cargo test -p isobath --release --lib latch_loom`.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;

use super::latch::Latch;

/// A latch over two words that every writer makes equal.
struct Page {
    latch: Latch,
    words: [AtomicU64; 2],
}

impl Page {
    fn new() -> Arc<Page> {
        let page = Page {
            latch: Latch::new_exclusive(),
            words: [AtomicU64::new(0), AtomicU64::new(0)],
        };
        page.latch.unlock_exclusive();
        Arc::new(page)
    }

    fn read(&self) -> (u64, u64) {
        (self.words[0].load(Relaxed), self.words[1].load(Relaxed))
    }

    fn write(&self, value: u64) {
        for word in &self.words {
            word.store(value, Relaxed);
        }
    }

    /// The value that an optimistic reader may act upon, if any.
    fn read_optimistically(&self) -> Option<u64> {
        let version = self.latch.optimistic()?;
        let (first, second) = self.read();
        if !self.latch.validate(version) {
            return None;
        }
        assert_eq!(first, second, "a torn read was validated");
        Some(first)
    }
}

#[test]
fn validated_reads_are_not_torn() {
    loom::model(|| {
        let page = Page::new();
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                assert!(page.latch.try_exclusive());
                page.write(1);
                page.latch.unlock_exclusive();
            })
        };
        let before = page.read_optimistically();
        let after = page.read_optimistically();
        assert!(before != Some(1) || after != Some(0), "time went backwards");
        writer.join().unwrap();
        assert_eq!(page.read_optimistically(), Some(1));
    });
}

#[test]
fn an_upgrade_sees_the_state_that_was_read() {
    loom::model(|| {
        let page = Page::new();
        let increments: Vec<_> = (0..2)
            .map(|_| {
                let page = Arc::clone(&page);
                thread::spawn(move || {
                    let Some(version) = page.latch.optimistic() else {
                        return 0;
                    };
                    let (first, _) = page.read();
                    if !page.latch.try_upgrade(version) {
                        return 0;
                    }
                    assert_eq!(page.read(), (first, first));
                    page.write(first + 1);
                    page.latch.unlock_exclusive();
                    1
                })
            })
            .collect();
        let done: u64 = increments
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .sum();
        assert_eq!(page.read_optimistically(), Some(done), "an update was lost");
    });
}

#[test]
fn shared_holders_keep_writers_out() {
    loom::model(|| {
        let page = Page::new();
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                if page.latch.try_exclusive() {
                    page.write(1);
                    page.latch.unlock_exclusive();
                }
            })
        };
        if page.latch.try_shared() {
            let version = page.latch.optimistic();
            let (first, second) = page.read();
            assert_eq!(first, second);
            assert_eq!(page.read(), (first, first), "changed under a shared latch");
            assert!(version.is_some_and(|version| page.latch.validate(version)));
            page.latch.unlock_shared();
        }
        writer.join().unwrap();
    });
}

#[test]
fn an_exclusive_hold_without_a_change_keeps_versions_valid() {
    loom::model(|| {
        let page = Page::new();
        let other = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                if page.latch.try_exclusive() {
                    page.latch.unlock_unchanged();
                }
            })
        };
        let version = page.latch.optimistic();
        other.join().unwrap();
        if let Some(version) = version {
            assert!(page.latch.validate(version));
        }
    });
}
