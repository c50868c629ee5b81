//! Arguments from JavaScript: numbers, typed arrays, and typed arrays with a description.
//!
//! All numbers are `f64`; a number that must be whole and is not is refused, never rounded. The memory of a typed array
//! is borrowed for the length of one call. A description is [`META`] numbers in an array that the TypeScript layer
//! fills for each call:
//!
//! ```text
//! dtype  layout  has range  start  end  rank  dims ...
//! ```
#![expect(unsafe_code, reason = "typed arrays are raw memory behind the Node-API")]

use std::ffi::c_void;
use std::ptr;

use kvtide_core::{COUNT_MAX, Error, count_positive};
use kvtide_tensor::buffers::{RANK_MAX, SequenceLayout};
use kvtide_tensor::{DType, HostTensor};
use napi::bindgen_prelude::{FromNapiValue, TypeName, Unknown, ValidateNapiValue};
use napi::{Env, Result, ValueType, check_status, sys};

use crate::border::refusal::Outcome;

/// The largest integer up to which every integer is exact in an `f64`.
const WHOLE_MAX: f64 = 9_007_199_254_740_991.0;

/// Checks that `value` is a whole number, 0 or more.
pub(crate) fn whole(argument: &'static str, value: f64) -> Outcome<u64> {
    if value.fract() == 0.0 && (0.0..=WHOLE_MAX).contains(&value) {
        return Ok(value as u64);
    }
    Err(Error::argument(argument, value, "a whole number from 0 to 9007199254740991").into())
}

/// Checks a number of tokens, slots or blocks.
pub(crate) fn count(argument: &'static str, value: f64) -> Outcome<u32> {
    if value.fract() == 0.0 && (0.0..=f64::from(COUNT_MAX)).contains(&value) {
        return Ok(value as u32);
    }
    Err(Error::argument(argument, value, "a whole number from 0 to 2147483647").into())
}

/// Like [`count`], but at least 1.
pub(crate) fn positive(argument: &'static str, value: f64) -> Outcome<u32> {
    Ok(count_positive(argument, whole(argument, value)?)?)
}

/// Converts a number that may be missing.
pub(crate) fn optional<T>(
    argument: &'static str,
    value: Option<f64>,
    convert: fn(&'static str, f64) -> Outcome<T>,
) -> Outcome<Option<T>> {
    value.map(|value| convert(argument, value)).transpose()
}

/// A typed array, or nothing if the argument is something else.
#[derive(Clone, Copy)]
pub struct ArrayArg(Option<ArrayMemory>);

impl ArrayArg {
    pub(crate) fn is_array(self) -> bool {
        self.0.is_some()
    }

    /// The array's memory. Returns an error if the argument is no typed array.
    pub(crate) fn memory(self, argument: &'static str) -> Outcome<ArrayMemory> {
        let refused = || kvtide_core::Error::argument(argument, "no typed array", "a typed array over an ArrayBuffer");
        Ok(self.0.ok_or_else(refused)?)
    }

    /// The array's numbers, readable and writable: the array that describes a call and its result.
    pub(crate) fn numbers<'a>(self) -> Outcome<&'a mut [f64]> {
        let memory = self.memory("meta")?;
        // An empty array's address is null and need not be aligned.
        if memory.len() == 0 {
            return Ok(&mut []);
        }
        let refused = |_| kvtide_core::Error::argument("meta", "an array that is not aligned", "a Float64Array");
        Ok(bytemuck::try_cast_slice_mut(memory.bytes_mut()).map_err(refused)?)
    }

    /// The array's elements, read-only; `None` if no array was given.
    pub(crate) fn elements<'a, T: bytemuck::AnyBitPattern>(self, argument: &'static str) -> Outcome<Option<&'a [T]>> {
        let Some(memory) = self.0 else { return Ok(None) };
        if memory.len() == 0 {
            return Ok(Some(&[]));
        }
        let refused = |_| kvtide_core::Error::argument(argument, "bytes of another kind", "an array of its elements");
        Ok(Some(bytemuck::try_cast_slice(memory.bytes()).map_err(refused)?))
    }
}

impl TypeName for ArrayArg {
    fn type_name() -> &'static str {
        "typed array"
    }

    fn value_type() -> ValueType {
        ValueType::Object
    }
}

impl ValidateNapiValue for ArrayArg {}

impl FromNapiValue for ArrayArg {
    unsafe fn from_napi_value(env: sys::napi_env, value: sys::napi_value) -> Result<Self> {
        Ok(ArrayArg(ArrayMemory::of(env, value)))
    }
}

/// Address and length of a typed array. An empty or detached array has no address.
#[derive(Clone, Copy)]
pub(crate) struct ArrayMemory {
    address: *mut u8,
    bytes: usize,
}

/// The memory of arrays that will be written to. Returns an error if two of them overlap. Quadratic in their number.
pub(crate) fn apart(named: &[(&'static str, ArrayArg)]) -> Outcome<Vec<ArrayMemory>> {
    let mut found: Vec<ArrayMemory> = Vec::with_capacity(named.len());
    for &(name, array) in named {
        let memory = array.memory(name)?;
        if let Some(place) = found.iter().position(|other| other.overlaps(memory)) {
            let (other, _) = named[place];
            let (value, expected) =
                (format!("an array over {other}'s memory"), format!("memory that does not overlap {other}"));
            return Err(kvtide_core::Error::argument(name, value, expected).into());
        }
        found.push(memory);
    }
    Ok(found)
}

impl ArrayMemory {
    /// True if the two share a byte.
    fn overlaps(self, other: ArrayMemory) -> bool {
        let (start, next) = (self.address.addr(), other.address.addr());
        self.bytes > 0 && other.bytes > 0 && start < next + other.bytes && next < start + self.bytes
    }

    /// The memory of `value`; `None` if it is no typed array over an ordinary `ArrayBuffer` (another thread could
    /// change a shared one while it is read).
    fn of(env: sys::napi_env, value: sys::napi_value) -> Option<Self> {
        let (mut kind, mut length, mut data, mut buffer, mut offset) =
            (0, 0, ptr::null_mut::<c_void>(), ptr::null_mut(), 0);
        // SAFETY: environment and value are those of the running call, and all output pointers point to locals.
        let status = unsafe {
            sys::napi_get_typedarray_info(env, value, &mut kind, &mut length, &mut data, &mut buffer, &mut offset)
        };
        let mut ordinary = false;
        // SAFETY: the previous call just returned this buffer.
        let asked = status == sys::Status::napi_ok
            && unsafe { sys::napi_is_arraybuffer(env, buffer, &mut ordinary) } == sys::Status::napi_ok;
        if !asked || !ordinary {
            return None;
        }
        let bytes = length * element_bytes(kind)?;
        Some(if data.is_null() || bytes == 0 {
            ArrayMemory { address: ptr::null_mut(), bytes: 0 }
        } else {
            ArrayMemory { address: data.cast(), bytes }
        })
    }

    /// The array's bytes.
    ///
    /// The lifetime is the caller's promise that no JavaScript runs while the slice lives.
    pub fn bytes<'a>(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: the runtime returned address and length of a live buffer of this thread, which no JavaScript can
        // detach or shrink before the call returns. Any byte pattern is a `u8`.
        unsafe { std::slice::from_raw_parts(self.address, self.bytes) }
    }

    /// The array's bytes, writable. The caller guarantees that nothing else in this call reads them.
    pub fn bytes_mut<'a>(self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as for `bytes`; the caller has checked that the array does not overlap our own memory.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.bytes) }
    }

    pub fn address(self) -> *const u8 {
        self.address
    }

    pub fn len(self) -> usize {
        self.bytes
    }
}

fn element_bytes(kind: sys::napi_typedarray_type) -> Option<usize> {
    use sys::TypedarrayType as T;
    Some(match kind {
        T::int8_array | T::uint8_array | T::uint8_clamped_array => 1,
        T::int16_array | T::uint16_array => 2,
        T::int32_array | T::uint32_array | T::float32_array => 4,
        T::float64_array | T::bigint64_array | T::biguint64_array => 8,
        _ => return None,
    })
}

/// The largest array that is allocated in JavaScript's heap, in bytes. V8 ends the process if it cannot allocate, so
/// larger arrays are native memory.
pub(crate) const NEW_BYTES_MAX: usize = 1 << 16;

/// Allocates a typed array of zeros in JavaScript's memory: 32-bit floats, or the bits of half floats.
pub(crate) fn new_array<'a>(env: &'a Env, element_bytes: usize, length: usize) -> Result<(Unknown<'a>, ArrayMemory)> {
    let kind = match element_bytes {
        4 => sys::TypedarrayType::float32_array,
        2 => sys::TypedarrayType::uint16_array,
        _ => sys::TypedarrayType::uint8_array,
    };
    let bytes = element_bytes * length;
    let (mut data, mut buffer, mut array) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    // SAFETY: the environment is that of the running call, and all output pointers point to locals.
    check_status!(unsafe { sys::napi_create_arraybuffer(env.raw(), bytes, &mut data, &mut buffer) })?;
    // SAFETY: as above; the buffer was just made and holds this many elements.
    check_status!(unsafe { sys::napi_create_typedarray(env.raw(), kind, length, buffer, 0, &mut array) })?;
    let memory = ArrayMemory { address: data.cast(), bytes: if data.is_null() { 0 } else { bytes } };
    // SAFETY: the value was just made in this environment.
    Ok((unsafe { Unknown::from_raw_unchecked(env.raw(), array) }, memory))
}

/// Length of one description, in numbers.
pub(crate) const META: usize = 6 + RANK_MAX;

/// The description at index `place` in `meta`.
pub(crate) fn description<'m>(argument: &'static str, meta: &'m [f64], place: usize) -> Outcome<&'m [f64]> {
    let found = meta.get(place * META..(place + 1) * META);
    found.ok_or_else(|| kvtide_core::Error::argument(argument, "no description", "a description of the tensor").into())
}

/// Reads a typed array as its description says.
pub(crate) fn host_tensor<'a>(argument: &'static str, value: ArrayArg, meta: &[f64]) -> Outcome<HostTensor<'a>> {
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
