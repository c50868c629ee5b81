//! Reads of a view: into the caller's memory, as a copy, or as a candle tensor in the same memory.
//!
//! A copy has three implementations: on bytes, with a device's kernels, and with candle's operations. Each checks for
//! staleness before it copies, and again afterwards if it takes candle's lock more than once. O(bytes read).

use std::sync::Arc;

use candle_core::Tensor;
use kvtide_core::counted;
use kvtide_cuda::{BoxCopy, Span, Stream, copy_boxes};

use super::{View, ViewBox};
use crate::base::dtype::floats;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::region::Place;
use crate::base::zeroed::zeroed_bytes;
use crate::device::device_name;
use crate::device::edit::{download, first_byte};
use crate::device::form::{Form, is_seen};
use crate::kernels::{copy, portable};
use crate::tensor::buffer::Buffer;

impl View {
    /// A copy in memory of its own on the same device, which is never stale. Counted in `budget` if that is for the same
    /// device.
    pub fn copied(&self, budget: &Arc<Budget>) -> Result<View> {
        self.check()?;
        let budget = Budget::within(self.device(), Some(budget), None);
        let copy = View::zeros(self.region.dims, self.dtype(), &budget)?;
        self.copy_to(&copy.buffer)?;
        self.check()?;
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
        match self.buffer.form()? {
            Form::Bytes(_) => {
                return self.buffer.inspect(|bytes| {
                    self.check()?;
                    self.copy_bytes(bytes, out);
                    Ok(())
                });
            }
            Form::Launched(_) => {
                self.check()?;
                let staged = View::zeros(self.dims(), self.dtype(), &Budget::of(self.device()))?;
                self.copy_to(&staged.buffer)?;
                download(&staged.buffer.tensor, 0, out)?;
            }
            Form::Portable => {
                self.check()?;
                for ((_, to), tensor) in self.packed().zip(self.tensors()) {
                    portable::fetch(&tensor?, self.dtype(), out, to)?;
                }
            }
        }
        self.check()
    }

    /// Copies its elements to the front of `target`, which has one slot with as many elements.
    fn copy_to(&self, target: &Buffer) -> Result<()> {
        let source = &self.buffer.tensor;
        match target.form()? {
            Form::Bytes(_) => target.edit(&[source], |target, sources| self.copy_bytes(sources[0], target)),
            Form::Launched(stream) => {
                target.launch(&[source], |memory, sources| self.launch_copy(&stream, memory, sources[0]))
            }
            Form::Portable => {
                let axis = self.sequence.unwrap_or(0);
                let stretches: usize = self.dims()[..axis].iter().product();
                if self.elements() == 0 {
                    return Ok(());
                }
                let Some(target) = portable::RowTensor::new(&target.tensor, stretches)? else { return Ok(()) };
                for (of_run, tensor) in self.boxes().zip(self.tensors()) {
                    portable::put(&target, axis, of_run.token, &portable::HostOrTensor::Tensor(tensor?))?;
                }
                Ok(())
            }
        }
    }

    fn copy_bytes(&self, bytes: &[u8], out: &mut [u8]) {
        for (from, to) in self.packed() {
            copy(&from.dims, self.dtype().bytes(), out, to, bytes, from.place);
        }
    }

    fn launch_copy(&self, stream: &Stream, memory: Span<'_>, source: Span<'_>) -> Result<()> {
        let places: Vec<_> = self.packed().filter(|(from, _)| !from.dims.contains(&0)).collect();
        let boxes: Vec<_> = places
            .iter()
            .map(|(from, to)| BoxCopy {
                target: memory.from(to.offset),
                target_strides: &to.strides,
                source: source.from(from.place.offset),
                source_strides: &from.place.strides,
                dims: &from.dims,
                element: self.dtype().bytes(),
            })
            .collect();
        Ok(copy_boxes(stream, &boxes)?)
    }

    /// Its runs, and the place of each in contiguous memory.
    fn packed(&self) -> impl Iterator<Item = (ViewBox, Place)> + '_ {
        let strides = self.dims().contiguous_strides().scaled(self.dtype().bytes());
        self.boxes().map(move |from| {
            let offset = self.sequence.map_or(0, |axis| from.token * strides[axis]);
            (from, Place { offset, strides })
        })
    }

    /// A copy of its elements' bytes, in order.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut out = zeroed_bytes(self.bytes())?;
        self.read_into(&mut out)?;
        Ok(out)
    }

    /// A copy of its elements as 32-bit floats, in order.
    pub fn to_f32(&self) -> Result<Vec<f32>> {
        floats(self.dtype(), &self.to_bytes()?)
    }

    /// True if shape, dtype and all bits are equal.
    pub fn equals(&self, other: &View) -> Result<bool> {
        let alike = self.shape() == other.shape() && self.dtype() == other.dtype();
        Ok(alike && self.to_bytes()? == other.to_bytes()?)
    }

    /// A candle tensor of a view with one run, in the same memory.
    ///
    /// Staleness is checked at the call only: the tensor itself is raw memory, and shows later writes of the cache.
    pub fn tensor(&self) -> Result<Tensor> {
        if self.runs.single().is_none() {
            return Err(Error::NotContiguous { operation: "tensor()", pieces: "two runs (sinks and window)" });
        }
        self.check()?;
        Ok(self.anchored().tensor(&self.buffer.tensor)?)
    }

    /// A candle tensor with a copy of its elements.
    pub fn to_tensor(&self) -> Result<Tensor> {
        self.copied(&Budget::process())?.tensor()
    }

    /// The address of its first byte. Fails unless the view is contiguous and the host can address it. The bytes live as
    /// long as this view, and change with the cache.
    pub fn as_ptr(&self) -> Result<*const u8> {
        if !is_seen(self.device()) {
            return Err(Error::NotOnHost { device: device_name(self.device()) });
        }
        if !self.is_contiguous() {
            let pieces = if self.runs.single().is_none() { "two runs (sinks and window)" } else { "strided rows" };
            return Err(Error::NotContiguous { operation: "data", pieces });
        }
        let first = self.anchored().first() * self.dtype().bytes();
        let start = first_byte(&self.buffer.tensor)?;
        self.check()?;
        Ok(start.wrapping_add(first.min(self.buffer.bytes() as usize)))
    }
}
