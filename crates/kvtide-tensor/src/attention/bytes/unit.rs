//! One unit of work: some query rows against a range of keys, tile by tile, with a running softmax.
//!
//! ```text
//! for each tile of keys that some row attends to
//!     scores  = queries * keys                           one pass over the keys, in place
//!     scores  = capped, sloped, masked; -infinity where a row does not attend to a key
//!     weights = e^(scores - max), with previous sums and output rescaled to the same max
//!     output += weights * values                         one pass over the values, in place
//! ```
//!
//! All numbers are 32-bit floats; rows whose results are not finite are recomputed (`exact.rs`). Segments are read in place.
//! Row scales are applied to scores and weights, channel scales are folded into the queries. If many rows share a head, its
//! keys and values are copied as floats into panels, once for all of them.

use std::f32::consts::LOG2_E;
use std::ops::Range;

use kvtide_core::paged::KeyOrValue;

use super::job::{Heads, Job, Segment, WorkUnit};
use super::pass::{Pass, Seen, each_run, is_shown};
use super::scratch::{SCORES, Scratch, State, TILE, of_channels, widened};
use crate::base::error::Result;
use crate::kernels::quantise::hadamard;
use crate::kernels::tile::{Elements, Matrix, MatrixMut, Panels, TileRows, padded};

/// A unit in progress.
pub(super) struct Work<'a, 'b> {
    job: &'a Job<'b>,
    unit: &'a WorkUnit,
    scratch: &'a mut Scratch,
    /// The places of its heads of keys and values.
    heads: Heads,
    /// The current pass.
    pass: Pass,
    /// The segments of the current tile, each with its offset in the tile.
    segments: Vec<(Segment<'a>, usize)>,
    /// The number of its rows, ordered by KV head, query, and query head within the group.
    pub rows: usize,
    /// True while the output rows are sums of rotated values.
    is_turned: bool,
}

impl<'a, 'b> Work<'a, 'b> {
    /// Runs a unit; afterwards its output rows and states are in the scratch memory.
    pub fn run(job: &'a Job<'b>, unit: &'a WorkUnit, scratch: &'a mut Scratch) -> Result<Self> {
        let (heads, rows) = (job.heads(&unit.heads), unit.rows(job.asked.sizes.group()));
        let mut work =
            Work { job, unit, scratch, heads, pass: Pass::NONE, segments: Vec::new(), rows, is_turned: false };
        work.load_queries();
        let (lowest, highest) = work.reach();
        let ranges = match unit.stem {
            Some(stem) => [0..job.stems.all[stem].keys, 0..0],
            None => {
                let shared = job.stems.shared(unit.sequence);
                let own = |range: Range<usize>| range.start.max(shared)..range.end.max(shared);
                job.asked.visible(unit.sequence).ranges(lowest, highest).map(own)
            }
        };
        let own = work.own_pages(lowest, highest);
        for pass in ranges.into_iter().flat_map(|keys| Pass::of(keys, own.clone(), job.page_size())) {
            let keys = work.share_of(pass.keys.clone());
            work.pass = pass;
            for start in keys.clone().step_by(TILE) {
                job.asked.check_stop()?;
                work.tile(start..keys.end.min(start + TILE), lowest, highest);
            }
        }
        work.settle();
        Ok(work)
    }

    /// The indices of the first and the last own page of its queries; equal if pages have one form.
    fn own_pages(&self, lowest: i64, highest: i64) -> Range<usize> {
        if self.unit.stem.is_some() || !self.job.has_two_forms(self.unit.sequence) {
            return 0..0;
        }
        let of = |position| self.job.asked.page_of(self.unit.sequence, position, self.job.page_size());
        of(lowest)..of(highest)
    }

    /// The lowest and the highest position of its queries.
    fn reach(&self) -> (i64, i64) {
        let positions = (0..self.unit.queries).map(|query| self.position(query));
        positions.fold((i64::MAX, i64::MIN), |(low, high), position| (low.min(position), high.max(position)))
    }

    fn position(&self, query: usize) -> i64 {
        let (sequence, query) = self.job.query(self.unit, self.unit.first_query + query);
        self.job.asked.position(sequence, query)
    }

    /// This unit's share of a range of keys, divided at whole tiles.
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
            let (sequence, query) = self.job.query(self.unit, query);
            let of = &self.job.asked.sequences[sequence];
            let from = match sizes.is_ragged {
                true => self.job.queries.rows(0, head..head + 1, of.first_query + query),
                false => self.job.queries.rows(sequence, head..head + 1, query),
            };
            let floats = &mut self.scratch.queries[row * stride..(row + 1) * stride];
            floats.fill(0.0);
            kernels.widen(from, 0, floats);
            kernels.scale_all(floats, self.job.asked.rules.scale);
            let is_first = self.unit.split == 0 && self.unit.stem.is_none();
            let sink = self.job.asked.rules.sink_logits.filter(|_| is_first).map(|logits| logits[head]);
            self.scratch.state[row] = match sink {
                Some(logit) if logit > f32::NEG_INFINITY => State { max: logit, sum: 1.0, bias: 0.0 },
                _ => State::EMPTY,
            };
        }
        if self.job.has_rotated_keys() {
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
        if let Some(slopes) = self.job.asked.rules.alibi_slopes {
            self.slope(&tile, slopes);
        }
        let all_shown = self.unit.stem.is_some()
            || self.pass.seen == Seen::All
                && self.job.asked.mask.is_none()
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
            let segment = self.job.segment(self.unit.sequence, &self.heads, tile.start + at, self.pass.own);
            let segment = segment.first(tile.len() - at);
            self.segments.push((segment, at));
            at += segment.count();
        }
    }

    /// Adds each head's slope times the distance between key and query.
    fn slope(&mut self, tile: &Range<usize>, slopes: &[f32]) {
        let visible = self.job.asked.visible(self.unit.sequence);
        let (first, keys) = (visible.position(tile.start), visible.offsets::<TILE>(tile));
        for row in 0..self.rows {
            let (query, head) = self.unit.query_and_head(row, self.job.asked.sizes.group());
            let before = (first - self.position(query - self.unit.first_query)) as f32;
            for (score, key) in self.scratch.scores[row * SCORES..][..tile.len()].iter_mut().zip(keys) {
                *score += slopes[head] * (before + key);
            }
        }
    }

    /// Adds the mask, and hides keys that a row does not attend to; returns true if any key is hidden.
    fn mask(&mut self, tile: &Range<usize>) -> bool {
        let (job, unit) = (self.job, self.unit);
        let (group, rules) = (job.asked.sizes.group(), job.asked.visible(unit.sequence));
        let all = u128::MAX >> (TILE - tile.len());
        let (mut hidden, mut visible, mut of_query) = (false, 0, usize::MAX);
        for row in 0..self.rows {
            let (query, head) = unit.query_and_head(row, group);
            if query != of_query {
                let position = job.asked.position(unit.sequence, query);
                let bit = |(place, key)| u128::from(rules.shows(position, query, key)) << place;
                (visible, of_query) = (tile.clone().enumerate().map(bit).sum(), query);
                if self.pass.seen != Seen::All {
                    let size = job.page_size();
                    visible &= self.pass.shown(tile, job.asked.page_of(unit.sequence, position, size) * size);
                }
            }
            let scores = &mut self.scratch.scores[row * SCORES..][..tile.len()];
            let mut shown = visible;
            if let Some(mask) = &job.asked.mask {
                for (place, (score, key)) in scores.iter_mut().zip(tile.clone()).enumerate() {
                    let added = mask.at(unit.sequence, head, query, key);
                    *score += added;
                    shown &= !(u128::from(added == f32::NEG_INFINITY) << place);
                }
            }
            // A hidden key stays hidden whatever its content is.
            each_run(!shown, tile.len(), |keys| scores[keys].fill(f32::NEG_INFINITY));
            let lost = scores.iter().filter(|score| **score == f32::NEG_INFINITY).count();
            if lost > tile.len() - shown.count_ones() as usize {
                for (place, score) in scores.iter().enumerate() {
                    shown &= !(u128::from(*score == f32::NEG_INFINITY) << place);
                }
            }
            hidden |= shown != all;
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

    /// Completes the output rows.
    fn settle(&mut self) {
        self.turn(false);
        self.add_bias();
    }

    /// Rotates the output rows, unless they already are sums of values in this form. The rotation is its own inverse. Bias is
    /// that of values in pages, which have one form.
    fn turn(&mut self, is_turned: bool) {
        if self.is_turned == is_turned {
            return;
        }
        if self.is_turned {
            self.add_bias();
        }
        let (dim, stride) = (self.job.asked.sizes.value_dim, padded(self.job.asked.sizes.value_dim));
        let rows = self.scratch.out[..self.rows * stride].chunks_exact_mut(stride.max(1));
        rows.for_each(|row| hadamard(&mut row[..dim]));
        self.is_turned = is_turned;
    }

    fn add_bias(&mut self) {
        let (dim, stride) = (self.job.asked.sizes.value_dim, padded(self.job.asked.sizes.value_dim));
        for row in 0..self.rows {
            let bias = std::mem::take(&mut self.scratch.state[row].bias);
            if bias != 0.0 {
                self.scratch.out[row * stride..][..dim].iter_mut().for_each(|sum| *sum += bias);
            }
        }
    }
}

/// The number of query rows per head from which on keys and values are copied into panels: for rows that are floats in
/// memory, and for others.
const MANY: [usize; 2] = [24, 9];

impl Work<'_, '_> {
    /// The rows of one of the unit's heads.
    fn rows_of(&self, head: usize) -> Range<usize> {
        let rows = self.rows / self.unit.heads.len();
        head * rows..(head + 1) * rows
    }

    /// Computes the products of all rows and keys as rows of scores.
    fn score(&mut self, width: usize) {
        // If only some segments are rotated, the two kinds of queries cannot share one product.
        if self.are_rotated_alike(KeyOrValue::Key) && self.are_many(|segment| segment.keys.elements) {
            (0..self.unit.heads.len()).for_each(|head| self.score_laid(head, width));
        } else {
            for index in 0..self.segments.len() {
                let (segment, at) = self.segments[index];
                self.score_segment(segment, at);
            }
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

    /// Computes the products with the keys of one head through panels, for all its rows.
    fn score_laid(&mut self, head: usize, width: usize) {
        let (rows, kernels, dim) = (self.rows_of(head), self.job.kernels, self.job.asked.sizes.dim);
        let stride = padded(dim);
        let Scratch { queries, rotated, panels, wide, channels, scores, .. } = &mut *self.scratch;
        let mut panels = Panels { floats: panels, rows: stride, columns: TILE };
        for (segment, at) in &self.segments {
            let keys = segment.keys.head(head);
            let scales = segment.key_scales.head(head);
            let keys = match scales.is_by_channel() {
                true => widened(kernels, keys, Some(of_channels(scales, dim, channels)), wide),
                false => widened(kernels, keys, None, wide),
            };
            kernels.lay_keys(keys, *at, &mut panels);
        }
        let queries = if self.segments[0].0.rotated[0] { rotated } else { queries };
        let queries = Matrix { floats: &queries[rows.start * stride..], stride, count: rows.len() };
        let mut out = MatrixMut { floats: &mut scores[rows.start * SCORES..], stride: SCORES };
        kernels.product(queries, &panels, 0..dim, width, &mut out, false);
    }

    fn score_segment(&mut self, segment: Segment<'_>, at: usize) {
        let (keys, dim) = (segment.keys, self.job.asked.sizes.dim);
        if !keys.elements.is_direct(dim) || segment.key_scales.is_by_channel() {
            (0..keys.heads).for_each(|head| self.score_head(segment, at, head));
            return;
        }
        let Scratch { queries, rotated, scores, .. } = &mut *self.scratch;
        let floats = if segment.rotated[0] { &*rotated } else { &*queries };
        let queries = Matrix { floats, stride: padded(dim), count: self.rows };
        self.job.kernels.scores(queries, keys, &mut MatrixMut { floats: &mut scores[at..], stride: SCORES });
    }

    /// Computes the products with the keys of one head, which are first widened, or whose scales are folded into the
    /// queries.
    fn score_head(&mut self, segment: Segment<'_>, at: usize, head: usize) {
        let (rows, kernels, dim) = (self.rows_of(head), self.job.kernels, self.job.asked.sizes.dim);
        let (keys, stride, count) = (segment.keys.head(head), padded(dim), rows.len());
        let Scratch { queries, rotated, scaled, wide, channels, scores, .. } = &mut *self.scratch;
        let scales = segment.key_scales.head(head);
        let channels = scales.is_by_channel().then(|| of_channels(scales, dim, channels));
        let queries = &(if segment.rotated[0] { rotated } else { queries })[rows.start * stride..rows.end * stride];
        let mut out = MatrixMut { floats: &mut scores[rows.start * SCORES + at..], stride: SCORES };
        let Some([scales, minimums]) = channels.filter(|_| keys.elements.is_direct(dim)) else {
            let keys = widened(kernels, keys, channels, wide);
            return kernels.scores(Matrix { floats: queries, stride, count }, keys, &mut out);
        };
        // (query * scales) * codes + query * minimums
        let floats = &mut scaled[..queries.len()];
        floats.copy_from_slice(queries);
        for row in floats.chunks_exact_mut(stride) {
            kernels.scale(row, scales);
        }
        kernels.scores(Matrix { floats, stride, count }, keys, &mut out);
        for (query, scores) in queries.chunks_exact(stride).zip(out.floats.chunks_mut(SCORES)) {
            let constant = kernels.dot(query, minimums);
            scores[..keys.count].iter_mut().for_each(|score| *score += constant);
        }
    }

    /// Adds the weighted values of the tile; `hidden` if some rows do not attend to some of them.
    fn weigh(&mut self, width: usize, hidden: bool) {
        if self.segments.iter().any(|(segment, _)| segment.value_scales.is_by_row()) {
            for head in 0..self.unit.heads.len() {
                self.scale_weights(head, width, hidden);
            }
        }
        if self.are_rotated_alike(KeyOrValue::Value) && self.are_many(|segment| segment.values.elements) {
            self.turn(self.segments[0].0.rotated[1]);
            (0..self.unit.heads.len()).for_each(|head| self.weigh_laid(head, hidden));
            return;
        }
        for index in 0..self.segments.len() {
            let (segment, at) = self.segments[index];
            self.turn(segment.rotated[1]);
            self.weigh_segment(segment.values, at, hidden);
        }
    }

    /// Multiplies the weights of a head by the scales of its values, and adds the minimums' share to the bias.
    fn scale_weights(&mut self, head: usize, width: usize, hidden: bool) {
        let rows = self.rows_of(head);
        let [_, scales, minimums] = &mut self.scratch.of_tile;
        for (segment, at) in &self.segments {
            let (scales, minimums) = (&mut scales[*at..], &mut minimums[*at..]);
            segment.value_scales.head(head).of_rows(self.job.kernels, segment.count(), scales, minimums);
        }
        let end = self.segments.last().map_or(0, |(segment, at)| at + segment.count());
        // Weights after the tile are 0, but an earlier call may have left NaN here.
        minimums[end..width].fill(0.0);
        let (scales, minimums) = (&scales[..width], &minimums[..width]);
        for row in rows {
            let weights = &mut self.scratch.scores[row * SCORES..][..width];
            let bias = &mut self.scratch.state[row].bias;
            if hidden {
                // The scales of a value that the row does not attend to may be NaN.
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

    /// Adds the values of one head through panels, for all its rows.
    fn weigh_laid(&mut self, head: usize, hidden: bool) {
        let (rows, kernels, dim) = (self.rows_of(head), self.job.kernels, self.job.asked.sizes.value_dim);
        let stride = padded(dim);
        let Scratch { panels, wide, scores, out, shown, .. } = &mut *self.scratch;
        let mut panels = Panels { floats: panels, rows: TILE, columns: stride };
        let mut end = 0;
        for (segment, at) in &self.segments {
            kernels.lay_values(widened(kernels, segment.values.head(head), None, wide), *at, &mut panels);
            end = at + segment.count();
        }
        let mut add = |rows: Range<usize>, keys: Range<usize>| {
            let floats = &scores[rows.start * SCORES + keys.start..];
            let weights = Matrix { floats, stride: SCORES, count: rows.len() };
            let mut out = MatrixMut { floats: &mut out[rows.start * stride..], stride };
            kernels.product(weights, &panels, keys, stride, &mut out, true);
        };
        if !hidden {
            return add(rows, 0..end);
        }
        let mut first = rows.start;
        for alike in shown[rows].chunk_by(|row, next| row == next) {
            each_run(alike[0], end, |keys| add(first..first + alike.len(), keys));
            first += alike.len();
        }
    }

    fn weigh_segment(&mut self, values: TileRows<'_>, at: usize, hidden: bool) {
        let dim = self.job.asked.sizes.value_dim;
        if hidden || !values.elements.is_direct(dim) {
            for head in 0..values.heads {
                self.weigh_head(values.head(head), at, self.rows_of(head), hidden);
            }
            return;
        }
        let Scratch { scores, out, .. } = &mut *self.scratch;
        let weights = Matrix { floats: &scores[at..], stride: SCORES, count: self.rows };
        self.job.kernels.weigh(weights, values, &mut MatrixMut { floats: out, stride: padded(dim) });
    }

    /// Adds the values of one head, widened first if necessary, to the rows that attend to them.
    fn weigh_head(&mut self, values: TileRows<'_>, at: usize, rows: Range<usize>, hidden: bool) {
        let (kernels, stride) = (self.job.kernels, padded(self.job.asked.sizes.value_dim));
        let Scratch { wide, scores, out, shown, .. } = &mut *self.scratch;
        let values = widened(kernels, values, None, wide);
        if !hidden {
            let weights = Matrix { floats: &scores[rows.start * SCORES + at..], stride: SCORES, count: rows.len() };
            return kernels.weigh(weights, values, &mut MatrixMut { floats: &mut out[rows.start * stride..], stride });
        }
        for row in rows {
            let weights = &scores[row * SCORES + at..][..values.count];
            each_run(shown[row] >> at, values.count, |keys| {
                let part = Matrix { floats: &weights[keys.clone()], stride: keys.len(), count: 1 };
                let mut out = MatrixMut { floats: &mut out[row * stride..(row + 1) * stride], stride };
                kernels.weigh(part, values.part(keys.start, keys.len()), &mut out);
            });
        }
    }

    /// True if all segments of the tile are rotated, or none.
    fn are_rotated_alike(&self, part: KeyOrValue) -> bool {
        let mut rotated = self.segments.iter().map(|(segment, _)| segment.rotated[part as usize]);
        let first = rotated.next();
        rotated.all(|is_rotated| Some(is_rotated) == first)
    }

    /// True if enough rows share a head for its keys, or its values, to be copied into panels.
    fn are_many(&self, of: impl Fn(&Segment<'_>) -> Elements) -> bool {
        let are_floats = self.segments.iter().all(|(segment, _)| of(segment) == Elements::F32);
        self.rows_of(0).len() >= MANY[usize::from(!are_floats)]
    }
}
