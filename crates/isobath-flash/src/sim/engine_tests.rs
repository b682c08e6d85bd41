use super::*;
use crate::analysis;
use crate::policy::{Greedy, Mdc, SegmentTable};
use crate::policy::{History, SegmentState, Tick};
use crate::sim::PageSizes;
use crate::trace::Trace;

fn kind(text: &str) -> WorkloadKind {
    text.parse().unwrap()
}

/// A device of 300 segments of 64 pages.
fn small(fill: f64) -> SimConfig {
    let mut config = SimConfig::paper(300, fill);
    config.segment_bytes = 64 * 4096;
    config.clean_below = 8;
    config.clean_batch = Some(16);
    config.sort_buffer_segments = 4;
    (config.spare_segments, config.matches_reserve) = (12, false);
    config
}

fn run(policy: PolicyKind, config: &SimConfig, workload: &str, times: f64) -> SimReport {
    simulate(
        policy,
        config,
        kind(workload),
        RunLength::DeviceWrites(times),
    )
    .unwrap()
}

#[test]
fn age_under_uniform_updates_follows_equation_4() {
    for fill in [0.6, 0.8] {
        let report = run(PolicyKind::Age, &small(fill), "uniform", 12.0);
        let expected = analysis::emptiness(fill);
        let e = report.steady.emptiness();
        assert!(
            (e / expected - 1.0).abs() < 0.02,
            "F={fill}: E={e}, equation 4 says {expected}"
        );
        let wamp = report.steady.wamp();
        // Measured 1.0008 and 1.0000.
        assert!(
            (wamp / analysis::wamp(e) - 1.0).abs() < 0.001,
            "Wamp {wamp} and E {e} agree"
        );
    }
}

#[test]
fn mdc_opt_reaches_the_least_cost_of_hot_cold() {
    let groups = analysis::groups_of(kind("hot-cold:0.8"), 1).unwrap();
    let bound = analysis::fluid_bound(0.8, &groups).wamp;
    let wamp = run(PolicyKind::MdcOpt, &small(0.8), "hot-cold:0.8", 20.0)
        .steady
        .wamp();
    // 0.94: what is free between two cycles is a little more space than the bound knows.
    assert!((wamp / bound - 0.94).abs() < 0.01, "{wamp} against {bound}");
}

/// The paper's `age` cleans the oldest segment even if all of it is live; equation (4)'s renewal
/// argument gives its cost under any independent updates ([`analysis::age_wamp`]). Skipping full
/// segments would make it 9 instead of 17.
#[test]
fn age_under_skew_follows_renewal_theory() {
    let mut config = small(0.9);
    (config.segments, config.clean_below, config.clean_batch) = (1000, 2, Some(1));
    // Space that is free between two cycles is not for pages.
    config.spare_segments = 3;
    for (workload, fill) in [
        ("zipf:1.35", 0.9),
        ("zipf:1.35", 0.95),
        ("hot-cold:0.9", 0.9),
    ] {
        config.fill = fill;
        let groups = analysis::groups_of(kind(workload), config.user_pages()).unwrap();
        let expected = analysis::age_wamp(fill, &groups);
        let wamp = run(PolicyKind::Age, &config, workload, 4.0).steady.wamp();
        assert!(
            (wamp / expected - 1.0).abs() < 0.03,
            "{workload} {fill}: {wamp} {expected}"
        );
    }
}

/// Relocated in the order of their scores, victims' pages are kept apart by frequency: `Wamp` at
/// 90:10 was then 1.6 for greedy and 0.94 for MDC without separation, here and in an independent
/// implementation, and 14% to 25% more without.
#[test]
fn policies_that_do_not_separate_get_no_separation() {
    let wamp = |policy| run(policy, &small(0.8), "hot-cold:0.9", 12.0).steady.wamp();
    let (greedy, no_sep) = (wamp(PolicyKind::Greedy), wamp(PolicyKind::MdcNoSepUserGc));
    // Measured 1.763 and 1.134.
    assert!((1.74..1.79).contains(&greedy), "{greedy}");
    assert!((1.11..1.16).contains(&no_sep), "{no_sep}");
}

/// Section 6.2.2: "the cost-benefit algorithm reduces the write amplification" under Zipf, and is
/// above greedy's under uniform updates.
#[test]
fn cost_benefit_is_below_greedy_under_zipf_only() {
    let config = SimConfig {
        clean_batch: Some(16),
        ..SimConfig::paper(400, 0.8)
    };
    let wamp = |policy, workload| run(policy, &config, workload, 8.0).steady.wamp();
    for (workload, below) in [
        ("zipf:0.99", true),
        ("hot-cold:0.9", true),
        ("uniform", false),
    ] {
        let cost_benefit = wamp(PolicyKind::CostBenefit, workload);
        let greedy = wamp(PolicyKind::Greedy, workload);
        assert_eq!(
            cost_benefit < greedy,
            below,
            "{workload}: {cost_benefit} {greedy}"
        );
    }
}

/// An independent implementation gives 0.78 at 90:10. Without neighbours of some size hot logs
/// starved, the more the larger the device.
#[test]
fn multi_log_settles_at_any_size() {
    for segments in [1000, 2560, 5120] {
        let config = SimConfig {
            segment_bytes: 64 * 4096,
            clean_batch: None,
            ..SimConfig::paper(segments, 0.8)
        };
        let report = run(PolicyKind::MultiLog, &config, "hot-cold:0.9", 12.0);
        let (steady, whole) = (report.steady.wamp(), report.whole.wamp());
        // Measured 0.727 on 2,560.
        assert!((0.71..0.765).contains(&steady), "{segments}: {steady}");
        // Up to 2.6%: the reserve is found in the first half.
        assert!(
            (steady / whole - 1.0).abs() < 0.04,
            "{segments}: {steady} {whole}"
        );
    }
}

/// What lies idle is the same share of any device, for policies that clean 64 segments at a time,
/// one, and from a sort buffer. Without that, `multi-log-opt` was at 1.10 and MDC at 1.33 on 196
/// segments, where equation (4) says 1.69 of a space of any size.
#[test]
fn uniform_updates_cost_the_same_on_devices_of_any_size() {
    let expected = analysis::wamp(analysis::emptiness(0.8));
    for policy in [
        PolicyKind::Age,
        PolicyKind::Greedy,
        PolicyKind::Mdc,
        PolicyKind::MultiLogOpt,
    ] {
        let mut config = SimConfig::paper(196, 0.8);
        // 128 pages in a segment, so that it takes a second.
        config.page_bytes = 16 << 10;
        let report = run(policy, &config, "uniform", 12.0);
        let wamp = report.steady.wamp();
        assert!(
            (wamp / expected - 1.0).abs() < 0.09,
            "{policy:?}: {wamp} with {} spare segments, equation 4 says {expected}",
            report.spare_segments
        );
    }
}

/// The order of the policies in Fig. 3 and 5 on skewed updates.
#[test]
fn policies_rank_as_in_the_paper() {
    let wamp = |policy| run(policy, &small(0.8), "hot-cold:0.9", 12.0).steady.wamp();
    let (age, greedy, no_sep) = (
        wamp(PolicyKind::Age),
        wamp(PolicyKind::Greedy),
        wamp(PolicyKind::MdcNoSepUserGc),
    );
    let (no_sep_user, mdc, opt) = (
        wamp(PolicyKind::MdcNoSepUser),
        wamp(PolicyKind::Mdc),
        wamp(PolicyKind::MdcOpt),
    );
    assert!(age > no_sep && greedy > no_sep, "{age} {greedy} {no_sep}");
    assert!(
        no_sep > no_sep_user && no_sep_user > mdc && mdc > opt,
        "{no_sep} {no_sep_user} {mdc} {opt}"
    );
    assert!(wamp(PolicyKind::LifeTable) < no_sep_user);
}

/// Logs that pay for their own writes only share the slack as Fig. 5 shows it: multi-log moves less
/// than cost-benefit under Zipf, and stays near the bound if it knows the frequencies.
#[test]
fn logs_share_the_slack() {
    let config = SimConfig {
        clean_batch: None,
        ..SimConfig::paper(400, 0.8)
    };
    let wamp = |policy, workload| run(policy, &config, workload, 8.0).steady.wamp();
    let cost_benefit = wamp(PolicyKind::CostBenefit, "zipf:0.99");
    let multi_log = wamp(PolicyKind::MultiLog, "zipf:0.99");
    // Measured 0.912 and 1.525.
    assert!(
        multi_log < 0.62 * cost_benefit,
        "{multi_log} {cost_benefit}"
    );
    for workload in ["zipf:0.99", "hot-cold:0.8"] {
        let groups = analysis::groups_of(kind(workload), config.user_pages()).unwrap();
        let bound = analysis::fluid_bound(0.8, &groups).wamp;
        let exact = wamp(PolicyKind::MultiLogOpt, workload);
        // Measured 1.092 and 0.998. What is free between two cycles is no slack, so that no policy
        // is below the bound.
        assert!(
            (0.97..1.12).contains(&(exact / bound)),
            "{workload}: {exact} against {bound}"
        );
    }
}

#[test]
fn runs_repeat_exactly_and_depend_on_the_seed() {
    let mut config = small(0.8);
    let first = run(PolicyKind::LifeTable, &config, "zipf:0.99", 4.0);
    assert_eq!(run(PolicyKind::LifeTable, &config, "zipf:0.99", 4.0), first);
    config.seed = 2;
    assert_ne!(run(PolicyKind::LifeTable, &config, "zipf:0.99", 4.0), first);
}

/// Every page is where the map says, every segment counts its live pages, and nothing is lost.
#[test]
fn books_balance_under_every_policy_and_page_size() {
    for policy in PolicyKind::ALL {
        for page_sizes in [PageSizes::Fixed, PageSizes::Spread] {
            struct Check(SimConfig);
            impl PolicyUser for Check {
                type Output = ();
                fn run<P: CleaningPolicy + 'static>(self, policy: P) {
                    let name = policy.name();
                    let workload =
                        Synthetic::new(kind("hot-cold:0.8"), self.0.user_pages(), 1).unwrap();
                    let mut simulator = Simulator::new(self.0, policy, workload).unwrap();
                    simulator.load().unwrap();
                    simulator.updates(60_000).unwrap();
                    balance(&simulator, name);
                }
            }
            let config = SimConfig {
                page_sizes,
                spare_segments: 60,
                ..small(0.8)
            };
            policy.with(u64::from(config.user_pages()), Check(config));
        }
    }
}

fn balance<P: CleaningPolicy, W: Workload>(simulator: &Simulator<P, W>, name: &str) {
    let segments = simulator.log.table.len() as usize;
    let (mut pages, mut bytes) = (vec![0u32; segments], vec![0u32; segments]);
    for page in 0..simulator.workload.pages() {
        let place = simulator.log.space.get(page);
        if place < BUFFERED {
            let segment = simulator.log.space.segment_of(place) as usize;
            assert_eq!(simulator.log.space.page_at(place), page, "{name}");
            pages[segment] += 1;
            bytes[segment] += simulator.size(page);
        } else {
            let entry = &simulator.buffer[(place ^ BUFFERED) as usize];
            assert_eq!(
                entry.token as u32, page,
                "{name}: page is in the sort buffer"
            );
        }
    }
    for segment in 0..segments {
        let id = SegmentId(segment as u32);
        assert_eq!(
            simulator.log.table.live_pages(id),
            pages[segment],
            "{name} segment {segment}"
        );
        assert_eq!(
            simulator.log.table.live_bytes(id),
            bytes[segment],
            "{name} segment {segment}"
        );
        let free = simulator.log.free.contains(&(segment as u32));
        assert_eq!(
            simulator.log.table.state(id) == SegmentState::Free,
            free,
            "{name} segment {segment}"
        );
    }
}

#[test]
fn absorbed_duplicates_save_page_writes_under_zipf() {
    let written = run(PolicyKind::Mdc, &small(0.8), "zipf:0.99", 5.0);
    let config = SimConfig {
        duplicates: Duplicates::Absorbed,
        ..small(0.8)
    };
    let absorbed = run(PolicyKind::Mdc, &config, "zipf:0.99", 5.0);
    assert_eq!(absorbed.whole.updates, written.whole.updates);
    let (a, w) = (
        absorbed.steady.page_writes_per_update(),
        written.steady.page_writes_per_update(),
    );
    // Measured 0.722.
    assert!(
        a < 0.73 * w,
        "{a} page writes per update when absorbed, {w} when not"
    );
}

#[test]
fn a_trace_replays_with_its_trims() {
    let mut ops: Vec<Op> = (0..8_000).map(Op::write).collect();
    ops.extend((0..4_000).map(Op::trim));
    ops.extend((4_000..8_000).map(Op::write));
    let trace = Trace::new(ops, 0);
    let mut simulator = Simulator::new(small(0.8), Greedy::new(), trace.replay(1)).unwrap();
    while simulator.updates(1000).unwrap() > 0 {}
    let live: u32 = (0..simulator.log.table.len())
        .map(|s| simulator.log.table.live_pages(SegmentId(s)))
        .sum();
    assert_eq!(live, 4_000);
    assert_eq!(simulator.totals().updates, 12_000, "trims are not updates");
    let report = simulate_workload(
        PolicyKind::Mdc,
        &small(0.8),
        trace.replay(10),
        RunLength::ToEnd,
        &mut |_| true,
    )
    .unwrap();
    assert_eq!(report.whole.updates, 120_000);
    assert_eq!(report.series.len(), 100);
}

/// However many updates there are, the steady state is the second half, and the series are the
/// hundredths of the run.
#[test]
fn halves_and_hundredths_are_so_of_runs_of_any_length() {
    for updates in [1, 2, 51, 100, 150, 199, 10_051] {
        let ops = (0..updates).map(|n| Op::write(n as u32 % 40)).collect();
        let trace = Trace::new(ops, 0);
        let report = simulate_workload(
            PolicyKind::Greedy,
            &small(0.8),
            trace.replay(1),
            RunLength::ToEnd,
            &mut |_| true,
        )
        .unwrap();
        assert_eq!(report.whole.updates, updates);
        assert_eq!(report.steady.updates, updates - updates / 2);
        assert_eq!(report.series.len() as u64, updates.min(100));
        let longest = report.series.iter().map(|window| window.updates).max();
        assert_eq!(longest, Some(updates.div_ceil(100)));
    }
}

/// Gives every version a history of its own and notes which of them are alive.
#[derive(Default)]
struct Witness {
    greedy: Greedy,
    alive: std::collections::BTreeSet<u64>,
}

impl CleaningPolicy for Witness {
    fn name(&self) -> &'static str {
        "witness"
    }
    fn streams(&self) -> u16 {
        self.greedy.streams()
    }
    fn history_kind(&self) -> HistoryKind {
        HistoryKind::Page { bytes: 4 }
    }
    fn orders(&self, cause: Cause) -> bool {
        cause == Cause::User
    }
    fn updated(&mut self, old: History, now: Tick) -> History {
        self.forgotten(old);
        self.alive.insert(now);
        History(now)
    }
    fn forgotten(&mut self, old: History) {
        assert!(!old.is_known() || self.alive.remove(&old.0), "{old:?}");
    }
    fn place(&mut self, page: &PageWrite, now: Tick) -> StreamId {
        self.greedy.place(page, now)
    }
    fn select_victims(
        &mut self,
        table: &SegmentTable,
        now: Tick,
        n: usize,
        out: &mut Vec<SegmentId>,
    ) {
        self.greedy.select_victims(table, now, n, out);
    }
}

#[test]
fn every_history_is_updated_or_forgotten_once_wherever_its_page_is() {
    let mut rng = crate::rng::Rng::new(6);
    // Pages near each other in time, so that many are trimmed in the sort buffer.
    let op = |i: u32| {
        let page = (i / 4 + rng.below(600)) % 8_000;
        match rng.below(4) {
            0 => Op::trim(page),
            _ => Op::write(page),
        }
    };
    let trace = Trace::new((0..60_000).map(op).collect(), 0);
    for duplicates in [Duplicates::Absorbed, Duplicates::Written] {
        let config = SimConfig {
            duplicates,
            ..small(0.8)
        };
        let replay = trace.replay(1);
        let mut simulator = Simulator::new(config, Witness::default(), replay).unwrap();
        while simulator.updates(1000).unwrap() > 0 {}
        let space = &simulator.log.space;
        let present = (0..8_000).filter(|&page| space.get(page) != NOWHERE);
        assert_eq!(simulator.log.policy.alive.len(), present.count());
        assert!(simulator.totals.cleaned_segments > 0);
    }
}

#[test]
fn an_observer_of_a_run_can_end_it() {
    let config = small(0.8);
    let workload = || Synthetic::new("uniform".parse().unwrap(), config.user_pages(), 1).unwrap();
    let mut heard = Vec::new();
    let stopped = simulate_workload(
        PolicyKind::Greedy,
        &config,
        workload(),
        RunLength::DeviceWrites(1.0),
        &mut |done| {
            heard.push(done);
            done < 0.3
        },
    );
    assert_eq!(stopped.unwrap_err(), SimError::Stopped);
    assert!(heard.len() > 10 && heard.is_sorted() && heard.last().unwrap() < &0.4);
}

#[test]
fn the_histogram_counts_the_steady_half() {
    let report = run(PolicyKind::Greedy, &small(0.8), "uniform", 4.0);
    assert_eq!(
        report.emptiness_histogram.iter().sum::<u64>(),
        report.steady.cleaned_segments
    );
    let mode = report
        .emptiness_histogram
        .iter()
        .enumerate()
        .max_by_key(|&(_, n)| n)
        .map(|(i, _)| i as f64 / 100.0);
    // Within half of a bar of the histogram: measured 0.004.
    assert!((mode.unwrap() - report.steady.emptiness()).abs() < 0.005);
}

#[test]
fn bad_configurations_are_named() {
    let error = |change: &dyn Fn(&mut SimConfig)| {
        let mut config = small(0.8);
        change(&mut config);
        let workload =
            Synthetic::new(WorkloadKind::Uniform, config.user_pages().max(1), 1).unwrap();
        Simulator::new(config, Mdc::new(), workload)
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default()
    };
    assert!(
        error(&|c| c.page_bytes = 3000)
            .contains("262144 bytes is not a positive multiple of page size 3000")
    );
    assert!(error(&|c| c.fill = 1.0).contains("fill factor 1 must be"));
    assert!(error(&|c| c.fill = f64::NAN).contains("fill factor NaN must be"));
    assert!(error(&|c| (c.fill, c.spare_segments) = (0.999, 5)).contains("cannot be sustained"));
    assert!(error(&|c| c.segments = 0).contains("hold no user page"));
    assert!(error(&|c| c.clean_batch = Some(0)).contains("at least 1 segment"));
    assert!(error(&|c| c.segments = 100_000_000).contains("2^31"));
    let few = SimConfig {
        segments: 10,
        fill: 0.2,
        ..small(0.8)
    };
    let trace = Trace::new(vec![Op::write(100_000)], 0);
    let error = simulate_workload(
        PolicyKind::Age,
        &few,
        trace.replay(1),
        RunLength::ToEnd,
        &mut |_| true,
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("100001 pages, but 10 segments at fill factor 0.2 hold 128"),
        "{error}"
    );
    let error = simulate(
        PolicyKind::MdcOpt,
        &small(0.8),
        kind("sliding:0.8:0.2:5"),
        RunLength::Updates(1),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("mdc-opt needs the exact update frequency"),
        "{error}"
    );
}

#[test]
fn running_out_of_space_is_an_error_not_a_panic() {
    let mut config = small(0.97);
    config.spare_segments = 2;
    config.clean_below = 6;
    let error = simulate(
        PolicyKind::MultiLog,
        &config,
        kind("zipf:0.99"),
        RunLength::DeviceWrites(5.0),
    )
    .unwrap_err();
    assert!(
        error
            .to_string()
            .contains("multi-log ran out of free segments"),
        "{error}"
    );
}
