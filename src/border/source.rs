//! Tensors that JavaScript passes in: a view of ours, what a cache showed, or a typed array with its description.
//!
//! A description is [`META`] numbers in an array that the TypeScript layer fills for each call:
//!
//! ```text
//! host    dtype  layout  has range  start  end  rank  dims ...
//! shown   part   run 0: start  len   run 1: start  len   end   sweep   head   window  sinks  tree
//! ```
#![expect(unsafe_code, reason = "the conversion of arguments is an unsafe trait function of napi")]

use std::cell::OnceCell;

use kvtide_tensor::{BufferHandle, DType, HostTensor, RANK_MAX, SequenceLayout, Source, View};
use napi::bindgen_prelude::{FromNapiRef, FromNapiValue, TypeName, ValidateNapiValue};
use napi::{Result, ValueType, sys};

use crate::border::bytes::ArrayArg;
use crate::border::guard::Outcome;
use crate::border::number::whole;
use crate::border::shown::{NUMBERS, NativeBuffer, view_of};
use crate::border::tensor::NativeView;

/// Numbers of one description.
pub(crate) const META: usize = 6 + RANK_MAX;

/// A tensor argument: a view of ours, or a buffer or an array to be read as its description says.
pub struct TensorArg {
    object: Option<Object>,
    array: ArrayArg,
    /// The view; that of a buffer once its description was read.
    view: OnceCell<Box<View>>,
}

/// An object of ours; nothing in it once it was disposed of.
enum Object {
    View,
    Buffer(Option<BufferHandle>),
}

impl TensorArg {
    /// True when something was given.
    pub(crate) fn is_given(&self) -> bool {
        self.object.is_some() || self.array.is_array()
    }
}

impl TypeName for TensorArg {
    fn type_name() -> &'static str {
        "tensor"
    }

    fn value_type() -> ValueType {
        ValueType::Object
    }
}

impl ValidateNapiValue for TensorArg {}

impl FromNapiValue for TensorArg {
    unsafe fn from_napi_value(env: sys::napi_env, value: sys::napi_value) -> Result<Self> {
        // SAFETY: environment and value are those of the call whose arguments are converted.
        let array = unsafe { ArrayArg::from_napi_value(env, value)? };
        let view = OnceCell::new();
        // SAFETY: as above.
        let object = if array.is_array() { None } else { unsafe { object(env, value, &view) } };
        Ok(TensorArg { object, array, view })
    }
}

/// # Safety
///
/// Environment and value are those of the call whose arguments are converted.
unsafe fn object(env: sys::napi_env, value: sys::napi_value, place: &OnceCell<Box<View>>) -> Option<Object> {
    let mut kind = 0;
    // SAFETY: as the caller says.
    let asked = unsafe { sys::napi_typeof(env, value, &mut kind) };
    if asked != sys::Status::napi_ok || kind != sys::ValueType::napi_object {
        return None;
    }
    // SAFETY: as the caller says; the object's type tag is checked, and JavaScript keeps it for the length of the call.
    if let Ok(buffer) = unsafe { NativeBuffer::from_napi_ref(env, value) } {
        return Some(Object::Buffer(buffer.handle().ok()));
    }
    // SAFETY: as above.
    let view = unsafe { NativeView::from_napi_ref(env, value) }.ok()?;
    if let Ok(view) = view.get() {
        place.get_or_init(|| Box::new(view.clone()));
    }
    Some(Object::View)
}

/// The argument `value`, as the description numbered `place` in `meta` says.
pub(crate) fn source<'a>(
    argument: &'static str,
    value: &'a TensorArg,
    meta: &[f64],
    place: usize,
) -> Outcome<Source<'a>> {
    match &value.object {
        Some(Object::View) => {
            Ok(Source::View(value.view.get().ok_or(kvtide_tensor::Error::Disposed { object: "Tensor" })?))
        }
        Some(Object::Buffer(Some(buffer))) => {
            let numbers = description(argument, meta, place)?;
            let view = view_of(buffer, numbers[0], &numbers[1..=NUMBERS])?;
            Ok(Source::View(value.view.get_or_init(|| Box::new(view))))
        }
        Some(Object::Buffer(None)) => Err(kvtide_tensor::Error::Disposed { object: "cache of this view" }.into()),
        None => Ok(Source::Host(host(argument, value.array, description(argument, meta, place)?)?)),
    }
}

/// A typed array with its description.
pub(crate) fn host_tensor<'a>(argument: &'static str, value: ArrayArg, meta: &[f64]) -> Outcome<HostTensor<'a>> {
    host(argument, value, description(argument, meta, 0)?)
}

fn description<'m>(argument: &'static str, meta: &'m [f64], place: usize) -> Outcome<&'m [f64]> {
    let found = meta.get(place * META..(place + 1) * META);
    found.ok_or_else(|| kvtide_core::Error::argument(argument, "no description", "a description of the tensor").into())
}

fn host<'a>(argument: &'static str, value: ArrayArg, meta: &[f64]) -> Outcome<HostTensor<'a>> {
    let refused = |value: f64, expected: &str| kvtide_core::Error::argument(argument, value, expected);
    let dtype = DType::ALL.get(meta[0] as usize).copied().ok_or_else(|| refused(meta[0], "the number of a dtype"))?;
    let rank = meta[5] as usize;
    if rank > RANK_MAX {
        return Err(refused(meta[5], "a rank of at most 8").into());
    }
    let mut dims = [0; RANK_MAX];
    for (dim, &size) in dims.iter_mut().zip(&meta[6..6 + rank]) {
        *dim = whole(argument, size)? as usize;
    }
    let memory = value.memory(argument)?;
    let layout = if meta[1] == 0.0 { SequenceLayout::Bhsd } else { SequenceLayout::Bshd };
    let host = HostTensor::new(argument, memory.bytes(), dtype, &dims[..rank])?.with_layout(argument, layout)?;
    if meta[2] == 0.0 {
        return Ok(host);
    }
    Ok(host.with_range(whole("range", meta[3])? as usize, whole("range", meta[4])? as usize))
}
