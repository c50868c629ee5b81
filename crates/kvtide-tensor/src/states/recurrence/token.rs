//! A recurrence token by token, by its formulas. A state is read once and written once for each token; with a delta rule,
//! it is read a second time from the nearest caches.

use super::{Gate, Gates, Major, Recurrence};
use crate::base::error::Result;
use crate::base::scratch::{LINE, with_floats};
use crate::device::form::Kernels;
use crate::kernels::Carrier;
use crate::kernels::states::matrix::{Across, Advance, Change, ROWS};
use crate::kernels::states::wide;
use crate::kernels::tile::{Ahead, Elements, Matrix, MatrixMut, TileKernels, TileRows, padded};
use crate::states::step::Unit;

/// Memory for one token.
struct Token<'a> {
    /// The key of the unit, and its queries.
    key: &'a mut [f32],
    queries: &'a mut [f32],
    /// The factors of the state's rows; the key times them.
    decays: &'a mut [f32],
    decayed: &'a mut [f32],
    /// The row that is added, times the key.
    added: &'a mut [f32],
    /// The row that a state holds for the key, padded.
    held: &'a mut [f32],
    /// Some rows of a state.
    rows: &'a mut [f32],
    /// The state of a head before the token, if that is where the new one goes.
    before: &'a mut [f32],
}

/// A unit's call.
pub(super) struct Walk<'a> {
    pub call: &'a Recurrence<'a>,
    pub kernels: Kernels,
    pub tiles: Option<&'static TileKernels>,
    /// Stores for states that are not read soon.
    pub carrier: Carrier,
}

/// One token of one head.
struct Head<'a> {
    head: usize,
    token: usize,
    source: Option<&'a [f32]>,
    target: &'a mut [f32],
    out: &'a mut [f32],
    carrier: Carrier,
}

impl Walk<'_> {
    pub fn run(&self, mut unit: Unit<'_>) -> Result<()> {
        let (call, k_dim, v_dim) = (self.call, self.call.k_dim, self.call.v_dim);
        let queries = call.query_heads(unit.heads.clone());
        let row = if call.major == Major::Key { v_dim } else { k_dim };
        // Stores past the caches are slow unless they fill their cache lines.
        let has_whole_lines = row.is_multiple_of(LINE) && unit.target.as_ptr().addr().is_multiple_of(4 * LINE);
        let before = if unit.source.is_none() || unit.tokens.len() > 1 { k_dim * v_dim } else { 0 };
        let lengths = [k_dim, queries.len() * k_dim, k_dim, k_dim, v_dim, padded(v_dim), ROWS * row, before];
        with_floats(lengths, |[key, query_rows, decays, decayed, added, held, rows, before]| {
            let mut memory = Token { key, queries: query_rows, decays, decayed, added, held, rows, before };
            let key_head = call.key_head(&unit);
            for (index, token) in unit.tokens.clone().enumerate() {
                call.prepare(self.kernels, call.key.part(token, key_head * k_dim, k_dim), 1.0, memory.key);
                for (query, to) in queries.clone().zip(memory.queries.chunks_exact_mut(k_dim)) {
                    call.prepare(self.kernels, call.query.part(token, query * k_dim, k_dim), call.scale, to);
                }
                let source = unit.source.filter(|_| index == 0);
                // A state is read again for the next token, and for a second query.
                let is_last = index + 1 == unit.tokens.len() && call.queries() == 1;
                let carrier = if is_last && has_whole_lines { self.carrier } else { Carrier::PLAIN };
                for (place, head) in unit.heads.clone().enumerate() {
                    let floats = place * k_dim * v_dim..(place + 1) * k_dim * v_dim;
                    let source = source.map(|source| &source[floats.clone()]);
                    let target = &mut unit.target[floats];
                    let out = &mut unit.out[index][place * call.queries() * v_dim..][..call.queries() * v_dim];
                    self.advance(Head { head, token, source, target, out, carrier }, queries.start, &mut memory);
                }
                unit.keep(index);
            }
            self.carrier.settle();
        })
    }

    /// Adds a token to the state of a head. `first_query` is the query head of the first row of queries.
    fn advance(&self, of: Head<'_>, first_query: usize, memory: &mut Token<'_>) {
        let Head { head, token, source, target, out, carrier } = of;
        let (call, kernels, k_dim, v_dim) = (self.call, self.kernels, self.call.k_dim, self.call.v_dim);
        let gate = call.gate(kernels, token, head);
        let value = call.value.part(token, head * v_dim, v_dim);
        memory.added.iter_mut().zip(value).for_each(|(added, value)| *added = gate.value * value);
        if source.is_none() {
            memory.before.copy_from_slice(target);
        }
        if call.major == Major::Key {
            self.decays(gate, token, head, memory);
        }
        let Token { key, queries, decays, decayed, added, held, rows, before } = memory;
        let source = source.unwrap_or(before);
        let of_head = call.query_heads(head..head + 1);
        let queries = &queries[(of_head.start - first_query) * k_dim..][..of_head.len() * k_dim];
        let (weights, others) = queries.split_at(k_dim);
        let (out, out_of_others) = out.split_at_mut(v_dim);
        if let Some(beta) = call.beta(token, head) {
            self.held(source, decayed, held);
            added.iter_mut().zip(&**held).for_each(|(added, held)| *added = beta * (*added - held));
        }
        let state = Change { source, target: &mut *target, rows, carrier };
        match call.major {
            Major::Key => {
                wide::advance(kernels, Advance { state, decays, key, added, weights, out: &mut *out });
                for (query, out) in others.chunks_exact(k_dim).zip(out_of_others.chunks_exact_mut(v_dim)) {
                    wide::weigh(kernels, target, query, out);
                }
            }
            Major::Value => {
                let decay = gate.decay;
                wide::across(kernels, Across { state, decay, key, values: added, weights, out: &mut *out });
            }
        }
        call.skip(kernels, token, head, out);
    }

    /// The row that a state holds for a key. The state comes from memory: it is prefetched.
    fn held(&self, state: &[f32], key: &[f32], held: &mut [f32]) {
        let (k_dim, v_dim) = (self.call.k_dim, self.call.v_dim);
        match self.tiles {
            Some(tiles) => {
                let rows = TileRows::new(Elements::F32, bytemuck::cast_slice(state), 4 * v_dim, k_dim, v_dim);
                held.fill(0.0);
                let out = &mut MatrixMut { stride: held.len(), floats: held };
                let weights = Matrix { floats: key, stride: k_dim, count: 1 };
                tiles.weigh(weights, TileRows { ahead: Ahead::STRAIGHT, ..rows }, out);
            }
            None => wide::weigh(self.kernels, state, key, &mut held[..v_dim]),
        }
    }

    /// The factors of the state's rows, and the key times them.
    fn decays(&self, gate: Gate, token: usize, head: usize, memory: &mut Token<'_>) {
        match self.call.gates {
            Gates::Keys(decay) => {
                memory.decays.copy_from_slice(decay.part(token, head * self.call.k_dim, self.call.k_dim));
                wide::exp(self.kernels, memory.decays);
            }
            _ => memory.decays.fill(gate.decay),
        }
        let rows = memory.decayed.iter_mut().zip(&*memory.decays).zip(&*memory.key);
        rows.for_each(|((decayed, decay), key)| *decayed = decay * key);
    }
}
