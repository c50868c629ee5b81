//! Launches recorded as a CUDA graph: what the stream is given between the beginning and the end of a capture is done by each replay.
//!
//! Captures are of one thread: what other threads do on streams of their own goes on. Memory that candle takes and gives back
//! within a capture belongs to the graph; what of it is not given back is, at the next replay.

use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags_enum as Flags, CUstreamCaptureMode_enum as Mode,
};
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaStream};

use super::{CAPTURE, Gpu, failed, failure};
use crate::error::{Error, Result};

/// A capture under way; dropped, it ends and nothing is kept of it.
pub(crate) struct Capturing(Option<Arc<CudaStream>>);

/// A graph that can be run any number of times, in the order of its stream.
pub(crate) struct Captured(CudaGraph);

impl Gpu {
    /// Begins a capture.
    pub fn begin_capture(&self) -> Result<Capturing> {
        self.stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(failed)?;
        Ok(Capturing(Some(self.stream.clone())))
    }
}

impl Capturing {
    /// Ends it.
    pub fn end(mut self) -> Result<Captured> {
        let stream = self.0.take().expect("a capture ends once");
        let graph = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH).map_err(failed)?;
        let nothing = || Error::Launch { kernel: CAPTURE, reason: "nothing was captured".to_owned() };
        graph.map(Captured).ok_or_else(nothing)
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        if let Some(stream) = self.0.take() {
            // What it says was said before, by what failed.
            let _ = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
        }
    }
}

impl Captured {
    /// Enqueues one run.
    pub fn launch(&self) -> Result<()> {
        self.0.launch().map_err(|error| failure("the replay of a graph", &error))
    }
}
