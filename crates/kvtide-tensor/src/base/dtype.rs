//! The table of element types, and conversions between rows of them and 32-bit floats.

use bytemuck::Zeroable;
use candle_core::{CpuStorage, DType as CandleDType, Device, Tensor};
use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};
use half::{bf16, f16};
use kvtide_core::paged::PageFormat;

use crate::base::error::{Error, Result};
use crate::base::memory::Budget;
use crate::base::zeroed::zeroed_vec;

macro_rules! dtypes {
    ($($name:ident, $rust:ty, $text:literal;)+) => {
        /// An element type that caches and tensors may have.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DType {
            $(#[doc = $text] $name,)+
        }

        impl DType {
            /// All dtypes.
            pub const ALL: &[DType] = &[$(DType::$name,)+];

            /// The public name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(DType::$name => $text,)+ }
            }

            /// Bytes of one element.
            #[must_use]
            pub fn bytes(self) -> usize {
                match self { $(DType::$name => size_of::<$rust>(),)+ }
            }

            /// The same type as a candle dtype.
            #[must_use]
            pub fn candle(self) -> CandleDType {
                match self { $(DType::$name => CandleDType::$name,)+ }
            }

            /// The dtype of a candle tensor, or `None` if caches do not support it.
            #[must_use]
            pub fn of(dtype: CandleDType) -> Option<DType> {
                match dtype { $(CandleDType::$name => Some(DType::$name),)+ _ => None }
            }

            /// The same type as a page format.
            #[must_use]
            pub fn page_format(self) -> PageFormat {
                match self { $(DType::$name => PageFormat::$name,)+ }
            }

            /// The element type of rows in this format, or `None` if the format is quantised.
            #[must_use]
            pub fn of_format(format: PageFormat) -> Option<DType> {
                match format { $(PageFormat::$name => Some(DType::$name),)+ _ => None }
            }

            /// Allocates `elements` zeros; `None` if the allocator has no memory for them.
            pub(crate) fn zeros(self, elements: usize) -> Option<CpuStorage> {
                match self { $(DType::$name => Some(CpuStorage::$name(zeroed_vec::<$rust>(elements)?)),)+ }
            }

            /// A candle tensor that owns `storage`.
            pub(crate) fn tensor(storage: CpuStorage, shape: &[usize]) -> candle_core::Result<Tensor> {
                match storage {
                    $(CpuStorage::$name(values) => Tensor::from_vec(values, shape, &Device::Cpu),)+
                    other => candle_core::bail!("no tensor of this storage: {other:?}"),
                }
            }

            /// Makes a candle tensor on a device from the bytes of its elements.
            pub(crate) fn upload(self, bytes: &[u8], shape: &[usize], device: &Device) -> candle_core::Result<Tensor> {
                match self {
                    $(DType::$name => {
                        let mut values: Vec<$rust> = vec![Zeroable::zeroed(); bytes.len() / size_of::<$rust>()];
                        bytemuck::cast_slice_mut(&mut values).copy_from_slice(bytes);
                        Tensor::from_vec(values, shape, device)
                    })+
                }
            }

            /// The bytes of a tensor's elements, in order.
            pub(crate) fn download(self, tensor: &Tensor) -> candle_core::Result<Vec<u8>> {
                let flat = tensor.flatten_all()?;
                match self {
                    $(DType::$name => Ok(bytemuck::cast_slice(&flat.to_vec1::<$rust>()?).to_vec()),)+
                }
            }
        }

        /// The memory of a GPU's storage; writable only if it was borrowed for writing.
        #[cfg(feature = "cuda")]
        pub(crate) fn cuda_span(storage: &candle_core::CudaStorage, is_writable: bool) -> candle_core::Result<kvtide_cuda::Span<'_>> {
            match &storage.slice {
                $(candle_core::cuda_backend::CudaStorageSlice::$name(values) => {
                    Ok(kvtide_cuda::Span::of_slice(values, is_writable))
                })+
                // Lengths and tables of a step.
                candle_core::cuda_backend::CudaStorageSlice::U32(values) => {
                    Ok(kvtide_cuda::Span::of_slice(values, is_writable))
                }
                _ => candle_core::bail!("the storage has a dtype that caches do not support"),
            }
        }

        /// The bytes of a storage.
        pub(crate) fn bytes(storage: &CpuStorage) -> candle_core::Result<&[u8]> {
            match storage {
                $(CpuStorage::$name(values) => Ok(bytemuck::cast_slice(values)),)+
                // Lengths and tables of a step.
                CpuStorage::U32(values) => Ok(bytemuck::cast_slice(values)),
                _ => candle_core::bail!("the storage has a dtype that caches do not support"),
            }
        }

        /// The bytes of a storage, for writing.
        pub(crate) fn bytes_mut(storage: &mut CpuStorage) -> candle_core::Result<&mut [u8]> {
            match storage {
                $(CpuStorage::$name(values) => Ok(bytemuck::cast_slice_mut(values)),)+
                CpuStorage::U32(values) => Ok(bytemuck::cast_slice_mut(values)),
                _ => candle_core::bail!("the storage has a dtype that caches do not support"),
            }
        }
    };
}

dtypes! {
    F32, f32, "f32";
    F16, f16, "f16";
    BF16, bf16, "bf16";
    U8, u8, "u8";
}

/// The dtype of a candle tensor; fails if caches do not support it.
pub(crate) fn tensor_dtype(argument: &'static str, tensor: &Tensor) -> Result<DType> {
    DType::of(tensor.dtype()).ok_or_else(|| Error::DtypeMismatch {
        argument,
        value: format!("{:?}", tensor.dtype()).to_lowercase(),
        expected: "f32, f16, bf16 or u8".to_owned(),
    })
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for DType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let expected = || DType::ALL.iter().map(|dtype| dtype.name()).collect::<Vec<_>>().join(", ");
        let found = DType::ALL.iter().copied().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| Error::argument("dtype", name, format!("one of {}", expected())))
    }
}

/// The number of elements that are converted at a time when the bytes are not aligned.
const CHUNK: usize = 64;

/// Converts `bytes`, elements of `dtype`, to floats.
pub fn floats(dtype: DType, bytes: &[u8]) -> Result<Vec<f32>> {
    let mut floats =
        zeroed_vec(bytes.len() / dtype.bytes()).ok_or_else(|| Budget::process().refusal(bytes.len() as u64))?;
    to_f32(dtype, bytes, &mut floats);
    Ok(floats)
}

/// Like [`floats`], into `out`.
pub(crate) fn to_f32(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    assert_eq!(bytes.len(), out.len() * dtype.bytes(), "as many elements");
    match dtype {
        DType::F32 => bytemuck::cast_slice_mut(out).copy_from_slice(bytes),
        DType::F16 => halves(bytes, out, |bits, out| bits.reinterpret_cast::<f16>().convert_to_f32_slice(out)),
        DType::BF16 => halves(bytes, out, |bits, out| bits.reinterpret_cast::<bf16>().convert_to_f32_slice(out)),
        DType::U8 => out.iter_mut().zip(bytes).for_each(|(value, &byte)| *value = f32::from(byte)),
    }
}

/// Converts the values to elements of `dtype` in `bytes`, rounding to nearest, ties to even.
pub fn from_f32(dtype: DType, values: &[f32], bytes: &mut [u8]) {
    assert_eq!(bytes.len(), values.len() * dtype.bytes(), "as many elements");
    let each = |bytes: &mut [u8], convert: fn(&mut [u16], &[f32])| {
        let mut aligned = [0u16; CHUNK];
        for (bytes, values) in bytes.chunks_mut(2 * CHUNK).zip(values.chunks(CHUNK)) {
            let bits = &mut aligned[..values.len()];
            convert(bits, values);
            bytes.copy_from_slice(bytemuck::cast_slice(bits));
        }
    };
    match dtype {
        DType::F32 => bytes.copy_from_slice(bytemuck::cast_slice(values)),
        DType::F16 => each(bytes, |bits, values| bits.reinterpret_cast_mut::<f16>().convert_from_f32_slice(values)),
        DType::BF16 => each(bytes, |bits, values| bits.reinterpret_cast_mut::<bf16>().convert_from_f32_slice(values)),
        DType::U8 => bytes.iter_mut().zip(values).for_each(|(byte, &value)| *byte = value as u8),
    }
}

/// Clamps dequantised values to the range of `dtype`. A code can stand for slightly more than the largest number that was
/// quantised, and would become infinite as an element.
pub(crate) fn saturate(dtype: DType, values: &mut [f32]) {
    let most = match dtype {
        DType::F16 => f16::MAX.to_f32(),
        DType::BF16 => bf16::MAX.to_f32(),
        DType::F32 | DType::U8 => return,
    };
    values.iter_mut().for_each(|value| *value = value.clamp(-most, most));
}

fn halves(bytes: &[u8], out: &mut [f32], convert: impl Fn(&[u16], &mut [f32])) {
    if let Ok(bits) = bytemuck::try_cast_slice(bytes) {
        return convert(bits, out);
    }
    let mut aligned = [0u16; CHUNK];
    for (bytes, out) in bytes.chunks(2 * CHUNK).zip(out.chunks_mut(CHUNK)) {
        let bits = &mut aligned[..out.len()];
        bytemuck::cast_slice_mut(bits).copy_from_slice(bytes);
        convert(bits, out);
    }
}
