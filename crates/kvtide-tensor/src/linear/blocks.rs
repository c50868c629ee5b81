//! Products of rows with weights of 4 bits, and gated ones. See `kernels/blocks` for the arithmetic and the packed form.

use super::{Unit, units};
use crate::base::chunks::HugeVec;
use crate::base::error::{Error, Result};
use crate::base::memory::{Budget, reserved};
use crate::base::scratch::with_floats;
use crate::base::threads::{is_hosted, threads, try_share_all};
use crate::device::form::Form;
pub use crate::kernels::blocks::{Activation, Precision};
use crate::kernels::blocks::{
    BlockKernels, COLUMNS, Line, Products, ROWS, Shape, WideKernels, gate_plain, lay_plain, multiply_plain,
};

/// Weights of 4 bits as a model has them: `(code - zero point) * scale`.
#[derive(Clone, Copy, Debug)]
pub struct BlockCodes<'a> {
    /// `[columns, blocks, block / 2]`: two codes a byte, the first one in the low bits.
    pub codes: &'a [u8],
    /// `[columns, blocks]`.
    pub scales: &'a [f32],
    /// `[columns, blocks / 2]`, each column rounded up to whole bytes. Without them, each zero point is 8.
    pub zero_points: Option<&'a [u8]>,
    /// The number of elements of a row of the input.
    pub inner: usize,
    /// The number of elements of a row of the output.
    pub columns: usize,
    /// The number of elements that share a scale: a multiple of 8. The last block of a column may have fewer.
    pub block: usize,
}

/// The weights of a gate: each product is multiplied by the gate's, after an activation.
#[derive(Clone, Copy, Debug)]
pub struct Gate<'a> {
    /// As many weights as those of the products, in blocks of the same size, with or without zero points as they.
    pub codes: BlockCodes<'a>,
    /// The function of the gate's products.
    pub activation: Activation,
}

/// Weights of 4 bits, packed for [`multiply`](Self::multiply).
pub struct BlockWeights {
    lines: HugeVec<Line>,
    shape: Shape,
    inner: usize,
    columns: usize,
    /// Each panel has the gate's before it.
    activation: Option<Activation>,
}

/// The most rows of a unit, in bytes and in floats: they and some panels fit in the second-level cache.
const ROWS_MAX: [usize; 2] = [128, 64];

/// The most columns of a unit, for the same reason, if its rows are more than one group.
const COLUMNS_MAX: usize = 256;

/// The fewest groups of rows for which weights are unpacked, if rows are floats.
const UNPACKED_MIN: usize = 4;

/// The fewest units of a thread.
const UNITS: usize = 4;

/// The bytes from a line that is read to the one to prefetch, if weights are read once.
const AHEAD: usize = 16 << 10;

/// The number of lines that are prefetched before rows are copied: about as many as can be on their way.
const START: usize = 48;

/// The number of products below which waking another thread does not pay, and the same for threads that wait in a loop.
const ALONE_MAX: usize = 1 << 22;
const HOSTED_ALONE_MAX: usize = 1 << 18;

/// The number of elements of a row group that one thread copies.
const COPIED: usize = 1 << 16;

impl BlockWeights {
    /// True if this machine has kernels for such weights.
    pub fn is_fast() -> Result<bool> {
        let form = Form::of_host()?;
        Ok([Precision::Bytes, Precision::Floats].iter().all(|&precision| BlockKernels::of(&form, precision).is_some()))
    }

    /// Packs weights, and those of a gate. O(weights).
    pub fn pack(weights: &BlockCodes<'_>, precision: Precision, gate: Option<Gate<'_>>) -> Result<Self> {
        let &BlockCodes { inner, columns, block, zero_points, .. } = weights;
        let blocks = weights.check()?;
        let shape = Shape { blocks, block, has_zeros: zero_points.is_some(), precision };
        if let Some(Gate { codes, .. }) = &gate {
            codes.check()?;
            let sizes = |of: &BlockCodes<'_>| [of.inner, of.columns, of.block, usize::from(of.zero_points.is_some())];
            if sizes(codes) != sizes(weights) {
                let expected = format!("{:?}: inner, columns, block, zero points", sizes(weights));
                return Err(Error::ShapeMismatch { argument: "gate", value: sizes(codes).to_vec(), expected });
            }
        }
        let stride = shape.stride(gate.is_some());
        let count = columns.div_ceil(COLUMNS) * stride;
        let refusal = || Budget::process().refusal((count * size_of::<Line>()) as u64);
        let mut lines: HugeVec<Line> = HugeVec::zeroed(count).ok_or_else(refusal)?;
        if let Some(Gate { codes, .. }) = &gate {
            codes.lay(shape, &mut lines, stride);
        }
        let lead = stride - shape.panel();
        weights.lay(shape, lines.get_mut(lead..).unwrap_or_default(), stride);
        Ok(BlockWeights { lines, shape, inner, columns, activation: gate.map(|gate| gate.activation) })
    }

    /// The number of elements of a row of the input.
    #[must_use]
    pub fn inner(&self) -> usize {
        self.inner
    }

    /// The number of elements of a row of the output.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Multiplies each row of `rows`, of [`inner`](Self::inner) floats, with the weights. `out` has as many rows of
    /// [`columns`](Self::columns) floats. A row has the same bits alone and among others, on any machine.
    pub fn multiply(&self, rows: &[f32], out: &mut [f32]) -> Result<()> {
        let count = super::row_count(rows, out, self.inner, self.columns)?;
        if out.is_empty() || self.inner == 0 {
            out.fill(0.0);
            return Ok(());
        }
        let kernels = BlockKernels::of(&Form::of_host()?, self.shape.precision);
        let products = count.saturating_mul(self.inner).saturating_mul(self.columns);
        let least = if is_hosted() { HOSTED_ALONE_MAX } else { ALONE_MAX };
        let limit = if products < least { 1 } else { threads()? };
        // As few groups as rows that fit in registers allow, of about the same size.
        let most = kernels.map_or(ROWS, |kernels| kernels.rows);
        let group = count.div_ceil(count.div_ceil(most));
        let is_few = count == group;
        if let Some(kernels) = kernels.filter(|_| is_few) {
            kernels.prefetch(&self.lines[..START.min(self.lines.len())]);
        }
        let most = if is_few { usize::MAX } else { COLUMNS_MAX };
        let rows_max = ROWS_MAX[usize::from(self.shape.precision == Precision::Floats)];
        let width = self.columns.div_ceil(UNITS * limit).next_multiple_of(PANELS_MAX * COLUMNS).min(most);
        with_floats([count * self.shape.row()], |[words]| {
            let words = bytemuck::cast_slice_mut(words);
            self.lay_rows(kernels, limit, rows, group, words)?;
            let units = units(count, self.columns, [rows_max / group * group, width], out)?;
            try_share_all(units, limit, |unit| self.multiply_unit(kernels, words, group, unit))
        })?
    }

    /// Copies rows into groups, in bytes or as they are.
    fn lay_rows(
        &self,
        kernels: Option<&'static BlockKernels>,
        limit: usize,
        rows: &[f32],
        group: usize,
        words: &mut [i32],
    ) -> Result<()> {
        let shape = self.shape;
        // A unit has whole groups.
        let unit = (COPIED / self.inner / group).max(1) * group;
        let mut units = reserved(rows.len().div_ceil(unit * self.inner))?;
        units.extend(rows.chunks(unit * self.inner).zip(words.chunks_mut(unit * shape.row())));
        try_share_all(units, limit, |(rows, words)| {
            for (rows, words) in rows.chunks(group * self.inner).zip(words.chunks_mut(group * shape.row())) {
                for (place, row) in rows.chunks_exact(self.inner).enumerate() {
                    match kernels {
                        Some(kernels) => kernels.lay(shape, row, place, words),
                        None => lay_plain(shape, row, place, words),
                    }
                }
            }
            Ok(())
        })
    }

    /// Computes some columns of some rows, which are whole groups.
    fn multiply_unit(
        &self,
        kernels: Option<&'static BlockKernels>,
        words: &[i32],
        group: usize,
        mut unit: Unit<'_>,
    ) -> Result<()> {
        let shape = self.shape;
        let words = &words[unit.rows.start * shape.row()..unit.rows.end * shape.row()];
        let is_few = unit.rows.len() <= group;
        let wide =
            kernels.and_then(|kernels| kernels.wide.as_ref()).filter(|_| unit.rows.len() >= UNPACKED_MIN * group);
        let floats = wide.map_or(0, |wide| wide.floats(shape));
        let gate_floats = if self.activation.is_some() { floats } else { 0 };
        // The panels of a call for a few rows.
        let few = kernels.filter(|_| is_few).map_or(1, |kernels| kernels.panels(shape, unit.rows.len()));
        let of_call = PANELS_MAX * size_of::<Products>() / size_of::<f32>();
        with_floats([floats, gate_floats, of_call, of_call], |[weights, of_gate, products, gates]| {
            let mut columns = unit.columns.clone();
            let (products, gates) = (bytemuck::cast_slice_mut(products), bytemuck::cast_slice_mut(gates));
            while !columns.is_empty() {
                let has = |panels: usize| columns.len() > COLUMNS * (panels - 1);
                let wide = wide.filter(|wide| has(wide.panels));
                let panels = wide.map_or(if has(few) { few } else { 1 }, |wide| wide.panels);
                let first = columns.start;
                columns.start = columns.end.min(first + COLUMNS * panels);
                let lines = &self.lines[first / COLUMNS * self.stride()..];
                let call = PanelCall { of: self, kernels, wide, panels, lines };
                call.unpack(weights, of_gate);
                for (words, outs) in words.chunks(group * shape.row()).zip(unit.out.chunks_mut(group)) {
                    call.multiply(
                        words,
                        outs.len(),
                        if is_few { AHEAD } else { 0 },
                        (weights, of_gate),
                        products,
                        gates,
                    );
                    for (panel, products) in products.iter().enumerate().take(panels) {
                        let from = first + COLUMNS * panel;
                        let width = columns.start.saturating_sub(from).min(COLUMNS);
                        let from = from - unit.columns.start;
                        for (products, out) in products.iter().zip(outs.iter_mut()) {
                            out[from..from + width].copy_from_slice(&products[..width]);
                        }
                    }
                }
            }
        })
    }

    fn stride(&self) -> usize {
        self.shape.stride(self.activation.is_some())
    }
}

/// The most panels of a call.
const PANELS_MAX: usize = 2;

/// Products of groups of rows with one panel or some, which may be unpacked first.
struct PanelCall<'a> {
    of: &'a BlockWeights,
    kernels: Option<&'static BlockKernels>,
    wide: Option<&'static WideKernels>,
    /// The number of panels.
    panels: usize,
    /// From the first of the panels on.
    lines: &'a [Line],
}

impl PanelCall<'_> {
    /// The panels of the products, which follow those of their gate.
    fn products(&self) -> &[Line] {
        &self.lines[self.of.stride() - self.of.shape.panel()..]
    }

    fn unpack(&self, weights: &mut [f32], of_gate: &mut [f32]) {
        let Some(wide) = self.wide else { return };
        let (shape, stride) = (self.of.shape, self.of.stride());
        wide.unpack(self.products(), shape, stride, weights);
        if self.of.activation.is_some() {
            wide.unpack(self.lines, shape, stride, of_gate);
        }
    }

    /// Multiplies a group of `count` rows, with the weights and those of their gate if they were unpacked.
    fn multiply(
        &self,
        words: &[i32],
        count: usize,
        ahead: usize,
        (weights, of_gate): (&[f32], &[f32]),
        products: &mut [Products],
        gates: &mut [Products],
    ) {
        let PanelCall { of: &BlockWeights { shape, activation, .. }, kernels, wide, panels, lines } = *self;
        let stride = self.of.stride();
        let multiply = |lines: &[Line], weights: &[f32], out: &mut [Products]| match (wide, kernels) {
            (Some(wide), _) => wide.multiply((lines, weights), shape, stride, words, count, out),
            (None, Some(kernels)) => kernels.multiply((lines, stride), shape, words, count, ahead, &mut out[..panels]),
            (None, None) => multiply_plain(lines, shape, words, count, &mut out[0]),
        };
        multiply(self.products(), weights, products);
        let Some(activation) = activation else { return };
        multiply(lines, of_gate, gates);
        for (gates, products) in gates.iter().zip(products).take(panels) {
            match kernels {
                Some(kernels) => kernels.gate(activation, &gates[..count], products),
                None => gate_plain(activation, &gates[..count], products),
            }
        }
    }
}

impl BlockCodes<'_> {
    /// The number of blocks of a column, if all sizes fit.
    fn check(&self) -> Result<usize> {
        let &BlockCodes { codes, scales, zero_points, inner, columns, block } = self;
        if block == 0 || !block.is_multiple_of(8) {
            return Err(Error::argument("block", block.to_string(), "a multiple of 8"));
        }
        let blocks = inner.div_ceil(block);
        let sizes = [
            ("codes", codes.len(), blocks.checked_mul(block / 2)),
            ("scales", scales.len(), Some(blocks)),
            ("zero_points", zero_points.map_or(0, <[u8]>::len), Some(zero_points.map_or(0, |_| blocks.div_ceil(2)))),
        ];
        for (argument, found, each) in sizes {
            let wanted = each.and_then(|each| each.checked_mul(columns));
            if wanted != Some(found) {
                let expected =
                    wanted.map_or("fewer weights".into(), |wanted| format!("{wanted} for {columns} columns"));
                return Err(Error::ShapeMismatch { argument, value: vec![found], expected });
            }
        }
        Ok(blocks)
    }

    /// Copies the weights to panels, each `stride` lines behind the one before.
    fn lay(&self, shape: Shape, lines: &mut [Line], stride: usize) {
        let &BlockCodes { codes, scales, zero_points, columns, block, .. } = self;
        let blocks = shape.blocks;
        for column in 0..columns {
            let panel = &mut lines[column / COLUMNS * stride..][..shape.panel()];
            let own = 4 * (column % COLUMNS)..4 * (column % COLUMNS) + 4;
            for (place, lines) in panel.chunks_exact_mut(shape.lines()).enumerate() {
                let at = column * blocks + place;
                lines[0].0[own.clone()].copy_from_slice(&scales[at].to_ne_bytes());
                if let Some(zeros) = zero_points {
                    let byte = zeros[column * blocks.div_ceil(2) + place / 2];
                    let zero = i32::from(byte >> (4 * (place % 2)) & 15);
                    lines[1].0[own.clone()].copy_from_slice(&zero.to_ne_bytes());
                }
                let codes = codes[at * block / 2..][..block / 2].chunks_exact(4);
                for (line, four) in lines[shape.lead()..].iter_mut().zip(codes) {
                    line.0[own.clone()].copy_from_slice(four);
                }
            }
        }
    }
}
