//! The marks under loom, which runs every interleaving that the memory model
//! allows: `RUSTFLAGS="--cfg loom" cargo test -p isobath --release --lib loom`.

#![allow(unsafe_code)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use super::in_flight::InFlightLsns;

/// Two writers' worth of ring: loom reports a read that races with its write.
struct Log {
    in_flight: InFlightLsns,
    ring: [UnsafeCell<u64>; 4],
}

impl Log {
    fn new() -> Arc<Log> {
        Arc::new(Log {
            in_flight: InFlightLsns::new(0, 2),
            ring: std::array::from_fn(|_| UnsafeCell::new(u64::MAX)),
        })
    }

    fn append(&self, writer: usize) {
        self.in_flight.begin(writer);
        let at = self.in_flight.take(1);
        self.ring[at as usize].with_mut(|cell| {
            // SAFETY: the place is this writer's alone; loom checks that it is.
            unsafe { *cell = at }
        });
        self.in_flight.end(writer);
    }

    /// Reads all that is complete, as a flush does.
    fn flush(&self) -> u64 {
        let complete = self.in_flight.contiguous_lsn();
        for at in 0..complete {
            self.ring[at as usize].with(|cell| {
                // SAFETY: complete; loom checks that no write races.
                assert_eq!(unsafe { *cell }, at, "an incomplete unit was flushed");
            });
        }
        complete
    }
}

#[test]
fn what_is_complete_can_be_read() {
    loom::model(|| {
        let log = Log::new();
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let log = Arc::clone(&log);
                thread::spawn(move || log.append(writer))
            })
            .collect();
        let before = log.flush();
        for writer in writers {
            writer.join().unwrap();
        }
        assert!(before <= 2);
        assert_eq!(log.flush(), 2);
    });
}

#[test]
fn a_writers_second_unit_does_not_hide_its_first() {
    loom::model(|| {
        let log = Log::new();
        let writer = {
            let log = Arc::clone(&log);
            thread::spawn(move || {
                log.append(0);
                log.append(0);
            })
        };
        log.flush();
        writer.join().unwrap();
        assert_eq!(log.flush(), 2);
    });
}

#[test]
fn padding_beside_a_writer_leaves_no_hole() {
    loom::model(|| {
        let log = Log::new();
        let writer = {
            let log = Arc::clone(&log);
            thread::spawn(move || log.append(0))
        };
        log.in_flight.begin(1);
        let (start, end) = log.in_flight.take_to_multiple(2);
        for at in start..end {
            log.ring[at as usize].with_mut(|cell| {
                // SAFETY: taken above.
                unsafe { *cell = at }
            });
        }
        log.in_flight.end(1);
        log.flush();
        writer.join().unwrap();
        let end = log.flush();
        assert_eq!(end, log.in_flight.next());
        assert!(end == 1 || end == 2);
    });
}
