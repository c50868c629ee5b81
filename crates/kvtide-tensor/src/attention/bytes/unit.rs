//! One unit of work: some query rows against a range of keys, tile by tile, with a running softmax.
//!
//! ```text
//! for each tile of keys that some row sees
//!   scores  = queries * keys                           one pass over the keys, in place
//!   scores  = bent, masked; -infinity where a row does not see a key
//!   weights = e^(scores - max), sums and output so far brought to the same max
//!   output += weights * values                         one pass over the values, in place
//! ```
//!
//! Numbers are 32-bit floats throughout: what is beyond them comes out as no finite number, and is seen to later. Formats that take more than a load to become floats are
//! widened once a tile where many rows share it.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use super::job::{Heads, Job, Unit};
use super::scratch::{SCORES, Scratch, State, TILE};
use super::segment::Segment;
use crate::base::error::Result;
use crate::kernels::quantise::hadamard;
use crate::kernels::tile::padded;

/// A unit at work.
pub(super) struct Work<'a, 'b> {
    pub job: &'a Job<'b>,
    pub unit: &'a Unit,
    pub scratch: &'a mut Scratch,
    /// Where its heads of keys and values lie.
    heads: Heads,
    /// The tile at hand, and the place of each segment in it.
    pub segments: Vec<(Segment<'a>, usize)>,
    /// Its rows: for each head of K and V and each query, the query heads that share that head.
    pub rows: usize,
}

impl<'a, 'b> Work<'a, 'b> {
    /// Runs a unit; its output rows and states are in the scratch afterwards.
    pub fn run(job: &'a Job<'b>, unit: &'a Unit, scratch: &'a mut Scratch) -> Result<Self> {
        let (heads, rows) = (job.heads(&unit.heads), unit.rows(job.asked.sizes.group()));
        let mut work = Work { job, unit, scratch, heads, segments: Vec::new(), rows };
        work.load_queries();
        let (lowest, highest) = work.reach();
        for range in job.asked.visible(unit.sequence).ranges(lowest, highest) {
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
            let (query, head) = self.unit.query_and_head(row, group);
            let of = &self.job.asked.sequences[self.unit.sequence];
            let from = match sizes.is_ragged {
                true => self.job.queries.rows(0, head..head + 1, of.first_query + query),
                false => self.job.queries.rows(self.unit.sequence, head..head + 1, query),
            };
            let floats = &mut self.scratch.queries[row * stride..(row + 1) * stride];
            floats.fill(0.0);
            kernels.widen(from, 0, floats);
            kernels.scale_all(floats, self.job.asked.rules.scale);
            let sink = self.job.asked.rules.sink_logits.filter(|_| self.unit.split == 0).map(|logits| logits[head]);
            self.scratch.state[row] = match sink {
                Some(logit) if logit > f32::NEG_INFINITY => State { max: logit, sum: 1.0, bias: 0.0 },
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
        if let Some(cap) = self.job.asked.rules.softcap {
            for row in 0..self.rows {
                self.job.kernels.bend(&mut self.scratch.scores[row * SCORES..][..width], 1.0 / cap, cap);
            }
        }
        let all_shown = self.job.asked.mask.is_none()
            && self.job.asked.visible(self.unit.sequence).shows_all(&tile, lowest, highest);
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
            let segment = self.job.segment(self.unit.sequence, &self.heads, tile.start + at);
            let segment = segment.first(tile.len() - at);
            self.segments.push((segment, at));
            at += segment.count();
        }
    }

    /// Adds the mask and hides what a row does not see; true when something is hidden.
    fn mask(&mut self, tile: &Range<usize>) -> bool {
        let (job, unit) = (self.job, self.unit);
        let (group, rules) = (job.asked.sizes.group(), job.asked.visible(unit.sequence));
        let mut hidden = false;
        for row in 0..self.rows {
            let (query, head) = unit.query_and_head(row, group);
            let position = job.asked.position(unit.sequence, query);
            let scores = &mut self.scratch.scores[row * SCORES..][..tile.len()];
            let mut shown = 0;
            for (place, (score, key)) in scores.iter_mut().zip(tile.clone()).enumerate() {
                let added = job.asked.mask.as_ref().map_or(0.0, |mask| mask.at(unit.sequence, head, query, key));
                *score += added;
                // What is hidden is hidden whatever its key holds.
                if !rules.shows(position, query, key) || added == f32::NEG_INFINITY || *score == f32::NEG_INFINITY {
                    *score = f32::NEG_INFINITY;
                    hidden = true;
                } else {
                    shown |= 1 << place;
                }
            }
            self.scratch.shown[row] = shown;
        }
        hidden
    }

    fn soften(&mut self, width: usize) {
        let stride = padded(self.job.asked.sizes.value_dim);
        for row in 0..self.rows {
            let state = &mut self.scratch.state[row];
            let [max, sum] = self.job.kernels.soften(&mut self.scratch.scores[row * SCORES..][..width], state.max);
            if max != state.max {
                let factor = ((state.max - max) * LOG2_E).exp2();
                state.sum *= factor;
                state.bias *= factor;
                self.job.kernels.scale_all(&mut self.scratch.out[row * stride..][..stride], factor);
            }
            state.max = max;
            state.sum += sum;
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
