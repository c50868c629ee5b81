//! A build without CUDA: the same functions, none of which can be reached.

use candle_core::Device;
use kvtide_cuda::{Span, Stream};

use crate::{Machine, Result};

pub enum Gpu {}

pub fn open() -> std::result::Result<(Stream, Device, Gpu), String> {
    match kvtide_tensor::device("cuda") {
        Err(kvtide_tensor::Error::DeviceUnavailable { reason, .. }) => Err(reason),
        other => Err(format!("a device of this build is none for kernels: {:?}", other.is_ok())),
    }
}

impl Gpu {
    pub fn machine(&self) -> Machine {
        match *self {}
    }

    pub fn copy(&self, _source: Span<'_>, _target: Span<'_>, _bytes: usize) -> Result<()> {
        match *self {}
    }

    pub fn begin(&self, _times: usize) -> Result<()> {
        match *self {}
    }

    pub fn end(&self) -> Result<f64> {
        match *self {}
    }
}
