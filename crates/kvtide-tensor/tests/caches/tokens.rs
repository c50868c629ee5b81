//! Tokens with content: a number stands for rows of bits, NaNs among them, that no other number has.

use candle_core::{CpuStorage, Device, Storage, Tensor};
use half::{bf16, f16};
use kvtide_core::Code;
use kvtide_tensor::runtime::Kernels;
use kvtide_tensor::{DType, View};

/// A token's number.
pub type Id = u64;

/// The shape of tokens, whatever their number.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The size at `axis` is ignored.
    pub dims: Vec<usize>,
    pub axis: usize,
    pub dtype: DType,
}

impl Rows {
    pub fn new(dims: &[usize], axis: usize, dtype: DType) -> Self {
        Rows { dims: dims.to_vec(), axis, dtype }
    }

    pub fn shape(&self, tokens: usize) -> Vec<usize> {
        let mut shape = self.dims.clone();
        shape[self.axis] = tokens;
        shape
    }

    /// Bytes of one token in one part.
    pub fn token_bytes(&self) -> u64 {
        (self.shape(1).iter().product::<usize>() * self.dtype.bytes()) as u64
    }

    /// The bytes of a tensor of these tokens, as K (part 0) or V (part 1) has them.
    pub fn bytes(&self, part: usize, ids: &[Id]) -> Vec<u8> {
        let outer: usize = self.dims[..self.axis].iter().product();
        let inner: usize = self.dims[self.axis + 1..].iter().product();
        let mut bytes = Vec::with_capacity(outer * inner * ids.len() * self.dtype.bytes());
        for row in 0..outer {
            for &id in ids {
                for place in 0..inner {
                    push(&mut bytes, self.dtype, element(self.dtype, part, id, row * inner + place));
                }
            }
        }
        bytes
    }

    /// A contiguous tensor of these tokens.
    pub fn tensor(&self, part: usize, ids: &[Id]) -> Tensor {
        tensor(self.dtype, &self.bytes(part, ids), &self.shape(ids.len()))
    }
}

/// The bits of one element: the number itself in the first one, often as a NaN's payload, any bits in the others.
fn element(dtype: DType, part: usize, id: Id, place: usize) -> u32 {
    let (exponent, sign, mantissa) = match dtype {
        DType::F32 => (0x7f80_0000, 0x8000_0000, 0x007f_ffff),
        DType::F16 => (0x7c00, 0x8000, 0x03ff),
        DType::BF16 => (0x7f80, 0x8000, 0x007f),
        DType::U8 => (0, 0x80, 0x7f),
    };
    if place > 0 {
        let mixed = mix(id << 16 | (place as u64) << 4 | part as u64) as u32;
        return if id % 4 == 1 { mixed | exponent } else { mixed };
    }
    let sign = if part == 1 { sign } else { 0 };
    let payload = u32::try_from(id).expect("a small number");
    if id % 4 == 1 && payload <= mantissa { sign | exponent | payload } else { sign | payload }
}

/// Spreads the bits of a number.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

fn push(bytes: &mut Vec<u8>, dtype: DType, bits: u32) {
    bytes.extend_from_slice(&bits.to_ne_bytes()[..dtype.bytes()]);
}

/// A contiguous tensor of these bytes.
pub fn tensor(dtype: DType, bytes: &[u8], shape: &[usize]) -> Tensor {
    let made = match dtype {
        DType::F32 => Tensor::from_vec(values::<f32>(bytes), shape, &Device::Cpu),
        DType::F16 => Tensor::from_vec(values::<f16>(bytes), shape, &Device::Cpu),
        DType::BF16 => Tensor::from_vec(values::<bf16>(bytes), shape, &Device::Cpu),
        DType::U8 => Tensor::from_vec(bytes.to_vec(), shape, &Device::Cpu),
    };
    made.expect("as many bytes as the shape says")
}

fn values<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// The bytes of a tensor's elements, in order.
pub fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    let flat = tensor.flatten_all().expect("a tensor can be flattened");
    let bytes = match DType::of(flat.dtype()).expect("a dtype of this crate") {
        DType::F32 => flat.to_vec1::<f32>().map(|values| bytemuck::cast_slice(&values).to_vec()),
        DType::F16 => flat.to_vec1::<f16>().map(|values| bytemuck::cast_slice(&values).to_vec()),
        DType::BF16 => flat.to_vec1::<bf16>().map(|values| bytemuck::cast_slice(&values).to_vec()),
        DType::U8 => flat.to_vec1::<u8>(),
    };
    bytes.expect("the dtype that was asked for")
}

/// A number that tells the memory of two views apart, also on a device whose memory the host cannot address.
pub fn place(view: &View) -> usize {
    let tensor = view.tensor().expect("a view of one run");
    let (storage, _) = tensor.storage_and_layout();
    std::ptr::from_ref(&*storage).addr()
}

/// The expected result of requesting a view's address, if only the place of its memory can prevent it.
pub fn data(otherwise: Result<(), Code>) -> Result<(), Code> {
    if matches!(Kernels::current(), Ok(Kernels::Opaque)) { Err(Code::DeviceMismatch) } else { otherwise }
}

/// The address of the memory that a tensor lies in.
pub fn address_of(tensor: &Tensor) -> usize {
    let (storage, _) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => values.as_ptr().addr(),
        Storage::Cpu(CpuStorage::F16(values)) => values.as_ptr().addr(),
        Storage::Cpu(CpuStorage::BF16(values)) => values.as_ptr().addr(),
        Storage::Cpu(CpuStorage::U8(values)) => values.as_ptr().addr(),
        other => panic!("not memory of this crate: {other:?}"),
    }
}
