//! The arithmetic of attention on a tile: some query rows and some tokens, all in the nearest CPU caches.
//!
//! The algorithms are written once (`products.rs` for few rows, `panels.rs` for many, `packed.rs` for packed weights, `soften.rs`). For each set of vector
//! instructions there is a table of entry functions, in which the algorithms are inlined with these instructions enabled.
//! The methods of [`TileKernels`] are safe: each checks the bounds of its whole call first.
#![expect(
    unsafe_code,
    reason = "entries with vector instructions, and the calls to them after the bounds were checked"
)]

mod packed;
mod panels;
mod products;
mod rows;
mod soften;

use std::ops::Range;

use crate::device::form::{Form, Kernels};
use packed::Packed;
pub(crate) use packed::{PACKED, PackedPanel};
pub(crate) use panels::Panels;
use panels::{Lay, Product};
use products::{Scores, Weigh};
pub(crate) use rows::{AHEAD, Ahead, Elements, LANES_MAX, Matrix, MatrixMut, TileRows, padded};
use rows::{Bf16, ElementFormat, F8, F16, F32, I8, Nibbles, widen_nibbles};

/// The tile kernels for one set of vector instructions.
pub(crate) struct TileKernels {
    /// The number of columns of a panel.
    pub panel: usize,
    scores: [unsafe fn(Scores); 6],
    weigh: [unsafe fn(Weigh); 6],
    widen: [unsafe fn(*const u8, usize, *mut f32); 6],
    lay_columns: [unsafe fn(Lay); 6],
    lay_rows: [unsafe fn(Lay); 6],
    product: unsafe fn(Product),
    /// For floats, halves and bfloat16.
    packed: [unsafe fn(Packed); 3],
    soften: unsafe fn(*mut f32, usize, f32) -> [f32; 2],
    bend: unsafe fn(*mut f32, usize, f32, f32),
    scale: unsafe fn(*mut f32, *const f32, usize),
    scale_all: unsafe fn(*mut f32, f32, usize),
    dot: unsafe fn(*const f32, *const f32, usize) -> f32,
}

/// Entry functions, which inline the called algorithm with the instructions enabled.
macro_rules! entries {
    ($features:literal;
     $($name:ident $(<$format:ident>)? ($($argument:ident: $kind:ty),+) $(-> $result:ty)? = $call:expr;)+) => {
        $(
            #[target_feature(enable = $features)]
            unsafe fn $name $(<$format: ElementFormat>)? ($($argument: $kind),+) $(-> $result)? {
                // SAFETY: the caller fulfils the conditions of the call, and the instructions are enabled here.
                unsafe { $call }
            }
        )+
    };
}

macro_rules! form {
    ($module:ident, $lanes:ty, $long:literal, $short:literal, $features:literal) => {
        mod $module {
            use super::*;

            entries! {
                $features;
                scores<F>(a: Scores) = products::scores::<$lanes, F>(a);
                weigh<F>(a: Weigh) = products::weigh::<$lanes, F, $long, $short>(a);
                widen<F>(row: *const u8, dim: usize, out: *mut f32) = soften::widen::<$lanes, F>(row, dim, out);
                lay_columns<F>(a: Lay) = panels::lay_columns::<$lanes, F>(a);
                lay_rows<F>(a: Lay) = panels::lay_rows::<$lanes, F>(a);
                product(a: Product) = panels::product::<$lanes>(a);
                packed<F>(a: Packed) = packed::product::<$lanes, F>(a);
                soften(row: *mut f32, len: usize, before: f32) -> [f32; 2] = soften::soften::<$lanes>(row, len, before);
                bend(row: *mut f32, len: usize, factor: f32, cap: f32) = soften::bend::<$lanes>(row, len, factor, cap);
                scale(row: *mut f32, factors: *const f32, len: usize) = soften::scale::<$lanes>(row, factors, len);
                scale_all(row: *mut f32, factor: f32, len: usize) = soften::scale_all::<$lanes>(row, factor, len);
                dot(row: *const f32, other: *const f32, len: usize) -> f32 = soften::dot::<$lanes>(row, other, len);
            }

            pub(super) static KERNELS: TileKernels = TileKernels {
                panel: panels::width::<$lanes>(),
                scores: [scores::<F32>, scores::<F16>, scores::<Bf16>, scores::<F8>, scores::<I8>, scores::<Nibbles>],
                weigh: [weigh::<F32>, weigh::<F16>, weigh::<Bf16>, weigh::<F8>, weigh::<I8>, weigh::<Nibbles>],
                widen: [widen::<F32>, widen::<F16>, widen::<Bf16>, widen::<F8>, widen::<I8>, widen::<Nibbles>],
                lay_columns: [
                    lay_columns::<F32>,
                    lay_columns::<F16>,
                    lay_columns::<Bf16>,
                    lay_columns::<F8>,
                    lay_columns::<I8>,
                    lay_columns::<Nibbles>,
                ],
                lay_rows: [
                    lay_rows::<F32>,
                    lay_rows::<F16>,
                    lay_rows::<Bf16>,
                    lay_rows::<F8>,
                    lay_rows::<I8>,
                    lay_rows::<Nibbles>,
                ],
                product,
                packed: [packed::<F32>, packed::<F16>, packed::<Bf16>],
                soften,
                bend,
                scale,
                scale_all,
                dot,
            };
        }
    };
}

#[cfg(target_arch = "x86_64")]
form!(avx512, crate::kernels::simd::avx512::Avx512, 8, 4, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c");
#[cfg(target_arch = "x86_64")]
form!(avx2, crate::kernels::simd::avx2::Avx2, 4, 2, "avx2,fma,f16c");
#[cfg(target_arch = "aarch64")]
form!(neon, crate::kernels::simd::neon::Neon, 8, 4, "neon");

impl TileKernels {
    /// The kernels of this form; `None` for forms that work on whole tensors.
    pub fn of(form: &Form) -> Option<&'static TileKernels> {
        let Form::Bytes(kernels) = form else { return None };
        match kernels {
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx512 => Some(&avx512::KERNELS),
            #[cfg(target_arch = "x86_64")]
            Kernels::Avx2 => Some(&avx2::KERNELS),
            #[cfg(target_arch = "aarch64")]
            Kernels::Neon => Some(&neon::KERNELS),
            _ => None,
        }
    }

    /// Computes the products of `queries` and `keys` into `out`, which has one row per query. Each head of the keys has
    /// equally many queries, ordered by head. After the last key, `out` is filled with arbitrary numbers up to the next
    /// multiple of four.
    pub fn scores(&self, queries: Matrix<'_>, keys: TileRows<'_>, out: &mut MatrixMut<'_>) {
        if keys.count == 0 || queries.count == 0 {
            return;
        }
        keys.check();
        assert!(keys.elements.is_direct(keys.dim), "rows that are read in place");
        assert!(queries.count.is_multiple_of(keys.heads), "as many queries for each head");
        check_matrix(queries.floats, queries.stride, queries.count, padded(keys.dim));
        check_matrix(out.floats, out.stride, queries.count, keys.count.next_multiple_of(4));
        let call = Scores {
            queries: queries.floats.as_ptr(),
            query_stride: queries.stride,
            heads: keys.heads,
            rows: queries.count / keys.heads,
            keys: keys.first(),
            key_head_stride: keys.head_stride,
            key_stride: keys.stride,
            ahead: keys.ahead_of_first(),
            count: keys.count,
            dim: keys.dim,
            out: out.floats.as_mut_ptr(),
            out_stride: out.stride,
        };
        // SAFETY: every row of every matrix was checked; the table is available only if the machine has its instructions.
        unsafe { self.scores[keys.elements as usize](call) }
    }

    /// Adds `values`, each times its weight, to the rows of `out`. Each head of the values has equally many rows, ordered by
    /// head. After the last element, `out` is filled with arbitrary numbers up to the next multiple of [`LANES_MAX`].
    pub fn weigh(&self, weights: Matrix<'_>, values: TileRows<'_>, out: &mut MatrixMut<'_>) {
        if values.count == 0 || weights.count == 0 {
            return;
        }
        values.check();
        assert!(values.elements.is_direct(values.dim), "rows that are read in place");
        assert!(weights.count.is_multiple_of(values.heads), "as many rows for each head");
        check_matrix(weights.floats, weights.stride, weights.count, values.count);
        check_matrix(out.floats, out.stride, weights.count, padded(values.dim));
        let call = Weigh {
            weights: weights.floats.as_ptr(),
            weight_stride: weights.stride,
            heads: values.heads,
            rows: weights.count / values.heads,
            values: values.first(),
            value_head_stride: values.head_stride,
            value_stride: values.stride,
            ahead: values.ahead_of_first(),
            count: values.count,
            dim: values.dim,
            out: out.floats.as_mut_ptr(),
            out_stride: out.stride,
        };
        // SAFETY: every row of every matrix was checked; the table is available only if the machine has its instructions.
        unsafe { self.weigh[values.elements as usize](call) }
    }

    /// Copies keys of one head to the columns of `panels`, from column `at` on, for [`product`](Self::product).
    pub fn lay_keys(&self, keys: TileRows<'_>, at: usize, panels: &mut Panels<'_>) {
        let call = panels.lay(keys, at, panels.rows >= padded(keys.dim) && at + keys.count <= panels.columns);
        // SAFETY: the rows and the room for them were checked; the table is available only if the machine has its
        // instructions.
        unsafe { self.lay_columns[keys.elements as usize](call) }
    }

    /// Copies values of one head to the rows of `panels`, from row `at` on, for [`product`](Self::product).
    pub fn lay_values(&self, values: TileRows<'_>, at: usize, panels: &mut Panels<'_>) {
        let call = panels.lay(values, at, at + values.count <= panels.rows && padded(values.dim) <= panels.columns);
        // SAFETY: as in `lay_keys`.
        unsafe { self.lay_rows[values.elements as usize](call) }
    }

    /// Multiplies `rows` with the first `columns` columns of `panels`; each row has as many elements as `inner` has rows of
    /// `panels`. The products are added to `out` if `adds`, else they replace it.
    pub fn product(
        &self,
        rows: Matrix<'_>,
        panels: &Panels<'_>,
        inner: Range<usize>,
        columns: usize,
        out: &mut MatrixMut<'_>,
        adds: bool,
    ) {
        if rows.count == 0 {
            return;
        }
        assert!(columns.is_multiple_of(LANES_MAX) && columns <= panels.columns, "whole vectors of columns");
        assert!(inner.start <= inner.end && inner.end <= panels.rows, "rows of the panels");
        check_matrix(rows.floats, rows.stride, rows.count, inner.len());
        check_matrix(out.floats, out.stride, rows.count, columns);
        let call = Product {
            rows: rows.floats.as_ptr(),
            stride: rows.stride,
            count: rows.count,
            panels: panels.floats.as_ptr(),
            panel_rows: panels.rows,
            first: inner.start,
            inner: inner.len(),
            columns,
            out: out.floats.as_mut_ptr(),
            out_stride: out.stride,
            adds,
        };
        // SAFETY: all memory was checked; the table is available only if the machine has its instructions.
        unsafe { (self.product)(call) }
    }

    /// Multiplies `rows` with a panel of packed weights. `out` has [`PACKED`] floats for each row. The products are added to
    /// it if `adds`, else they replace it.
    pub fn product_of_packed(&self, rows: Matrix<'_>, panel: PackedPanel<'_>, out: &mut [f32], adds: bool) {
        let PackedPanel { elements, bytes, inner, ahead } = panel;
        if rows.count == 0 {
            return;
        }
        assert!(bytes.len() >= inner * elements.row_bytes(PACKED), "a whole panel");
        assert!(out.len() >= rows.count * PACKED, "room for all products");
        check_matrix(rows.floats, rows.stride, rows.count, inner);
        let call = Packed {
            panel: bytes.as_ptr(),
            ahead,
            inner,
            rows: rows.floats.as_ptr(),
            stride: rows.stride,
            count: rows.count,
            out: out.as_mut_ptr(),
            adds,
        };
        // SAFETY: all memory was checked; the table is available only if the machine has its instructions.
        unsafe { self.packed[elements as usize](call) }
    }

    /// A panel in floats, for which `floats` has room.
    pub fn converted<'a>(&self, panel: PackedPanel<'_>, floats: &'a mut [f32]) -> PackedPanel<'a> {
        let floats = &mut floats[..panel.inner * PACKED];
        self.widen(TileRows::new(panel.elements, panel.bytes, 0, 1, floats.len()), 0, floats);
        PackedPanel { elements: Elements::F32, bytes: bytemuck::cast_slice(floats), ..panel }
    }

    /// Row `index` of the first head of `rows` as floats.
    pub fn widen(&self, rows: TileRows<'_>, index: usize, out: &mut [f32]) {
        let row = rows.head(0).part(index, 1);
        row.check();
        assert!(index < rows.count && out.len() >= padded(rows.dim), "a row outside its matrix");
        if !rows.elements.is_direct(rows.dim) {
            return widen_nibbles(&rows.bytes[row.offset..], rows.dim, out);
        }
        // SAFETY: the row and the room for it were checked; the table is available only if the machine has its instructions.
        unsafe { self.widen[rows.elements as usize](row.first(), rows.dim, out.as_mut_ptr()) }
    }

    /// Turns a row of scores into weights `e^(score - max)`, where max is the larger of `before` and the largest score;
    /// returns max and the sum of the weights.
    pub fn soften(&self, scores: &mut [f32], before: f32) -> [f32; 2] {
        check_padded(scores);
        // SAFETY: a slice of whole vectors; the table is available only if the machine has its instructions.
        unsafe { (self.soften)(scores.as_mut_ptr(), scores.len(), before) }
    }

    /// Applies a softcap to scores: `cap * tanh(score * factor)`.
    pub fn bend(&self, scores: &mut [f32], factor: f32, cap: f32) {
        check_padded(scores);
        // SAFETY: as in `soften`.
        unsafe { (self.bend)(scores.as_mut_ptr(), scores.len(), factor, cap) }
    }

    /// Multiplies a row by another one, element by element.
    pub fn scale(&self, row: &mut [f32], factors: &[f32]) {
        check_padded(row);
        assert_eq!(row.len(), factors.len());
        // SAFETY: as in `soften`.
        unsafe { (self.scale)(row.as_mut_ptr(), factors.as_ptr(), row.len()) }
    }

    /// Multiplies a row by one number.
    pub fn scale_all(&self, row: &mut [f32], factor: f32) {
        check_padded(row);
        // SAFETY: as in `soften`.
        unsafe { (self.scale_all)(row.as_mut_ptr(), factor, row.len()) }
    }

    /// The dot product of two rows.
    pub fn dot(&self, row: &[f32], other: &[f32]) -> f32 {
        check_padded(row);
        assert_eq!(row.len(), other.len());
        // SAFETY: as in `soften`.
        unsafe { (self.dot)(row.as_ptr(), other.as_ptr(), row.len()) }
    }
}

fn check_padded(row: &[f32]) {
    assert!(row.len().is_multiple_of(LANES_MAX), "a row of whole vectors");
}

fn check_matrix(floats: &[f32], stride: usize, rows: usize, width: usize) {
    assert!((rows - 1) * stride + width <= floats.len(), "a matrix outside its memory");
}
