//! The run of a probe: fill, first pass, read, then points between sentinels.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use isobath_io::{AlignedBuf, Volume};
use isobath_model::profile::{
    DeviceProfile, DriveState, HostCache, HostCacheVerdict, MeasuredPoint, PROFILE_FORMAT,
    PROFILE_VERSION, Preparation, Regime, RepeatNoise, Sentinel, System, Target,
};
use isobath_model::{OperatingPoint, PAGE_BYTES};

use super::measure::Gauge;
use super::regimes::{self, Taken, TakenPoint, assign, cliff, drifted};
use super::system::{drive_of, hardware, io_scheduler};
use super::target::Opened;
use super::visits::{Around, Visits, pool};
use super::{Prepared, ProbePlan, same_target};
use crate::drive_model::write_profile;
use crate::machine::CpuTicks;
use crate::{LabError, Machine, Monitor, Stage, Unit, Unseen, raw};

/// The time that runs before a slice counts.
pub(super) const WARM_UP: Duration = Duration::from_millis(80);
/// The sentinel of small I/Os: random reads of a page, this many in flight.
const SENTINEL_DEPTH: f64 = 32.0;
/// The sentinel of large I/Os: random reads of this many pages, this many in flight.
const LARGE_PAGES: f64 = 64.0;
const LARGE_DEPTH: f64 = 8.0;
/// Of the time of a slice, what each of them takes.
pub(super) const SENTINEL_SHARE: f64 = 0.5;
/// Repeated reads faster than first ones by more than this make a cache below the kernel suspected.
const CACHE_GAIN: f64 = 1.3;
/// Preconditioning writes this many times the range.
const PRECONDITION_TIMES: u64 = 2;
/// A point's median absolute difference of two repeats, in standard deviations, if these are
/// normal.
const DIFFERENCE_PER_SPREAD: f64 = 0.954;

/// Flushes that are timed, fewer if they take longer than this together.
const FLUSHES: usize = 1000;
const FLUSHES_MIN: usize = 11;
const FLUSHES_TIME: Duration = Duration::from_millis(500);

struct Session<'a> {
    plan: &'a ProbePlan,
    gauge: Gauge<'a>,
    start: Instant,
    /// Seconds that earlier sessions took.
    offset_s: f64,
    ticks: CpuTicks,
    profile: DeviceProfile,
    visits: Vec<Visits>,
    /// Points of earlier sessions that lie before a cliff.
    cached: Vec<TakenPoint>,
    fill_cliff: Option<(f64, f64)>,
    slices: u64,
    /// Whether any point writes.
    writes: bool,
}

pub(super) fn run(
    prepared: Prepared,
    opened: &Opened,
    monitor: &dyn Monitor,
) -> Result<DeviceProfile, LabError> {
    let plan = &prepared.plan;
    let start = Instant::now();
    let ticks = CpuTicks::now();
    let mut profile = describe(plan, opened);
    if let Some(earlier) = &prepared.earlier {
        same_target(plan, earlier, Some(opened.bytes))?;
    }
    let gauge = Gauge {
        volume: &opened.volume,
        bytes: opened.bytes,
        cores: profile.hardware.cpu_count,
        slice_ms: plan.slice.as_millis() as u32,
        warmup_ms: WARM_UP.as_millis() as u32,
        seed: plan.seed,
        drive: drive_of(&plan.path),
        monitor,
    };
    let mut visits = prepared.visits();
    if opened.read_only {
        visits.retain(|v| v.point.read_share >= 1.0);
    }
    let (cached, offset_s) = match prepared.earlier {
        Some(earlier) => take_over(&mut profile, earlier),
        None => (Vec::new(), 0.0),
    };
    let writes = visits.iter().any(|v| v.point.read_share < 1.0);
    let mut session = Session {
        writes,
        plan,
        gauge,
        start,
        offset_s,
        ticks,
        profile,
        visits,
        cached,
        fill_cliff: None,
        slices: 0,
    };
    // Until the drive is ready nothing is known that an earlier session did not know.
    session.ready_drive(opened, monitor)?;
    let outcome = session.measure(monitor);
    session.profile.complete = outcome.is_ok();
    // Before any point there is nothing worth a file.
    if outcome.is_ok() || session.visits.iter().any(|v| !v.is_empty()) {
        session.save()?;
    }
    outcome?;
    Ok(session.profile)
}

/// The profile without points.
fn describe(plan: &ProbePlan, opened: &Opened) -> DeviceProfile {
    let machine = Machine::here(&plan.path);
    let backend = opened.volume.backend_report();
    let file_system = (opened.kind == isobath_model::profile::TargetKind::File)
        .then(|| machine.file_system.clone())
        .filter(|f| f != "unknown");
    let created = SystemTime::now().duration_since(UNIX_EPOCH);
    DeviceProfile {
        format: PROFILE_FORMAT.to_owned(),
        version: PROFILE_VERSION,
        tool_version: env!("CARGO_PKG_VERSION").to_owned(),
        created_unix_s: created.map_or(0, |d| d.as_secs()),
        complete: false,
        plan: Some(plan.note()),
        target: Target {
            path: plan.path.display().to_string(),
            kind: opened.kind,
            size_bytes: opened.bytes,
        },
        hardware: hardware(&plan.path, &machine),
        system: System {
            kernel: machine.kernel,
            file_system,
            io_scheduler: io_scheduler(&plan.path),
            io_interface: backend.backend.to_string(),
            direct_io: backend.direct,
        },
        drive_state: DriveState {
            preparation: Preparation::Unknown,
            prepared_bytes: 0,
            fill_share: None,
        },
        host_cache: HostCache {
            verdict: HostCacheVerdict::NotTested,
            first_pass_reads_per_s: None,
            repeat_reads_per_s: None,
        },
        steal_share: None,
        flush_us: None,
        repeat_noise: RepeatNoise::default(),
        regimes: Vec::new(),
        sentinels: Vec::new(),
        points: Vec::new(),
    }
}

/// Puts the sentinels of an earlier session in front. Answers its points before cliffs and the time
/// at which it ended.
fn take_over(profile: &mut DeviceProfile, earlier: DeviceProfile) -> (Vec<TakenPoint>, f64) {
    let regimes = &earlier.regimes;
    let ended = regimes.iter().map(|r| r.ended_s).fold(0.0, f64::max);
    let cached = earlier
        .points
        .into_iter()
        .filter(|p| regimes[p.regime].name == regimes::WRITE_CACHE)
        .map(|point| TakenPoint {
            point,
            taken: Taken::WriteCache,
        })
        .collect();
    profile.created_unix_s = earlier.created_unix_s;
    profile.sentinels = earlier.sentinels;
    (cached, ended)
}

impl Session<'_> {
    fn clock(&self) -> f64 {
        self.offset_s + self.start.elapsed().as_secs_f64()
    }

    /// Fills the range, looks for a cache below the kernel, and reads the range in full.
    fn ready_drive(&mut self, opened: &Opened, monitor: &dyn Monitor) -> Result<(), LabError> {
        let (volume, bytes) = (&opened.volume, opened.bytes);
        if !opened.read_only {
            let began = self.clock();
            let watch = Watch::new(monitor);
            raw::fill(volume, bytes, self.plan.seed, &watch)?;
            self.fill_cliff = watch.cliff().map(|at| (began, began + at));
            self.profile.drive_state.preparation = Preparation::SequentialFill;
            self.profile.drive_state.prepared_bytes = bytes;
            self.profile.flush_us = Some(flush_us(volume, bytes, self.plan.seed)?);
        }
        if self.plan.precondition && !opened.read_only {
            self.precondition(bytes, monitor)?;
        }
        let first = self.random_reads()?;
        raw::read_in_full(volume, bytes, monitor)?;
        let repeat = self.random_reads()?;
        self.profile.host_cache = HostCache {
            verdict: match repeat > first * CACHE_GAIN {
                true => HostCacheVerdict::Suspected,
                false => HostCacheVerdict::NoneSeen,
            },
            first_pass_reads_per_s: Some(first),
            repeat_reads_per_s: Some(repeat),
        };
        Ok(())
    }

    /// Random 4 KiB writes of twice the range: what makes a drive collect garbage as it will in
    /// use.
    fn precondition(&mut self, bytes: u64, monitor: &dyn Monitor) -> Result<(), LabError> {
        let total = PRECONDITION_TIMES * bytes;
        monitor.begin(Stage {
            name: "preconditioning",
            total: Some(total),
            unit: Unit::Bytes,
        });
        let point = OperatingPoint::random_writes(SENTINEL_DEPTH, 1.0);
        let mut written = 0;
        while written < total {
            self.slices += 1;
            let plan = self.gauge.slice(&point, self.slices, 1000);
            let now = raw::run(&plan, &Unseen(monitor))?.writes * PAGE_BYTES;
            monitor.advance(now);
            written += now;
        }
        self.profile.drive_state.preparation = Preparation::Preconditioned;
        self.profile.drive_state.prepared_bytes = bytes + written;
        Ok(())
    }

    /// Random 4 KiB reads per second at the sentinel's depth. Offsets never repeat a sequence.
    fn random_reads(&mut self) -> Result<f64, LabError> {
        self.sentinel_rate(&OperatingPoint::random_reads(SENTINEL_DEPTH, 1.0))
    }

    fn sentinel_rate(&mut self, point: &OperatingPoint) -> Result<f64, LabError> {
        self.slices += 1;
        let ms = (SENTINEL_SHARE * f64::from(self.gauge.slice_ms)).ceil() as u32;
        let result = self
            .gauge
            .run(point, u64::MAX / 128 - self.slices, ms.max(1))?;
        Ok(result.ios_per_s * point.io_pages)
    }

    fn sentinel(&mut self) -> Result<Sentinel, LabError> {
        let small = self.random_reads()?;
        let large = self.sentinel_rate(&OperatingPoint::random_reads(LARGE_DEPTH, LARGE_PAGES))?;
        let write = match self.writes {
            true => Some(self.sentinel_rate(&OperatingPoint::random_writes(SENTINEL_DEPTH, 1.0))?),
            false => None,
        };
        let sentinel = Sentinel {
            at_s: self.clock(),
            throughput_pages_per_s: small,
            large_pages_per_s: Some(large),
            write_pages_per_s: write,
        };
        self.profile.sentinels.push(sentinel);
        Ok(sentinel)
    }

    /// Measures the points in passes, each in a random order of its own, groups between sentinels.
    fn measure(&mut self, monitor: &dyn Monitor) -> Result<(), LabError> {
        let least = self.plan.repeats_min;
        let enough = self.plan.enough();
        let missing = |v: &Visits| u64::from(least - v.progress(&enough));
        monitor.begin(Stage {
            name: "measuring points",
            total: Some(self.visits.iter().map(missing).sum()),
            unit: Unit::Items,
        });
        let mut order = fastrand::Rng::with_seed(self.plan.seed);
        let mut before = None;
        loop {
            let mut pass: Vec<usize> = (0..self.visits.len()).filter(|i| self.wanted(*i)).collect();
            if pass.is_empty() {
                // Also where an earlier session has left nothing to measure.
                return self.save();
            }
            order.shuffle(&mut pass);
            for group in pass.chunks(self.plan.group.max(1)) {
                // A pass may outlast the time.
                let group: Vec<usize> = group.iter().copied().filter(|i| self.wanted(*i)).collect();
                if group.is_empty() {
                    continue;
                }
                let first = match before {
                    Some(sentinel) => sentinel,
                    None => self.sentinel()?,
                };
                before = Some(self.visit(&group, &first, monitor)?);
            }
        }
    }

    /// Whether a point is worth another slice; once time is up, only one that has none.
    fn wanted(&self, index: usize) -> bool {
        let visits = &self.visits[index];
        let late = self.start.elapsed() >= self.plan.rerun_until;
        let enough = self.plan.enough();
        let more = visits.wants_more(&enough) || visits.may_go_on(&enough) && self.elsewhere(index);
        more && (!late || visits.is_empty())
    }

    /// Whether too many repeats of a point were taken at another level of the drive than the one
    /// that is fitted.
    fn elsewhere(&self, index: usize) -> bool {
        let point = self.visits[index].point;
        let usable = |p: &&MeasuredPoint| {
            p.sample().point == point
                && self.profile.regimes.get(p.regime).is_some_and(|r| r.usable)
        };
        let fitted: u32 = self
            .profile
            .points
            .iter()
            .filter(usable)
            .map(|p| p.repeats)
            .sum();
        fitted < self.plan.repeats_min
    }

    /// One slice at each point of a group. Answers the sentinel after them.
    fn visit(
        &mut self,
        group: &[usize],
        before: &Sentinel,
        monitor: &dyn Monitor,
    ) -> Result<Sentinel, LabError> {
        let enough = self.plan.enough();
        let mut fresh = Vec::new();
        for &index in group {
            self.slices += 1;
            let (point, began_s) = (self.visits[index].point, self.clock());
            fresh.push(self.gauge.point(&point, self.slices, began_s)?);
        }
        let after = self.sentinel()?;
        for (&index, (slice, disturbed)) in group.iter().zip(fresh) {
            let around = match (drifted(before, &after, &slice), disturbed) {
                (true, _) => Around::Drift,
                (false, true) => Around::Others,
                (false, false) => Around::Quiet,
            };
            let visits = &mut self.visits[index];
            let done = visits.progress(&enough);
            visits.take(slice, around, &enough);
            monitor.advance(u64::from(visits.progress(&enough) - done));
        }
        self.save()?;
        Ok(after)
    }

    /// Brings the profile up to date and writes it.
    fn save(&mut self) -> Result<(), LabError> {
        let mut taken = self.cached.clone();
        taken.extend(self.visits.iter().flat_map(Visits::taken));
        let (regimes, points): (Vec<Regime>, _) = assign(
            &self.profile.sentinels,
            &taken,
            self.fill_cliff,
            self.plan.levels,
        );
        self.profile.points = pool(&points, |a, b| {
            a == b || (regimes[a].usable && regimes[b].usable)
        });
        self.profile.regimes = regimes;
        self.profile.steal_share = CpuTicks::now().stolen_since(self.ticks);
        let noise = |keep: fn(f64) -> bool| {
            let mut spreads: Vec<f64> = self
                .profile
                .points
                .iter()
                .filter(|p| keep(p.read_share) && p.repeats > 1)
                .map(|p| p.throughput_spread * DIFFERENCE_PER_SPREAD)
                .collect();
            spreads.sort_by(f64::total_cmp);
            spreads.get(spreads.len() / 2).copied()
        };
        self.profile.repeat_noise = RepeatNoise {
            read: noise(|share| share >= 1.0),
            write: noise(|share| share <= 0.0),
        };
        write_profile(&self.plan.output, &self.profile)
    }
}

/// Writes a page somewhere and makes it durable, again and again; the median time of both, µs.
pub(crate) fn flush_us(volume: &Volume, bytes: u64, seed: u64) -> Result<f64, LabError> {
    let mut page = AlignedBuf::new(PAGE_BYTES as usize);
    page.as_mut_slice().fill(1);
    let mut offsets = fastrand::Rng::with_seed(seed);
    let began = Instant::now();
    let mut times = Vec::new();
    while times.len() < FLUSHES_MIN || times.len() < FLUSHES && began.elapsed() < FLUSHES_TIME {
        let offset = offsets.u64(..bytes / PAGE_BYTES) * PAGE_BYTES;
        let before = Instant::now();
        volume
            .write_at(offset, &page)
            .map_err(raw::RawError::from)?;
        volume.sync().map_err(raw::RawError::from)?;
        times.push(before.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Looks at how fast a stage goes on, for cliffs.
struct Watch<'a> {
    inner: &'a dyn Monitor,
    start: Instant,
    /// Seconds and bytes so far, one entry per [`WATCH_BYTES`].
    marks: Mutex<(u64, Vec<(f64, u64)>)>,
}

const WATCH_BYTES: u64 = 64 << 20;

impl<'a> Watch<'a> {
    fn new(inner: &'a dyn Monitor) -> Watch<'a> {
        Watch {
            inner,
            start: Instant::now(),
            marks: Mutex::new((0, vec![(0.0, 0)])),
        }
    }

    /// Seconds after which the stage slowed down permanently.
    fn cliff(&self) -> Option<f64> {
        let marks = self
            .marks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let marks = &marks.1;
        let rates: Vec<f64> = marks
            .windows(2)
            .map(|w| (w[1].1 - w[0].1) as f64 / (w[1].0 - w[0].0).max(1e-6))
            .collect();
        // Medians of four, so that one hiccup of a noisy neighbour hides no cliff.
        let smooth: Vec<f64> = rates
            .chunks(4)
            .map(|c| {
                let mut c = c.to_vec();
                c.sort_by(f64::total_cmp);
                c[c.len() / 2]
            })
            .collect();
        cliff(&smooth).map(|at| marks[at * 4].0)
    }
}

impl Monitor for Watch<'_> {
    fn begin(&self, stage: Stage) {
        self.inner.begin(stage);
    }
    fn advance(&self, amount: u64) {
        self.inner.advance(amount);
        let mut marks = self
            .marks
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        marks.0 += amount;
        let total = marks.0;
        if marks.1.last().is_none_or(|m| total >= m.1 + WATCH_BYTES) {
            marks.1.push((self.start.elapsed().as_secs_f64(), total));
        }
    }
    fn say(&self, line: &str) {
        self.inner.say(line);
    }
    fn cancelled(&self) -> bool {
        self.inner.cancelled()
    }
}
