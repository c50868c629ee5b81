//! Launches recorded as a CUDA graph: what the stream is given between the beginning and the end of a capture is done by each replay.
//!
//! Meanwhile the stream's gate is closed to other threads. Memory that candle takes and gives back within a capture belongs to the graph;
//! what of it is not given back is, at the next replay. Memory from before the capture cannot be given back in it: the launches' own is
//! kept until the capture has ended, and a tensor of candle's that is dropped makes the capture fail, with that reason.

use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::sys::{
    CUgraphInstantiate_flags_enum as Flags, CUstreamCaptureMode_enum as Mode,
};
use candle_core::cuda_backend::cudarc::driver::{CudaGraph, CudaStream, DriverError};

use super::{Gpu, failure};
use crate::error::{Error, Result};
use crate::gate::Closed;

/// A capture under way; dropped, it ends and nothing is kept of it.
pub(crate) struct Capturing {
    stream: Option<Arc<CudaStream>>,
    _closed: Closed,
}

/// A graph that can be run any number of times, in the order of its stream.
pub(crate) struct Captured(CudaGraph);

impl Gpu {
    /// Begins a capture, once no other thread is inside of the gate.
    pub fn begin_capture(&self) -> Result<Capturing> {
        let closed = self.gate.close()?;
        // What failed before, in a destructor, is not the capture's.
        self.stream.context().check_err().map_err(failed)?;
        self.stream.begin_capture(Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).map_err(failed)?;
        Ok(Capturing { stream: Some(self.stream.clone()), _closed: closed })
    }
}

impl Capturing {
    /// Ends it.
    pub fn end(mut self) -> Result<Captured> {
        let stream = self.stream.take().expect("a capture ends once");
        let dropped = stream.context().check_err();
        let graph = end(&stream);
        dropped.map_err(|error| {
            let Error::Launch { kernel, reason, driver } = failed(error) else { return failed(error) };
            let reason = format!("a tensor that was made before the capture was dropped in it: {reason}");
            Error::Launch { kernel, reason, driver }
        })?;
        graph?.map(Captured).ok_or_else(|| Error::capture("nothing was captured"))
    }
}

impl Drop for Capturing {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            // What it says was said before, by what failed.
            let _ = end(&stream);
        }
    }
}

fn end(stream: &Arc<CudaStream>) -> Result<Option<CudaGraph>> {
    stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH).map_err(failed)
}

fn failed(error: DriverError) -> Error {
    failure("the capture of a graph", &error)
}

impl Captured {
    /// Enqueues one run. The caller has entered the stream's gate.
    pub fn launch(&self) -> Result<()> {
        self.0.launch().map_err(|error| failure("the replay of a graph", &error))
    }
}
