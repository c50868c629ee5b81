//! Tensors that JavaScript passes in: a view of ours, or a typed array with its description.
//!
//! A description is [`META`] numbers in an array that the TypeScript layer fills for each call:
//!
//! ```text
//! host   dtype  layout  has range  start  end  rank  dims ...
//! ```
#![expect(unsafe_code, reason = "the conversion of arguments is an unsafe trait function of napi")]

use kvtide_tensor::{DType, HostTensor, RANK_MAX, SequenceLayout, Source, View};
use napi::bindgen_prelude::{FromNapiRef, FromNapiValue, TypeName, ValidateNapiValue};
use napi::{Result, ValueType, sys};

use crate::bytes::ArrayArg;
use crate::guard::Outcome;
use crate::number::whole;
use crate::tensor::NativeView;

/// Numbers of one description.
pub(crate) const META: usize = 6 + RANK_MAX;

/// A tensor argument: a view of ours, or an array to be read as its description says.
pub struct TensorArg {
    view: Option<Outcome<View>>,
    array: ArrayArg,
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
        // SAFETY: as above; the object's type tag is checked, and JavaScript keeps it for the length of the call.
        let object = if array.is_array() { None } else { unsafe { NativeView::from_napi_ref(env, value) }.ok() };
        let view = object.map(|object| object.get().map(|view| view.clone()));
        Ok(TensorArg { view, array })
    }
}

/// The argument `value`, as the description numbered `place` in `meta` says.
pub(crate) fn source<'a>(
    argument: &'static str,
    value: &'a TensorArg,
    meta: &[f64],
    place: usize,
) -> Outcome<Source<'a>> {
    match &value.view {
        Some(Ok(view)) => Ok(Source::View(view)),
        Some(Err(_)) => Err(kvtide_tensor::Error::Disposed { object: "Tensor" }.into()),
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
