//! Which records are popular: classes of records that are used equally often.

/// The law by which operations choose records.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Law {
    /// Every record equally often.
    Uniform,
    /// Zipf over the records, with this exponent; neighbouring ranks lie far apart.
    Zipf(f64),
    /// YCSB's scrambled Zipf: ranks of a law over 10¹⁰ items, hashed to the records, so that most of the law's tail falls evenly on
    /// all of them.
    ScrambledZipf(f64),
    /// YCSB's latest: Zipf by age, the newest record most often.
    Latest(f64),
}

/// Items over which YCSB's scrambled law ranks.
const SCRAMBLED_ITEMS: f64 = 1e10;
/// Each class of ranks ends at so many times the rank at which it begins.
const CLASS_STEP: f64 = 1.25;
/// Terms of a sum that are added one by one.
const EXACT: u32 = 100;

/// Records that are used equally often.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Class {
    /// Records.
    pub(super) count: f64,
    /// Share of all choices that fall on each of them.
    pub(super) share: f64,
    /// Rank of the middle one, from 1.
    pub(super) rank: f64,
}

/// Σ i^(−s) for i = 1..=n: Euler's and Maclaurin's formula past the first terms.
fn zeta(n: f64, s: f64) -> f64 {
    let exact = n.min(f64::from(EXACT)).floor();
    let head: f64 = (1..=exact as u32).map(|i| f64::from(i).powf(-s)).sum();
    if n <= f64::from(EXACT) {
        return head;
    }
    let integral = match (s - 1.0).abs() < 1e-9 {
        true => (n / exact).ln(),
        false => (n.powf(1.0 - s) - exact.powf(1.0 - s)) / (1.0 - s),
    };
    head + integral + 0.5 * (n.powf(-s) - exact.powf(-s))
}

/// The classes of so many records, the most popular first.
pub(super) fn classes(law: Law, records: f64) -> Vec<Class> {
    let records = records.max(1.0).floor();
    let (exponent, items) = match law {
        Law::Uniform => {
            return vec![Class {
                count: records,
                share: 1.0 / records,
                rank: 0.5 * records,
            }];
        }
        Law::Zipf(exponent) | Law::Latest(exponent) => (exponent, records),
        Law::ScrambledZipf(exponent) => (exponent, SCRAMBLED_ITEMS.max(records)),
    };
    let all = zeta(items, exponent);
    // What the ranks beyond the number of records get is spread over all of them.
    let even = (1.0 - zeta(records, exponent) / all) / records;
    let mut classes = Vec::new();
    let mut first = 1.0f64;
    // Bound: classes grow by a quarter.
    while first <= records {
        let last = (first * CLASS_STEP).floor().clamp(first, records);
        let count = last - first + 1.0;
        let weight = zeta(last, exponent)
            - if first > 1.0 {
                zeta(first - 1.0, exponent)
            } else {
                0.0
            };
        classes.push(Class {
            count,
            share: weight / all / count + even,
            rank: 0.5 * (first + last),
        });
        first = last + 1.0;
    }
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_and_the_scrambled_law_is_flatter() {
        let laws = [
            Law::Uniform,
            Law::Zipf(0.99),
            Law::ScrambledZipf(0.99),
            Law::Latest(0.99),
        ];
        for law in laws {
            let classes = classes(law, 524_288.0);
            let records: f64 = classes.iter().map(|c| c.count).sum();
            let shares: f64 = classes.iter().map(|c| c.count * c.share).sum();
            assert_eq!(records, 524_288.0, "{law:?}");
            assert!((shares - 1.0).abs() < 1e-9, "{law:?}: {shares}");
        }
        let hottest = |law| classes(law, 524_288.0)[0].share;
        // 1 / ζ(10¹⁰, 0.99), the constant of YCSB's source, and what of the tail falls on one record.
        assert!((hottest(Law::ScrambledZipf(0.99)) - 1.0 / 26.469_028_2).abs() < 1e-5);
        // 1.806 times: ζ(10¹⁰) over ζ(524,288).
        assert!(hottest(Law::Zipf(0.99)) > 1.8 * hottest(Law::ScrambledZipf(0.99)));
    }

    #[test]
    fn sums_are_those_term_by_term() {
        for s in [0.5, 0.99, 1.0, 1.35] {
            let exact: f64 = (1..=10_000).map(|i| f64::from(i).powf(-s)).sum();
            assert!((zeta(10_000.0, s) / exact - 1.0).abs() < 1e-5, "s = {s}");
        }
    }
}
