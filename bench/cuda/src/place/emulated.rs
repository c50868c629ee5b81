//! The CPU that stands in for a GPU.

use kvtide_cuda::Stream;

/// Its stream.
#[expect(clippy::unnecessary_wraps, reason = "a build without it refuses")]
pub fn stream() -> Result<Stream, String> {
    Ok(Stream::emulated())
}
