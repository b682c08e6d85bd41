use super::*;
use crate::ftl::{MemoryData, NoData, Timing};
use crate::policy::PolicyKind;

/// A drive of `pages` pages of 512 bytes in superblocks of 64 pages.
fn small(pages: u64, over_provisioning: f64) -> FlashConfig {
    let mut config = FlashConfig::new(pages * 512);
    config.page_bytes = 512;
    config.block_bytes = 64 * 512;
    config.over_provisioning = over_provisioning;
    config.cache_pages = 16;
    config.sector_bytes = 512;
    config
}

fn page_of(value: u32) -> Vec<u8> {
    value.to_le_bytes().repeat(128)
}

/// Against a model of what a drive guarantees: reads see the last write or trim; after a power cut,
/// flushed pages are there, and every other page has some version written since the flush.
#[test]
fn contents_survive_cleaning_trims_flushes_and_power_cuts() {
    for policy in PolicyKind::ALL
        .into_iter()
        .filter(|kind| !kind.needs_rates())
    {
        let mut config = small(1500, 0.3);
        config.policy = policy;
        let mut drive = FlashDevice::new(config, MemoryData::new()).unwrap();
        let mut rng = Rng::new(9);
        let mut model = vec![0u32; 1500];
        let mut since_flush: Vec<Vec<u32>> = vec![vec![0]; 1500];
        let mut out = vec![0; 512];
        for step in 1..20_000u32 {
            let page = rng.below(1500);
            match rng.below(1000) {
                0..=900 => {
                    drive.write(page, &page_of(step), 0).unwrap();
                    model[page as usize] = step;
                    since_flush[page as usize].push(step);
                }
                901..=940 => {
                    drive.trim(page, 1, 0).unwrap();
                    model[page as usize] = 0;
                    since_flush[page as usize].push(0);
                }
                941..=990 => {
                    drive.read(page, &mut out, 0).unwrap();
                    assert_eq!(out, page_of(model[page as usize]), "{policy} step {step}");
                }
                991..=997 => {
                    drive.flush(0).unwrap();
                    for (versions, &last) in since_flush.iter_mut().zip(&model) {
                        *versions = vec![last];
                    }
                }
                _ => {
                    drive.power_cut().unwrap();
                    for page in 0..1500u32 {
                        drive.read(page, &mut out, 0).unwrap();
                        let value = u32::from_le_bytes([out[0], out[1], out[2], out[3]]);
                        assert_eq!(out, page_of(value), "{policy}: a page is whole");
                        assert!(
                            since_flush[page as usize].contains(&value),
                            "{policy} step {step} page {page}"
                        );
                        model[page as usize] = value;
                        since_flush[page as usize] = vec![value];
                    }
                }
            }
        }
        let smart = drive.smart();
        assert!(
            smart.erases > 100 && smart.flash_relocated_bytes > 0,
            "{policy} cleaned: {smart:?}"
        );
        assert!(
            smart.lost_pages > 0,
            "{policy}: power cuts lost something: {smart:?}"
        );
        assert_eq!(
            drive.wear().iter().map(|&n| u64::from(n)).sum::<u64>(),
            smart.erases
        );
        let user_bytes = smart.flash_written_bytes - smart.flash_relocated_bytes;
        assert!(
            user_bytes <= smart.host_written_bytes,
            "the cache absorbs rewrites: {smart:?}"
        );
    }
}

/// SSD-iq's simulator has a WA of 4.18 with greedy, uniform updates, superblocks of 8 MiB and a
/// fill of 0.875. Measured here, from 512 KiB to 16 MiB: 4.05, 4.13, 4.14, 4.14. Small blocks cost
/// less: how many of their pages are obsolete varies more, and greedy takes the emptiest.
#[test]
fn greedy_uniform_at_an_eighth_over_provisioning_amplifies_4_18() {
    for (block_pages, blocks, within) in [
        (128, 2240, 0.033),
        (512, 560, 0.015),
        (2048, 280, 0.012),
        (4096, 280, 0.012),
    ] {
        let mut config = FlashConfig::new(4096 * block_pages * blocks);
        config.block_bytes = 4096 * block_pages as u32;
        // 12.5% beyond the four blocks that cleaning holds free or open, which a full-size drive
        // does not notice.
        config.over_provisioning = 1.0 - blocks as f64 / (blocks as f64 / 0.875 + 4.0);
        config.cache_pages = 0;
        let mut drive = FlashDevice::new(config, NoData).unwrap();
        drive.precondition(2.0, 1).unwrap();
        let before = drive.smart();
        let mut rng = Rng::new(5);
        for _ in 0..drive.pages() {
            let page = rng.below(drive.pages());
            drive.write(page, &[0; 4096], 0).unwrap();
        }
        let wa_d = drive.smart().since(&before).wa_d().unwrap();
        assert!((wa_d / 4.18 - 1.0).abs() < within, "WA-D = {wa_d}");
    }
}

/// Writes without a flush between them may reach flash in any order: the later one without the
/// earlier one, and either in part. A drive that always kept a prefix would never catch a barrier
/// that is missing.
#[test]
fn a_power_cut_leaves_any_subset_of_what_was_not_flushed() {
    let mut config = small(1500, 0.3);
    config.sector_bytes = 128;
    let mut later_alone = 0;
    let mut torn = 0;
    for seed in 0..200 {
        config.seed = seed;
        let mut drive = FlashDevice::new(config.clone(), MemoryData::new()).unwrap();
        drive.write(3, &page_of(1), 0).unwrap();
        drive.flush(0).unwrap();
        for (page, value) in [(7, 2), (3, 3), (5, 4)] {
            drive.write(page, &page_of(value), 0).unwrap();
        }
        drive.power_cut().unwrap();
        let mut out = vec![0; 512];
        let mut read = |page| {
            drive.read(page, &mut out, 0).unwrap();
            let sectors: Vec<u8> = out.chunks(128).map(|sector| sector[0]).collect();
            assert!(
                out.chunks(128).all(|s| s.chunks(4).all(|w| w == &s[..4])),
                "sectors are whole"
            );
            sectors
        };
        let (first, flushed, last) = (read(7), read(3), read(5));
        assert!(flushed.iter().all(|&value| value == 1 || value == 3));
        later_alone += u32::from(last == [4; 4] && first == [0; 4]);
        torn += u32::from(flushed.contains(&1) && flushed.contains(&3));
    }
    assert!(
        (28..38).contains(&later_alone),
        "{later_alone} of 200, 32 by chance"
    );
    assert!((32..42).contains(&torn), "{torn} of 200, 35 by chance");
}

/// Data that never changes keeps its superblocks from wearing; levelling evens that out, and costs
/// writes.
#[test]
fn wear_levelling_evens_wear_out_and_costs_writes() {
    let run = |wear_difference_max| {
        let mut config = small(20_000, 0.15);
        config.wear_difference_max = wear_difference_max;
        let mut drive = FlashDevice::new(config, NoData).unwrap();
        drive.precondition(0.0, 1).unwrap();
        let mut rng = Rng::new(5);
        for _ in 0..400_000 {
            drive.write(rng.below(4_000), &[0; 512], 0).unwrap();
        }
        let most = drive.wear().iter().copied().max().unwrap();
        let least = drive.wear().iter().copied().min().unwrap();
        (most - least, drive.smart())
    };
    let ((apart, without), (near, with)) = (run(None), run(Some(16)));
    // Measured 75 and 24 erases between the most and the least worn superblock.
    assert!(apart > 70 && near <= 25, "{apart} {near}");
    assert_eq!(without.flash_levelled_bytes, 0);
    let cost = with.wa_d().unwrap() / without.wa_d().unwrap() - 1.0;
    // 0.954 (WA-D 2.567 instead of 1.314): four fifths of this drive never change, and what is
    // moved shares superblocks with what cleaning moves.
    assert!((0.94..0.97).contains(&cost), "{cost}");
    assert!(with.flash_levelled_bytes <= with.flash_relocated_bytes);
}

/// Reads suspend programs and erases, as drives do: behind a write cache that is being emptied, and
/// cleaning, they would take tens of milliseconds.
#[test]
fn reads_overtake_destaging_and_cleaning() {
    let mut config = small(20_000, 0.2);
    (config.cache_pages, config.timing) = (1024, Some(Timing::nvme_tlc()));
    let mut drive = FlashDevice::new(config, NoData).unwrap();
    drive.precondition(2.0, 1).unwrap();
    let mut rng = Rng::new(3);
    let start = 1_000_000_000;
    let mut queue = [start; 32];
    let mut latencies = Vec::new();
    for _ in 0..40_000 {
        // The client whose last operation ended first goes on.
        let at = queue.iter_mut().min().unwrap();
        let page = rng.below(20_000);
        *at = if rng.below(2) == 0 {
            drive.write(page, &[0; 512], *at).unwrap()
        } else {
            let done = drive.read(page, &mut [0; 512], *at).unwrap();
            latencies.push(done - *at);
            done
        };
    }
    latencies.sort_unstable();
    let p99 = latencies[latencies.len() * 99 / 100];
    let p50 = latencies[latencies.len() / 2];
    println!("p50 {p50} ns, p99 {p99} ns");
    // A read, a suspension, and the reads before it on its die: 83.4 and 168.2 µs.
    assert!((160_000..175_000).contains(&p99), "{p99} ns");
    assert!((80_000..87_000).contains(&p50), "{p50} ns");
}

#[test]
fn a_trimmed_drive_amplifies_less_than_a_preconditioned_one() {
    let run = |precondition: bool| {
        let mut drive = FlashDevice::new(small(20_000, 0.15), NoData).unwrap();
        drive.precondition(2.0, 1).unwrap();
        if !precondition {
            drive.trim_all().unwrap();
        }
        let before = drive.smart();
        let mut rng = Rng::new(5);
        for _ in 0..20_000 {
            drive.write(rng.below(12_000), &[0; 512], 0).unwrap();
        }
        drive.smart().since(&before).wa_d().unwrap()
    };
    let (trimmed, aged) = (run(false), run(true));
    assert!(
        // Measured 0.999 (the rest is in the write cache) and 3.613.
        trimmed < 1.001 && (3.55..3.68).contains(&aged),
        "trimmed {trimmed}, preconditioned {aged}"
    );
}

#[test]
fn queue_depth_raises_read_throughput_until_the_dies_are_busy() {
    let mut config = small(20_000, 0.2);
    config.timing = Some(Timing::nvme_tlc());
    let mut drive = FlashDevice::new(config, NoData).unwrap();
    drive.precondition(0.0, 1).unwrap();
    let mut reads_per_second = |depth: usize| {
        let start = 1_000_000_000_000u64 * depth as u64;
        let mut queue = vec![start; depth];
        let mut rng = Rng::new(3);
        for i in 0..10_000 {
            let slot = i % depth;
            queue[slot] = drive
                .read(rng.below(20_000), &mut [0; 512], queue[slot])
                .unwrap();
        }
        10_000.0 / ((queue.iter().max().unwrap() - start) as f64 / 1e9)
    };
    let (one, sixteen, many) = (
        reads_per_second(1),
        reads_per_second(16),
        reads_per_second(512),
    );
    // Measured 15,773, 181,927 and 356,024: a read alone takes 63.4 µs.
    assert!((15_700.0..15_850.0).contains(&one), "QD 1: {one}");
    assert!((11.0..12.0).contains(&(sixteen / one)), "QD 16: {sixteen}");
    assert!((22.0..23.2).contains(&(many / one)), "QD 512: {many}");
}

#[test]
fn a_full_cache_makes_writes_wait_for_programs_and_cleaning() {
    let mut config = small(20_000, 0.2);
    config.timing = Some(Timing::nvme_tlc());
    let mut drive = FlashDevice::new(config, NoData).unwrap();
    drive.precondition(2.0, 1).unwrap();
    let mut rng = Rng::new(3);
    let (mut at, mut worst, mut best) = (0, 0, u64::MAX);
    for _ in 0..5_000 {
        let done = drive.write(rng.below(20_000), &[0; 512], at).unwrap();
        worst = worst.max(done - at);
        best = best.min(done - at);
        at = done;
    }
    assert_eq!(
        best, 8_000,
        "a write that finds space takes the cache's time"
    );
    // Measured 12.25 ms.
    assert!(
        (12_000_000..12_500_000).contains(&worst),
        "cleaning shows: {worst} ns"
    );
    let flushed = drive.flush(at).unwrap();
    assert!(flushed >= at);
}

#[test]
fn bad_input_is_named() {
    let error = |change: &dyn Fn(&mut FlashConfig)| {
        let mut config = small(1500, 0.3);
        change(&mut config);
        FlashDevice::new(config, NoData)
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default()
    };
    assert!(error(&|c| c.page_bytes = 500).contains("multiples of the page size, 500"));
    assert!(error(&|c| c.over_provisioning = 0.0).contains("over-provisioning 0"));
    assert!(error(&|c| c.over_provisioning = 0.01).contains("spare superblocks cannot sustain"));
    assert!(error(&|c| c.policy = PolicyKind::MdcOpt).contains("mdc-opt needs exact"));
    assert!(error(&|c| c.user_bytes = 1 << 44).contains("2^31"));
    let timing = Timing {
        channels: 0,
        ..Timing::nvme_tlc()
    };
    assert!(error(&|c| c.timing = Some(timing)).contains("channels must be above 0"));

    let mut drive = FlashDevice::new(small(1500, 0.3), NoData).unwrap();
    let end = FlashError::OutOfRange {
        page: 1500,
        pages: 1500,
    };
    assert_eq!(drive.read(1500, &mut [0; 512], 0), Err(end.clone()));
    assert_eq!(drive.write(1500, &[0; 512], 0), Err(end.clone()));
    assert_eq!(drive.trim(1499, 2, 0), Err(end));
    assert!(
        drive
            .write(0, &[0; 100], 0)
            .unwrap_err()
            .to_string()
            .contains("a page is 512 bytes")
    );
}
