//! Products of rows with weights of 4 bits, in integers or in floats.
//!
//! ```text
//! weight    (code - zero point) * scale     a scale, and perhaps a zero point, for each block of a column
//! row       byte * scale                    a scale for each block: its largest magnitude / 127
//! product   sum over blocks: (sum over elements: code * byte  -  zero point * sum of bytes) * scale * scale
//!
//! floats    sum over blocks: (sum over elements: (code - zero point) * number) * scale
//! ```
//! The sums of a block are integers, or are added in order, and so are blocks: all forms give the same bits for a row,
//! whatever the number of rows.
//!
//! Weights are packed into panels of 16 columns. A panel has some lines of 64 bytes for each block:
//!
//! ```text
//! scales         16 floats
//! zero points    16 integers, if the weights have any; otherwise each is 8
//! codes          4 bytes of each column, for 8 elements of a row     as many lines as a block has 8 elements
//! ```
//! Rows are in groups, whose rows a call multiplies with a panel. A group has some words of 32 bits for each block:
//!
//! ```text
//! bytes     8 of each row, first those of four even elements, then those of odd elements     for each line of codes
//! scales    one float of each row
//! sums      one integer of each row: the sum of its bytes, times -8 if the weights have no zero points
//! ```
//! Of floats, a group has one of each row for each element.
#![expect(unsafe_code, reason = "entries with vector instructions, called after the bounds were checked")]
#![cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "other machines have no such kernels"))]

mod plain;
#[cfg(target_arch = "x86_64")]
mod tile;

use bytemuck::{Pod, Zeroable};

use crate::device::form::{Form, Kernels};
pub(crate) use plain::{gate_plain, lay_plain, multiply_plain};

/// The number of columns of a panel.
pub(crate) const COLUMNS: usize = 16;

/// The most rows of a call.
pub(crate) const ROWS: usize = 12;

/// A cache line of a panel.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [u8; 64]);

/// The products of some rows with a panel, one after the other.
pub(crate) type Products = [[f32; COLUMNS]; ROWS];

/// A function of a gate's product `x`: `x * sigmoid(f(x))`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `f(x) = x`.
    Silu,
    /// The approximation of GELU by tanh: `f(x) = 2 * sqrt(2 / pi) * (x + 0.044715 * x^3)`.
    GeluTanh,
}

/// The least product of a gate: below it, an activation is 0 as far as floats can tell, but its power of two overflows.
const GATE_MIN: f32 = -88.0;

/// `2 * sqrt(2 / pi)`, and the same times 0.044715.
const GELU: [f32; 2] = [1.595_769, 0.071_354_814];

/// The numbers that weights are multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Rows are quantised to bytes, with a scale for each block, and multiplied in integers.
    Bytes,
    /// Rows stay floats.
    Floats,
}

/// The sizes of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Blocks of a column.
    pub blocks: usize,
    /// Elements of a block, a multiple of 8.
    pub block: usize,
    pub has_zeros: bool,
    pub precision: Precision,
}

impl Shape {
    /// Lines of a block of a panel, before those with codes.
    pub fn lead(self) -> usize {
        1 + usize::from(self.has_zeros)
    }

    /// Lines of a block of a panel.
    pub fn lines(self) -> usize {
        self.lead() + self.block / 8
    }

    /// Lines of a panel.
    pub fn panel(self) -> usize {
        self.blocks * self.lines()
    }

    /// Lines from a panel to the next one, with a gate's between them if there is a gate.
    pub fn stride(self, is_gated: bool) -> usize {
        self.panel() * (1 + usize::from(is_gated))
    }

    /// Words of a row.
    pub fn row(self) -> usize {
        self.blocks * self.words()
    }

    /// Words of a block of a row.
    pub fn words(self) -> usize {
        match self.precision {
            Precision::Bytes => self.block / 4 + 2,
            Precision::Floats => self.block,
        }
    }
}

/// A group of rows, and one panel or two.
pub(crate) struct Tile {
    panel: *const u8,
    /// Bytes from a panel to the next one.
    panel_stride: usize,
    /// Blocks of a column, and lines of codes of a block.
    blocks: usize,
    lines: usize,
    /// Bytes from a line to the one to prefetch.
    ahead: usize,
    group: *const i32,
    out: *mut [f32; COLUMNS],
}

/// A group of rows of floats, and some panels whose codes were unpacked.
pub(crate) struct WideTile {
    /// `[elements of all blocks, columns of the panels]`.
    weights: *const f32,
    /// The first panel, for its scales, and the bytes from one panel to the next, and from one block to the next.
    panel: *const u8,
    panel_stride: usize,
    block_stride: usize,
    blocks: usize,
    /// Elements of a block.
    block: usize,
    group: *const f32,
    out: *mut Products,
}

/// Kernels for many rows of floats.
///
/// The codes of some panels are unpacked once for all groups. Then a call has twice as many sums in registers, and only
/// multiplies and adds: with the sums of a block in registers, those before it are in memory.
pub(crate) struct WideKernels {
    /// The number of panels of a call.
    pub panels: usize,
    unpack: unsafe fn(Shape, *const u8, usize, *mut f32),
    /// By the number of rows.
    tile: [unsafe fn(WideTile); ROWS],
}

/// The kernels for one set of vector instructions.
pub(crate) struct BlockKernels {
    /// The most rows of a call.
    pub rows: usize,
    /// For weights without zero points, and with them, by the number of rows.
    tile: [[unsafe fn(Tile); ROWS]; 2],
    /// The same with two panels. A sum waits for the one before, so a few rows need the sums of more columns.
    pairs: [&'static [unsafe fn(Tile)]; 2],
    /// Copies a row into its place in a group.
    lay: unsafe fn(Shape, &[f32], usize, &mut [i32]),
    gate: unsafe fn(Activation, &[[f32; COLUMNS]], &mut Products),
    prefetch: unsafe fn(*const u8),
    /// The kernels for many rows, if there are any.
    pub wide: Option<WideKernels>,
}

impl WideKernels {
    /// The floats of unpacked panels.
    pub fn floats(&self, shape: Shape) -> usize {
        self.panels * COLUMNS * shape.blocks * shape.block
    }

    /// Unpacks the codes of panels that are `stride` lines apart, each minus its zero point.
    pub fn unpack(&self, lines: &[Line], shape: Shape, stride: usize, weights: &mut [f32]) {
        self.check(lines, shape, stride, weights);
        // SAFETY: all memory was checked; the table is available only if the machine has its instructions.
        unsafe { (self.unpack)(shape, lines.as_ptr().cast(), stride * size_of::<Line>(), weights.as_mut_ptr()) };
    }

    /// Computes the products of a group of `count` rows with these panels.
    pub fn multiply(
        &self,
        (lines, weights): (&[Line], &[f32]),
        shape: Shape,
        stride: usize,
        group: &[i32],
        count: usize,
        out: &mut [Products],
    ) {
        self.check(lines, shape, stride, weights);
        assert!((1..=ROWS).contains(&count) && group.len() >= count * shape.row(), "whole rows that fit in registers");
        assert!(out.len() >= self.panels, "products with each panel");
        let call = WideTile {
            weights: weights.as_ptr(),
            panel: lines.as_ptr().cast(),
            panel_stride: stride * size_of::<Line>(),
            block_stride: shape.lines() * size_of::<Line>(),
            blocks: shape.blocks,
            block: shape.block,
            group: group.as_ptr().cast(),
            out: out.as_mut_ptr(),
        };
        // SAFETY: as in `unpack`.
        unsafe { self.tile[count - 1](call) };
    }

    fn check(&self, lines: &[Line], shape: Shape, stride: usize, weights: &[f32]) {
        assert!(lines.len() >= (self.panels - 1) * stride + shape.panel(), "whole panels");
        assert!(weights.len() >= self.floats(shape), "room for their weights");
    }
}

impl BlockKernels {
    /// The kernels of this machine; `None` if it has none.
    pub fn of(form: &Form, precision: Precision) -> Option<&'static BlockKernels> {
        let Form::Bytes(kernels) = form else { return None };
        match kernels {
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 if precision == Precision::Floats => Some(&tile::AVX512_FLOATS),
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2 if precision == Precision::Floats => Some(&tile::AVX2_FLOATS),
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 if is_x86_feature_detected!("avx512vnni") => Some(&tile::AVX512),
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 | Kernels::Avx2 if is_x86_feature_detected!("avxvnni") => Some(&tile::AVX_VNNI),
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 | Kernels::Avx2 => Some(&tile::AVX2),
            _ => None,
        }
    }

    /// The panels of a call with this many rows.
    pub fn panels(&self, shape: Shape, count: usize) -> usize {
        if count <= self.pairs[usize::from(shape.has_zeros)].len() { 2 } else { 1 }
    }

    /// Computes the products of a group of `count` rows with the first panels of `lines`, `stride` lines apart: with one, or
    /// with as many as [`panels`](Self::panels) says. For each line that is read, the one that is `ahead` bytes further on is
    /// prefetched.
    pub fn multiply(
        &self,
        (lines, stride): (&[Line], usize),
        shape: Shape,
        group: &[i32],
        count: usize,
        ahead: usize,
        out: &mut [Products],
    ) {
        assert!((1..=self.rows.min(ROWS)).contains(&count), "rows that fit in registers");
        assert!(!out.is_empty() && out.len() <= self.panels(shape, count), "panels whose sums fit in registers");
        assert!(lines.len() >= (out.len() - 1) * stride + shape.panel(), "whole panels");
        assert!(group.len() >= count * shape.row(), "whole rows");
        let call = Tile {
            panel: lines.as_ptr().cast(),
            panel_stride: stride * size_of::<Line>(),
            blocks: shape.blocks,
            lines: shape.block / 8,
            ahead,
            group: group.as_ptr(),
            out: out.as_mut_ptr().cast(),
        };
        let zeros = usize::from(shape.has_zeros);
        let entries = if out.len() > 1 { self.pairs[zeros] } else { &self.tile[zeros] };
        // SAFETY: all memory was checked; the table is available only if the machine has its instructions.
        unsafe { entries[count - 1](call) };
    }

    /// Multiplies products by the activated ones of a gate.
    pub fn gate(&self, activation: Activation, gates: &[[f32; COLUMNS]], products: &mut Products) {
        // SAFETY: the table is available only if the machine has its instructions.
        unsafe { (self.gate)(activation, gates, products) }
    }

    /// Prefetches lines.
    pub fn prefetch(&self, lines: &[Line]) {
        for line in lines {
            // SAFETY: the table is available only if the machine has its instructions.
            unsafe { (self.prefetch)(line.0.as_ptr()) };
        }
    }

    /// Copies a row into its place in a group, in bytes or as it is.
    pub fn lay(&self, shape: Shape, row: &[f32], place: usize, group: &mut [i32]) {
        // SAFETY: the table is available only if the machine has its instructions.
        unsafe { (self.lay)(shape, row, place, group) }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// All kernels that the machine can run, also those that are not its widest.
    fn all(precision: Precision) -> Vec<(&'static str, &'static BlockKernels)> {
        let has_avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let has_avx512 = is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bw");
        let has = match precision {
            Precision::Bytes => vec![
                ("avx2", &tile::AVX2, has_avx2),
                ("avx-vnni", &tile::AVX_VNNI, is_x86_feature_detected!("avxvnni")),
                ("avx512", &tile::AVX512, has_avx512),
            ],
            Precision::Floats => {
                vec![("avx2", &tile::AVX2_FLOATS, has_avx2), ("avx512", &tile::AVX512_FLOATS, has_avx512)]
            }
        };
        has.into_iter().filter(|(.., is_supported)| *is_supported).map(|(name, kernels, _)| (name, kernels)).collect()
    }

    #[test]
    fn gates_far_below_zero_are_zero() {
        let few = [f32::NEG_INFINITY, f32::MIN, -1e38, -1e30, -1e4, -200.0, -88.1, -87.9, -60.0];
        let mut gates = [[f32::NAN; COLUMNS]];
        gates[0][..few.len()].copy_from_slice(&few);
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let mut expected = [[1.0; COLUMNS]; ROWS];
            gate_plain(activation, &gates, &mut expected);
            for (value, x) in expected[0].into_iter().zip(few) {
                assert!((-1e-24..=0.0).contains(&value), "{activation:?} of {x} is {value}");
            }
            for (name, kernels) in [Precision::Bytes, Precision::Floats].into_iter().flat_map(all) {
                let mut found = [[1.0; COLUMNS]; ROWS];
                kernels.gate(activation, &gates, &mut found);
                assert_eq!(
                    found[0].map(f32::to_bits)[..few.len()],
                    expected[0].map(f32::to_bits)[..few.len()],
                    "{name}"
                );
                assert!(found[0][few.len()..].iter().all(|value| value.is_nan()), "{name}");
            }
        }
    }

    #[test]
    fn all_kernels_give_the_same_bits() {
        let mixed = |index: usize| index.wrapping_mul(0x9e37_79b9) >> 7;
        let forms = [Precision::Bytes, Precision::Floats].map(|precision| [(precision, false), (precision, true)]);
        for &(precision, has_zeros) in forms.as_flattened() {
            let shape = Shape { blocks: 5, block: 24, has_zeros, precision };
            // A line more lies between two panels.
            let mut lines = vec![Line([0; 64]); 2 * shape.panel() + 1];
            let (one, other) = lines.split_at_mut(shape.panel());
            let blocks = one.chunks_exact_mut(shape.lines()).chain(other[1..].chunks_exact_mut(shape.lines()));
            for (index, lines) in blocks.enumerate() {
                lines[0] = bytemuck::cast::<[f32; COLUMNS], _>([index as f32 + 0.3; COLUMNS]);
                if has_zeros {
                    lines[1] = bytemuck::cast::<[i32; COLUMNS], _>([index as i32 * 3; COLUMNS]);
                }
                for (at, line) in lines[shape.lead()..].iter_mut().enumerate() {
                    line.0.iter_mut().enumerate().for_each(|(byte, to)| *to = mixed(index + at * 64 + byte) as u8);
                }
            }
            for (name, kernels) in all(precision) {
                for count in 1..=kernels.rows {
                    let rows: Vec<Vec<f32>> = (0..count)
                        .map(|row| (0..5 * 24 - 3).map(|at| mixed(row + at) as f32 % 100.0 - 50.0).collect())
                        .collect();
                    let [mut plain, mut group] = [0, 1].map(|_| vec![0; count * shape.row()]);
                    for (place, row) in rows.iter().enumerate() {
                        lay_plain(shape, row, place, &mut plain);
                        kernels.lay(shape, row, place, &mut group);
                    }
                    assert_eq!(group, plain, "{name}, {count} rows");
                    for panels in 1..=kernels.panels(shape, count) {
                        let [mut found, mut expected] = [[[[0.0; COLUMNS]; ROWS]; 2]; 2];
                        let stride = shape.panel() + 1;
                        kernels.multiply((&lines, stride), shape, &group, count, 0, &mut found[..panels]);
                        for (panel, expected) in expected[..panels].iter_mut().enumerate() {
                            multiply_plain(&lines[panel * stride..], shape, &plain, count, expected);
                        }
                        let bits = |products: [Products; 2]| products.map(|rows| rows.map(|row| row.map(f32::to_bits)));
                        assert_eq!(bits(found), bits(expected), "{name}, {count} rows, {panels} panels");
                    }
                }
            }
        }
    }
}
