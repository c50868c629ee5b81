//! A recurrence in chunks of tokens, as products of matrices.
//!
//! ```text
//! L    [i, s] = product of the decays after s, up to i          g_i = product of the decays up to i
//! R    = K S                                                    what the state holds for each key
//! D    (I + A) D = b (V - g R),  A = b L * K K^T below the diagonal
//! O    = g Q S + (L * Q K^T, up to the diagonal) D
//! S    = g_last S + K^T (L_last * D)
//! ```
//!
//! It is the delta rule's WY form with the state in front of it: D solves the triangular system for the values that are left
//! of this state, so that no second system for keys is needed. Without a delta rule, D has the values. Heads of a unit
//! share their products of queries and keys. A product that a triangle cuts is computed in blocks of rows.
//!
//! - The products of decays have no division, so they cannot overflow; below [`DECAY_MIN`] they count as 0.
//! - A token's NaN or infinity may reach tokens of its chunk that are before it, by less than [`BLOCK`].
//!
//! For each token and head: `3 k_dim v_dim` multiply-adds (2 without a delta rule), and half a chunk times `k_dim + v_dim`,
//! twice.

use std::ops::Range;

use super::{Major, Recurrence};
use crate::base::error::Result;
use crate::base::scratch::with_floats;
use crate::device::form::Kernels;
use crate::kernels::states::wide;
use crate::kernels::tile::{Elements, Matrix, MatrixMut, Panels, TileKernels, TileRows, padded};
use crate::states::step::Unit;

/// The most tokens of a chunk.
const CHUNK: usize = 64;

/// The rows of a block of a triangle's product.
const BLOCK: usize = 24;

/// The rows of a block of the triangular system.
const SOLVED: usize = 16;

/// The smallest product of decays that counts: arithmetic on numbers near the smallest float is slow.
const DECAY_MIN: f32 = 1e-30;

/// The padded lengths of rows.
#[derive(Clone, Copy)]
struct Padded {
    key: usize,
    value: usize,
}

/// The memory of a unit. Rows are padded to whole vectors.
struct Chunk<'a> {
    keys: &'a mut [f32],
    /// The rows of each query head.
    queries: &'a mut [f32],
    /// The transposed keys, as columns of panels.
    key_columns: Panels<'a>,
    /// The keys as rows of panels.
    key_rows: Panels<'a>,
    /// The products of keys and keys; of queries and keys.
    key_scores: &'a mut [f32],
    query_scores: &'a mut [f32],
    head: HeadChunk<'a>,
}

/// The memory of one head.
struct HeadChunk<'a> {
    /// L, and the products of all decays up to each token.
    decays: &'a mut [f32],
    totals: &'a mut [f32],
    weights: &'a mut [f32],
    /// D, and D in panels as rows and as columns.
    added: &'a mut [f32],
    added_rows: Panels<'a>,
    added_columns: Panels<'a>,
    state: Panels<'a>,
    out: &'a mut [f32],
}

pub(super) fn run(
    call: &Recurrence<'_>,
    kernels: Kernels,
    tiles: &'static TileKernels,
    mut unit: Unit<'_>,
) -> Result<()> {
    let pad = Padded { key: padded(call.k_dim), value: padded(call.v_dim) };
    let query_heads = call.query_heads(unit.heads.clone());
    let by_value = |columns: usize| if call.major == Major::Value { columns } else { 0 };
    // The rows and columns of panels, and then the floats of other memory.
    let shapes = [
        [pad.key, CHUNK],
        [CHUNK, by_value(pad.key)],
        [CHUNK, pad.value],
        [pad.value, by_value(CHUNK)],
        [pad.key, pad.value],
    ];
    let [a, b, c, d, e] = shapes.map(|[rows, columns]| Panels::floats(rows, columns));
    let (keys, square, values) = (CHUNK * pad.key, CHUNK * padded(CHUNK), CHUNK * pad.value);
    let (queries, heads, state) = (query_heads.len(), unit.heads.len(), state_floats(call, pad));
    let of_queries = [queries * keys, queries * square];
    let lengths = [
        a,
        b,
        c,
        d,
        e,
        keys,
        of_queries[0],
        square,
        of_queries[1],
        square,
        CHUNK,
        square,
        values,
        values,
        heads * state,
    ];
    let work = Work { call, kernels, tiles, pad, query_heads };
    with_floats(lengths, |floats| {
        let [a, b, c, d, e, keys, queries, key_scores, query_scores, decays, totals, weights, added, out, states] =
            floats;
        let panel = |floats, [rows, columns]: [usize; 2]| Panels { floats, rows, columns };
        let (added_rows, added_columns) = (panel(c, shapes[2]), panel(d, shapes[3]));
        let state_panels = panel(e, shapes[4]);
        let head = HeadChunk { decays, totals, weights, added, added_rows, added_columns, state: state_panels, out };
        let (key_columns, key_rows) = (panel(a, shapes[0]), panel(b, shapes[1]));
        let mut chunk = Chunk { keys, queries, key_columns, key_rows, key_scores, query_scores, head };
        work.run(&mut chunk, &mut unit, states, state);
    })
}

/// The floats of a head's state with padded rows.
fn state_floats(call: &Recurrence<'_>, pad: Padded) -> usize {
    match call.major {
        Major::Key => call.k_dim * pad.value,
        Major::Value => call.v_dim * pad.key,
    }
}

/// A unit's call.
struct Work<'a> {
    call: &'a Recurrence<'a>,
    kernels: Kernels,
    tiles: &'static TileKernels,
    pad: Padded,
    query_heads: Range<usize>,
}

impl Work<'_> {
    /// The length of a state's row, and with padding.
    fn state_row(&self) -> (usize, usize) {
        match self.call.major {
            Major::Key => (self.call.v_dim, self.pad.value),
            Major::Value => (self.call.k_dim, self.pad.key),
        }
    }

    /// All chunks of a unit, whose heads have states of `state` floats.
    fn run(&self, chunk: &mut Chunk<'_>, unit: &mut Unit<'_>, states: &mut [f32], state: usize) {
        for (place, padded) in states.chunks_exact_mut(state).enumerate() {
            self.load_state(unit, place, padded);
        }
        for first in (0..unit.tokens.len()).step_by(CHUNK) {
            let rows = first..(first + CHUNK).min(unit.tokens.len());
            self.share(chunk, unit, rows.clone());
            for (place, state) in states.chunks_exact_mut(state).enumerate() {
                self.advance(chunk, unit, rows.clone(), place, state);
            }
        }
        for (place, padded) in states.chunks_exact(state).enumerate() {
            self.store_state(unit, place, padded);
        }
    }

    fn load_state(&self, unit: &Unit<'_>, place: usize, to: &mut [f32]) {
        let (width, stride) = self.state_row();
        let floats = self.call.k_dim * self.call.v_dim;
        let from = &unit.source.unwrap_or(unit.target)[place * floats..][..floats];
        for (to, from) in to.chunks_exact_mut(stride).zip(from.chunks_exact(width)) {
            to[..width].copy_from_slice(from);
            to[width..].fill(0.0);
        }
    }

    fn store_state(&self, unit: &mut Unit<'_>, place: usize, from: &[f32]) {
        let (width, stride) = self.state_row();
        let floats = self.call.k_dim * self.call.v_dim;
        let to = &mut unit.target[place * floats..][..floats];
        for (to, from) in to.chunks_exact_mut(width).zip(from.chunks_exact(stride)) {
            to.copy_from_slice(&from[..width]);
        }
    }

    /// The chunk's part that all heads share: keys, queries and their products.
    fn share(&self, chunk: &mut Chunk<'_>, unit: &Unit<'_>, rows: Range<usize>) {
        let (call, pad, dim) = (self.call, self.pad, self.call.k_dim);
        let (count, key_head) = (rows.len(), call.key_head(unit));
        for (index, row) in rows.enumerate() {
            let token = unit.tokens.start + row;
            let key = &mut chunk.keys[index * pad.key..][..dim];
            call.prepare(self.kernels, call.key.part(token, key_head * dim, dim), 1.0, key);
            for (place, query) in self.query_heads.clone().enumerate() {
                let to = &mut chunk.queries[(place * CHUNK + index) * pad.key..][..dim];
                call.prepare(self.kernels, call.query.part(token, query * dim, dim), call.scale, to);
            }
        }
        let keys = tile(chunk.keys, pad.key, count, dim);
        self.tiles.lay_keys(keys, 0, &mut chunk.key_columns);
        if call.major == Major::Value {
            self.tiles.lay_values(keys, 0, &mut chunk.key_rows);
        }
        if call.beta.is_some() {
            self.scores(chunk.keys, &chunk.key_columns, count, chunk.key_scores);
        }
        for place in 0..self.query_heads.len() {
            let queries = &chunk.queries[place * CHUNK * pad.key..];
            let scores = &mut chunk.query_scores[place * CHUNK * padded(CHUNK)..];
            self.scores(queries, &chunk.key_columns, count, scores);
        }
    }

    /// The products of rows and keys, up to the diagonal.
    fn scores(&self, rows: &[f32], keys: &Panels<'_>, count: usize, scores: &mut [f32]) {
        let stride = padded(CHUNK);
        for block in blocks(count, BLOCK) {
            let out = &mut MatrixMut { floats: &mut scores[block.start * stride..], stride };
            let columns = padded(block.end).min(stride);
            let rows = matrix(&rows[block.start * self.pad.key..], self.pad.key, block.len());
            self.tiles.product(rows, keys, 0..self.call.k_dim, columns, out, false);
        }
    }

    /// The outputs and the new state of one head.
    fn advance(&self, chunk: &mut Chunk<'_>, unit: &mut Unit<'_>, rows: Range<usize>, place: usize, state: &mut [f32]) {
        let (call, pad, tiles) = (self.call, self.pad, self.tiles);
        let (head, count) = (unit.heads.start + place, rows.len());
        let first = unit.tokens.start + rows.start;
        let of = &mut chunk.head;
        let (width, stride) = self.state_row();
        match call.major {
            Major::Key => tiles.lay_values(tile(state, stride, call.k_dim, width), 0, &mut of.state),
            Major::Value => tiles.lay_keys(tile(state, stride, call.v_dim, width), 0, &mut of.state),
        }
        self.gates(of, first, head, count);
        if call.beta.is_some() {
            let out = &mut MatrixMut { floats: of.added, stride: pad.value };
            tiles.product(matrix(chunk.keys, pad.key, count), &of.state, 0..call.k_dim, pad.value, out, false);
            self.left(of, first, head, count);
            self.solve(of, chunk.key_scores, first, head, count);
        } else {
            tiles.lay_values(tile(of.added, pad.value, count, call.v_dim), 0, &mut of.added_rows);
        }
        let queries = call.query_heads(head..head + 1);
        for (index, query) in queries.enumerate() {
            let at = query - self.query_heads.start;
            let scores = &chunk.query_scores[at * CHUNK * padded(CHUNK)..];
            self.attend(of, &chunk.queries[at * CHUNK * pad.key..], scores, count);
            let column = (place * call.queries() + index) * call.v_dim;
            for (row, from) in rows.clone().zip(of.out.chunks_exact(pad.value)) {
                let out = &mut unit.out[row][column..column + call.v_dim];
                out.copy_from_slice(&from[..call.v_dim]);
                call.skip(self.kernels, unit.tokens.start + row, head, out);
            }
        }
        self.update(chunk, count, state);
    }

    /// The products of decays, and the values times their factors unless there is a delta rule.
    fn gates(&self, of: &mut HeadChunk<'_>, first: usize, head: usize, count: usize) {
        let (call, stride, mut total) = (self.call, padded(CHUNK), 1.0f32);
        for index in 0..count {
            let gate = call.gate(self.kernels, first + index, head);
            total = kept(total * gate.decay);
            of.totals[index] = total;
            let (before, row) = of.decays.split_at_mut(index * stride);
            if index > 0 {
                let before = &before[(index - 1) * stride..][..index];
                wide::scale_kept(self.kernels, row, before, gate.decay, DECAY_MIN);
            }
            row[index] = 1.0;
            if call.beta.is_none() {
                let value = call.value.part(first + index, head * call.v_dim, call.v_dim);
                let added = &mut of.added[index * self.pad.value..];
                wide::scale(self.kernels, added, value, gate.value);
            }
        }
    }

    /// Turns R into the right side of the system, and writes the system's negative rows to `weights`.
    fn left(&self, of: &mut HeadChunk<'_>, first: usize, head: usize, count: usize) {
        let call = self.call;
        for index in 0..count {
            let beta = call.beta(first + index, head).unwrap_or(1.0);
            let value = call.value.part(first + index, head * call.v_dim, call.v_dim);
            let (row, total) = (&mut of.added[index * self.pad.value..], of.totals[index]);
            wide::left(self.kernels, row, value, beta, total);
        }
    }

    /// Solves the triangular system, block by block; the solution is also in panels then.
    fn solve(&self, of: &mut HeadChunk<'_>, scores: &[f32], first: usize, head: usize, count: usize) {
        let (stride, wide) = (padded(CHUNK), self.pad.value);
        for index in 0..count {
            let beta = self.call.beta(first + index, head).unwrap_or(1.0);
            let of_row = index * stride..index * stride + index;
            let weights = &mut of.weights[of_row.clone()];
            wide::product(self.kernels, weights, &of.decays[of_row.clone()], &scores[of_row], -beta);
        }
        for block in blocks(count, SOLVED) {
            let start = block.start;
            let rows = matrix(&of.weights[start * stride..], stride, block.len());
            if start > 0 {
                let out = &mut MatrixMut { floats: &mut of.added[start * wide..], stride: wide };
                self.tiles.product(rows, &of.added_rows, 0..start, wide, out, true);
            }
            for index in block.clone().skip(1) {
                let (solved, row) = of.added.split_at_mut(index * wide);
                let solved = tile(&solved[start * wide..], wide, index - start, self.call.v_dim);
                let weights = matrix(&of.weights[index * stride + start..], stride, 1);
                self.tiles.weigh(weights, solved, &mut MatrixMut { floats: row, stride: wide });
            }
            let solved = tile(&of.added[start * wide..], wide, block.len(), self.call.v_dim);
            self.tiles.lay_values(solved, start, &mut of.added_rows);
        }
    }

    /// The outputs of one query head.
    fn attend(&self, of: &mut HeadChunk<'_>, queries: &[f32], scores: &[f32], count: usize) {
        let (stride, wide) = (padded(CHUNK), self.pad.value);
        let out = &mut MatrixMut { floats: of.out, stride: wide };
        self.tiles.product(matrix(queries, self.pad.key, count), &of.state, 0..self.call.k_dim, wide, out, false);
        for block in blocks(count, BLOCK) {
            for index in block.clone() {
                let of_row = index * stride..index * stride + block.end;
                let weights = &mut of.weights[of_row.clone()];
                wide::product(self.kernels, &mut weights[..=index], &of.decays[of_row.clone()], &scores[of_row], 1.0);
                weights[index + 1..].fill(0.0);
                let total = of.totals[index];
                self.tiles.scale_all(&mut out.floats[index * wide..(index + 1) * wide], total);
            }
            let rows = matrix(&of.weights[block.start * stride..], stride, block.len());
            let part = &mut MatrixMut { floats: &mut out.floats[block.start * wide..], stride: wide };
            self.tiles.product(rows, &of.added_rows, 0..block.end, wide, part, true);
        }
    }

    /// The state after the chunk.
    fn update(&self, chunk: &mut Chunk<'_>, count: usize, state: &mut [f32]) {
        let (of, wide) = (&mut chunk.head, self.pad.value);
        let last = (count - 1) * padded(CHUNK);
        for (row, decay) in of.added.chunks_exact_mut(wide).zip(&of.decays[last..last + count]) {
            self.tiles.scale_all(row, *decay);
        }
        let total = of.totals[count - 1];
        self.tiles.scale_all(state, total);
        let added = tile(of.added, wide, count, self.call.v_dim);
        // The rows of the state, as columns of panels, and the other factor.
        let (columns, others) = match self.call.major {
            Major::Key => {
                self.tiles.lay_values(added, 0, &mut of.added_rows);
                (&chunk.key_columns, &of.added_rows)
            }
            Major::Value => {
                self.tiles.lay_keys(added, 0, &mut of.added_columns);
                (&of.added_columns, &chunk.key_rows)
            }
        };
        let (width, stride) = self.state_row();
        let (panel, rows) = (self.tiles.panel, state.len() / stride);
        for first in (0..count).step_by(panel) {
            let left = matrix(&columns.floats[first * columns.rows..], panel, rows);
            let inner = first..(first + panel).min(count);
            let out = &mut MatrixMut { floats: &mut *state, stride };
            self.tiles.product(left, others, inner, padded(width), out, true);
        }
    }
}

/// 0 in place of a product of decays that is too small.
fn kept(product: f32) -> f32 {
    if product < DECAY_MIN { 0.0 } else { product }
}

/// Ranges of `size` rows, the last one shorter.
fn blocks(count: usize, size: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(size).map(move |first| first..(first + size).min(count))
}

fn matrix(floats: &[f32], stride: usize, count: usize) -> Matrix<'_> {
    Matrix { floats, stride, count }
}

fn tile(floats: &[f32], stride: usize, count: usize, dim: usize) -> TileRows<'_> {
    TileRows::new(Elements::F32, bytemuck::cast_slice(floats), 4 * stride, count, dim)
}
