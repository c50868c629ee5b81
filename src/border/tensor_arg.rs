//! Tensors that JavaScript passes in: a view of ours, what a cache showed, or a typed array with its description.
//!
//! The description of what a cache showed says which tensor of its buffer is meant, and which part of that:
//!
//! ```text
//! tensor   run 0: start  len   run 1: start  len   end   sweep   head   window  sinks  tree
//! ```
#![expect(unsafe_code, reason = "the conversion of arguments is an unsafe trait function of napi")]

use std::cell::OnceCell;

use kvtide_tensor::{BufferHandle, Source, View};
use napi::bindgen_prelude::{FromNapiRef, FromNapiValue, TypeName, ValidateNapiValue};
use napi::{Result, ValueType, sys};

use crate::border::array::ArrayArg;
use crate::border::cache_views::{NUMBERS, NativeBuffer, view_of};
use crate::border::host_array::{description, host_tensor};
use crate::border::refusal::Outcome;
use crate::border::tensor::NativeView;

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
        None => Ok(Source::Host(host_tensor(argument, value.array, description(argument, meta, place)?)?)),
    }
}
