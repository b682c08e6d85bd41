//! A closed system: so many clients, each at the cores or at the drive.

/// What one operation takes of the two, and what is left of them beside work that no client waits for.
pub(super) struct Stations<'s> {
    pub(super) clients: u32,
    /// CPU per operation, µs.
    pub(super) cpu_us: f64,
    /// Cores that are left for clients; a fraction of one where other work takes the rest.
    pub(super) cores: f64,
    /// I/Os per operation.
    pub(super) ios: f64,
    /// I/Os per second with one in flight, two, and so on, as many as there are clients.
    pub(super) ios_per_s: &'s [f64],
}

/// What the system does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Flow {
    /// Operations per second.
    pub(super) per_s: f64,
    /// Clients that run or wait for a core, mean.
    pub(super) at_cpu: f64,
}

impl Stations<'_> {
    /// Gordon's and Newell's product form of two stations whose rates depend on how many jobs are there.
    pub(super) fn flow(&self) -> Flow {
        let clients = self.clients.max(1);
        let cpu_rate = |k: u32| f64::from(k).min(self.cores) * 1e6 / self.cpu_us.max(1e-6);
        if self.ios < 1e-9 {
            return Flow {
                per_s: cpu_rate(clients),
                at_cpu: f64::from(clients),
            };
        }
        let drive_rate = |k: u32| {
            let at = (k as usize).min(self.ios_per_s.len()).max(1) - 1;
            self.ios_per_s.get(at).copied().unwrap_or(1.0).max(1e-6) / self.ios
        };
        // Logarithms of the weights of k clients at the CPU: all at the drive first, then one after another moves.
        let mut weights = vec![0.0f64];
        let mut weight = 0.0;
        for k in 1..=clients {
            weight += drive_rate(clients - k + 1).ln() - cpu_rate(k).max(1e-6).ln();
            weights.push(weight);
        }
        let most = weights.iter().copied().fold(f64::MIN, f64::max);
        let (mut all, mut rate, mut at_cpu) = (0.0, 0.0, 0.0);
        for (k, weight) in (0..=clients).zip(&weights) {
            let share = (weight - most).exp();
            all += share;
            rate += share * if k > 0 { cpu_rate(k) } else { 0.0 };
            at_cpu += share * f64::from(k);
        }
        Flow {
            per_s: rate / all,
            at_cpu: at_cpu / all,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bottleneck_gives_its_rate_and_two_give_less() {
        let drive: Vec<f64> = (1..=32).map(|k| 10_000.0 * f64::from(k.min(6))).collect();
        let flow = |cpu_us: f64, ios: f64| {
            Stations {
                clients: 32,
                cpu_us,
                cores: 2.0,
                ios,
                ios_per_s: &drive,
            }
            .flow()
        };
        assert!((flow(10.0, 0.0).per_s - 200_000.0).abs() < 1.0);
        assert!((flow(0.1, 1.0).per_s / 60_000.0 - 1.0).abs() < 1e-9);
        // Both could do 60,000/s alone; together clients wait for either: 57,979.
        let both = flow(33.3, 1.0).per_s;
        assert!((57_900.0..58_050.0).contains(&both), "{both}");
        // With one client, times add up.
        let alone = Stations {
            clients: 1,
            cpu_us: 50.0,
            cores: 2.0,
            ios: 1.0,
            ios_per_s: &drive,
        };
        assert!((alone.flow().per_s - 1e6 / 150.0).abs() < 1.0);
    }
}
