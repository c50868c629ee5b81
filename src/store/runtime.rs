//! The threads on which stores are asked over the network: one pool for the process, made when the first store is.

use std::sync::OnceLock;

use kvtide_core::{Code, details};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::border::refusal::{Outcome, Refusal};

const THREADS: usize = 2;

/// The pool, or why it could not be made. It stays to the end of the process: answers may come when their cache is long gone.
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
