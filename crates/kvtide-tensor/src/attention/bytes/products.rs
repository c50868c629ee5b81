//! The two products of a tile: queries with its keys, weights with its values.
//!
//! Segments are read where they lie. Scales of rows are applied to scores and weights, those of channels folded into the
//! queries; where many rows share a segment, formats that take more than a load to become floats are widened once.

use std::ops::Range;

use super::scratch::{SCORES, Scratch};
use super::segment::Segment;
use super::unit::Work;
use crate::kernels::tile::{Ahead, Elements, Matrix, MatrixMut, Rows, padded};

/// From so many query rows on, keys and values that are no floats yet are made floats once for all of them.
const WIDEN_ROWS: usize = 8;

impl Work<'_, '_> {
    /// The rows of one of the unit's heads.
    fn rows_of(&self, head: usize) -> Range<usize> {
        let rows = self.rows / self.unit.heads.len();
        head * rows..(head + 1) * rows
    }

    /// The products of all rows and keys, in rows of scores.
    pub(super) fn score(&mut self, width: usize) {
        for index in 0..self.segments.len() {
            let (segment, at) = self.segments[index];
            self.score_segment(segment, at);
        }
        if !self.segments.iter().any(|(segment, _)| segment.key_scales.is_by_row()) {
            return;
        }
        for head in 0..self.unit.heads.len() {
            let rows = self.rows_of(head);
            let [scales, _, minimums] = &mut self.scratch.of_tile;
            for (segment, at) in &self.segments {
                let of_head = segment.key_scales.head(head);
                of_head.of_rows(self.job.kernels, segment.count(), &mut scales[*at..], minimums);
            }
            for row in rows {
                self.job.kernels.scale(&mut self.scratch.scores[row * SCORES..][..width], &scales[..width]);
            }
        }
    }

    fn score_segment(&mut self, segment: Segment<'_>, at: usize) {
        let (keys, dim) = (segment.keys, self.job.asked.sizes.dim);
        let widened = self.is_widened(&keys, dim);
        if widened || segment.key_scales.is_by_channel() {
            for head in 0..keys.heads {
                self.score_head(segment, at, head, widened);
            }
            return;
        }
        let Scratch { queries, rotated, scores, .. } = &mut *self.scratch;
        let floats = if segment.rotated { &*rotated } else { &*queries };
        let queries = Matrix { floats, stride: padded(dim), count: self.rows };
        self.job.kernels.scores(queries, keys, &mut MatrixMut { floats: &mut scores[at..], stride: SCORES });
    }

    /// The products with the keys of one head, made floats first or with their scales folded into the queries.
    fn score_head(&mut self, segment: Segment<'_>, at: usize, head: usize, widened: bool) {
        let (rows, dim) = (self.rows_of(head), self.job.asked.sizes.dim);
        let (keys, stride, count) = (segment.keys.head(head), padded(dim), rows.len());
        let Scratch { queries, rotated, scaled, wide, channels: [scales, minimums], scores, .. } = &mut *self.scratch;
        let (scales, minimums) = (&mut scales[..stride], &mut minimums[..stride]);
        let by_channel = segment.key_scales.is_by_channel();
        if by_channel {
            segment.key_scales.head(head).of_channels(dim, scales, minimums);
        }
        let queries = &(if segment.rotated { rotated } else { queries })[rows.start * stride..rows.end * stride];
        let mut out = MatrixMut { floats: &mut scores[rows.start * SCORES + at..], stride: SCORES };
        if widened {
            for row in 0..keys.count {
                let floats = &mut wide[row * stride..(row + 1) * stride];
                self.job.kernels.widen(keys, row, floats);
                if by_channel {
                    for ((float, scale), minimum) in floats.iter_mut().zip(&*scales).zip(&*minimums).take(dim) {
                        *float = *float * scale + minimum;
                    }
                }
            }
            let keys = wide_rows(wide, stride, keys.count, dim);
            return self.job.kernels.scores(Matrix { floats: queries, stride, count }, keys, &mut out);
        }
        // (query * scales) * codes + query * minimums
        let floats = &mut scaled[..queries.len()];
        floats.copy_from_slice(queries);
        for row in floats.chunks_exact_mut(stride) {
            self.job.kernels.scale(row, scales);
        }
        self.job.kernels.scores(Matrix { floats, stride, count }, keys, &mut out);
        for (query, scores) in queries.chunks_exact(stride).zip(out.floats.chunks_mut(SCORES)) {
            let constant = self.job.kernels.dot(query, minimums);
            scores[..keys.count].iter_mut().for_each(|score| *score += constant);
        }
    }

    /// Adds the values of the tile, weighed; `hidden` when some rows do not see some of them.
    pub(super) fn weigh(&mut self, width: usize, hidden: bool) {
        if self.segments.iter().any(|(segment, _)| segment.value_scales.is_by_row()) {
            for head in 0..self.unit.heads.len() {
                self.scale_weights(head, width, hidden);
            }
        }
        for index in 0..self.segments.len() {
            let (segment, at) = self.segments[index];
            self.weigh_segment(segment.values, at, hidden);
        }
    }

    /// Multiplies the weights of a head by the scales of its values, and adds what minimums give to the bias.
    fn scale_weights(&mut self, head: usize, width: usize, hidden: bool) {
        let rows = self.rows_of(head);
        let [_, scales, minimums] = &mut self.scratch.of_tile;
        for (segment, at) in &self.segments {
            let (scales, minimums) = (&mut scales[*at..], &mut minimums[*at..]);
            segment.value_scales.head(head).of_rows(self.job.kernels, segment.count(), scales, minimums);
        }
        let end = self.segments.last().map_or(0, |(segment, at)| at + segment.count());
        // Weights behind the tile are 0, which what an earlier call left here would not respect if it is no number.
        minimums[end..width].fill(0.0);
        let (scales, minimums) = (&scales[..width], &minimums[..width]);
        for row in rows {
            let weights = &mut self.scratch.scores[row * SCORES..][..width];
            let bias = &mut self.scratch.state[row].bias;
            if hidden {
                // Scales of a value that the row does not see may be no numbers.
                let shown = self.scratch.shown[row];
                for (index, weight) in weights.iter_mut().enumerate().filter(|(index, _)| is_shown(shown, *index)) {
                    *bias += *weight * minimums[index];
                    *weight *= scales[index];
                }
            } else {
                *bias += self.job.kernels.dot(weights, minimums);
                self.job.kernels.scale(weights, scales);
            }
        }
    }

    fn weigh_segment(&mut self, values: Rows<'_>, at: usize, hidden: bool) {
        let dim = self.job.asked.sizes.value_dim;
        let widened = self.is_widened(&values, dim);
        if widened || hidden {
            for head in 0..values.heads {
                self.weigh_head(values.head(head), at, self.rows_of(head), widened, hidden);
            }
            return;
        }
        let Scratch { scores, out, .. } = &mut *self.scratch;
        let weights = Matrix { floats: &scores[at..], stride: SCORES, count: self.rows };
        self.job.kernels.weigh(weights, values, &mut MatrixMut { floats: out, stride: padded(dim) });
    }

    /// Adds the values of one head, made floats first or to the rows that see them.
    fn weigh_head(&mut self, values: Rows<'_>, at: usize, rows: Range<usize>, widened: bool, hidden: bool) {
        let (kernels, dim) = (self.job.kernels, self.job.asked.sizes.value_dim);
        let stride = padded(dim);
        let Scratch { wide, scores, out, shown, .. } = &mut *self.scratch;
        if widened {
            for row in 0..values.count {
                kernels.widen(values, row, &mut wide[row * stride..(row + 1) * stride]);
            }
        }
        let values = if widened { wide_rows(wide, stride, values.count, dim) } else { values };
        if !hidden {
            let weights = Matrix { floats: &scores[rows.start * SCORES + at..], stride: SCORES, count: rows.len() };
            return kernels.weigh(weights, values, &mut MatrixMut { floats: &mut out[rows.start * stride..], stride });
        }
        // A value that a row does not see is not read for it: it may be no number, which a weight of 0 would not undo.
        for row in rows {
            let weights = &scores[row * SCORES + at..][..values.count];
            let mut from = 0;
            while from < values.count {
                let to = from + (shown[row] >> (at + from)).trailing_ones() as usize;
                let to = to.min(values.count);
                let part = Matrix { floats: &weights[from..to], stride: to - from, count: 1 };
                let mut out = MatrixMut { floats: &mut out[row * stride..(row + 1) * stride], stride };
                kernels.weigh(part, values.part(from, to - from), &mut out);
                from = to + 1;
            }
        }
    }

    /// True for rows that are made floats before they are multiplied.
    fn is_widened(&self, rows: &Rows<'_>, dim: usize) -> bool {
        let many = self.rows_of(0).len() > WIDEN_ROWS && rows.elements != Elements::F32;
        many || !rows.elements.is_direct(dim)
    }
}

/// True where a row sees a key of the tile; behind the tile it sees none.
fn is_shown(shown: u128, index: usize) -> bool {
    shown.checked_shr(index as u32).unwrap_or(0) & 1 == 1
}

/// Floats as rows.
fn wide_rows(floats: &[f32], stride: usize, count: usize, dim: usize) -> Rows<'_> {
    Rows {
        elements: Elements::F32,
        bytes: bytemuck::cast_slice(floats),
        offset: 0,
        heads: 1,
        head_stride: 0,
        stride: 4 * stride,
        count,
        dim,
        ahead: Ahead::NOTHING,
    }
}
