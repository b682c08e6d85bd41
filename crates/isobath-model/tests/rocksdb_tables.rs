//! Tables 3, 4 and 5 of the MQSSD paper: the printed equations' errors, and the calibrated model's.
#![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]
mod common;

use common::{Noise, Table2, quantile, rows};
use isobath_model::curve::{CostCurve, FitNorm, Saturating};
use isobath_model::drive::TABLE_2_ACCESSES;
use isobath_model::lsm::{AccessCosts, Cell, EngineModel, Layout, LsmStore, Mix, PrintedLsm};

const KS: [u32; 6] = [1, 2, 4, 8, 16, 32];
const QUERIES: f64 = 3.2e6;
const RECORDS: f64 = 6.4e7;

fn leveled(fanout: u32) -> Layout {
    Layout::Leveled {
        fanout,
        l0_files: 4,
    }
}

/// Columns of the fixture; the last is the flash configuration of Table 5.
fn layouts() -> [Layout; 7] {
    let flash = Layout::Leveled {
        fanout: 8,
        l0_files: 8,
    };
    [
        leveled(2),
        leveled(4),
        leveled(8),
        leveled(16),
        leveled(32),
        Layout::SingleLevel,
        flash,
    ]
}

type Table = [Vec<Option<f64>>];

/// µs per operation; rows are `KS`, columns are `layouts()`, `None` if the paper has no number.
struct Tables {
    query: Vec<Vec<Option<f64>>>,
    scan: Vec<Vec<Option<f64>>>,
    insert: Vec<Vec<Option<f64>>>,
}

impl Tables {
    fn read() -> Self {
        let rows = rows(include_str!("fixtures/rocksdb_tables.csv"));
        let of = |what: &str, operations: f64| {
            let own = rows.iter().filter(|r| r[1] == what);
            own.map(|r| {
                r[3..]
                    .iter()
                    .map(|v| v.parse::<f64>().ok().map(|s| s * 1e6 / operations))
                    .collect()
            })
            .collect()
        };
        Self {
            query: of("query", QUERIES),
            scan: of("scan", QUERIES),
            insert: of("compaction", RECORDS),
        }
    }

    fn cell(table: &Table, row: usize, column: usize) -> Cell {
        Cell {
            layout: layouts()[column],
            concurrency: KS[row],
            operation_us: table[row][column].unwrap(),
        }
    }
}

fn store() -> LsmStore {
    LsmStore {
        data_bytes: RECORDS * 2064.0,
        file_bytes: 64.0 * 1024.0 * 1024.0,
        filter_false_positive_share: None,
        l0_slowdown_files: 20,
    }
}

/// What the drive takes for a random read of a block of 4 KiB with one in flight: t(1) + α(1) of
/// Table 2, of the same drive. At more in flight Table 2's reads came from memory; Tables 3 to 5
/// are not looked at.
fn block_read_us() -> f64 {
    let table = Table2::read();
    table.t[0].1 / TABLE_2_ACCESSES + table.alpha[0].1
}

/// (row, column) of the runs that calibrate the model.
type Cells = [(usize, usize)];

/// The rule for three cells, which looks at no time: the middle fanout at the least and the
/// greatest k, and the single level at the least k. They are the fewest that show what a level, a
/// thread and a query cost.
const THREE_CELLS: &Cells = &[(0, 2), (5, 2), (0, 5)];
/// The rule for choosing among layouts: each of them at the least k, and the middle fanout at the
/// greatest.
const LAYOUT_CELLS: &Cells = &[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 5), (5, 2)];
/// The rule for inserts: the least, middle and greatest fanout and the single level, each at the
/// least, a middle and the greatest k.
const INSERT_CELLS: &Cells = &[
    (0, 0),
    (2, 0),
    (5, 0),
    (0, 2),
    (2, 2),
    (5, 2),
    (0, 4),
    (2, 4),
    (5, 4),
    (0, 5),
    (2, 5),
    (5, 5),
];

fn calibrated(tables: &Tables, query_cells: &Cells) -> EngineModel {
    calibrated_on(tables, query_cells, INSERT_CELLS).unwrap()
}

/// `None` if the cells do not determine the model.
fn calibrated_on(
    tables: &Tables,
    query_cells: &Cells,
    insert_cells: &Cells,
) -> Option<EngineModel> {
    let cells = |table: &Table, which: &Cells| -> Vec<Cell> {
        which
            .iter()
            .map(|&(row, column)| Tables::cell(table, row, column))
            .collect()
    };
    EngineModel::calibrate(
        store(),
        Some(block_read_us()),
        &cells(&tables.query, query_cells),
        &cells(&tables.scan, query_cells),
        &cells(&tables.insert, insert_cells),
    )
    .ok()
}

/// The measured cells of a table.
fn measured(table: &Table) -> Vec<(usize, usize)> {
    let rows = table.iter().enumerate();
    rows.flat_map(|(row, values)| {
        let own = values.iter().enumerate().filter(|v| v.1.is_some());
        own.map(move |(column, _)| (row, column))
    })
    .collect()
}

/// |predicted/measured − 1| of all cells that took no part in the calibration.
fn errors(table: &Table, known: &Cells, predict: impl Fn(Layout, u32) -> f64) -> Vec<f64> {
    let mut errors = Vec::new();
    for (row, values) in table.iter().enumerate() {
        for (column, measured) in values.iter().enumerate() {
            if let Some(measured) = measured
                && !known.contains(&(row, column))
            {
                errors.push((predict(layouts()[column], KS[row]) / measured - 1.0).abs());
            }
        }
    }
    errors
}

#[test]
fn three_cells_of_table_3_predict_the_others() {
    let tables = Tables::read();
    let model = calibrated(&tables, THREE_CELLS);
    let query = errors(&tables.query, THREE_CELLS, |l, k| model.query_us(l, k));
    let scan = errors(&tables.scan, THREE_CELLS, |l, k| model.scan_us(l, k));
    for (name, errors) in [("query", &query), ("scan", &scan)] {
        println!(
            "{name}: median {:.3}, worst {:.3}",
            quantile(errors, 0.5),
            quantile(errors, 1.0)
        );
    }
    assert_eq!((query.len(), scan.len()), (39, 39));
    // 0.045 and 0.142; 0.065 and 0.246.
    assert!(quantile(&query, 0.5) <= 0.046 && quantile(&query, 1.0) <= 0.143);
    assert!(quantile(&scan, 0.5) <= 0.066 && quantile(&scan, 1.0) <= 0.247);
}

#[test]
fn twelve_cells_of_table_4_predict_the_others() {
    let tables = Tables::read();
    let model = calibrated(&tables, THREE_CELLS);
    let all = errors(&tables.insert, INSERT_CELLS, |l, k| {
        model.insert_us(l, k).unwrap()
    });
    println!(
        "insert: median {:.3}, p90 {:.3}, worst {:.3}",
        quantile(&all, 0.5),
        quantile(&all, 0.9),
        quantile(&all, 1.0)
    );
    assert_eq!(all.len(), 25);
    // 0.033, 0.144 and 0.204.
    assert!(quantile(&all, 0.5) <= 0.034 && quantile(&all, 0.9) <= 0.145);
    assert!(quantile(&all, 1.0) <= 0.205);
    let flash = model.insert_us(layouts()[6], 4).unwrap() / tables.insert[2][6].unwrap();
    assert!(
        // 1.118.
        (flash - 1.0).abs() < 0.12,
        "Table 5's flash configuration: {flash}"
    );
}

/// The median error of one choice of cells, the median and the 90th percentile over choices.
fn over_choices(name: &str, medians: &[f64]) -> (f64, f64) {
    let (median, p90) = (quantile(medians, 0.5), quantile(medians, 0.9));
    println!(
        "{name}: median error over {} choices {median:.3}, p90 {p90:.3}",
        medians.len()
    );
    (median, p90)
}

/// What three cells are worth whichever they are: the median error over all 11,480 choices. The
/// rule above is better than that because its cells span the table, not because they were picked by
/// what they predict.
#[test]
fn all_choices_of_three_cells_of_table_3() {
    let tables = Tables::read();
    let cells = measured(&tables.query);
    assert_eq!(cells.len(), 42);
    let (mut query, mut scan) = (Vec::new(), Vec::new());
    for a in 0..cells.len() {
        for b in a + 1..cells.len() {
            for c in b + 1..cells.len() {
                let own = [cells[a], cells[b], cells[c]];
                let model = calibrated(&tables, &own);
                let q = errors(&tables.query, &own, |l, k| model.query_us(l, k));
                let s = errors(&tables.scan, &own, |l, k| model.scan_us(l, k));
                query.push(quantile(&q, 0.5));
                scan.push(quantile(&s, 0.5));
            }
        }
    }
    assert_eq!(query.len(), 11_480);
    let (query, scan) = (over_choices("query", &query), over_choices("scan", &scan));
    // 0.062 (the goal is 0.07) and 0.099.
    assert!(query.0 <= 0.063 && scan.0 <= 0.10, "{query:?} {scan:?}");
    // The rules' own errors are those of a better choice than the median, and no better than the
    // best.
    let model = calibrated(&tables, THREE_CELLS);
    let ruled = errors(&tables.query, THREE_CELLS, |l, k| model.query_us(l, k));
    assert!(quantile(&ruled, 0.5) < query.0);
}

/// There are 1.9e9 choices of twelve of the 37 inserts; a thousand by chance.
#[test]
fn a_thousand_choices_of_twelve_inserts() {
    let tables = Tables::read();
    let cells = measured(&tables.insert);
    assert_eq!(cells.len(), 37);
    let mut random = Noise(5);
    let mut medians = Vec::new();
    for _ in 0..1000 {
        let mut left = cells.clone();
        let mut draw = || left.swap_remove((random.uniform() * left.len() as f64) as usize);
        let own: Vec<(usize, usize)> = (0..INSERT_CELLS.len()).map(|_| draw()).collect();
        // A choice that does not determine the model, or the single level, misses it wholly.
        let missed = match calibrated_on(&tables, THREE_CELLS, &own) {
            Some(model) => errors(&tables.insert, &own, |l, k| {
                model.insert_us(l, k).unwrap_or(0.0)
            }),
            None => vec![1.0],
        };
        medians.push(quantile(&missed, 0.5));
    }
    let (median, _) = over_choices("insert", &medians);
    // 0.056.
    assert!(median <= 0.057, "{median}");
}

/// Calibrated on 26 of the tables' 121 cells. Pure workloads (queries, scans, inserts, each at six
/// k) stay within 3.5% of the best layout; mixes on a grid within 7%, where layouts cross and small
/// errors decide.
#[test]
fn the_recommended_layout_costs_at_most_five_percent_more_than_the_best() {
    let tables = Tables::read();
    let model = calibrated(&tables, LAYOUT_CELLS);
    let candidates = &layouts()[..6];
    let shares = [0.0, 0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0];
    let (mut worst, mut worst_pure, mut decisions) = (0.0f64, 0.0f64, 0);
    for (row, &k) in KS.iter().enumerate() {
        for (queries, scans) in shares
            .iter()
            .flat_map(|&q| shares.map(|s| (q, s)))
            .filter(|(q, s)| q + s <= 1.0)
        {
            let inserts = 1.0 - queries - scans;
            let chosen = model
                .cheapest(
                    candidates,
                    &Mix {
                        queries,
                        scans,
                        inserts,
                        threads: k,
                        jobs: k,
                    },
                )
                .unwrap()
                .0;
            let cost = |c: usize| {
                let of = |table: &Table| table[row][c].unwrap();
                queries * of(&tables.query)
                    + scans * of(&tables.scan)
                    + inserts * of(&tables.insert)
            };
            let best = (0..candidates.len())
                .map(cost)
                .fold(f64::INFINITY, f64::min);
            let column = candidates.iter().position(|l| *l == chosen).unwrap();
            let regret = cost(column) / best - 1.0;
            if regret > 0.03 {
                println!(
                    "k = {k}, {queries} queries, {scans} scans: {chosen:?} costs {regret:.3} more"
                );
            }
            (worst, decisions) = (worst.max(regret), decisions + 1);
            if [queries, scans, inserts].contains(&1.0) {
                worst_pure = worst_pure.max(regret);
            }
        }
    }
    println!("worst of {decisions}: {worst:.3}, of the pure ones {worst_pure:.3}");
    assert!(worst_pure <= 0.035, "{worst_pure}");
    assert!(worst <= 0.07, "{worst}");
}

struct Printed {
    lsm: PrintedLsm,
    costs: [Saturating; 4],
}

impl Printed {
    fn new() -> Self {
        let table = Table2::read();
        let fit = |points: &[(f64, f64)]| Saturating::fit(points, FitNorm::Squares).unwrap();
        let lsm = PrintedLsm {
            data_bytes: store().data_bytes,
            file_bytes: store().file_bytes,
            l0_files: 4.0,
            block_bytes: 4096.0,
            page_bytes: 4096.0,
            record_bytes: 2064.0,
        };
        Self {
            lsm,
            costs: [
                fit(&table.t),
                fit(&table.alpha),
                fit(&table.s),
                fit(&table.beta),
            ],
        }
    }

    fn costs(&self, k: u32) -> AccessCosts {
        let [t, alpha, s, beta] = self.costs.map(|c| c.at(f64::from(k)));
        AccessCosts {
            read_setup_us: t / TABLE_2_ACCESSES,
            read_transfer_us: alpha,
            write_setup_us: s / TABLE_2_ACCESSES,
            write_transfer_us: beta,
        }
    }

    fn query_us(&self, fanout: u32, k: u32) -> f64 {
        self.lsm.point_query_us(f64::from(fanout), &self.costs(k))
    }

    fn insert_us(&self, fanout: u32, k: u32) -> f64 {
        self.lsm.insert_us(f64::from(fanout), &self.costs(k))
    }
}

const FANOUTS: [u32; 5] = [2, 4, 8, 16, 32];

fn least(values: impl Iterator<Item = f64>) -> usize {
    values
        .enumerate()
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap()
        .0
}

/// Figure 5 with equations 9 and 10 and one constant per workload, as the paper draws it: the order
/// over k is right, the choice of F is not, and the speed-up over k is an order of magnitude too
/// large for queries, because Table 2's reads came from memory.
#[test]
fn the_printed_equations_rank_by_concurrency_and_choose_fanout_badly() {
    let (tables, printed) = (Tables::read(), Printed::new());
    type Predict = fn(&Printed, u32, u32) -> f64;
    let cases: [(&str, &Table, Predict); 2] = [
        ("query", &tables.query, Printed::query_us),
        ("insert", &tables.insert, Printed::insert_us),
    ];
    let mut right = Vec::new();
    for (name, table, predict) in cases {
        let ratios: Vec<f64> = (0..KS.len())
            .flat_map(|row| {
                FANOUTS
                    .iter()
                    .enumerate()
                    .map(move |(column, &f)| (row, column, f))
            })
            .map(|(row, column, f)| {
                (predict(&printed, f, KS[row]) / table[row][column].unwrap()).ln()
            })
            .collect();
        let constant = quantile(&ratios, 0.5);
        let aligned: Vec<f64> = ratios
            .iter()
            .map(|r| ((r - constant).exp() - 1.0).abs())
            .collect();
        println!(
            "{name}: aligned by one constant, median error {:.2}, worst {:.2}",
            quantile(&aligned, 0.5),
            quantile(&aligned, 1.0)
        );
        for (column, &f) in FANOUTS.iter().enumerate() {
            assert!(
                KS.windows(2)
                    .all(|k| predict(&printed, f, k[0]) > predict(&printed, f, k[1]))
            );
            let speedup = predict(&printed, f, 1) / predict(&printed, f, 32);
            let measured = table[0][column].unwrap() / table[5][column].unwrap();
            println!("{name} F={f}: predicted speed-up {speedup:.0}, measured {measured:.0}");
            if name == "query" {
                assert!(speedup > 200.0 && measured < 26.0);
            }
        }
        let chosen = |row: usize| least(FANOUTS.iter().map(|&f| predict(&printed, f, KS[row])));
        let best = |row: usize| least((0..5).map(|c| table[row][c].unwrap()));
        right.push(
            (0..KS.len())
                .filter(|&row| chosen(row) == best(row))
                .count(),
        );
    }
    println!(
        "best F chosen: queries {} of 6, inserts {} of 6",
        right[0], right[1]
    );
    assert_eq!(right[0], 0);
    assert!(right[1] <= 2, "{right:?}");
}

/// Equations 11 and 12: one level always reads best, as measured; its compaction, with the files
/// touched corrected to N/T, is an order of magnitude too dear, because the equation merges one
/// file at a time.
#[test]
fn the_printed_single_level_is_right_about_reads_and_wrong_about_writes() {
    let (tables, printed) = (Tables::read(), Printed::new());
    for (row, &k) in KS.iter().enumerate() {
        let single = printed.lsm.point_query_single_level_us(&printed.costs(k));
        assert!(FANOUTS.iter().all(|&f| single < printed.query_us(f, k)));
        assert!((0..5).all(|c| tables.query[row][5] < tables.query[row][c]
            && tables.scan[row][5] < tables.scan[row][c]));
        if k > 1 {
            let ratio = printed.lsm.insert_single_level_us(&printed.costs(k))
                / tables.insert[row][5].unwrap();
            // 10.2 to 15.4.
            assert!(ratio > 10.0, "k = {k}: {ratio}");
        }
    }
}
