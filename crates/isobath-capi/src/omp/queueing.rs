//! KV-mod's formulas: Erlang's C formula, a saturation curve, the roofline (paper 004, section
//! 3.2).

/// A saturation curve: the throughput of `c` parallel accesses is `λc / (1 + σ(c−1) + κc(c−1))`,
/// the universal scalability law. `λ` is the throughput of one access, `σ` the share that is
/// serial, `κ` the cost of coherence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Saturation {
    pub(super) lambda: f64,
    pub(super) sigma: f64,
    pub(super) kappa: f64,
}

impl Saturation {
    /// Throughput at `c` parallel accesses, in the unit of the fitted points.
    pub(super) fn at(&self, c: f64) -> f64 {
        let slowdown = 1.0 + self.sigma * (c - 1.0) + self.kappa * c * (c - 1.0);
        self.lambda * c / slowdown
    }

    /// The curve through points of parallelism and throughput. The law is linear in `1/λ`, `σ/λ`
    /// and `κ/λ`: `c/X = 1/λ + (σ/λ)(c−1) + (κ/λ)c(c−1)`, so that relative least squares solve it.
    /// A coefficient that would be negative has no meaning and is left out. `None` with fewer than
    /// two points, or where none fits.
    pub(super) fn fit(points: &[(f64, f64)]) -> Option<Saturation> {
        if points.len() < 2 {
            return None;
        }
        // All three, then without each of the two that may be absent, then without both.
        for used in [
            [true, true, true],
            [true, true, false],
            [true, false, true],
            [true, false, false],
        ] {
            if used.iter().filter(|used| **used).count() > points.len() {
                continue;
            }
            let Some(found) = least_squares(points, used) else {
                continue;
            };
            if found[0] > 0.0 && found[1] >= 0.0 && found[2] >= 0.0 {
                return Some(Saturation {
                    lambda: 1.0 / found[0],
                    sigma: found[1] / found[0],
                    kappa: found[2] / found[0],
                });
            }
        }
        None
    }
}

/// Coefficients of `c/X` over `1, c−1, c(c−1)`, those that are not used 0. Residuals are relative.
fn least_squares(points: &[(f64, f64)], used: [bool; 3]) -> Option<[f64; 3]> {
    let mut system = [[0.0; 4]; 3];
    for (c, rate) in points {
        let y = c / rate;
        let row = [1.0 / y, (c - 1.0) / y, c * (c - 1.0) / y];
        for i in 0..3 {
            for j in 0..3 {
                system[i][j] += row[i] * row[j];
            }
            system[i][3] += row[i];
        }
    }
    for (i, used) in used.into_iter().enumerate() {
        if !used {
            system[i] = [0.0; 4];
            system[0][i] = 0.0;
            system[1][i] = 0.0;
            system[2][i] = 0.0;
            system[i][i] = 1.0;
        }
    }
    eliminate(system)
}

/// Solves three linear equations by Gauss's elimination with pivots.
fn eliminate(mut system: [[f64; 4]; 3]) -> Option<[f64; 3]> {
    for column in 0..3 {
        let pivot = (column..3).max_by(|a, b| {
            let (a, b) = (system[*a][column].abs(), system[*b][column].abs());
            a.total_cmp(&b)
        })?;
        system.swap(column, pivot);
        let head = system[column];
        if head[column].abs() < 1e-12 {
            return None;
        }
        for (at, row) in system.iter_mut().enumerate() {
            if at != column {
                let factor = row[column] / head[column];
                for (value, head) in row.iter_mut().zip(head) {
                    *value -= factor * head;
                }
            }
        }
    }
    Some([
        system[0][3] / system[0][0],
        system[1][3] / system[1][1],
        system[2][3] / system[2][2],
    ])
}

/// The probability that a request waits in a queue with `servers` servers and `load` = arrival rate
/// / service rate of one (Erlang's C formula). 1 if the load is not below the number of servers.
/// By the recurrence of Erlang's B formula, which neither overflows nor cancels.
pub(super) fn erlang_c(servers: u32, load: f64) -> f64 {
    let c = f64::from(servers);
    if load >= c {
        return 1.0;
    }
    let mut blocked = 1.0;
    for server in 1..=servers {
        blocked = load * blocked / (f64::from(server) + load * blocked);
    }
    c * blocked / (c - load * (1.0 - blocked))
}

/// The mean time that a request takes with `servers` servers of `service` requests per second each
/// while `arrivals` come per second: `ErlangC/(c·μ − λ) + 1/μ`. `None` if the queue would grow
/// without end.
pub(super) fn response_seconds(servers: u32, service: f64, arrivals: f64) -> Option<f64> {
    let spare = f64::from(servers) * service - arrivals;
    (spare > 0.0 && service > 0.0)
        .then(|| erlang_c(servers, arrivals / service) / spare + 1.0 / service)
}

/// Which resource limits the throughput (the roofline model: the lower of two roofs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bottleneck {
    Compute,
    Data,
}

/// The lower roof: `compute` is what all processors could work on per second, `data` what the
/// device could give.
pub(super) fn bottleneck(compute: f64, data: f64) -> Bottleneck {
    match compute < data {
        true => Bottleneck::Compute,
        false => Bottleneck::Data,
    }
}
