//! Tokens that have to lie elsewhere before they are read: on the device that they go to, or out of the way of what is written.

use candle_core::Device;

use super::{Memory, Resolved, SourceRun};
use crate::base::dims::Dims;
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::region::Place;
use crate::base::zeroed::zeroed_bytes;
use crate::device::device_name;
use crate::device::edit::{inspect, upload};
use crate::device::form::Form;
use crate::kernels::portable::{HostOrTensor, fetch};
use crate::tensor::buffer::Buffer;

impl Resolved<'_> {
    /// Its own bytes, if it reads from no candle tensor.
    pub fn host_bytes(&self) -> Option<&[u8]> {
        match &self.memory {
            Memory::Host(bytes) => Some(bytes),
            Memory::Staged(bytes) => Some(bytes),
            Memory::Tensor(_) | Memory::View(_) | Memory::Brought(_) => None,
        }
    }

    /// Tokens without gaps in memory of their own.
    pub(super) fn without_gaps(argument: &'static str, dims: Dims, dtype: DType, axis: usize, bytes: Vec<u8>) -> Self {
        let strides = dims.contiguous_strides().scaled(dtype.bytes());
        let runs = [SourceRun { offset: 0, tokens: dims[axis] }, SourceRun::default()];
        Resolved::laid_out(argument, dims, dtype, axis, Memory::Staged(bytes), strides, runs)
    }

    /// Copies its tokens to memory of its own when they lie in `buffer`, which is about to be written.
    pub fn stage(&mut self, buffer: &Buffer) -> Result<()> {
        let shared = match &self.memory {
            Memory::Tensor(tensor) => buffer.shares_storage(tensor),
            Memory::View(view) => std::ptr::eq(buffer, &*view.buffer),
            Memory::Host(bytes) => buffer.overlaps(bytes.as_ptr(), bytes.len()),
            Memory::Staged(_) | Memory::Brought(_) => false,
        };
        if shared {
            self.stage_all()?;
        }
        Ok(())
    }

    /// Makes its tokens lie on `device`: what the host has is copied there, what lies on another device is refused.
    pub fn bring(&mut self, device: &Device) -> Result<()> {
        match self.tensor() {
            Some(tensor) if tensor.device().same_device(device) => Ok(()),
            Some(tensor) => Err(Error::DeviceMismatch {
                argument: self.argument,
                value: device_name(tensor.device()),
                expected: device_name(device),
            }),
            None if device.is_cpu() => Ok(()),
            None => {
                let copy = upload(&self.to_row_major()?, self.dtype, &self.dims, device)?;
                let (argument, strides) = (self.argument, self.dims.contiguous_strides().scaled(self.dtype.bytes()));
                let runs = [SourceRun { offset: 0, tokens: self.dims[self.axis] }, SourceRun::default()];
                let memory = Memory::Brought(copy);
                *self = Resolved::laid_out(argument, self.dims, self.dtype, self.axis, memory, strides, runs);
                Ok(())
            }
        }
    }

    /// A copy of its tokens without gaps.
    pub fn to_row_major(&self) -> Result<Vec<u8>> {
        let bytes = self.dims.elements().and_then(|elements| elements.checked_mul(self.dtype.bytes()));
        let mut out = zeroed_bytes(bytes.ok_or_else(|| Budget::process().refusal(u64::MAX))?)?;
        self.read_into(&mut out)?;
        Ok(out)
    }

    fn read_into(&self, out: &mut [u8]) -> Result<()> {
        let strides = self.dims.contiguous_strides().scaled(self.dtype.bytes());
        let whole = Place { offset: 0, strides };
        let Some(tensor) = self.tensor() else {
            self.copy_strided(self.host_bytes().unwrap_or_default(), 0, self.tokens(), out, whole);
            return Ok(());
        };
        if let Form::Bytes(_) = Form::of(tensor.device())? {
            return inspect(tensor, |bytes| {
                self.copy_strided(bytes, 0, self.tokens(), out, whole);
                Ok(())
            });
        }
        for taken in self.taken(0, self.tokens()) {
            let HostOrTensor::Tensor(tokens) = self.host_or_tensor(&taken)? else {
                unreachable!("a source with a tensor is no host memory")
            };
            fetch(&tokens, self.dtype, out, Place { offset: taken.done * strides[self.axis], ..whole })?;
        }
        Ok(())
    }

    /// Copies its tokens to memory of its own, without gaps.
    pub fn stage_all(&mut self) -> Result<()> {
        *self = Resolved::without_gaps(self.argument, self.dims, self.dtype, self.axis, self.to_row_major()?);
        Ok(())
    }
}
