//! One unit of work: some query rows against a range of keys, tile by tile, with a running softmax.
//!
//! ```text
//! for each tile of keys that some row sees
//!   scores  = queries * keys                           one pass over the keys, in place
//!   scores  = bent, masked; -infinity where a row does not see a key
//!   weights = 2^(scores - max), sums and output so far brought to the same max
//!   output += weights * values                         one pass over the values, in place
//! ```
//!
//! Numbers are 32-bit floats throughout, scores logarithms to base 2. Formats that take more than a load to become floats are
//! widened once a tile where many rows share it.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::job::{Head, Job, Unit};
use super::scratch::{SCORES, Scratch, State, TILE};
use super::segment::Segment;
use crate::error::Result;
use crate::kernels::quantise::hadamard;
use crate::kernels::tile::{Elements, Matrix, MatrixMut, Rows, padded};

/// From so many query rows on, keys and values that are no floats yet are made floats once for all of them.
const WIDEN_ROWS: usize = 8;

/// A unit at work.
pub(super) struct Work<'a, 'b> {
    pub job: &'a Job<'b>,
    pub unit: Unit,
    pub scratch: &'a mut Scratch,
    /// Its head of keys and values.
    head: Head,
    /// The tile at hand, and the place of each segment in it.
    segments: Vec<(Segment<'a>, usize)>,
    /// Its rows: for each query, the query heads that share the head of K and V.
    pub rows: usize,
}

impl<'a, 'b> Work<'a, 'b> {
    /// Runs a unit; its output rows and states are in the scratch afterwards.
    pub fn run(job: &'a Job<'b>, unit: Unit, scratch: &'a mut Scratch) -> Result<Self> {
        let rows = unit.queries * job.asked.sizes.group();
        let mut work = Work { job, unit, scratch, head: job.head(unit.head), segments: Vec::new(), rows };
        work.load_queries();
        let (lowest, highest) = work.reach();
        for range in job.asked.rules(unit.sequence).ranges(lowest, highest) {
            let range = work.share_of(range);
            for start in range.clone().step_by(TILE) {
                job.asked.check_stop()?;
                work.tile(start..range.end.min(start + TILE), lowest, highest);
            }
        }
        work.settle();
        Ok(work)
    }

    /// The lowest and the highest position of its queries.
    fn reach(&self) -> (i64, i64) {
        let positions = (0..self.unit.queries).map(|query| self.position(query));
        positions.fold((i64::MAX, i64::MIN), |(low, high), position| (low.min(position), high.max(position)))
    }

    fn position(&self, query: usize) -> i64 {
        self.job.asked.position(self.unit.sequence, self.unit.first_query + query)
    }

    /// This unit's share of a range of keys, cut at whole tiles.
    fn share_of(&self, range: Range<usize>) -> Range<usize> {
        let tiles = range.len().div_ceil(TILE);
        let cut = |split: usize| range.end.min(range.start + tiles * split / self.unit.splits * TILE);
        cut(self.unit.split)..cut(self.unit.split + 1)
    }

    fn load_queries(&mut self) {
        let (sizes, kernels) = (self.job.asked.sizes, self.job.kernels);
        let (group, stride) = (sizes.group(), padded(sizes.dim));
        for row in 0..self.rows {
            let query = self.unit.first_query + row / group;
            let head = self.unit.head * group + row % group;
            let of = &self.job.asked.sequences[self.unit.sequence];
            let from = match sizes.ragged {
                true => self.job.queries.rows(0, head, of.first_query + query),
                false => self.job.queries.rows(self.unit.sequence, head, query),
            };
            let floats = &mut self.scratch.queries[row * stride..(row + 1) * stride];
            floats.fill(0.0);
            kernels.widen(from, 0, floats);
            kernels.scale_all(floats, self.job.scale());
            let sink = self.job.asked.sink_logits.filter(|_| self.unit.split == 0).map(|logits| logits[head]);
            self.scratch.state[row] = match sink {
                Some(logit) if logit > f32::NEG_INFINITY => State { max: logit * LOG2_E, sum: 1.0, bias: 0.0 },
                _ => State::EMPTY,
            };
        }
        if self.job.is_rotated() {
            let floats = self.rows * stride;
            let Scratch { queries, rotated, .. } = &mut *self.scratch;
            rotated[..floats].copy_from_slice(&queries[..floats]);
            rotated[..floats].chunks_exact_mut(stride).for_each(|row| hadamard(&mut row[..sizes.dim]));
        }
        let out = self.rows * padded(sizes.value_dim);
        self.scratch.out[..out].fill(0.0);
    }

    fn tile(&mut self, tile: Range<usize>, lowest: i64, highest: i64) {
        let width = padded(tile.len());
        self.find(&tile);
        self.score(width);
        if let Some(cap) = self.job.asked.softcap {
            for row in 0..self.rows {
                self.job.kernels.bend(&mut self.scratch.scores[row * SCORES..][..width], 1.0 / cap, cap * LOG2_E);
            }
        }
        let all_shown =
            self.job.asked.mask.is_none() && self.job.asked.rules(self.unit.sequence).shows_all(&tile, lowest, highest);
        let hidden = !all_shown && self.mask(&tile);
        for row in 0..self.rows {
            self.scratch.scores[row * SCORES + tile.len()..row * SCORES + width].fill(f32::NEG_INFINITY);
        }
        self.soften(width);
        self.weigh(width, hidden);
    }

    /// Finds the segments of a tile.
    fn find(&mut self, tile: &Range<usize>) {
        self.segments.clear();
        let mut at = 0;
        while at < tile.len() {
            let segment = self.job.segment(self.unit.sequence, &self.head, tile.start + at);
            let segment = segment.first(tile.len() - at);
            self.segments.push((segment, at));
            at += segment.count();
        }
    }

    fn score(&mut self, width: usize) {
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

    /// Adds the mask and hides what a row does not see; true when something is hidden.
    fn mask(&mut self, tile: &Range<usize>) -> bool {
        let (job, unit) = (self.job, self.unit);
        let (group, rules) = (job.asked.sizes.group(), job.asked.rules(unit.sequence));
        let mut hidden = false;
        for row in 0..self.rows {
            let query = unit.first_query + row / group;
            let position = job.asked.position(unit.sequence, query);
            let scores = &mut self.scratch.scores[row * SCORES..][..tile.len()];
            for (score, key) in scores.iter_mut().zip(tile.clone()) {
                if let Some(mask) = &job.asked.mask {
                    *score += mask.at(unit.sequence, unit.head * group + row % group, query, key) * LOG2_E;
                }
                if !rules.shows(position, query, key) || *score == f32::NEG_INFINITY {
                    *score = f32::NEG_INFINITY;
                    hidden = true;
                }
            }
        }
        hidden
    }

    fn soften(&mut self, width: usize) {
        let stride = padded(self.job.asked.sizes.value_dim);
        for row in 0..self.rows {
            let state = &mut self.scratch.state[row];
            let [max, sum] = self.job.kernels.soften(&mut self.scratch.scores[row * SCORES..][..width], state.max);
            if max != state.max {
                let factor = (state.max - max).exp2();
                state.sum *= factor;
                state.bias *= factor;
                self.job.kernels.scale_all(&mut self.scratch.out[row * stride..][..stride], factor);
            }
            state.max = max;
            state.sum += sum;
        }
    }

    fn weigh(&mut self, width: usize, hidden: bool) {
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

    /// Brings the output rows to their final sums.
    fn settle(&mut self) {
        let (dim, stride) = (self.job.asked.sizes.value_dim, padded(self.job.asked.sizes.value_dim));
        for row in 0..self.rows {
            let bias = std::mem::take(&mut self.scratch.state[row].bias);
            if bias != 0.0 {
                self.scratch.out[row * stride..][..dim].iter_mut().for_each(|sum| *sum += bias);
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
