use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use isobath::{Options, Store};

use super::{CompletionThread, Lane, Limits, MAX_IN_FLIGHT, Port, Refused, Request, in_callback};

/// State shared by a test's requests.
#[derive(Default)]
struct Shared {
    now: AtomicU32,
    most: AtomicU32,
    /// Requests wait while this is set.
    is_held: AtomicBool,
    sum: AtomicU64,
}

struct Add {
    shared: Arc<Shared>,
    number: u64,
    panics: bool,
    has_failed: bool,
}

impl Add {
    fn new(shared: &Arc<Shared>, number: u64) -> Add {
        Add {
            shared: Arc::clone(shared),
            number,
            panics: false,
            has_failed: false,
        }
    }
}

impl Request for Add {
    fn run(&mut self) {
        let now = self.shared.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.shared.most.fetch_max(now, Ordering::SeqCst);
        isobath::yield_now();
        while self.shared.is_held.load(Ordering::SeqCst) {
            isobath::yield_now();
        }
        self.shared.now.fetch_sub(1, Ordering::SeqCst);
        assert!(!self.panics, "as the test requests");
        self.shared.sum.fetch_add(self.number, Ordering::SeqCst);
    }

    fn fail(&mut self) {
        self.has_failed = true;
    }

    fn refuse(&mut self) {
        self.has_failed = true;
    }

    fn bytes(&self) -> u64 {
        8
    }

    fn has_failed(&self) -> bool {
        self.has_failed
    }
}

fn store() -> Store {
    Store::in_memory(&Options::new().pool_bytes(8 << 20).workers(2)).unwrap()
}

fn open() -> bool {
    true
}

fn submit(lane: &Arc<Lane<Add>>, port: &Arc<Port<Add>>, request: Add) {
    assert!(lane.submit(port, request, open).is_ok());
}

fn poll_all(port: &Arc<Port<Add>>, count: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    while numbers.len() < count {
        port.wait_until(None, || port.has_completions());
        while let Some(request) = port.poll() {
            numbers.push(request.number);
        }
    }
    numbers
}

#[test]
fn each_request_completes_once_at_its_own_port() {
    let store = store();
    let shared = Arc::new(Shared::default());
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (store, shared) = (&store, &shared);
            scope.spawn(move || {
                let lane = Arc::new(Lane::new(store.clone(), Arc::new(Limits::new(8, 4))));
                let port = Arc::new(Port::new(None));
                let mut seen = Vec::new();
                for number in 0..500 {
                    submit(&lane, &port, Add::new(shared, thread * 1000 + number));
                    if number % 7 == 0 {
                        seen.extend(port.poll().map(|request| request.number));
                    }
                }
                seen.extend(poll_all(&port, 500 - seen.len()));
                seen.sort_unstable();
                assert_eq!(
                    seen,
                    (thread * 1000..thread * 1000 + 500).collect::<Vec<_>>()
                );
                let counters = port.counters();
                assert_eq!((counters.issued, counters.completed), (500, 500));
                assert_eq!((counters.in_flight, counters.bytes), (0, 4000));
            });
        }
    });
    store.close().unwrap();
}

#[test]
fn the_number_of_data_tasks_follows_its_limit_while_requests_wait() {
    let store = store();
    let limits = Arc::new(Limits::new(64, 2));
    let shared = Arc::new(Shared::default());
    let lane = Arc::new(Lane::new(store.clone(), Arc::clone(&limits)));
    let port = Arc::new(Port::new(None));
    shared.is_held.store(true, Ordering::SeqCst);
    for number in 0..40 {
        submit(&lane, &port, Add::new(&shared, number));
    }
    let reaches = |count: u32| {
        while shared.now.load(Ordering::SeqCst) < count {
            std::thread::yield_now();
        }
    };
    reaches(2);
    // More at once, by what is appended next.
    limits.set(64, 5);
    for number in 40..43 {
        submit(&lane, &port, Add::new(&shared, number));
    }
    reaches(5);
    assert_eq!(shared.most.load(Ordering::SeqCst), 5);
    // And fewer, as soon as those that run have ended.
    limits.set(64, 1);
    shared.is_held.store(false, Ordering::SeqCst);
    poll_all(&port, 43);
    shared.most.store(0, Ordering::SeqCst);
    for number in 0..40 {
        submit(&lane, &port, Add::new(&shared, number));
    }
    poll_all(&port, 40);
    assert_eq!(shared.most.load(Ordering::SeqCst), 1);
    store.close().unwrap();
}

#[test]
fn a_lane_that_threads_share_serves_one_request_at_a_time() {
    let store = store();
    let shared = Arc::new(Shared::default());
    let lane = Arc::new(Lane::new(store.clone(), Arc::new(Limits::new(1, 1))));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let port = Arc::new(Port::new(None));
                for number in 0..100 {
                    let done = lane.call(&port, Add::new(&shared, number), open);
                    assert_eq!(done.ok().flatten().map(|done| done.number), Some(number));
                }
                assert!(!port.has_completions());
            });
        }
    });
    assert_eq!(shared.most.load(Ordering::SeqCst), 1);
    assert_eq!(shared.sum.load(Ordering::SeqCst), 4 * 4950);
    store.close().unwrap();
}

#[test]
fn panics_and_refusals_lose_no_slot() {
    let store = store();
    let shared = Arc::new(Shared::default());
    let lane = Arc::new(Lane::new(store.clone(), Arc::new(Limits::new(1, 2))));
    let port = Arc::new(Port::new(None));
    for round in 0..3 {
        submit(
            &lane,
            &port,
            Add {
                panics: true,
                ..Add::new(&shared, round)
            },
        );
        let refused = lane.submit(&port, Add::new(&shared, round), || false);
        assert!(matches!(refused, Err(Refused::Closed)));
        poll_all(&port, 1);
    }
    assert_eq!(port.counters().failed, 3);
    // The whole table, and one more.
    shared.is_held.store(true, Ordering::SeqCst);
    for number in 0..u64::from(MAX_IN_FLIGHT) {
        submit(&lane, &port, Add::new(&shared, number));
    }
    let refused = lane.submit(&port, Add::new(&shared, 0), open);
    assert!(matches!(refused, Err(Refused::Full(_))));
    shared.is_held.store(false, Ordering::SeqCst);
    poll_all(&port, MAX_IN_FLIGHT as usize);
    assert_eq!(port.in_flight(), 0);
    store.close().unwrap();
}

#[test]
fn the_completion_thread_hands_over_what_all_ports_complete() {
    let store = store();
    let shared = Arc::new(Shared::default());
    let seen = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&seen);
    let mut thread = CompletionThread::start(move |request: Add| {
        assert!(in_callback());
        counted.fetch_add(1 + request.number, Ordering::SeqCst);
    })
    .unwrap();
    let limits = Arc::new(Limits::new(16, 4));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let lane = Arc::new(Lane::new(store.clone(), Arc::clone(&limits)));
                let port = Arc::new(Port::new(Some(thread.ready())));
                for number in 0..400 {
                    submit(&lane, &port, Add::new(&shared, number));
                }
                port.wait_until(Some(Duration::from_secs(60)), || port.in_flight() == 0);
            });
        }
    });
    thread.stop();
    assert!(!in_callback());
    assert_eq!(seen.load(Ordering::SeqCst), 3 * (400 + 399 * 200));
    store.close().unwrap();
}

#[test]
fn a_completion_is_announced_while_all_other_requests_wait() {
    let store = store();
    let (seen, wake) = std::sync::mpsc::channel();
    let mut thread = CompletionThread::start(move |request: Add| {
        let _ = seen.send(request.number);
    })
    .unwrap();
    for data_tasks in 1..=3u64 {
        let (quick, held) = (Arc::new(Shared::default()), Arc::new(Shared::default()));
        let lane = Arc::new(Lane::new(
            store.clone(),
            Arc::new(Limits::new(16, data_tasks as u32)),
        ));
        let port = Arc::new(Port::new(Some(thread.ready())));
        quick.is_held.store(true, Ordering::SeqCst);
        held.is_held.store(true, Ordering::SeqCst);
        for number in 0..3 {
            submit(&lane, &port, Add::new(&quick, number));
        }
        for number in 3..5 + data_tasks {
            submit(&lane, &port, Add::new(&held, number));
        }
        quick.is_held.store(false, Ordering::SeqCst);
        let next = || wake.recv_timeout(Duration::from_secs(60)).unwrap();
        let mut first = [next(), next(), next()];
        first.sort_unstable();
        assert_eq!(first, [0, 1, 2]);
        held.is_held.store(false, Ordering::SeqCst);
        let mut rest: Vec<u64> = (0..2 + data_tasks).map(|_| next()).collect();
        rest.sort_unstable();
        assert_eq!(rest, (3..5 + data_tasks).collect::<Vec<_>>());
    }
    thread.stop();
    store.close().unwrap();
}

#[test]
fn who_waits_for_room_is_woken_once_there_is_as_much_as_it_asked_for() {
    let store = store();
    let shared = Arc::new(Shared::default());
    let thread = CompletionThread::start(|_: Add| ()).unwrap();
    let lane = Arc::new(Lane::new(store.clone(), Arc::new(Limits::new(64, 2))));
    let port = Arc::new(Port::new(Some(thread.ready())));
    for round in 0..200 {
        for number in 0..64 {
            submit(&lane, &port, Add::new(&shared, number));
        }
        let began = std::time::Instant::now();
        port.wait_for_room(round % 64, Duration::from_secs(60));
        assert!(port.in_flight() <= round % 64);
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "nothing woke it in round {round}"
        );
        port.wait_for_room(0, Duration::from_secs(60));
    }
    store.close().unwrap();
}

#[test]
fn what_is_submitted_to_a_closed_store_completes() {
    let (store, shared) = (store(), Arc::new(Shared::default()));
    let lane = Arc::new(Lane::new(store.clone(), Arc::new(Limits::new(4, 1))));
    let port = Arc::new(Port::new(None));
    submit(&lane, &port, Add::new(&shared, 1));
    assert_eq!(poll_all(&port, 1), [1]);
    store.close().unwrap();
    // Each: a task that was refused is not counted as one that runs.
    for number in 2..5 {
        submit(&lane, &port, Add::new(&shared, number));
        let done = port.wait_until(Some(Duration::from_secs(60)), || port.has_completions());
        assert!(done, "nothing completes request {number}");
        assert!(port.poll().is_some_and(|request| request.has_failed));
    }
    assert_eq!(port.in_flight(), 0);
    // A call that waits for its result.
    let called = lane.call(&port, Add::new(&shared, 5), open);
    assert!(matches!(called, Ok(Some(request)) if request.has_failed));
    assert_eq!(shared.sum.load(Ordering::SeqCst), 1);
}
