//! What the closure of a captured step calls: rows in, attention out, and where the tokens stand.

use candle_core::Tensor;
use kvtide_core::counted;
use kvtide_cuda::{Stream, advance};

use super::memory::{GroupMemory, LayerAt, StepMemory};
use super::tensors::GraphTensors;
use crate::attention::{AttendOptions, attend_captured};
use crate::base::error::{Error, Result};
use crate::device::edit::{identity, launch};
use crate::paged::{Expected, TokenRows, insert, not_written};
use crate::tensor::source::Source;

/// One run of a captured step.
#[derive(Debug)]
pub struct StepRecorder<'r> {
    stream: &'r Stream,
    memory: &'r StepMemory,
    tensors: &'r mut GraphTensors,
    /// Of each group.
    written: Vec<Vec<bool>>,
}

impl<'r> StepRecorder<'r> {
    pub(super) fn new(stream: &'r Stream, memory: &'r StepMemory, tensors: &'r mut GraphTensors) -> Self {
        let written = memory.groups.iter().map(|group| vec![false; group.layers]).collect();
        StepRecorder { stream, memory, tensors, written }
    }

    /// Where the step's tokens stand: a number for each sequence, `u32`, which the device moves on behind each step. To be read by
    /// the model's own operations, as that which rotates keys.
    pub fn positions(&self) -> Result<Tensor> {
        Ok(self.memory.lengths.get(0)?)
    }

    /// Writes a layer's tokens: K and V `[kvHeads, sequences, headDim]`, tensors of the cache's device whose rows have no gaps.
    pub fn write(&mut self, layer: u32, k: &Tensor, v: &Tensor) -> Result<()> {
        let at = self.layer(layer)?;
        if !at.is_own {
            return Err(Error::argument("layer", layer, "a layer of its own keys and values"));
        }
        let group = &self.memory.groups[at.group];
        let [key, value] = group.expected;
        let rows = [self.rows("k", k, key, group)?, self.rows("v", v, value, group)?];
        insert(self.stream, &group.slab, at.index, &self.memory.numbers(at.group), [(&rows[0], k), (&rows[1], v)])?;
        self.tensors.add(k);
        self.tensors.add(v);
        self.written[at.group][at.index as usize] = true;
        Ok(())
    }

    /// Attends from a layer's queries, `[sequences, heads, headDim]`, to what it holds, the step's tokens included; the result goes to
    /// `out`. Scale, soft cap, window and sinks are the model's or the cache's, unless `options` say otherwise.
    ///
    /// Masks, trees, starts, positions and offsets of queries are refused, and so is a window wider than the cache's.
    pub fn attend(&mut self, layer: u32, q: &Tensor, options: &AttendOptions<'_>, out: &Tensor) -> Result<()> {
        let at = self.layer(layer)?;
        if !self.written[at.group][at.index as usize] {
            return Err(not_written());
        }
        let options = at.rules.or(options, false);
        let group = &self.memory.groups[at.group];
        check_window(group, &options)?;
        let numbers = self.memory.numbers(at.group);
        attend_captured(self.stream, (&group.slab, at.index), &numbers, (q, out), &options)?;
        self.tensors.add(q);
        self.tensors.add(out);
        Ok(())
    }

    /// What the model computes where the CPU stands in for a GPU: done now, or by each replay.
    #[cfg(feature = "emulate")]
    pub fn compute(&mut self, work: impl Fn() + Send + 'static) {
        self.stream.work(work);
    }

    /// Moves the device's lengths on, once every layer was written.
    pub(super) fn finish(self) -> Result<()> {
        let is_missing = |at: &LayerAt| at.is_own && !self.written[at.group][at.index as usize];
        let layers: Vec<usize> =
            (0..self.memory.layers.len()).filter(|&layer| is_missing(&self.memory.layers[layer])).collect();
        if !layers.is_empty() {
            return Err(Error::StepIncomplete { layers });
        }
        launch(&self.memory.lengths, &[], |lengths, _| Ok(advance(self.stream, lengths, 2 * self.memory.sequences, 1)?))
    }

    fn layer(&self, layer: u32) -> Result<LayerAt> {
        let layers = &self.memory.layers;
        let found = layers.get(layer as usize).copied();
        found.ok_or_else(|| Error::argument("layer", layer, format!("below {}", layers.len())))
    }

    /// K or V as rows that lie where they are read.
    fn rows<'k>(
        &self,
        argument: &'static str,
        tensor: &'k Tensor,
        expected: Expected,
        group: &GroupMemory,
    ) -> Result<TokenRows<'k>> {
        let rows = TokenRows::new(&Source::Tensor(tensor), argument, expected)?;
        rows.check_device(argument, group.slab.tensor.device())?;
        if rows.tokens as usize != self.memory.sequences {
            let expected = format!("{}, one of each sequence", counted(self.memory.sequences as u64, "token"));
            return Err(Error::ShapeMismatch { argument, value: tensor.dims().to_vec(), expected });
        }
        // What is copied for a call is gone when it is replayed.
        if rows.tensor().is_none_or(|found| identity(found) != identity(tensor)) {
            return Err(Error::argument(argument, "rows with gaps", "rows whose elements are neighbours"));
        }
        Ok(rows)
    }
}

/// Refuses a window that shows more than the cache keeps.
fn check_window(group: &GroupMemory, options: &AttendOptions<'_>) -> Result<()> {
    let Some(kept) = group.window else { return Ok(()) };
    match options.window {
        Some(window) if window <= kept.tokens() && options.sinks <= kept.sinks() => Ok(()),
        Some(window) if window <= kept.tokens() => {
            Err(Error::argument("sinks", options.sinks, format!("at most {}, which the cache keeps", kept.sinks())))
        }
        window => {
            let expected = format!("at most {}, which the cache keeps", kept.tokens());
            Err(match window {
                Some(window) => Error::argument("window", window, expected),
                None => Error::argument("window", "none", expected),
            })
        }
    }
}
