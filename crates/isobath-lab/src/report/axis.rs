//! Axes of charts: maps values to places between two ends, and chooses the labelled values.

/// One axis.
#[derive(Debug, Clone)]
pub(crate) struct Axis {
    pub(super) name: String,
    low: f64,
    high: f64,
    scale: Scale,
}

#[derive(Debug, Clone, Copy)]
enum Scale {
    Log,
    Linear { min_step: f64 },
}

/// Steps between the values beside an axis, at most.
const STEPS_MAX: f64 = 6.0;

impl Axis {
    /// Logarithmic from `low` to `high`.
    pub(crate) fn log(name: &str, low: f64, high: f64) -> Self {
        Self::new(name, low, high, Scale::Log)
    }

    /// Logarithmic over the finite positive values with a margin; one decade around 1 if there are
    /// none.
    pub(crate) fn log_over(name: &str, values: impl Iterator<Item = f64>) -> Self {
        match ends(values.filter(|v| *v > 0.0)) {
            Some((low, high)) => Self::log(name, low / 1.15, high * 1.15),
            None => Self::log(name, 0.3, 3.0),
        }
    }

    /// Linear from the least to the largest finite value.
    pub(crate) fn over(name: &str, values: impl Iterator<Item = f64>) -> Self {
        let (low, high) = match ends(values) {
            Some((low, high)) if low < high => (low, high),
            Some((low, _)) => (low.min(0.0), low.max(0.0).max(low.min(0.0) + 1.0)),
            None => (0.0, 1.0),
        };
        Self::new(name, low, high, Scale::Linear { min_step: 0.0 })
    }

    /// Linear from 0 to the largest finite value with a margin.
    pub(crate) fn from_zero(name: &str, values: impl Iterator<Item = f64>) -> Self {
        Self::over(name, values.map(|v| v * 1.05).chain([0.0]))
    }

    /// The numbers from 1 to `count`.
    pub(crate) fn count(name: &str, count: usize) -> Self {
        let scale = Scale::Linear { min_step: 1.0 };
        Self::new(name, 0.5, count.max(1) as f64 + 0.5, scale)
    }

    /// From 1 to `count` for things with names of their own: nothing is written beside the axis.
    pub(crate) fn named(count: usize) -> Self {
        let scale = Scale::Linear {
            min_step: f64::INFINITY,
        };
        Self::new("", 0.5, count.max(1) as f64 + 0.5, scale)
    }

    fn new(name: &str, low: f64, high: f64, scale: Scale) -> Self {
        let name = name.to_owned();
        Self {
            name,
            low,
            high,
            scale,
        }
    }

    /// 0 at the low end, 1 at the high end.
    pub(crate) fn share(&self, value: f64) -> f64 {
        match self.scale {
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
            Scale::Linear { .. } => (value - self.low) / (self.high - self.low),
        }
    }

    /// The value at a share.
    pub(crate) fn value(&self, share: f64) -> f64 {
        match self.scale {
            Scale::Log => self.low * (self.high / self.low).powf(share),
            Scale::Linear { .. } => self.low + (self.high - self.low) * share,
        }
    }

    /// The values that are written beside the axis: 1, 2, 5 per decade, decades alone where there
    /// are many, or steps of 1, 2 or 5 times a power of ten.
    pub(super) fn ticks(&self) -> Vec<f64> {
        let decades = match self.scale {
            Scale::Log => (self.high / self.low).log10(),
            Scale::Linear { .. } => 0.0,
        };
        let all: Vec<f64> = if decades > 0.7 {
            let steps: &[f64] = if decades > 2.5 {
                &[1.0]
            } else {
                &[1.0, 2.0, 5.0]
            };
            let decades = self.low.log10().floor() as i32..=self.high.log10().ceil() as i32;
            decades
                .flat_map(|d| steps.iter().map(move |s| s * 10f64.powi(d)))
                .collect()
        } else {
            let least = (self.high - self.low) / STEPS_MAX;
            let unit = 10f64.powi(least.log10().floor() as i32);
            let step = [1.0, 2.0, 5.0].map(|s| s * unit);
            let step = step.into_iter().find(|s| *s >= least);
            let step = step.unwrap_or(10.0 * unit).max(match self.scale {
                Scale::Linear { min_step } => min_step,
                Scale::Log => 0.0,
            });
            let first = (self.low / step).ceil();
            (0..=STEPS_MAX as i32)
                .map(|i| (first + f64::from(i)) * step)
                .collect()
        };
        // A rounding error must not hide the ends.
        let slack = 1e-9 * (self.high - self.low);
        all.into_iter()
            .filter(|tick| (self.low - slack..=self.high + slack).contains(tick))
            .collect()
    }
}

/// The least and the largest finite value.
fn ends(values: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    values.filter(|v| v.is_finite()).fold(None, |ends, v| {
        let (low, high) = ends.unwrap_or((v, v));
        Some((low.min(v), high.max(v)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_are_invertible() {
        let axis = Axis::log("x", 1.0, 100.0);
        assert!((axis.share(10.0) - 0.5).abs() < 1e-12);
        assert!((axis.value(0.25) - 100f64.powf(0.25)).abs() < 1e-9);
        let axis = Axis::over("x", [1.0, f64::NAN, 5.0].into_iter());
        assert!((axis.share(2.0) - 0.25).abs() < 1e-12);
        assert!((axis.value(0.25) - 2.0).abs() < 1e-12);
    }

    #[test]
    fn round_numbers_stand_beside_an_axis() {
        let ticks = |axis: Axis| axis.ticks();
        let log = ticks(Axis::log("x", 1.0, 100.0));
        assert_eq!(log, [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
        assert_eq!(
            ticks(Axis::log("x", 1.0, 1e4)),
            [1.0, 10.0, 100.0, 1e3, 1e4]
        );
        assert_eq!(ticks(Axis::log("x", 1.5, 3.4)), [1.5, 2.0, 2.5, 3.0]);
        assert_eq!(ticks(Axis::count("x", 3)), [1.0, 2.0, 3.0]);
        let from_zero = ticks(Axis::from_zero("x", [240.0].into_iter()));
        assert_eq!(from_zero, [0.0, 50.0, 100.0, 150.0, 200.0, 250.0]);
        let fills = ticks(Axis::over("x", [0.5, 0.95].into_iter()));
        assert_eq!(fills.len(), 5, "{fills:?}");
        for values in [
            vec![],
            vec![0.0],
            vec![-3.0],
            vec![7.0],
            vec![f64::INFINITY],
        ] {
            let axis = Axis::over("x", values.iter().copied());
            assert!(axis.ticks().len() > 1, "{values:?}");
            let axis = Axis::log_over("x", values.iter().copied());
            assert!(!axis.ticks().is_empty(), "{values:?}");
        }
    }
}
