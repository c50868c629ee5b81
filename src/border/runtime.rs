//! The threads for network calls of stores: one pool for the process, created with the first store.

use std::sync::OnceLock;

use kvtide_core::{Code, details};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::border::refusal::{Outcome, Refusal};

const THREADS: usize = 2;

/// Returns the pool, or the reason why it could not be created. It stays until the process ends, because answers may
/// arrive after their cache is gone.
pub(crate) fn handle() -> Outcome<Handle> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let make = || {
        let mut builder = Builder::new_multi_thread();
        let built = builder.worker_threads(THREADS).thread_name("kvtide-net").enable_all().build();
        built.map_err(|reason| reason.to_string())
    };
    match RUNTIME.get_or_init(make) {
        Ok(runtime) => Ok(runtime.handle().clone()),
        Err(reason) => Err(Refusal {
            code: Code::IoError,
            message: format!("cannot start threads for the network: {reason}"),
            details: details![operation: "start", path: "threads for the network", reason: reason],
        }),
    }
}
