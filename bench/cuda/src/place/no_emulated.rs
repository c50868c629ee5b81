//! A build without the CPU that stands in for a GPU.

use kvtide_cuda::Stream;

/// Refuses.
pub fn stream() -> Result<Stream, String> {
    Err("this build has no CPU that stands in for a GPU: build it with --features emulate".to_owned())
}
