//! A thread's memory for a unit of work: the rows, their softmax so far, and the current tile.
//!
//! It takes a few hundred KiB per thread and is kept from call to call. Rows are padded to whole vectors.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use super::job::Scales;
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::kernels::tile::{Elements, Panels, TileKernels, TileRows, padded};

/// The number of keys in a tile.
pub(super) const TILE: usize = 128;

/// The distance from one row of scores to the next in floats: the tile, and room for a segment whose length is no multiple
/// of four.
pub(super) const SCORES: usize = TILE + 16;

/// The rows of one unit, and the current tile.
#[derive(Default)]
pub(super) struct Scratch {
    pub queries: Floats,
    /// The queries, rotated like keys of low-bit pages.
    pub rotated: Floats,
    /// The queries times the channel scales of a block.
    pub scaled: Floats,
    pub out: Floats,
    pub scores: Floats,
    /// Rows of a segment as floats.
    pub wide: Floats,
    /// Keys or values of the tile in panels, for products with many rows.
    pub panels: Floats,
    /// The channel scales and minimums of a block.
    pub channels: [Floats; 2],
    /// The scales of the tile's keys, and the scales and minimums of its values.
    pub of_tile: [Floats; 3],
    /// The largest score of each row, its sum of weights, and the bias of its output.
    pub state: Vec<State>,
    /// For rows that do not attend to the whole tile, one bit for each key that the row attends to.
    pub shown: Vec<u128>,
}

/// Floats that are aligned to a cache line: a vector across two lines takes twice as long.
#[derive(Default)]
pub(super) struct Floats {
    all: Vec<f32>,
    /// The number of floats before the aligned start.
    lead: usize,
}

impl Floats {
    const LINE: usize = 64;

    /// Makes room for `count` floats with arbitrary content.
    fn reserve(&mut self, count: usize) -> Result<()> {
        if self.len() < count {
            let mut all = Vec::new();
            let room = count + Self::LINE / size_of::<f32>();
            all.try_reserve_exact(room).map_err(|_| Budget::process().refusal(4 * room as u64))?;
            all.resize(room, 0.0);
            self.lead = all.as_ptr().align_offset(Self::LINE).min(room - count);
            self.all = all;
        }
        Ok(())
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.all[self.lead..]
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.all[self.lead..]
    }
}

/// The running softmax of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct State {
    /// The largest score so far.
    pub max: f32,
    /// The sum of `e^(score - max)`.
    pub sum: f32,
    /// The number to be added to each element of the output.
    pub bias: f32,
}

impl State {
    /// The state before any key.
    pub const EMPTY: State = State { max: f32::NEG_INFINITY, sum: 0.0, bias: 0.0 };
}

impl Scratch {
    /// Runs `work` with this thread's memory, which is grown for this many rows.
    pub fn with<T>(
        rows: usize,
        dim: usize,
        value_dim: usize,
        work: impl FnOnce(&mut Scratch) -> Result<T>,
    ) -> Result<T> {
        thread_local! {
            static SCRATCH: RefCell<Scratch> = RefCell::default();
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.reserve(rows, dim, value_dim)?;
            work(scratch)
        })
    }

    fn reserve(&mut self, rows: usize, dim: usize, value_dim: usize) -> Result<()> {
        let [of_keys, of_values, of_tiles] = &mut self.of_tile;
        let [scales, minimums] = &mut self.channels;
        let wanted = [
            (&mut self.queries, rows * padded(dim)),
            (&mut self.rotated, rows * padded(dim)),
            (&mut self.scaled, rows * padded(dim)),
            (&mut self.out, rows * padded(value_dim)),
            (&mut self.scores, rows * SCORES),
            (&mut self.wide, TILE * padded(dim.max(value_dim))),
            (&mut self.panels, Panels::floats(padded(dim), TILE).max(Panels::floats(TILE, padded(value_dim)))),
            (scales, padded(dim)),
            (minimums, padded(dim)),
            (of_keys, SCORES),
            (of_values, SCORES),
            (of_tiles, SCORES),
        ];
        for (floats, count) in wanted {
            floats.reserve(count)?;
        }
        if self.state.len() < rows {
            self.state.try_reserve(rows).map_err(|_| Budget::process().refusal(12 * rows as u64))?;
            self.state.resize(rows, State::EMPTY);
        }
        if self.shown.len() < rows {
            self.shown.try_reserve(rows).map_err(|_| Budget::process().refusal(16 * rows as u64))?;
            self.shown.resize(rows, 0);
        }
        Ok(())
    }
}

/// Rows in a form that the kernels read: rows with unsupported codes, and those with channel scales, are widened to floats
/// in `wide`.
pub(super) fn widened<'t>(
    kernels: &TileKernels,
    rows: TileRows<'t>,
    channels: Option<[&[f32]; 2]>,
    wide: &'t mut [f32],
) -> TileRows<'t> {
    if rows.elements.is_direct(rows.dim) && channels.is_none() {
        return rows;
    }
    let stride = padded(rows.dim);
    for (row, floats) in wide.chunks_exact_mut(stride).enumerate().take(rows.count) {
        kernels.widen(rows, row, floats);
        if let Some([scales, minimums]) = channels {
            for ((float, scale), minimum) in floats.iter_mut().zip(scales).zip(minimums).take(rows.dim) {
                *float = *float * scale + minimum;
            }
        }
    }
    TileRows::new(Elements::F32, bytemuck::cast_slice(wide), 4 * stride, rows.count, rows.dim)
}

/// The scales and minimums of a head's channels.
pub(super) fn of_channels<'t>(
    scales: Scales<'_>,
    dim: usize,
    [factors, minimums]: &'t mut [Floats; 2],
) -> [&'t [f32]; 2] {
    let (factors, minimums) = (&mut factors[..padded(dim)], &mut minimums[..padded(dim)]);
    scales.of_channels(dim, factors, minimums);
    [factors, minimums]
}
