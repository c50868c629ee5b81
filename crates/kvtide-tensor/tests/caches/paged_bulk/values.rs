//! Values of tokens, and the memory in which they are passed to a cache.

use candle_core::{Device, Tensor};
use half::{bf16, f16};
use kvtide_tensor::buffers::{SequenceLayout, Source};
use kvtide_tensor::{DType, HostTensor};

/// The largest number of that dtype.
const F16_MAX: f32 = 65_504.;

/// A number for each element of a token: of every size, and exact in `dtype`.
pub fn element(dtype: DType, id: u64, part: usize, place: usize) -> f32 {
    let mixed = (id << 20 | (place as u64) << 4 | part as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
    let value = (mixed & 0xffff) as f32 / 32768. - 1.;
    let magnitudes = match dtype {
        DType::F16 => [1., 0.01, 30., 1e-4, 200., 1e-6, 3. * F16_MAX, 3e-8],
        _ => [1., 0.01, 30., 1e-4, 200., 1e-30, 1e12, 1e30],
    };
    exact(dtype, value * magnitudes[(id % 8) as usize])
}

/// The nearest value that the dtype has; what is finite stays so.
pub fn exact(dtype: DType, value: f32) -> f32 {
    match dtype {
        DType::F16 => f16::from_f32(value.clamp(-F16_MAX, F16_MAX)).to_f32(),
        DType::BF16 => bf16::from_f32(value).to_f32(),
        DType::F32 | DType::U8 => value,
    }
}

/// The same values as bytes of the dtype.
pub fn bytes(dtype: DType, values: &[f32]) -> Vec<u8> {
    let bytes = |value: &f32| match dtype {
        DType::F16 => f16::from_f32(*value).to_ne_bytes().to_vec(),
        DType::BF16 => bf16::from_f32(*value).to_ne_bytes().to_vec(),
        DType::F32 | DType::U8 => value.to_ne_bytes().to_vec(),
    };
    values.iter().flat_map(bytes).collect()
}

/// The memory layout of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A host tensor.
    Host,
    /// The same, in the order tokens, heads.
    Bshd,
    /// Tokens out of the middle of a host tensor.
    Range,
    /// A candle tensor.
    Tensor,
    /// A candle tensor that lies as tokens, heads.
    Swapped,
    /// A candle tensor whose last dimension has strides.
    Strided,
}

impl Form {
    pub const ALL: [Form; 6] = [Form::Host, Form::Bshd, Form::Range, Form::Tensor, Form::Swapped, Form::Strided];
}

/// K or V of a call in memory: `[outer, heads, tokens, dim]`, `outer` left out when there is none.
pub enum Fed {
    Host { bytes: Vec<u8>, dtype: DType, shape: Vec<usize>, layout: SequenceLayout, range: Option<(usize, usize)> },
    Tensor(Tensor),
}

impl Fed {
    /// `value(outer, head, token, place)` for each element.
    pub fn new(
        form: Form,
        dtype: DType,
        outer: Option<usize>,
        [heads, tokens, dim]: [usize; 3],
        value: impl Fn(usize, usize, usize, usize) -> f32,
    ) -> Fed {
        let pad = if form == Form::Range { 2 } else { 0 };
        let mut values = Vec::new();
        for (layer, head) in (0..outer.unwrap_or(1)).flat_map(|layer| (0..heads).map(move |head| (layer, head))) {
            for token in 0..tokens + pad {
                let token = token.checked_sub(pad / 2).filter(|&token| token < tokens);
                values.extend((0..dim).map(|place| token.map_or(9e9, |token| value(layer, head, token, place))));
            }
        }
        let shape: Vec<usize> = outer.into_iter().chain([heads, tokens + pad, dim]).collect();
        let axis = shape.len() - 3;
        let tensor = Tensor::from_vec(values, &shape[..], &Device::Cpu).and_then(|made| made.to_dtype(dtype.candle()));
        let tensor = tensor.expect("a tensor of as many values");
        let turned = |one: usize, other: usize| {
            tensor.transpose(one, other).and_then(|turned| turned.contiguous()).expect("two axes")
        };
        match form {
            Form::Host | Form::Range => {
                let range = (pad > 0).then_some((1, 1 + tokens));
                Fed::Host { bytes: bytes_of(&tensor), dtype, shape, layout: SequenceLayout::Bhsd, range }
            }
            Form::Bshd => {
                let turned = turned(axis, axis + 1);
                let shape = turned.dims().to_vec();
                Fed::Host { bytes: bytes_of(&turned), dtype, shape, layout: SequenceLayout::Bshd, range: None }
            }
            Form::Tensor => Fed::Tensor(tensor),
            Form::Swapped => Fed::Tensor(turned(axis, axis + 1).transpose(axis, axis + 1).expect("two axes")),
            Form::Strided => Fed::Tensor(turned(axis, axis + 2).transpose(axis, axis + 2).expect("two axes")),
        }
    }

    pub fn source(&self) -> Source<'_> {
        match self {
            Fed::Tensor(tensor) => tensor.into(),
            Fed::Host { bytes, dtype, shape, layout, range } => {
                let host = HostTensor::new("k", bytes, *dtype, shape).and_then(|host| host.with_layout("k", *layout));
                let host = host.expect("a shape of as many bytes");
                range.map_or(host.clone(), |(start, end)| host.with_range(start, end)).into()
            }
        }
    }
}

fn bytes_of(tensor: &Tensor) -> Vec<u8> {
    crate::tokens::bytes_of(tensor)
}
