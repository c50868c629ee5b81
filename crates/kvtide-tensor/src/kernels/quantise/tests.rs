//! Every form against the others and against the definitions, in f64.

use half::f16;
use kvtide_core::paged::{PageLayout, PageShape};

use super::*;
use crate::kernels::with_kernels;

const FORMATS: [PageFormat; 3] = [PageFormat::F8E4M3, PageFormat::Q8, PageFormat::Q4];

/// A head of a page: its codec, codes and scales.
struct Head {
    codec: Codec,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

fn head(format: PageFormat, part: Part, block_size: u32, dim: u32, rotated: bool) -> Head {
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
        with_kernels(kernels, || self.codec.encode(&mut values, &mut self.codes, &mut self.scales)).unwrap();
    }

    fn decode(&self, kernels: Kernels, slot: usize, count: usize) -> Vec<f32> {
        let mut values = vec![0.; count * self.codec.dim];
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

    fn scale(&self, place: usize) -> f64 {
        f16::from_ne_bytes([self.scales[2 * place], self.scales[2 * place + 1]]).to_f64()
    }
}

/// Every format, part, size and rotation that is looked at.
fn heads() -> impl Iterator<Item = Head> {
    let sizes = [(1, 1), (3, 5), (16, 128), (4, 33), (2, 70), (5, 64), (16, 96), (80, 128)];
    FORMATS.into_iter().flat_map(move |format| {
        sizes.into_iter().flat_map(move |(block_size, dim)| {
            [(Part::Key, false), (Part::Key, true), (Part::Value, false)]
                .into_iter()
                .map(move |(part, rotated)| head(format, part, block_size, dim, rotated))
        })
    })
}

/// Values of every magnitude: `kind` chooses which.
fn values(count: usize, kind: u32) -> Vec<f32> {
    if kind == 8 {
        let special = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0., 0., 1., -3.];
        return (0..count).map(|place| special[place % 8] * if place % 3 == 0 { 0. } else { 1. }).collect();
    }
    let mut state = 0x9e37_79b9_7f4a_7c15u64 ^ u64::from(kind);
    let mut next = || {
        state = state.wrapping_mul(0xd129_2d4b_5b3e_9d4f).wrapping_add(0x1234_5678_9abc_def1);
        (state >> 40) as f32 / 8_388_608. - 1.
    };
    let magnitude = [1., 1e-3, 1e-6, 1e4, 3e7, 3e38, 0., 1e-40][kind as usize];
    (0..count).map(|_| next() * magnitude).collect()
}

#[test]
fn every_form_gives_the_same_codes_and_values() {
    for kind in 0..9 {
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
    for kind in [0, 2, 4, 5, 6, 8] {
        for mut head in heads() {
            head.encode_plain(&values(head.codec.elements(), kind));
            let block_size = head.codec.block_size as u32;
            let holes = [[0..block_size / 3, block_size / 2..block_size], [0..0, 0..block_size]];
            for slots in holes {
                let zeroed = |kernels| {
                    let (mut codes, mut scales) = (head.codes.clone(), head.scales.clone());
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
        for (slot, rows) in (0..count).flat_map(|slot| (0..=count - slot).map(move |rows| (slot, rows))) {
            let some = head.decode(Kernels::current().unwrap(), slot, rows);
            assert_eq!(some, all[slot * dim..(slot + rows) * dim], "{:?}", head.codec);
        }
    }
}

#[test]
fn nothing_is_farther_than_half_a_step_of_its_scale() {
    for kind in [0, 1, 3, 6] {
        for mut head in heads().filter(|head| !head.codec.rotated && head.codec.format != PageFormat::F8E4M3) {
            let values = values(head.codec.elements(), kind);
            head.encode(Kernels::current().unwrap(), &values);
            let decoded = head.decode(Kernels::current().unwrap(), 0, head.codec.block_size);
            let dim = head.codec.dim;
            for (place, (value, found)) in values.iter().zip(&decoded).enumerate() {
                let step = head.scale(match (head.codec.format, head.codec.part) {
                    (PageFormat::Q8, _) => place / dim,
                    (_, Part::Value) => 2 * (place / dim),
                    (_, Part::Key) => place % dim,
                });
                let error = (f64::from(*value) - f64::from(*found)).abs();
                let rounding = f64::from(value.abs()) * 1e-6;
                // A scale below the smallest normal f16 is rounded, and 127 of it may not reach the largest value.
                let beyond =
                    if head.codec.format == PageFormat::Q8 { f64::from(value.abs()) - 127. * step } else { 0. };
                assert!(
                    error <= (step * 0.50001).max(beyond) + rounding,
                    "{:?}: {value} is {found}, step {step}",
                    head.codec
                );
            }
        }
    }
}

#[test]
fn what_is_not_finite_makes_its_row_or_channel_nan_and_nothing_else() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for mut head in heads().filter(|head| head.codec.dim > 1 && head.codec.block_size > 1 && !head.codec.rotated) {
            let dim = head.codec.dim;
            let mut values = values(head.codec.elements(), 0);
            values[dim + 1] = bad;
            head.encode(Kernels::current().unwrap(), &values);
            let decoded = head.decode(Kernels::current().unwrap(), 0, head.codec.block_size);
            for (place, found) in decoded.iter().enumerate() {
                let expected = match (head.codec.format, head.codec.part) {
                    (PageFormat::F8E4M3, _) => place == dim + 1,
                    (PageFormat::Q4, Part::Key) => place % dim == 1,
                    _ => place / dim == 1,
                };
                assert_eq!(found.is_nan(), expected, "{:?}: element {place}", head.codec);
            }
        }
    }
}

#[test]
fn nibbles_lie_as_the_layout_says() {
    for dim in [1, 2, 5, 31, 32, 33, 47, 64, 70] {
        let mut head = head(PageFormat::Q4, Part::Value, 1, dim as u32, false);
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
