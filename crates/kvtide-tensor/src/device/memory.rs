//! Tensors of the library's own on a device: taken and given back where no capture of another thread records it.
//!
//! A refusal of memory says what it is. That of the allocator, or of a driver that has none left, is `OUT_OF_MEMORY`; whatever else goes wrong
//! meanwhile, as a fault of a kernel that was launched before, keeps the driver's words.
#![cfg_attr(
    feature = "cuda",
    expect(unsafe_code, reason = "memory of a GPU that kernels write before anybody reads it")
)]

use std::ops::Deref;

use candle_core::{Device, Tensor};
use kvtide_cuda::Pass;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;

/// Holds off captures of a device's stream by other threads, and waits for one that is under way; nothing for a device without captures.
///
/// What this library does on a device does so by itself. To be held around candle's own operations, and where tensors are dropped, by a
/// thread that uses a device while another one may call [`capture_step`](crate::PagedKvCache::capture_step): else they are recorded
/// with the step.
#[must_use = "captures are held off until it is dropped"]
pub fn pass(device: &Device) -> Option<Pass> {
    match device {
        #[cfg(feature = "cuda")]
        Device::Cuda(device) => Some(kvtide_cuda::Stream::gpu(device).enter()),
        #[cfg(feature = "emulate")]
        Device::Cpu => match super::form::Form::of_host() {
            Ok(super::form::Form::Launched(stream)) => Some(stream.enter()),
            _ => None,
        },
        _ => None,
    }
}

/// Memory of zeros for a tensor on a budget's device, which somebody has counted.
pub(crate) fn zeroed(dtype: DType, shape: &[usize], budget: &Budget) -> Result<DeviceTensor> {
    let bytes = bytes_of(dtype, shape);
    if budget.device().is_cpu() {
        let _pass = pass(budget.device());
        let memory = dtype.zeros(shape.iter().product()).ok_or_else(|| budget.refusal(bytes))?;
        return Ok(DeviceTensor::new(DType::tensor(memory, shape)?));
    }
    made(budget, bytes, || Tensor::zeros(shape, dtype.candle(), budget.device()))
}

/// The same for what a launch writes as a whole before anybody reads it: on a GPU, whatever is there.
pub(crate) fn unwritten(dtype: DType, shape: &[usize], budget: &Budget) -> Result<DeviceTensor> {
    #[cfg(feature = "cuda")]
    if budget.device().is_cuda() {
        // SAFETY: numbers of any bits are numbers; the caller has them written before they are read.
        let empty = || unsafe { Tensor::empty(shape, dtype.candle(), budget.device()) };
        return made(budget, bytes_of(dtype, shape), empty);
    }
    zeroed(dtype, shape, budget)
}

/// A tensor of these numbers on a budget's device.
#[cfg(feature = "captured-steps")]
pub(crate) fn numbers(numbers: Vec<u32>, shape: (usize, usize), budget: &Budget) -> Result<DeviceTensor> {
    made(budget, 4 * numbers.len() as u64, || Tensor::from_vec(numbers, shape, budget.device()))
}

fn bytes_of(dtype: DType, shape: &[usize]) -> u64 {
    shape.iter().product::<usize>().saturating_mul(dtype.bytes()) as u64
}

/// A tensor that candle makes on a budget's device.
fn made(budget: &Budget, bytes: u64, make: impl FnOnce() -> candle_core::Result<Tensor>) -> Result<DeviceTensor> {
    let _pass = pass(budget.device());
    make().map(DeviceTensor::new).map_err(|error| refusal(error, budget, bytes))
}

/// What candle says of an allocation that it could not make.
fn refusal(error: candle_core::Error, budget: &Budget, bytes: u64) -> Error {
    // It keeps a driver's error as text with the name.
    if error.to_string().contains("OUT_OF_MEMORY") { budget.refusal(bytes) } else { error.into() }
}

/// A tensor that is given back through its device's gate, where nobody else has it.
#[derive(Debug)]
pub(crate) struct DeviceTensor {
    /// There until it is dropped.
    tensor: Option<Tensor>,
}

impl DeviceTensor {
    pub fn new(tensor: Tensor) -> Self {
        DeviceTensor { tensor: Some(tensor) }
    }
}

impl Deref for DeviceTensor {
    type Target = Tensor;

    fn deref(&self) -> &Tensor {
        self.tensor.as_ref().expect("a tensor that was not dropped")
    }
}

impl Drop for DeviceTensor {
    fn drop(&mut self) {
        if let Some(tensor) = self.tensor.take() {
            let _pass = pass(tensor.device());
            drop(tensor);
        }
    }
}

#[cfg(test)]
mod tests {
    use kvtide_core::Code;

    use super::*;

    #[test]
    fn a_fault_is_not_taken_for_a_lack_of_memory() {
        let budget = Budget::process();
        let said = |text: &str| refusal(candle_core::Error::Msg(text.to_owned()), &budget, 10);
        let lack = said("DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")");
        assert_eq!(lack.code(), Code::OutOfMemory);
        let fault = said("DriverError(CUDA_ERROR_ILLEGAL_ADDRESS, \"an illegal memory access was encountered\")");
        assert_eq!(fault.code(), Code::Internal);
        assert!(fault.to_string().contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{fault}");
    }
}
