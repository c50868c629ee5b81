//! Reading a view: into the caller's memory, as a copy, or as a candle tensor in the same memory.

use std::sync::Arc;

use candle_core::Tensor;
use kvtide_core::counted;

use super::View;
use crate::base::dtype::to_f32;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_bytes;
use crate::device::device_name;
use crate::kernels::{gather, gather_to};

impl View {
    /// A copy in memory of its own on the same device, never stale; `budget` counts it where it is of that device.
    pub fn copied(&self, budget: &Arc<Budget>) -> Result<View> {
        self.check()?;
        let budget = Budget::within(self.device(), Some(budget), None);
        let copy = View::zeros(self.region.dims, self.dtype(), &budget)?;
        gather_to(self, &copy.buffer)?;
        Ok(copy)
    }

    /// Copies its elements to `out`, in order.
    pub fn read_into(&self, out: &mut [u8]) -> Result<()> {
        if out.len() != self.bytes() {
            return Err(Error::argument(
                "out",
                counted(out.len() as u64, "byte"),
                counted(self.bytes() as u64, "byte"),
            ));
        }
        gather(self, out)
    }

    /// A copy of its elements' bytes, in order.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = zeroed_bytes(self.bytes())?;
        self.read_into(&mut out)?;
        Ok(out)
    }

    /// A copy of its elements as 32-bit floats, in order.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        to_f32(self.dtype(), &self.to_bytes()?)
    }

    /// True when shape, dtype and every bit agree.
    pub fn equals(&self, other: &View) -> Result<bool> {
        let alike = self.shape() == other.shape() && self.dtype() == other.dtype();
        Ok(alike && self.to_bytes()? == other.to_bytes()?)
    }

    /// The candle tensor of a view of one run, in the same memory.
    ///
    /// The check is made at the call: the tensor itself is raw memory, and shows what the cache writes there later.
    pub fn tensor(&self) -> Result<Tensor> {
        if self.runs.single().is_none() {
            return Err(Error::NotContiguous { operation: "tensor()", pieces: "two runs, sinks and window" });
        }
        self.check()?;
        Ok(self.anchored().tensor(&self.buffer.tensor)?)
    }

    /// A candle tensor with a copy of its elements.
    pub fn to_tensor(&self) -> Result<Tensor> {
        self.copied(&Budget::process())?.tensor()
    }

    /// The address of its first byte, when it is contiguous and the host sees it. The bytes live as long as this view, and change
    /// with the cache.
    pub fn as_ptr(&self) -> Result<*const u8> {
        if !self.device().is_cpu() {
            return Err(Error::NotOnHost { device: device_name(self.device()) });
        }
        if !self.is_contiguous() {
            let pieces = if self.runs.single().is_none() { "two runs, sinks and window" } else { "strided rows" };
            return Err(Error::NotContiguous { operation: "data", pieces });
        }
        let first = self.anchored().first() * self.dtype().bytes();
        self.buffer.inspect(|bytes| {
            self.check()?;
            Ok(bytes[first.min(bytes.len())..].as_ptr())
        })
    }
}
