//! CPU time of the process, user and system apart.

use std::fs;
use std::ops::Sub;
use std::time::Duration;

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cpu {
    /// Both, exactly.
    pub(super) total: Duration,
    /// Share of user time in ticks of 10 ms.
    user_ticks: f64,
    system_ticks: f64,
}

impl Cpu {
    pub(super) fn now() -> Cpu {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The second field is the name in parentheses and may hold anything; utime and stime are
        // fields 14 and 15.
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let mut fields = rest.split_ascii_whitespace().skip(11);
        let mut next = || fields.next().and_then(|f| f.parse().ok()).unwrap_or(0.0);
        Cpu {
            total: crate::cpu_time(),
            user_ticks: next(),
            system_ticks: next(),
        }
    }

    /// User time in seconds: the exact total, divided as the ticks are.
    pub(super) fn user_s(&self) -> f64 {
        let ticks = self.user_ticks + self.system_ticks;
        if ticks == 0.0 {
            return 0.0;
        }
        self.total.as_secs_f64() * self.user_ticks / ticks
    }

    /// System time in seconds.
    pub(super) fn system_s(&self) -> f64 {
        self.total.as_secs_f64() - self.user_s()
    }
}

impl Sub for Cpu {
    type Output = Cpu;
    fn sub(self, earlier: Cpu) -> Cpu {
        Cpu {
            total: self.total.saturating_sub(earlier.total),
            user_ticks: self.user_ticks - earlier.user_ticks,
            system_ticks: self.system_ticks - earlier.system_ticks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burning_cpu_counts_as_user_time() {
        let before = Cpu::now();
        let mut sum = 0u64;
        while (Cpu::now() - before).total < Duration::from_millis(200) {
            for i in 0..5_000_000 {
                sum = std::hint::black_box(sum.wrapping_add(i));
            }
        }
        let spent = Cpu::now() - before;
        assert!(spent.user_s() > 0.1, "{spent:?}");
        assert!(spent.user_s() + spent.system_s() <= spent.total.as_secs_f64() + 1e-9);
    }
}
