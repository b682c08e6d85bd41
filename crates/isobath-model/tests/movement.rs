//! Section 5.2.1: files touched per compaction under RocksDB's movement policy.
use isobath_model::lsm::MovementSimulation;

/// The paper reports Θ(F) with R² = 0.974 and does not say for which sizes. At its own size (1,968
/// files, C = 4) the last level's fill varies with F and the line explains 0.94; at 600 files
/// 0.985, at 6,000 files 0.998.
#[test]
fn touched_files_grow_linearly_with_fanout() {
    let fanouts = [2, 4, 8, 16, 32];
    let paper = MovementSimulation::of_the_paper(1);
    // R² is 0.9433, 0.9854 and 0.9977, the slope 0.245, 0.222 and 0.346; the seed is fixed.
    for (total_files, r_squared_min, slope) in [
        (paper.total_files, 0.943, 0.245),
        (600, 0.985, 0.222),
        (6000, 0.997, 0.346),
    ] {
        let (runs, line) = MovementSimulation {
            total_files,
            ..paper
        }
        .touched_files_line(&fanouts);
        for run in &runs {
            println!(
                "{total_files} files, F={}: touched {:.2}, write amplification {:.2}, {:.2?}",
                run.fanout,
                run.touched_files_mean,
                run.write_amplification(),
                run.rewritten_per_flushed
            );
        }
        println!("{total_files} files: {line:?}");
        assert!(
            line.r_squared > r_squared_min,
            "{total_files} files: {line:?}"
        );
        assert!((line.slope / slope - 1.0).abs() < 0.002, "{line:?}");
        assert!(runs.is_sorted_by(|a, b| a.touched_files_mean < b.touched_files_mean));
    }
}

/// Choosing the least overlap is what keeps the slope well below the 1 of a random choice.
#[test]
fn the_policy_touches_fewer_files_than_the_fanout() {
    for run in MovementSimulation::of_the_paper(3)
        .touched_files_line(&[8, 32])
        .0
    {
        // 0.437 and 0.272.
        assert!(run.touched_files_mean < 0.44 * run.fanout as f64, "{run:?}");
    }
}
