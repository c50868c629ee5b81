//! Memory of ours that becomes a typed array of JavaScript's, without a copy.
//!
//! Whoever makes such an array may be refused: a worker that is being terminated still settles what is pending, and an array may be
//! larger than JavaScript has them. Then the memory is freed here. Some refusals call the finalizer all the same, others never do: so
//! both have a hold of the owner, and whoever comes first drops it.
#![expect(unsafe_code, reason = "external memory is handed over by the Node-API's own calls")]

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr;
use std::rc::Rc;

use napi::bindgen_prelude::{ToNapiValue, TypeName};
use napi::{Result, ValueType, check_status, sys};

/// What keeps the memory alive, until it is taken out.
type Hold = Rc<Cell<Option<Box<dyn Send>>>>;

/// Elements of one kind, and what keeps them alive.
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

    /// A `Uint8Array` over memory that stays where it is as long as `owner` lives. That others may write there is said in the
    /// documentation of what hands it out.
    pub(crate) fn over(address: *const u8, bytes: usize, owner: impl Send + 'static) -> Self {
        let (address, kind) = (address.cast_mut().cast(), sys::TypedarrayType::uint8_array);
        ExternalArray { address, bytes, elements: bytes, kind, owner: Box::new(owner) }
    }

    /// Its `ArrayBuffer`: external, or a copy where the runtime allows no external ones.
    fn buffer(self, env: sys::napi_env) -> Result<sys::napi_value> {
        let ExternalArray { address, bytes, owner, .. } = self;
        let (mut buffer, mut copy) = (ptr::null_mut(), ptr::null_mut());
        if bytes > 0 {
            let hold: Hold = Rc::new(Cell::new(Some(owner)));
            let hint = Rc::into_raw(hold.clone()).cast_mut();
            // SAFETY: the memory lives as long as the owner, which the finalizer drops; every place to write to is a local.
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
            // SAFETY: the environment is that of the running call, and every place to write to is a local.
            check_status!(unsafe { sys::napi_create_arraybuffer(env, bytes, &mut copy, &mut buffer) })?;
            // SAFETY: both have this many bytes, and the new one lies apart.
            unsafe { ptr::copy_nonoverlapping(address.cast::<u8>(), copy.cast::<u8>(), bytes) };
            return Ok(buffer);
        }
        // SAFETY: as above.
        check_status!(unsafe { sys::napi_create_arraybuffer(env, 0, &mut copy, &mut buffer) })?;
        Ok(buffer)
    }
}

/// Drops the owner of an array that was collected.
unsafe extern "C" fn free(_env: sys::napi_env, _address: *mut c_void, hint: *mut c_void) {
    // SAFETY: it is what `ExternalArray::buffer` made for this call, which is the only one, on the thread of its environment.
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
        // SAFETY: the buffer was just made in this environment, and has room for so many elements.
        check_status!(unsafe { sys::napi_create_typedarray(env, kind, elements, buffer, 0, &mut array) })?;
        Ok(array)
    }
}
