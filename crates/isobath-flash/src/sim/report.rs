//! Results of a simulation.

/// Counts over a part of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Window {
    /// Updates that the user made (the clock).
    pub updates: u64,
    /// Pages written for the user; fewer than `updates` when duplicates are absorbed.
    pub user_pages: u64,
    /// Pages that the cleaner moved.
    pub relocated_pages: u64,
    /// Segments cleaned.
    pub cleaned_segments: u64,
    /// Sum of the emptiness of the segments cleaned.
    pub emptiness_sum: f64,
    /// Bytes written for the user and by the cleaner.
    pub user_bytes: u64,
    /// Bytes that the cleaner moved.
    pub relocated_bytes: u64,
}

impl Window {
    /// The paper's `Wamp` (equation 2): bytes moved by the cleaner per byte written for the user.
    pub fn wamp(&self) -> f64 {
        self.relocated_bytes as f64 / (self.user_bytes as f64).max(1.0)
    }

    /// 1 + `Wamp`: what is elsewhere called write amplification.
    pub fn write_amplification(&self) -> f64 {
        1.0 + self.wamp()
    }

    /// Pages written in all per user update: below [`Window::write_amplification`] when duplicates
    /// are absorbed.
    pub fn page_writes_per_update(&self) -> f64 {
        (self.user_pages + self.relocated_pages) as f64 / (self.updates as f64).max(1.0)
    }

    /// E: mean emptiness of the segments cleaned.
    pub fn emptiness(&self) -> f64 {
        self.emptiness_sum / (self.cleaned_segments as f64).max(1.0)
    }

    /// This window without `earlier`, a window with the same start.
    pub fn since(&self, earlier: &Window) -> Window {
        Window {
            updates: self.updates - earlier.updates,
            user_pages: self.user_pages - earlier.user_pages,
            relocated_pages: self.relocated_pages - earlier.relocated_pages,
            cleaned_segments: self.cleaned_segments - earlier.cleaned_segments,
            emptiness_sum: self.emptiness_sum - earlier.emptiness_sum,
            user_bytes: self.user_bytes - earlier.user_bytes,
            relocated_bytes: self.relocated_bytes - earlier.relocated_bytes,
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct SimReport {
    /// The policy's name.
    pub policy: &'static str,
    /// The whole run without the initial load.
    pub whole: Window,
    /// The second half of the run, the steady state.
    pub steady: Window,
    /// Segments cleaned in the second half by emptiness: bin i counts i% ≤ E < (i+1)%, the last one
    /// E = 100%.
    pub emptiness_histogram: Vec<u64>,
    /// The run in consecutive parts: convergence over time.
    pub series: Vec<Window>,
    /// Streams that held at least one segment.
    pub streams_used: u32,
    /// Spare segments in the second half of the run.
    pub spare_segments: u32,
    /// Pages of the workload.
    pub pages: u32,
    /// Bytes of history per page that the policy asks for.
    pub history_bytes: u8,
}
