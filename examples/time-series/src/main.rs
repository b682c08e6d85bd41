//! Measurements by series and time: appending, ranges, aggregates, retention.
//!
//! A key is the series' number and the time in milliseconds, both big-endian, so that the
//! measurements of a series lie together in order of time.
//!
//!     cargo run -p isobath-example-time-series
#![allow(clippy::big_endian_bytes, reason = "keys sort as their bytes do")]

use isobath::{Error, LoadError, Options, Store, Tree, WriteBatch};

struct Series {
    store: Store,
    points: Tree,
}

/// The summary of some time's measurements.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Summary {
    /// When that time begins.
    from: u64,
    count: u64,
    min: f64,
    max: f64,
    mean: f64,
}

fn key(series: u32, time: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&series.to_be_bytes());
    key[4..].copy_from_slice(&time.to_be_bytes());
    key
}

fn time_of(key: &[u8]) -> u64 {
    key[4..].try_into().map_or(0, u64::from_be_bytes)
}

fn measured(value: &[u8]) -> f64 {
    f64::from_bits(value.try_into().map_or(0, u64::from_be_bytes))
}

impl Series {
    fn on(store: Store) -> Result<Series, Error> {
        let points = store.open_or_create_tree("points")?;
        Ok(Series { store, points })
    }

    /// Appends measurements of any series; one commit, and so one wait for the drive, for all of
    /// them.
    fn append(&self, points: &[(u32, u64, f64)]) -> Result<(), Error> {
        let mut batch = WriteBatch::new();
        for (series, time, value) in points {
            batch.insert(
                &self.points,
                key(*series, *time),
                value.to_bits().to_be_bytes(),
            );
        }
        self.store.write(&batch)
    }

    /// Loads a history, in any order: every page is written once.
    fn load(&self, points: impl IntoIterator<Item = (u32, u64, f64)>) -> Result<u64, LoadError> {
        let records = points
            .into_iter()
            .map(|(series, time, value)| (key(series, time), value.to_bits().to_be_bytes()));
        self.points.load(records)
    }

    fn latest(&self, series: u32) -> Result<Option<(u64, f64)>, Error> {
        let last = self
            .points
            .prefix(series.to_be_bytes())
            .next_back()
            .transpose()?;
        Ok(last.map(|(key, value)| (time_of(&key), measured(&value))))
    }

    /// The measurements of a series from `from` to before `to`, summed up for each `step`
    /// milliseconds that have any.
    fn summaries(&self, series: u32, from: u64, to: u64, step: u64) -> Result<Vec<Summary>, Error> {
        let mut summaries: Vec<Summary> = Vec::new();
        let range = key(series, from)..key(series, to);
        self.points.scan(range, |key, value| {
            let (begin, value) = (time_of(key) / step * step, measured(value));
            match summaries.last_mut().filter(|last| last.from == begin) {
                Some(last) => {
                    last.count += 1;
                    last.min = last.min.min(value);
                    last.max = last.max.max(value);
                    last.mean += (value - last.mean) / last.count as f64;
                }
                None => summaries.push(Summary {
                    from: begin,
                    count: 1,
                    min: value,
                    max: value,
                    mean: value,
                }),
            }
            true
        })?;
        Ok(summaries)
    }

    /// Removes measurements older than `time`; answers how many.
    fn forget_before(&self, series: u32, time: u64) -> Result<u64, Error> {
        self.points.remove_range(key(series, 0)..key(series, time))
    }
}

fn main() -> Result<(), Error> {
    let options = Options::new().pool_bytes(64 << 20);
    let series = Series::on(Store::open_or_create("series.isobath", &options)?)?;
    let day = (0..86_400).map(|second| (1, second * 1000, (second as f64 / 13_750.0).sin()));
    println!("{} measurements", series.load(day)?);
    series.append(&[(1, 86_400_000, 0.5), (2, 86_400_000, 20.0)])?;
    for hour in series.summaries(1, 0, 86_400_000, 3_600_000)? {
        println!(
            "{:>8} s: {:.3} to {:.3}, mean {:.3}",
            hour.from / 1000,
            hour.min,
            hour.max,
            hour.mean
        );
    }
    println!("latest: {:?}", series.latest(1)?);
    println!("{} forgotten", series.forget_before(1, 43_200_000)?);
    series.store.close()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series() -> Series {
        let options = Options::new().pool_bytes(16 << 20).workers(1);
        Series::on(Store::in_memory(&options).unwrap()).unwrap()
    }

    #[test]
    fn series_are_apart_and_in_order_of_time() {
        let series = series();
        series
            .append(&[(2, 5, 1.0), (1, 300, 3.0), (1, 20, -2.0)])
            .unwrap();
        series.append(&[(1, 255, 2.5), (1, 256, 4.0)]).unwrap();
        assert_eq!(series.latest(1).unwrap(), Some((300, 3.0)));
        assert_eq!(series.latest(2).unwrap(), Some((5, 1.0)));
        assert_eq!(series.latest(3).unwrap(), None);
        let all = series.summaries(1, 0, 1000, 100).unwrap();
        let counts: Vec<_> = all.iter().map(|s| (s.from, s.count)).collect();
        assert_eq!(counts, [(0, 1), (200, 2), (300, 1)]);
        assert_eq!((all[1].min, all[1].max, all[1].mean), (2.5, 4.0, 3.25));
        assert!(series.summaries(1, 21, 255, 100).unwrap().is_empty());
    }

    #[test]
    fn a_history_in_any_order_and_what_is_kept_of_it() {
        let series = series();
        let history = (0..10_000u64).map(|n| (7, n * 7919 % 10_000, n as f64));
        assert_eq!(series.load(history).unwrap(), 10_000);
        series.append(&[(8, 1, 1.0)]).unwrap();
        assert_eq!(series.forget_before(7, 9_990).unwrap(), 9_990);
        let left = series.summaries(7, 0, u64::MAX, 1_000_000).unwrap();
        assert_eq!((left.len(), left[0].count), (1, 10));
        assert_eq!(series.latest(8).unwrap(), Some((1, 1.0)));
    }
}
