//! The model of dedicated I/O threads (paper 001, Figure 10a): threads that need I/Os send messages
//! to threads that own the channels, and get messages back.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use isobath_io::{Volume, Waker};

use crate::raw::RawError;
use crate::raw::load::{Access, Phase, Shared};
use crate::raw::plan::{IoModel, RawPlan};
use crate::raw::worker::{Lane, Measured, Window};

/// How long an I/O thread sleeps at most before it looks at the phase again.
const NAP: Duration = Duration::from_millis(10);

/// A request: the asking thread, and where to go.
type Request = (u32, Access);

type Outcome = Result<Option<Measured>, RawError>;

/// Starts the I/O threads and the threads that ask them.
pub(super) fn spawn<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    plan: &'env RawPlan,
    volume: &'env Volume,
    shared: &'env Shared,
    io_threads: u32,
) -> Vec<ScopedJoinHandle<'scope, Outcome>> {
    let (answer_to, answers): (Vec<_>, Vec<_>) = (0..plan.threads).map(|_| channel()).unzip();
    let mut lines = Vec::new();
    let mut threads = Vec::new();
    for index in 0..io_threads {
        let (to, from) = channel();
        let (waker_to, waker_from) = channel();
        let answer_to = answer_to.clone();
        threads.push(scope.spawn(move || {
            let result = serve(plan, volume, shared, index, from, &answer_to, &waker_to);
            if result.is_err() {
                shared.failed.store(true, Ordering::Relaxed);
            }
            result.map(Some)
        }));
        // Without a waker the thread has failed already; its own result says why.
        let waker: Option<Waker> = waker_from.recv().ok();
        lines.push((to, waker));
    }
    for (index, answers) in answers.into_iter().enumerate() {
        let lines = lines.clone();
        threads.push(scope.spawn(move || {
            ask(plan, shared, index as u32, &lines, &answers);
            Ok(None)
        }));
    }
    threads
}

/// An I/O thread: I/Os of all askers through one channel.
fn serve(
    plan: &RawPlan,
    volume: &Volume,
    shared: &Shared,
    index: u32,
    requests: Receiver<Request>,
    answer_to: &[Sender<()>],
    waker_to: &Sender<Waker>,
) -> Result<Measured, RawError> {
    let mut own = plan.clone();
    // All that askers may have in flight could meet here.
    own.depth = (plan.depth * plan.threads).min(32768);
    if let IoModel::DedicatedThreads { io_threads } = plan.model {
        own.threads = io_threads;
    }
    let mut lane = Lane::new(&own, volume, plan.seed + u64::from(index))?;
    // The starter waits for it.
    let _ = waker_to.send(lane.channel().waker());
    let mut window = Window::default();
    // An asker that has ended needs no answer.
    let mut answer = |asker: u32| {
        // The asker may have ended.
        let _ = answer_to[asker as usize].send(());
    };
    loop {
        if shared.phase() == Phase::Measuring {
            window.open(lane.stats());
        }
        let mut asked = false;
        let mut hung_up = false;
        while lane.has_room() {
            match requests.try_recv() {
                Ok((asker, place)) => asked |= lane.submit(place, asker),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    hung_up = true;
                    break;
                }
            }
        }
        if hung_up && lane.in_flight() == 0 {
            break;
        }
        if asked {
            lane.poll(&mut answer)?;
        } else if lane.in_flight() > 0 {
            lane.reap(&mut answer)?;
        } else {
            lane.channel().wait(1, Some(NAP), &mut Vec::new())?;
        }
    }
    Ok(window.close(lane.stats()))
}

/// A thread that needs I/Os, and has no channel.
fn ask(
    plan: &RawPlan,
    shared: &Shared,
    index: u32,
    lines: &[(Sender<Request>, Option<Waker>)],
    answers: &Receiver<()>,
) {
    let mut stream = shared.places.stream(index, plan.seed);
    let mut in_flight = 0;
    let mut done = 0;
    let mut turn = index as usize;
    shared.started();
    while shared.phase() != Phase::Stopping {
        let room = plan.depth - in_flight;
        let first = turn;
        for _ in 0..room {
            let (to, _) = &lines[turn % lines.len()];
            if to.send((index, stream.next())).is_err() {
                return;
            }
            turn += 1;
        }
        in_flight += room;
        for i in 0..lines.len().min(turn - first) {
            if let (_, Some(waker)) = &lines[(first + i) % lines.len()] {
                waker.wake();
            }
        }
        let Ok(()) = answers.recv_timeout(NAP) else {
            continue;
        };
        let more = answers.try_iter().count() as u32;
        in_flight -= 1 + more;
        done += 1 + u64::from(more);
        shared.done[index as usize].0.store(done, Ordering::Relaxed);
    }
}
