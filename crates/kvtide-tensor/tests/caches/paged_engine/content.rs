//! The meaning of a value in tensors: the rows of a token in one layer, and the allowed difference after quantisation.
//!
//! Rows that are not quantised have any bits, NaNs included, and are read back bit for bit. Quantised rows are between -1
//! and 1, times a power of two of any magnitude that dtype and format support. A page is rounded by at most half a step each
//! time it becomes full, and it can only become full again after calls that opened it.

use kvtide_core::paged::PageFormat;
use kvtide_tensor::{DType, Error, HostTensor, PagedKvCache, PagedKvCacheOptions};
use proptest::prelude::*;

use super::model::Value;

/// The form of tokens and pages.
#[derive(Clone, Copy, Debug)]
pub struct Content {
    pub heads: usize,
    /// Elements of a head of K, and of V.
    pub dims: [usize; 2],
    pub dtype: DType,
    pub formats: [Option<PageFormat>; 2],
    /// Rows of K, and of V, are rotated before they are quantised.
    pub rotated: [bool; 2],
    /// Rows that are not quantised are numbers as well, for attention.
    pub plain: bool,
    /// The factor of the numbers, a power of two: they are then as exact as between -1 and 1.
    pub magnitude: f32,
}

pub fn content(low_bit: bool) -> impl Strategy<Value = Content> {
    use PageFormat::{BF16, F8E4M3, F16, Q4, Q8};
    let dtypes = if low_bit { &DTYPES[..3] } else { &DTYPES };
    let formats = [None, Some(F16), Some(BF16), Some(F8E4M3), Some(Q8), Some(Q4)];
    let format = prop::sample::select(if low_bit { &formats[..] } else { &formats[..3] }.to_vec());
    let dims = prop_oneof![2 => (1..7usize).prop_map(|dim| [dim; 2]), 2 => [1..7usize, 0..7usize]];
    let some = prop::sample::select(vec![F8E4M3, Q8, Q4]);
    let rest = (some, any::<[bool; 2]>(), prop_oneof![1 => Just(0), 2 => -100..=100i32]);
    (1..3usize, dims, prop::sample::select(dtypes), [format.clone(), format], rest).prop_map(
        move |(heads, dims, dtype, mut formats, (some, rotate, exponent))| {
            for format in formats.iter_mut().filter(|_| dtype != DType::F32) {
                *format = format.filter(|format| format.is_low_bit());
            }
            if low_bit && !formats.into_iter().flatten().any(PageFormat::is_low_bit) {
                formats[0] = Some(some);
            }
            // The smallest and the largest of which every element is exact, in f8e4m3 those between which it is nearly so.
            let [least, most] = match dtype {
                _ if formats.contains(&Some(F8E4M3)) => [-2, 6],
                DType::F16 => [-16, 15],
                _ if formats.contains(&Some(F16)) => [-16, 15],
                _ => [-100, 100],
            };
            let magnitude = 2f32.powi(exponent.clamp(least, most));
            let rotated = [0, 1].map(|part| rotate[part] && formats[part].is_some_and(PageFormat::is_low_bit));
            Content { heads, dims, dtype, formats, rotated, plain: false, magnitude }
        },
    )
}

const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::U8];

impl Content {
    /// The same, for attention: numbers alone, and some of V.
    pub fn plain(mut self) -> Self {
        self.dims[1] = self.dims[1].max(1);
        self.dtype = if self.dtype == DType::U8 { DType::F32 } else { self.dtype };
        Content { plain: true, ..self }
    }

    pub fn options(&self) -> PagedKvCacheOptions {
        PagedKvCacheOptions {
            num_kv_heads: self.heads as u32,
            head_dim: self.dims[0] as u32,
            value_head_dim: Some(self.dims[1] as u32),
            dtype: self.dtype,
            key_format: self.formats[0],
            value_format: self.formats[1],
            hadamard: self.rotated[0],
            value_hadamard: self.rotated[1],
            ..Default::default()
        }
    }

    fn is_low_bit(&self, part: usize) -> bool {
        self.formats[part].is_some_and(PageFormat::is_low_bit) && self.dims[part] > 0
    }

    /// The float type that pages keep, where it is another than what is handed over.
    fn kept(&self, part: usize) -> Option<DType> {
        self.formats[part].and_then(DType::of_format)
    }

    /// Rows of K or V, `[layers, heads, tokens, dim]`, of the values `layers[layer][token]`, as they are handed over.
    pub fn fed(&self, part: usize, layers: &[Vec<Value>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (layer, head) in layers.iter().flat_map(|layer| (0..self.heads).map(move |head| (layer, head))) {
            for &value in layer {
                for place in head * self.dims[part]..(head + 1) * self.dims[part] {
                    self.push(&mut bytes, part, value, place);
                }
            }
        }
        bytes
    }

    fn push(&self, bytes: &mut Vec<u8>, part: usize, value: Value, place: usize) {
        let bits = if value == 0 { 0 } else { mix(u64::from(value) << 8 | (place as u64) << 1 | part as u64) };
        let number = if value == 0 { 0. } else { element(bits) * self.magnitude };
        if !self.is_low_bit(part) && self.kept(part).is_none() && !self.plain {
            bytes.extend(&bits.to_ne_bytes()[..self.dtype.bytes()]);
        } else {
            self.put(bytes, number);
        }
    }

    fn put(&self, bytes: &mut Vec<u8>, number: f32) {
        match self.dtype {
            DType::F16 => bytes.extend(half::f16::from_f32(number).to_ne_bytes()),
            DType::BF16 => bytes.extend(half::bf16::from_f32(number).to_ne_bytes()),
            _ => bytes.extend(number.to_ne_bytes()),
        }
    }

    /// K and V of a full page, `[heads, tokens, dim]`, as they are read after these floats of it were quantised.
    pub fn sealed(&self, page: &[Vec<f32>; 2]) -> Result<[Vec<f32>; 2], Error> {
        let tokens = page[0].len() / (self.heads * self.dims[0]);
        let block_size = tokens as u32;
        let mut cache =
            PagedKvCache::new(PagedKvCacheOptions { capacity: 1, block_size, num_layers: 1, ..self.options() })?;
        let sequence = cache.create_sequence()?;
        let rows = page.each_ref().map(|floats| {
            let mut bytes = Vec::new();
            floats.iter().for_each(|&number| self.put(&mut bytes, number));
            bytes
        });
        let shapes = self.dims.map(|dim| [1, self.heads, tokens, dim]);
        let [k, v] = [0, 1].map(|part| HostTensor::new("rows", &rows[part], self.dtype, &shapes[part]));
        cache.append_known(&[sequence], k?, v?, Some(&[0, block_size]), None)?;
        let kv = cache.gather(sequence, 0)?;
        Ok([kv.k.to_f32()?, kv.v.to_f32()?])
    }

    /// The elements of a value in one head, as numbers.
    pub fn row(&self, part: usize, value: Value, head: usize) -> Vec<f32> {
        let places = head * self.dims[part]..(head + 1) * self.dims[part];
        let bits = |place: usize| mix(u64::from(value) << 8 | (place as u64) << 1 | part as u64);
        places.map(|place| if value == 0 { 0. } else { element(bits(place)) * self.magnitude }).collect()
    }

    /// Says whether rows that came out, `[heads, tokens, dim]`, are those of these values, where pages may have become full again
    /// as often as `opened` says.
    pub fn check(&self, part: usize, values: &[Value], found: &[u8], opened: u32) -> Result<(), String> {
        if !self.is_low_bit(part) {
            let fed = self.fed(part, &[values.to_vec()]);
            let floats = || fed.chunks_exact(4).map(bytemuck::pod_read_unaligned::<f32>);
            let expected = match self.kept(part) {
                Some(DType::F16) => floats().flat_map(|float| half::f16::from_f32(float).to_ne_bytes()).collect(),
                Some(DType::BF16) => floats().flat_map(|float| half::bf16::from_f32(float).to_ne_bytes()).collect(),
                _ => fed,
            };
            let same = expected == found;
            return if same { Ok(()) } else { Err(format!("part {part} is not that of {values:?}: {found:?}")) };
        }
        let bound = self.bound(part, opened);
        let found: Vec<f32> = found.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
        if found.len() != self.heads * values.len() * self.dims[part] {
            return Err(format!("part {part} has {} elements for {} tokens", found.len(), values.len()));
        }
        let rows = (0..self.heads).flat_map(|head| values.iter().map(move |value| (head, *value)));
        for ((head, value), found) in rows.zip(found.chunks_exact(self.dims[part])) {
            let expected = self.row(part, value, head);
            // Unwritten slots are zero in every format.
            let bound = if value == 0 { 0. } else { bound };
            if expected.iter().zip(found).any(|(a, b)| (a - b).abs() > bound || b.is_nan()) {
                return Err(format!("part {part}: {found:?} is not {expected:?} of {value}, bound {bound}"));
            }
        }
        Ok(())
    }

    /// Half a step of the format for each time that a page can have become full; what was rounded before is a little larger.
    pub fn bound(&self, part: usize, opened: u32) -> f32 {
        let block = if self.rotated[part] { 1 << self.dims[part].trailing_zeros() } else { 1 };
        let turned = (block as f32).sqrt();
        let largest = turned * self.magnitude;
        let half_step = match self.formats[part] {
            Some(PageFormat::Q8) => largest / 254.,
            Some(PageFormat::Q4) => largest / 15.,
            Some(PageFormat::F8E4M3) => (largest.log2().floor().exp2() / 16.).max(1. / 1024.),
            _ => 0.,
        };
        let times = opened as f32 + 1.;
        // Turning back adds the errors of a block.
        (half_step * turned * times) * (1.05 + 0.1 * opened as f32) + 0.005 * self.magnitude * times
    }
}

/// A number between -1 and 1 that every dtype has.
fn element(bits: u32) -> f32 {
    (bits & 0xff) as f32 / 128. - 1.
}

fn mix(number: u64) -> u32 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (number ^ (number >> 31)) as u32
}
