//! One call of a kernel: its inputs and its output in onnxruntime's memory, and onnxruntime's threads.
#![expect(unsafe_code, reason = "tensors are read from a C library, and work is shared on its threads")]

use std::borrow::Cow;
use std::ffi::c_void;

use kvtide_core::{Code, details};
use kvtide_tensor::DType;
use kvtide_tensor::buffers::floats;
use kvtide_tensor::runtime::Budget;

use super::api::KernelContext;
use super::library::Library;
use super::tensor::{dims, memory};
use crate::border::handle::catch;
use crate::border::refusal::{Outcome, Refusal};

/// One call of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Call {
    pub library: &'static Library,
    pub context: *mut KernelContext,
    /// The name of the operator, for errors.
    pub operator: &'static str,
}

/// An input tensor in onnxruntime's memory.
pub(super) struct Input<'a> {
    pub dims: Vec<i64>,
    pub bytes: &'a [u8],
}

impl<'a> Input<'a> {
    /// Its numbers. Weights that the library maps from a file may not be aligned.
    pub fn floats(&self) -> Cow<'a, [f32]> {
        let aligned = bytemuck::try_cast_slice(self.bytes).map(Cow::Borrowed);
        aligned.unwrap_or_else(|_| self.bytes.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
    }
}

impl Call {
    /// An input whose elements have so many bytes, if the node has it.
    pub fn input<'b>(self, index: usize, bytes: usize) -> Outcome<Option<Input<'b>>> {
        let library = self.library;
        let mut value = std::ptr::null();
        // SAFETY: the context is that of this call, and the output pointer points to a local.
        library.check(unsafe { (library.api.kernel_input)(self.context, index, &mut value) })?;
        if value.is_null() {
            return Ok(None);
        }
        let dims = dims(library, value)?;
        let count = dims.iter().try_fold(1usize, |count, &dim| count.checked_mul(usize::try_from(dim).ok()?));
        let count =
            count.ok_or_else(|| refused(self.operator, format!("input {index} has the dimensions {dims:?}")))?;
        // SAFETY: a tensor with these dimensions and elements of the operator's type, or positions; it lives as long as
        // the call.
        Ok(Some(Input { dims, bytes: unsafe { memory(library, value.cast_mut(), count * bytes)? } }))
    }

    /// Allocates the output and returns its memory.
    pub fn output<'b>(self, dims: &[i64], element_bytes: usize) -> Outcome<&'b mut [u8]> {
        let library = self.library;
        // SAFETY: the context is that of this call.
        let value = library
            .make(|out| unsafe { (library.api.kernel_output)(self.context, 0, dims.as_ptr(), dims.len(), out) })?;
        let bytes = dims.iter().map(|&dim| dim as usize).product::<usize>() * element_bytes;
        // SAFETY: the tensor was just made with these dimensions, and nothing else accesses it during this call.
        unsafe { memory(library, value, bytes) }
    }

    /// Calls `job` with each number below `count`, on the library's threads and this one.
    pub fn share(self, count: usize, job: &(dyn Fn(usize) + Sync)) {
        let library = self.library;
        let data = (&raw const job).cast_mut().cast();
        // SAFETY: the context is that of the running call. The library returns only after it has called for every
        // number, so `job` outlives all calls.
        let shared = unsafe { (library.api.parallel_for)(self.context, call, count, 0, data) };
        // If the library skips a number, the caller of this function does that work.
        let _ = library.check(shared);
    }
}

unsafe extern "C" fn call(data: *mut c_void, index: usize) {
    // SAFETY: `share` passed this pointer and waits for this call.
    let job = unsafe { *data.cast::<&(dyn Fn(usize) + Sync)>() };
    // The code that provided the job catches its own panics; this makes sure that none reaches the library.
    let _ = catch(|| job(index));
}

/// The error of a node of this operator.
pub(super) fn refused(operator: &str, reason: String) -> Refusal {
    let message = format!("kvtide::{operator}: {reason}");
    Refusal { code: Code::RuntimeFailed, message, details: details![reason: reason] }
}

/// The error of a node that is computed outside of a step.
pub(super) fn no_step(operator: &str) -> Refusal {
    refused(operator, "no step is being computed".into())
}

/// A scratch buffer of so many bytes, kept for the next call.
pub(super) fn room(list: &mut Vec<f32>, bytes: usize) -> Outcome<&mut [u8]> {
    let floats = bytes.div_ceil(4);
    if list.len() < floats {
        let more = floats - list.len();
        list.try_reserve_exact(more).map_err(|_| Budget::process().refusal(4 * more as u64))?;
        list.resize(floats, 0.);
    }
    Ok(&mut bytemuck::cast_slice_mut(list)[..bytes])
}

/// A list of zeros.
pub(super) fn zeros<T: Clone + Default>(count: usize) -> Outcome<Vec<T>> {
    let mut list = Vec::new();
    list.try_reserve_exact(count).map_err(|_| Budget::process().refusal((count * size_of::<T>()) as u64))?;
    list.resize(count, T::default());
    Ok(list)
}

/// Elements as 32-bit floats.
pub(super) fn widened(dtype: DType, bytes: &[u8]) -> Outcome<Cow<'_, [f32]>> {
    if dtype == DType::F32 {
        return Ok(Input { dims: Vec::new(), bytes }.floats());
    }
    Ok(Cow::Owned(floats(dtype, bytes)?))
}

/// Transposes `[outer, inner, row]` to `[inner, outer, row]`, rows in bytes.
pub(super) fn turn(from: &[u8], to: &mut [u8], [outer, inner, row]: [usize; 3]) {
    for a in 0..outer {
        for b in 0..inner {
            let (at, place) = ((a * inner + b) * row, (b * outer + a) * row);
            to[place..place + row].copy_from_slice(&from[at..at + row]);
        }
    }
}
