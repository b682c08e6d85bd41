//! A measuring thread with a channel of its own (all-to-all and assigned models).
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use isobath_io::{
    AlignedBuf, Channel, ChannelOptions, ChannelStats, Completion, HUGE_PAGE, Io, Volume,
};

use crate::raw::load::{Access, Phase, Shared};
use crate::raw::plan::RawPlan;
use crate::raw::{RawError, within};

/// One thread's results in the measured window.
pub(super) struct Measured {
    pub(super) stats: ChannelStats,
    pub(super) window: Duration,
}

/// A channel with a buffer per I/O in flight, or more.
pub(super) struct Lane {
    channel: Box<dyn Channel>,
    buffers: AlignedBuf,
    page: usize,
    durable: bool,
    depth: u32,
    /// Buffers that no I/O uses; the one that has rested longest comes first.
    free: VecDeque<u32>,
    out: Vec<Completion>,
    wait_min: u32,
}

impl Lane {
    pub(super) fn new(plan: &RawPlan, volume: &Volume, seed: u64) -> Result<Lane, RawError> {
        let page = plan.page_bytes as usize;
        let options = ChannelOptions::with_depth(plan.depth);
        let count = plan.buffers_per_thread();
        let bytes = page * count as usize;
        // Always huge pages, as in an engine's pool: in scattered ones a large I/O has many
        // segments, and is slower.
        let mut buffers = AlignedBuf::new(bytes.next_multiple_of(HUGE_PAGE));
        super::prepare::fill_random(&mut buffers, seed);
        let mut channel = volume.channel(&options)?;
        if plan.register_buffers {
            // SAFETY: `Lane` drops its channel before its buffers (field order), and the memory
            // never moves.
            unsafe { channel.register_buffers(&[(buffers.as_mut_ptr(), buffers.len())]) };
        }
        Ok(Lane {
            channel,
            buffers,
            page,
            durable: plan.durable,
            depth: plan.depth,
            free: (0..count).collect(),
            out: Vec::with_capacity(plan.depth as usize),
            wait_min: plan.wait_min,
        })
    }

    pub(super) fn stats(&self) -> &ChannelStats {
        self.channel.stats()
    }

    pub(super) fn channel(&mut self) -> &mut dyn Channel {
        &mut *self.channel
    }

    pub(super) fn has_room(&self) -> bool {
        self.channel.in_flight() < self.depth && !self.free.is_empty()
    }

    /// Submits an I/O. `tag` comes back from [`reap`](Self::reap).
    pub(super) fn submit(&mut self, place: Access, tag: u32) -> bool {
        let Some(slot) = self.free.pop_front() else {
            return false;
        };
        let at = slot as usize * self.page;
        let buffer = self.buffers.as_mut_ptr().wrapping_add(at);
        let user_data = u64::from(tag) << 32 | u64::from(slot);
        let io = match place.read {
            true => Io::read(place.offset, buffer, self.page as u32, user_data),
            false => Io::write(place.offset, buffer, self.page as u32, user_data),
        };
        let io = if self.durable { io.durable() } else { io };
        // SAFETY: each I/O has a buffer of its own, which is not touched until its completion gives
        // the slot back, and which outlives the channel.
        unsafe { self.channel.submit(io) }.is_ok()
    }

    /// Waits for completions; each one's tag is given to `each`.
    pub(super) fn reap(&mut self, mut each: impl FnMut(u32)) -> Result<u64, RawError> {
        let min = self.wait_min.min(self.channel.in_flight() / 2).max(1);
        self.channel.wait(min, None, &mut self.out)?;
        self.settle(&mut each)
    }

    /// Takes completions without waiting.
    pub(super) fn poll(&mut self, mut each: impl FnMut(u32)) -> Result<u64, RawError> {
        self.channel.poll(&mut self.out)?;
        self.settle(&mut each)
    }

    fn settle(&mut self, each: &mut impl FnMut(u32)) -> Result<u64, RawError> {
        let n = self.out.len() as u64;
        for done in self.out.drain(..) {
            done.result?;
            self.free.push_back(done.user_data as u32);
            each((done.user_data >> 32) as u32);
        }
        Ok(n)
    }

    pub(super) fn in_flight(&self) -> u32 {
        self.channel.in_flight()
    }
}

/// Runs one thread of a measurement.
pub(super) fn run(
    plan: &RawPlan,
    volume: &Volume,
    shared: &Shared,
    index: u32,
) -> Result<Option<Measured>, RawError> {
    let result = drive(plan, volume, shared, index);
    if result.is_err() {
        shared.failed.store(true, Ordering::Relaxed);
    }
    result.map(Some)
}

fn drive(
    plan: &RawPlan,
    volume: &Volume,
    shared: &Shared,
    index: u32,
) -> Result<Measured, RawError> {
    let mut lane = Lane::new(plan, volume, plan.seed + u64::from(index))?;
    let mut stream = shared.places.stream(index, plan.seed);
    shared.started();
    let mut window = Window::default();
    let mut done = 0;
    loop {
        match shared.phase() {
            Phase::Stopping => break,
            Phase::Measuring => window.open(lane.stats()),
            Phase::Warming => {}
        }
        while lane.has_room() {
            if !lane.submit(stream.next(), 0) {
                break;
            }
        }
        done += lane.reap(|_| ())?;
        shared.done[index as usize].0.store(done, Ordering::Relaxed);
    }
    let measured = window.close(lane.stats());
    while lane.in_flight() > 0 {
        lane.reap(|_| ())?;
    }
    Ok(measured)
}

/// The measured window of one channel.
#[derive(Default)]
pub(super) struct Window(Option<(Instant, ChannelStats)>);

impl Window {
    pub(super) fn open(&mut self, stats: &ChannelStats) {
        if self.0.is_none() {
            self.0 = Some((Instant::now(), stats.clone()));
        }
    }

    pub(super) fn close(self, stats: &ChannelStats) -> Measured {
        match self.0 {
            Some((start, before)) => Measured {
                stats: within(stats, &before),
                window: start.elapsed(),
            },
            None => Measured {
                stats: ChannelStats::default(),
                window: Duration::ZERO,
            },
        }
    }
}
