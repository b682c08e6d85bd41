//! Opening the target, filling it with incompressible data, and reading it once.
#![allow(unsafe_code)]

use std::path::PathBuf;

use isobath_io::{AlignedBuf, ChannelOptions, DirectMode, Io, Volume, VolumeOptions};

use crate::raw::RawError;
use crate::raw::plan::{RawPlan, RawTarget, SCRATCH_BYTES};
use crate::{Monitor, Stage, Unit};

/// Bytes of one I/O while preparing, and how many are in flight.
const PIECE: u64 = 1 << 20;
const DEPTH: u32 = 16;

/// Files that this run has made; removed when dropped.
pub(crate) struct Scratch(Vec<PathBuf>);

impl Drop for Scratch {
    fn drop(&mut self) {
        for path in &self.0 {
            // A file that cannot be removed is left to the user, who has its name.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Scratch {
    /// A file, removed with this.
    pub(crate) fn of(path: PathBuf) -> Scratch {
        Scratch(vec![path])
    }

    /// The files.
    pub(crate) fn paths(&self) -> &[PathBuf] {
        &self.0
    }
}

/// How the volume of a plan is opened.
pub(crate) fn options(plan: &RawPlan) -> VolumeOptions {
    let direct = match plan.direct {
        true => DirectMode::Auto,
        false => DirectMode::Off,
    };
    VolumeOptions::new()
        .backend(plan.backend.into())
        .direct(direct)
        .stripe_unit(plan.stripe_unit_bytes)
}

/// Makes the files of a plan's target and writes them in full, for several plans to use.
pub(crate) fn make(plan: &RawPlan, monitor: &dyn Monitor) -> Result<Scratch, RawError> {
    let (volume, scratch) = open(plan)?;
    fill(&volume, volume.len(), plan.seed, monitor)?;
    Ok(scratch)
}

/// Opens the target of a plan.
pub(super) fn open(plan: &RawPlan) -> Result<(Volume, Scratch), RawError> {
    plan.check_fields()?;
    let options = options(plan);
    match &plan.target {
        RawTarget::Volume(volume) => Ok((volume.clone(), Scratch(Vec::new()))),
        RawTarget::Files(paths) => {
            let volume = Volume::open_unlabelled(paths, &options)?;
            Ok((volume, Scratch(Vec::new())))
        }
        RawTarget::Memory => {
            let bytes = plan.bytes.unwrap_or(SCRATCH_BYTES);
            Ok((Volume::in_memory(bytes, None), Scratch(Vec::new())))
        }
        RawTarget::Scratch(paths) => {
            let volume = Volume::create(paths, &options)?;
            let files = paths.iter().filter(|p| p.is_file()).cloned();
            let scratch = Scratch(files.collect());
            let bytes = plan.bytes.unwrap_or(SCRATCH_BYTES);
            let page = u64::from(plan.page_bytes).next_multiple_of(4096);
            volume.grow(bytes.div_ceil(page).max(1) * page)?;
            Ok((volume, scratch))
        }
    }
}

/// Writes the region of a scratch file or of memory in full; reads that of a file or device once in
/// full.
pub(super) fn fill_and_warm(
    plan: &RawPlan,
    volume: &Volume,
    region: u64,
    monitor: &dyn Monitor,
) -> Result<(), RawError> {
    if matches!(plan.target, RawTarget::Scratch(_) | RawTarget::Memory) {
        pass(volume, region, false, plan.seed, monitor)?;
        volume.sync()?;
    }
    if !matches!(plan.target, RawTarget::Memory) {
        pass(volume, region, true, plan.seed, monitor)?;
    }
    Ok(())
}

/// Writes the first `region` bytes of a volume with incompressible data, in order, and makes them
/// durable.
///
/// # Errors
/// [`RawError`]; the first failed I/O ends it.
pub fn fill(
    volume: &Volume,
    region: u64,
    seed: u64,
    monitor: &dyn Monitor,
) -> Result<(), RawError> {
    pass(volume, region, false, seed, monitor)?;
    Ok(volume.sync()?)
}

/// Reads the first `region` bytes of a volume in order.
///
/// # Errors
/// [`RawError`]; the first failed I/O ends it.
pub fn read_in_full(volume: &Volume, region: u64, monitor: &dyn Monitor) -> Result<(), RawError> {
    pass(volume, region, true, 0, monitor)
}

/// One sequential pass over the region.
fn pass(
    volume: &Volume,
    region: u64,
    read: bool,
    seed: u64,
    monitor: &dyn Monitor,
) -> Result<(), RawError> {
    monitor.begin(Stage {
        name: if read {
            "reading in full"
        } else {
            "writing in full"
        },
        total: Some(region),
        unit: Unit::Bytes,
    });
    let mut buffers = AlignedBuf::new(PIECE as usize * DEPTH as usize);
    fill_random(&mut buffers, seed);
    let mut channel = volume.channel(&ChannelOptions::with_depth(DEPTH))?;
    let mut free: Vec<u64> = (0..u64::from(DEPTH)).collect();
    let mut out = Vec::new();
    let mut at = 0;
    while at < region || channel.in_flight() > 0 {
        if monitor.cancelled() {
            return Err(RawError::Interrupted);
        }
        while at < region
            && let Some(slot) = free.pop()
        {
            let len = PIECE.min(region - at) as u32;
            let buffer = &mut buffers[(slot * PIECE) as usize..][..PIECE as usize];
            // No two pieces are alike, so neither deduplication nor compression helps the drive.
            stamp(buffer, at ^ seed);
            let io = match read {
                true => Io::read(at, buffer.as_mut_ptr(), len, slot),
                false => Io::write(at, buffer.as_ptr(), len, slot),
            };
            // SAFETY: each I/O has a buffer of its own until its completion gives the slot back;
            // the channel, declared after the buffers, is dropped before them.
            if unsafe { channel.submit(io) }.is_err() {
                free.push(slot);
                break;
            }
            at += u64::from(len);
        }
        channel.wait(1, None, &mut out)?;
        for done in out.drain(..) {
            done.result?;
            free.push(done.user_data);
            monitor.advance(PIECE);
        }
    }
    Ok(())
}

/// Makes every 4 KiB of a piece of random bytes different from those of other pieces.
fn stamp(piece: &mut [u8], number: u64) {
    for (page, bytes) in (0u64..).zip(piece.chunks_mut(4096)) {
        let mark = (number + page).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for word in bytes.chunks_exact_mut(512) {
            word[..8].copy_from_slice(&mark.to_le_bytes());
        }
    }
}

/// Fills memory with bytes that do not compress.
pub(super) fn fill_random(buffer: &mut [u8], seed: u64) {
    let mut state = seed.wrapping_mul(2).wrapping_add(0x9e37_79b9_7f4a_7c15) | 1;
    for word in buffer.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
}
