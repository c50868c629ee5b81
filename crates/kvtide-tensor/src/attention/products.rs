//! The two products of a tile: queries with its keys, weights with its values.
//!
//! Segments are read where they lie. Scales of rows are applied to scores and weights, those of channels folded into the
//! queries; where many rows share a segment, formats that take more than a load to become floats are widened once.

use super::scratch::{SCORES, Scratch};
use super::segment::Segment;
use super::unit::Work;
use crate::kernels::tile::{Elements, Matrix, MatrixMut, Rows, padded};

/// From so many query rows on, keys and values that are no floats yet are made floats once for all of them.
const WIDEN_ROWS: usize = 8;

impl Work<'_, '_> {
    /// The products of all rows and keys, in rows of scores.
    pub(super) fn score(&mut self, width: usize) {
        for index in 0..self.segments.len() {
            let (segment, at) = self.segments[index];
            self.score_segment(segment, at);
        }
        if !self.segments.iter().any(|(segment, _)| segment.key_scale.is_by_row()) {
            return;
        }
        let [scales, _, minimums] = &mut self.scratch.of_tile;
        for (segment, at) in &self.segments {
            segment.key_scale.of_rows(self.job.kernels, segment.count(), &mut scales[*at..], minimums);
        }
        for row in 0..self.rows {
            self.job.kernels.scale(&mut self.scratch.scores[row * SCORES..][..width], &scales[..width]);
        }
    }

    fn score_segment(&mut self, segment: Segment<'_>, at: usize) {
        let (rows, dim) = (self.rows, self.job.asked.sizes.dim);
        let stride = padded(dim);
        let by_channel = {
            let [scales, minimums] = &mut self.scratch.channels;
            segment.key_scale.of_channels(self.job.kernels, dim, &mut scales[..stride], &mut minimums[..stride])
        };
        let widened =
            !segment.keys.elements.is_direct(dim) || (rows > WIDEN_ROWS && segment.keys.elements != Elements::F32);
        let Scratch { queries, rotated, scaled, wide, channels: [scales, minimums], scores, .. } = &mut *self.scratch;
        let queries = if segment.rotated { rotated } else { queries };
        let mut out = MatrixMut { floats: &mut scores[at..], stride: SCORES };
        if widened {
            for row in 0..segment.count() {
                let floats = &mut wide[row * stride..(row + 1) * stride];
                self.job.kernels.widen(segment.keys, row, floats);
                if by_channel {
                    for ((float, scale), minimum) in floats.iter_mut().zip(&*scales).zip(&*minimums).take(dim) {
                        *float = *float * scale + minimum;
                    }
                }
            }
            let keys = wide_rows(wide, stride, segment.count(), dim);
            self.job.kernels.scores(Matrix { floats: queries, stride, count: rows }, keys, &mut out);
        } else if by_channel {
            // (query * scales) * codes + query * minimums
            let floats = &mut scaled[..rows * stride];
            floats.copy_from_slice(&queries[..rows * stride]);
            for row in floats.chunks_exact_mut(stride) {
                self.job.kernels.scale(row, &scales[..stride]);
            }
            self.job.kernels.scores(Matrix { floats, stride, count: rows }, segment.keys, &mut out);
            for row in 0..rows {
                let constant = self.job.kernels.dot(&queries[row * stride..][..stride], &minimums[..stride]);
                for score in &mut scores[row * SCORES + at..][..segment.count()] {
                    *score += constant;
                }
            }
        } else {
            self.job.kernels.scores(Matrix { floats: queries, stride, count: rows }, segment.keys, &mut out);
        }
    }

    /// Adds the values of the tile, weighed; `hidden` when some rows do not see some of them.
    pub(super) fn weigh(&mut self, width: usize, hidden: bool) {
        if self.segments.iter().any(|(segment, _)| segment.value_scale.is_by_row()) {
            let [_, scales, minimums] = &mut self.scratch.of_tile;
            for (segment, at) in &self.segments {
                let (scales, minimums) = (&mut scales[*at..], &mut minimums[*at..]);
                segment.value_scale.of_rows(self.job.kernels, segment.count(), scales, minimums);
            }
            let end = self.segments.last().map_or(0, |(segment, at)| at + segment.count());
            // Weights behind the tile are 0, which what an earlier call left here would not respect if it is no number.
            minimums[end..width].fill(0.0);
            let (scales, minimums) = (&scales[..width], &minimums[..width]);
            for row in 0..self.rows {
                let weights = &mut self.scratch.scores[row * SCORES..][..width];
                let bias = &mut self.scratch.state[row].bias;
                if hidden {
                    // Scales of a value that the row does not see may be no numbers.
                    for (index, weight) in weights.iter_mut().enumerate().filter(|(_, weight)| **weight != 0.0) {
                        *bias += *weight * minimums[index];
                        *weight *= scales[index];
                    }
                } else {
                    *bias += self.job.kernels.dot(weights, minimums);
                    self.job.kernels.scale(weights, scales);
                }
            }
        }
        for index in 0..self.segments.len() {
            let (segment, at) = self.segments[index];
            self.weigh_segment(segment.values, at, hidden);
        }
    }

    fn weigh_segment(&mut self, values: Rows<'_>, at: usize, hidden: bool) {
        let (rows, dim) = (self.rows, self.job.asked.sizes.value_dim);
        let stride = padded(dim);
        let Scratch { wide, scores, out, .. } = &mut *self.scratch;
        let widened = !values.elements.is_direct(dim) || (rows > WIDEN_ROWS && values.elements != Elements::F32);
        if widened {
            for row in 0..values.count {
                self.job.kernels.widen(values, row, &mut wide[row * stride..(row + 1) * stride]);
            }
        }
        let values = if widened { wide_rows(wide, stride, values.count, dim) } else { values };
        if !hidden {
            let weights = Matrix { floats: &scores[at..], stride: SCORES, count: rows };
            return self.job.kernels.weigh(weights, values, &mut MatrixMut { floats: out, stride });
        }
        // A value that a row does not see is not read for it: it may be no number, which a weight of 0 would not undo.
        for row in 0..rows {
            let weights = &scores[row * SCORES + at..][..values.count];
            let mut from = 0;
            while from < values.count {
                let to = from + weights[from..].iter().take_while(|weight| **weight != 0.0).count();
                let part = Matrix { floats: &weights[from..to], stride: to - from, count: 1 };
                let mut out = MatrixMut { floats: &mut out[row * stride..(row + 1) * stride], stride };
                self.job.kernels.weigh(part, values.part(from, to - from), &mut out);
                from = to + 1;
            }
        }
    }
}

/// Floats as rows.
fn wide_rows(floats: &[f32], stride: usize, count: usize, dim: usize) -> Rows<'_> {
    Rows {
        elements: Elements::F32,
        bytes: bytemuck::cast_slice(floats),
        offset: 0,
        stride: 4 * stride,
        count,
        dim,
        ahead: 0,
    }
}
