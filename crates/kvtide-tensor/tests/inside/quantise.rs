//! Every implementation compared with the others and with the definitions, in f64.

#[path = "half_a_step.rs"]
mod half_a_step;
#[cfg(feature = "emulate")]
#[path = "quantise_launched.rs"]
mod launched_heads;

use kvtide_core::paged::{KeyOrValue, PageFormat, PageLayout, PageShape};

use super::*;
use crate::device::form::{Kernels, with_kernels};

const FORMATS: [PageFormat; 3] = [PageFormat::F8E4M3, PageFormat::Q8, PageFormat::Q4];

/// A head of a page: its codec, codes and scales.
struct Head {
    codec: Codec,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

fn head(format: PageFormat, part: KeyOrValue, block_size: u32, dim: u32, rotated: bool) -> Head {
    let shape = PageShape {
        block_size,
        num_layers: 1,
        num_kv_heads: 1,
        head_dim: dim,
        value_head_dim: dim,
        key_format: format,
        value_format: format,
    };
    let section = PageLayout::new(shape).unwrap().section(part);
    let codec = Codec::of(part, &section, rotated).unwrap();
    Head { codec, codes: vec![0xaa; section.head_bytes], scales: vec![0xaa; section.scale_bytes] }
}

impl Head {
    fn encode(&mut self, kernels: Kernels, values: &[f32]) {
        let mut values = values.to_vec();
        #[cfg(feature = "emulate")]
        if kernels == Kernels::Emulated {
            return self.codec.encode_launched(&mut values, &mut self.codes, &mut self.scales);
        }
        with_kernels(kernels, || self.codec.encode(&mut values, &mut self.codes, &mut self.scales)).unwrap();
    }

    fn decode(&self, kernels: Kernels, slot: usize, count: usize) -> Vec<f32> {
        let mut values = vec![0.; count * self.codec.dim];
        #[cfg(feature = "emulate")]
        if kernels == Kernels::Emulated {
            self.codec.decode_launched(&self.codes, &self.scales, slot, &mut values);
            return values;
        }
        with_kernels(kernels, || self.codec.decode(&self.codes, &self.scales, slot, &mut values)).unwrap();
        values
    }

    /// With the vectors that every machine has.
    fn encode_plain(&mut self, values: &[f32]) {
        self.codec.encode_plain(&mut values.to_vec(), &mut self.codes, &mut self.scales);
    }

    fn decode_plain(&self) -> Vec<f32> {
        let mut values = vec![0.; self.codec.elements()];
        self.codec.decode_plain(&self.codes, &self.scales, 0, &mut values);
        values
    }
}

/// Every format, part, size and rotation that is looked at.
fn heads() -> impl Iterator<Item = Head> {
    let sizes = [(1, 1), (3, 5), (16, 128), (4, 33), (2, 70), (5, 64), (16, 96), (80, 128)];
    FORMATS.into_iter().flat_map(move |format| {
        sizes.into_iter().flat_map(move |(block_size, dim)| {
            [(KeyOrValue::Key, false), (KeyOrValue::Key, true), (KeyOrValue::Value, false)]
                .into_iter()
                .map(move |(part, rotated)| head(format, part, block_size, dim, rotated))
        })
    })
}

/// Numbers from -1 to 1 that look random, others for each seed.
fn draws(seed: u32) -> impl FnMut() -> f32 {
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ u64::from(seed);
    move || {
        state = state.wrapping_mul(0xd129_2d4b_5b3e_9d4f).wrapping_add(0x1234_5678_9abc_def1);
        (state >> 40) as f32 / 8_388_608. - 1.
    }
}

/// The largest magnitude of each kind of values.
const MAGNITUDES: [f32; 13] = [1., 1e-3, 1e-6, 1e4, 3e7, 3e38, 0., 1e-40, 1e-37, 1e-30, 1e-20, 1e20, 1e30];
/// Every value has a magnitude of its own.
const MIXED: u32 = MAGNITUDES.len() as u32;
/// Some are not finite.
const SPECIAL: u32 = MIXED + 1;

/// Values of every magnitude: `kind` chooses which.
fn values(count: usize, kind: u32) -> Vec<f32> {
    let mut next = draws(kind);
    match MAGNITUDES.get(kind as usize) {
        Some(magnitude) => (0..count).map(|_| next() * magnitude).collect(),
        None if kind == MIXED => (0..count).map(|_| next() * 10f32.powf(30. * next())).collect(),
        None => {
            let special = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0., 0., 1., -3.];
            (0..count).map(|place| special[place % 8] * if place % 3 == 0 { 0. } else { 1. }).collect()
        }
    }
}

#[test]
fn every_form_gives_the_same_codes_and_values() {
    for kind in 0..=SPECIAL {
        for mut head in heads() {
            let values = values(head.codec.elements(), kind);
            head.encode_plain(&values);
            let (codes, scales) = (head.codes.clone(), head.scales.clone());
            let decoded = head.decode_plain();
            for form in Kernels::supported() {
                head.encode(form, &values);
                assert!(head.codes == codes && head.scales == scales, "{form}: {:?} kind {kind}", head.codec);
                let found = head.decode(form, 0, head.codec.block_size);
                let same = |a: &f32, b: &f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
                assert!(found.iter().zip(&decoded).all(|(a, b)| same(a, b)), "{form}: {:?} kind {kind}", head.codec);
            }
        }
    }
}

#[test]
fn every_form_zeroes_the_same_slots_alike() {
    for kind in 0..=SPECIAL {
        for mut head in heads() {
            head.encode_plain(&values(head.codec.elements(), kind));
            let block_size = head.codec.block_size as u32;
            let holes = [[0..block_size / 3, block_size / 2..block_size], [0..0, 0..block_size]];
            for slots in holes {
                let zeroed = |kernels| {
                    let (mut codes, mut scales) = (head.codes.clone(), head.scales.clone());
                    #[cfg(feature = "emulate")]
                    if kernels == Kernels::Emulated {
                        head.codec.zero_launched(&mut codes, &mut scales, &slots);
                        return (codes, scales);
                    }
                    with_kernels(kernels, || head.codec.zero(&mut codes, &mut scales, &slots)).unwrap();
                    (codes, scales)
                };
                let expected = zeroed(Kernels::Portable);
                for form in Kernels::supported() {
                    assert!(zeroed(form) == expected, "{form}: {:?} kind {kind} {slots:?}", head.codec);
                }
            }
        }
    }
}

#[test]
fn some_rows_are_decoded_as_all_are() {
    for mut head in heads() {
        let (count, dim) = (head.codec.block_size, head.codec.dim);
        head.encode(Kernels::current().unwrap(), &values(count * dim, 0));
        let all = head.decode(Kernels::current().unwrap(), 0, count);
        // Emulated kernels take 20 seconds for all of them.
        let step = if Kernels::current().unwrap().name() == "emulated" { 5 } else { 1 };
        let slots = (0..count).step_by(step);
        for (slot, rows) in slots.flat_map(|slot| (0..=count - slot).step_by(step).map(move |rows| (slot, rows))) {
            let some = head.decode(Kernels::current().unwrap(), slot, rows);
            assert_eq!(some, all[slot * dim..(slot + rows) * dim], "{:?}", head.codec);
        }
    }
}

#[test]
fn what_is_not_finite_makes_its_row_or_channel_nan_and_nothing_else() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for mut head in heads().filter(|head| head.codec.dim > 1 && head.codec.block_size > 1 && !head.codec.rotated) {
            let (dim, form) = (head.codec.dim, Kernels::current().unwrap());
            let mut values = values(head.codec.elements(), 0);
            head.encode(form, &values);
            let without = head.decode(form, 0, head.codec.block_size);
            values[dim + 1] = bad;
            head.encode(form, &values);
            let decoded = head.decode(form, 0, head.codec.block_size);
            for (place, (found, without)) in decoded.iter().zip(&without).enumerate() {
                let expected = match (head.codec.format, head.codec.part) {
                    (PageFormat::F8E4M3, _) => place == dim + 1,
                    (PageFormat::Q4, KeyOrValue::Key) => place % dim == 1,
                    _ => place / dim == 1,
                };
                assert_eq!(found.is_nan(), expected, "{:?}: element {place}", head.codec);
                assert!(expected || found == without, "{:?}: element {place}", head.codec);
            }
        }
    }
}

#[test]
fn nibbles_lie_as_the_layout_says() {
    for dim in [1, 2, 5, 31, 32, 33, 47, 64, 70] {
        let mut head = head(PageFormat::Q4, KeyOrValue::Value, 1, dim as u32, false);
        // 0 to 15 are their own codes: minimum 0, scale 1.
        let values: Vec<f32> = (0..dim).map(|i| if dim == 1 { 0. } else { ((i * 7) % 16) as f32 }).collect();
        head.encode(Kernels::current().unwrap(), &values);
        let unit = values.contains(&15.);
        for (place, value) in values.iter().enumerate().filter(|_| unit) {
            let (group, at) = (place / 32, place % 32);
            let half = (dim - group * 32).min(32).div_ceil(2);
            let byte = head.codes[group * 16 + at % half];
            let code = if at < half { byte & 15 } else { byte >> 4 };
            assert_eq!((f32::from(code), at / half), (*value, usize::from(at >= half)), "{dim}: element {place}");
        }
    }
}

#[test]
fn what_comes_back_is_finite_in_every_dtype() {
    use crate::base::dtype::DType;
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let mut bits = vec![0; dtype.bytes()];
        let most = match dtype {
            DType::F16 => half::f16::MAX.to_f32(),
            DType::BF16 => half::bf16::MAX.to_f32(),
            _ => f32::MAX,
        };
        let mut head = head(PageFormat::Q8, KeyOrValue::Value, 1, 1, false);
        head.encode(Kernels::current().unwrap(), &[most]);
        let mut found = head.decode(Kernels::current().unwrap(), 0, 1);
        assert!(found[0].is_finite(), "{dtype}");
        saturate(dtype, &mut found);
        from_f32(dtype, &found, &mut bits);
        to_f32(dtype, &bits, &mut found);
        assert!((found[0] / most - 1.).abs() <= 1. / 254., "{dtype}: {most} is {}", found[0]);
        let mut others = [f32::NAN, 1., -0.];
        saturate(dtype, &mut others);
        assert!(others[0].is_nan() && others[1] == 1. && others[2].to_bits() == (-0f32).to_bits());
    }
}
