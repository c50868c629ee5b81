//! Tensors of onnxruntime: dimensions, element types and memory.
#![expect(unsafe_code, reason = "tensors are objects and memory of a C library")]

use std::ffi::c_int;

use super::api::{TensorInfo, Value};
use super::library::Library;
use crate::border::refusal::Outcome;

/// The dimensions of a tensor.
pub(super) fn dims(library: &Library, value: *const Value) -> Outcome<Vec<i64>> {
    with_info(library, value, |info| {
        // SAFETY: the info lives, and the list has one entry per dimension.
        let rank = library.ask(|out| unsafe { (library.api.rank)(info, out) })?;
        let mut dims = vec![0; rank];
        // SAFETY: as above.
        library.check(unsafe { (library.api.dims)(info, dims.as_mut_ptr(), rank) })?;
        Ok(dims)
    })
}

/// The type of its elements.
pub(super) fn element(library: &Library, value: *const Value) -> Outcome<c_int> {
    // SAFETY: the info lives.
    with_info(library, value, |info| library.ask(|out| unsafe { (library.api.element_type)(info, out) }))
}

fn with_info<R>(
    library: &Library,
    value: *const Value,
    read: impl FnOnce(*mut TensorInfo) -> Outcome<R>,
) -> Outcome<R> {
    // SAFETY: the tensor lives, and the info is released below.
    let info = library.make::<TensorInfo>(|out| unsafe { (library.api.tensor_info)(value, out) })?;
    let read = read(info);
    // SAFETY: it was made above, and nothing else uses it.
    unsafe { (library.api.release_tensor_info)(info) };
    read
}

/// The memory of a tensor.
///
/// # Safety
///
/// The tensor has this many bytes and outlives `'a`, and nothing else writes to it during that time.
pub(super) unsafe fn memory<'a>(library: &Library, value: *mut Value, bytes: usize) -> Outcome<&'a mut [u8]> {
    // SAFETY: guaranteed by the caller.
    let data = library.make(|out| unsafe { (library.api.tensor_data)(value, out) })?;
    if bytes == 0 || data.is_null() {
        return Ok(&mut []);
    }
    // SAFETY: guaranteed by the caller.
    Ok(unsafe { std::slice::from_raw_parts_mut(data.cast(), bytes) })
}
