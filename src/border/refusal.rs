//! Converts errors to JavaScript exceptions: instances of the package's own error class, with a code and details.
#![expect(
    unsafe_code,
    reason = "the error class is kept as a raw reference, which the runtime frees when the thread ends"
)]

use std::cell::Cell;
use std::ptr;

use kvtide_core::{Code, Detail, DetailValue};
use kvtide_tensor::runtime::Budget;
use napi::bindgen_prelude::{FnArgs, FromNapiValue, Function, JsValue, Object, ToNapiValue, TypeName, Unknown};
use napi::{Env, Error, Result, Status, ValueType, sys};
use napi_derive::napi;

thread_local! {
    /// The class that errors are instances of, one for each JavaScript thread.
    static ERROR_CLASS: Cell<sys::napi_ref> = const { Cell::new(ptr::null_mut()) };
}

/// The result of an exported call's work.
pub type Outcome<T> = std::result::Result<T, Refusal>;

/// An error on its way to JavaScript.
pub struct Refusal {
    pub code: Code,
    pub message: String,
    pub details: Vec<Detail>,
}

impl From<kvtide_tensor::Error> for Refusal {
    fn from(error: kvtide_tensor::Error) -> Self {
        match error {
            kvtide_tensor::Error::Plan(error) => error.into(),
            error => Refusal { code: error.code(), message: error.to_string(), details: error.details() },
        }
    }
}

impl From<kvtide_core::Error> for Refusal {
    fn from(error: kvtide_core::Error) -> Self {
        let details = match &error {
            // The planner knows no bytes: the size that it asked for cannot be addressed, or the allocator does not
            // have it.
            kvtide_core::Error::OutOfMemory { .. } => Budget::process().refusal(u64::MAX).details(),
            error => error.details(),
        };
        Refusal { code: error.code(), message: error.to_string(), details }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal { code: Code::Internal, message: format!("Node-API: {error}"), details: Vec::new() }
    }
}

/// Every error code that a call may return.
#[napi(catch_unwind)]
pub fn error_codes() -> Vec<&'static str> {
    Code::ALL.iter().map(|code| code.as_str()).collect()
}

/// Stores the class that this thread's errors are instances of. Its constructor takes `(code, message, details)`.
#[napi]
pub fn set_error_class(env: &Env, error_class: Unknown<'_>) -> Result<()> {
    let mut reference = ptr::null_mut();
    // SAFETY: environment and value are those of this call.
    let status = unsafe { sys::napi_create_reference(env.raw(), error_class.raw(), 1, &mut reference) };
    if status != sys::Status::napi_ok {
        return Err(Error::new(Status::from(status), "cannot create a reference to the error class"));
    }
    ERROR_CLASS.set(reference);
    Ok(())
}

pub(crate) fn raise(env: &Env, refusal: Refusal) -> Error {
    match instance(env, &refusal) {
        Ok(error) => error,
        Err(_) => Error::new(Status::GenericFailure, format!("[{}] {}", refusal.code.as_str(), refusal.message)),
    }
}

/// An error that is part of a result: it becomes the same error object, but is not thrown.
pub struct AnsweredRefusal(pub Refusal);

impl TypeName for AnsweredRefusal {
    fn type_name() -> &'static str {
        "error"
    }

    fn value_type() -> ValueType {
        ValueType::Object
    }
}

impl ToNapiValue for AnsweredRefusal {
    unsafe fn to_napi_value(env: sys::napi_env, value: Self) -> Result<sys::napi_value> {
        Ok(thrown(&Env::from_raw(env), &value.0)?.raw())
    }
}

fn instance(env: &Env, refusal: &Refusal) -> Result<Error> {
    Ok(Error::from(thrown(env, refusal)?))
}

/// Creates the object to throw.
fn thrown<'a>(env: &'a Env, refusal: &Refusal) -> Result<Unknown<'a>> {
    let mut class = ptr::null_mut();
    // SAFETY: the reference was made on this thread, for this environment, and is never deleted.
    let status = unsafe { sys::napi_get_reference_value(env.raw(), ERROR_CLASS.get(), &mut class) };
    if status != sys::Status::napi_ok || class.is_null() {
        return Err(Error::new(Status::from(status), "no error class was set"));
    }
    // SAFETY: the value was just read from its reference.
    let class: Function<'_, FnArgs<(&str, &str, Object<'_>)>, Unknown<'_>> =
        unsafe { Function::from_napi_value(env.raw(), class)? };
    let details = object(env, &refusal.details)?;
    class.new_instance((refusal.code.as_str(), refusal.message.as_str(), details).into())
}

fn object<'a>(env: &'a Env, details: &[Detail]) -> Result<Object<'a>> {
    let mut object = Object::new(env)?;
    for detail in details {
        match &detail.value {
            DetailValue::Number(value) => object.set(detail.name, number(*value))?,
            DetailValue::Float(value) => object.set(detail.name, *value)?,
            DetailValue::Text(value) => object.set(detail.name, value.as_str())?,
            DetailValue::Numbers(values) => {
                let values: Vec<f64> = values.iter().copied().map(number).collect();
                object.set(detail.name, values)?;
            }
        }
    }
    Ok(object)
}

/// Converts a count to a JavaScript number. The largest `u64` means "no limit" and becomes infinity.
pub(crate) fn number(value: u64) -> f64 {
    if value == u64::MAX { f64::INFINITY } else { value as f64 }
}
