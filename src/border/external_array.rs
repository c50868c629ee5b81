//! Native memory that becomes a JavaScript typed array, without a copy.
//!
//! Making such an array can fail: a worker thread that is being terminated still settles pending promises, and an array
//! may exceed JavaScript's size limit. Then the memory is freed here. After some failures the runtime calls the
//! finalizer anyway, after others it never does. So both sides hold a reference to the owner, and the first one to run
//! drops it.
#![expect(unsafe_code, reason = "external memory is handed over by the Node-API's own calls")]

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::rc::Rc;

use napi::bindgen_prelude::{ToNapiValue, TypeName};
use napi::{Result, ValueType, check_status, sys};

/// Keeps the memory alive until its content is taken out.
type Hold = Rc<Cell<Option<Box<dyn Send>>>>;

/// Elements of one kind, and the owner that keeps them alive.
pub struct ExternalArray {
    address: *mut c_void,
    bytes: usize,
    elements: usize,
    kind: sys::napi_typedarray_type,
    owner: Box<dyn Send>,
}

impl ExternalArray {
    /// A `Uint8Array` of these bytes.
    pub(crate) fn bytes(bytes: Vec<u8>) -> Self {
        ExternalArray::all(bytes, sys::TypedarrayType::uint8_array)
    }

    /// A `Float32Array` of these numbers.
    pub(crate) fn floats(floats: Vec<f32>) -> Self {
        ExternalArray::all(floats, sys::TypedarrayType::float32_array)
    }

    /// A `Uint16Array` of these bits of half floats.
    pub(crate) fn bits(bits: Vec<u16>) -> Self {
        ExternalArray::all(bits, sys::TypedarrayType::uint16_array)
    }

    fn all<T: Send + 'static>(mut list: Vec<T>, kind: sys::napi_typedarray_type) -> Self {
        let (address, elements) = (list.as_mut_ptr().cast(), list.len());
        ExternalArray { address, bytes: elements * size_of::<T>(), elements, kind, owner: Box::new(list) }
    }

    /// A `Uint8Array` over memory that keeps its address as long as `owner` lives. If a cache may write to that memory
    /// later, the documentation of the method that returns the array says so.
    pub(crate) fn over(address: *const u8, bytes: usize, owner: impl Send + 'static) -> Self {
        let (address, kind) = (address.cast_mut().cast(), sys::TypedarrayType::uint8_array);
        ExternalArray { address, bytes, elements: bytes, kind, owner: Box::new(owner) }
    }

    /// Converts it to an `ArrayBuffer`: external, or a copy if the runtime allows no external buffers.
    fn buffer(self, env: sys::napi_env) -> Result<sys::napi_value> {
        let ExternalArray { address, bytes, owner, .. } = self;
        let (mut buffer, mut copy) = (ptr::null_mut(), ptr::null_mut());
        if bytes > 0 {
            let hold: Hold = Rc::new(Cell::new(Some(owner)));
            let hint = Rc::into_raw(hold.clone()).cast_mut();
            // SAFETY: the memory lives as long as the owner, which the finalizer drops; all output pointers point to
            // locals.
            let status = unsafe {
                sys::napi_create_external_arraybuffer(env, address, bytes, Some(free), hint.cast(), &mut buffer)
            };
            if status == sys::Status::napi_ok {
                return Ok(buffer);
            }
            let _owner = hold.take();
            if status != sys::Status::napi_no_external_buffers_allowed {
                check_status!(status)?;
            }
            // SAFETY: the environment is that of the running call, and all output pointers point to locals.
            check_status!(unsafe { sys::napi_create_arraybuffer(env, bytes, &mut copy, &mut buffer) })?;
            // SAFETY: both have this many bytes, and the new one does not overlap the old one.
            unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), copy.cast::<u8>(), bytes) };
            return Ok(buffer);
        }
        // SAFETY: as above.
        check_status!(unsafe { sys::napi_create_arraybuffer(env, 0, &mut copy, &mut buffer) })?;
        Ok(buffer)
    }
}

/// Drops the owner of an array that was garbage-collected.
unsafe extern "C" fn free(_env: sys::napi_env, _address: *mut c_void, hint: *mut c_void) {
    // SAFETY: `ExternalArray::buffer` made this pointer for this call, the only one, on the thread of its environment.
    let hold: Hold = unsafe { Rc::from_raw(hint.cast::<Cell<Option<Box<dyn Send>>>>()) };
    drop(hold.take());
}

impl TypeName for ExternalArray {
    fn type_name() -> &'static str {
        "typed array"
    }

    fn value_type() -> ValueType {
        ValueType::Object
    }
}

impl ToNapiValue for ExternalArray {
    unsafe fn to_napi_value(env: sys::napi_env, value: Self) -> Result<sys::napi_value> {
        let (kind, elements) = (value.kind, value.elements);
        let buffer = value.buffer(env)?;
        let mut array = ptr::null_mut();
        // SAFETY: the buffer was just made in this environment and holds this many elements.
        check_status!(unsafe { sys::napi_create_typedarray(env, kind, elements, buffer, 0, &mut array) })?;
        Ok(array)
    }
}
