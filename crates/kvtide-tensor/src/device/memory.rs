//! Device tensors of this library.
//!
//! If the allocator or the driver has no memory left, the error is `OUT_OF_MEMORY`. Every other failure keeps the driver's
//! message; it may come from a kernel that was launched earlier.
#![cfg_attr(feature = "cuda", expect(unsafe_code, reason = "memory of a GPU that kernels write before it is read"))]

use candle_core::Tensor;

use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::base::memory::Budget;

/// Allocates zeroed memory for a tensor on the budget's device. The caller has counted it in the budget.
pub(crate) fn zeroed(dtype: DType, shape: &[usize], budget: &Budget) -> Result<Tensor> {
    let bytes = bytes_of(dtype, shape);
    if budget.device().is_cpu() {
        let memory = dtype.zeros(shape.iter().product()).ok_or_else(|| budget.refusal(bytes))?;
        return Ok(DType::tensor(memory, shape)?);
    }
    made(budget, bytes, || Tensor::zeros(shape, dtype.candle(), budget.device()))
}

/// Like [`zeroed`], for memory that a launch writes completely before it is read: uninitialised on a GPU.
pub(crate) fn unwritten(dtype: DType, shape: &[usize], budget: &Budget) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if budget.device().is_cuda() {
        // SAFETY: every bit pattern is a valid number, and the caller writes all of them before they are read.
        let empty = || unsafe { Tensor::empty(shape, dtype.candle(), budget.device()) };
        return made(budget, bytes_of(dtype, shape), empty);
    }
    zeroed(dtype, shape, budget)
}

fn bytes_of(dtype: DType, shape: &[usize]) -> u64 {
    shape.iter().product::<usize>().saturating_mul(dtype.bytes()) as u64
}

/// Makes a candle tensor on the budget's device.
fn made(budget: &Budget, bytes: u64, make: impl FnOnce() -> candle_core::Result<Tensor>) -> Result<Tensor> {
    make().map_err(|error| refusal(error, budget, bytes))
}

/// Converts candle's error about an allocation.
fn refusal(error: candle_core::Error, budget: &Budget, bytes: u64) -> Error {
    // candle keeps the driver's error as text that contains its name.
    if error.to_string().contains("OUT_OF_MEMORY") { budget.refusal(bytes) } else { error.into() }
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
