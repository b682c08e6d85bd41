//! The engine's own files that share state by atomics, and their tests under loom, without the rest
//! of the engine, which takes a minute to compile and changes nothing of what is explored:
//! `RUSTFLAGS="--cfg loom" cargo test -p isobath-loom`.
//!
//! Nothing is copied. A new file of tests under loom is declared here too;
//! `every_file_of_tests_under_loom_is_declared` looks for it.

#[cfg(loom)]
#[path = "../../crates/isobath/src"]
#[allow(
    dead_code,
    unreachable_pub,
    unused_imports,
    reason = "what the rest of the engine uses"
)]
mod engine {
    pub(crate) mod canary;
    pub(crate) mod page;
    pub(crate) mod sync;

    pub(crate) mod shared {
        mod address;
        pub(crate) use address::Address;
    }

    mod buffer {
        mod frame_state;
        #[cfg(test)]
        mod frame_state_loom;
        mod latch;
        #[cfg(test)]
        mod latch_loom;
    }

    mod log {
        mod in_flight;
        #[cfg(test)]
        mod in_flight_loom;
    }

    mod runtime {
        mod wait_queue;
        #[cfg(test)]
        mod wait_queue_loom;

        /// Tasks wait in queues; the tests have waiters of their own.
        mod task {
            pub(crate) struct TaskRef;
            impl TaskRef {
                pub(crate) fn unpark(&self) {}
            }
        }

        /// Runs tasks.
        mod worker {
            pub(crate) struct Worker;
            impl Worker {
                pub(crate) fn current_task(&self) -> Option<super::task::TaskRef> {
                    None
                }
                pub(crate) fn park(&self) {}
            }
        }
    }
}

#[cfg(loom)]
pub(crate) use engine::{canary, page, shared, sync};

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed step must stop the test")]

    use std::path::Path;

    /// Names of files below `directory` that end with `_loom.rs`, without the ending `.rs`.
    fn files_under_loom(directory: &Path, into: &mut Vec<String>) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                files_under_loom(&path, into);
            } else if let Some(name) = path.file_name().unwrap().to_str()
                && name.ends_with("_loom.rs")
            {
                into.push(name.trim_end_matches(".rs").to_owned());
            }
        }
    }

    #[test]
    fn every_file_of_tests_under_loom_is_declared() {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let declared = std::fs::read_to_string(here.join("src/lib.rs")).unwrap();
        let mut files = Vec::new();
        files_under_loom(&here.join("../crates/isobath/src"), &mut files);
        assert!(!files.is_empty());
        for file in files {
            assert!(
                declared.contains(&format!("mod {file};")),
                "{file}.rs is not declared in loom/src/lib.rs"
            );
        }
    }
}
