//! Sequences of a [`ModelCache`], decoded side by side: what the model writes and reads goes to them.
//!
//! ```text
//! in blocks    a row is a sequence of its own; rows may be of any lengths, and share what they have in common
//! in tensors   all rows are one sequence; a shorter one is padded on the left, and its padding hidden by `starts`
//! ```
//!
//! The cache is borrowed for as long as they are decoded, and can be forked, truncated or restored in between.

use candle_core::Tensor;
use kvtide_tensor::{AttendOptions, ModelCache, ModelStep, StepTokens};

use crate::cache::Cache;
use crate::error::{Error, Result};

/// Some sequences of a cache.
#[derive(Debug)]
pub struct Sequences<'c> {
    cache: &'c mut ModelCache,
    ids: Vec<u64>,
    /// The first slot of each row that is no padding, where all rows are one sequence.
    starts: Option<Vec<i32>>,
    step: Option<(ModelStep, Vec<u32>)>,
}

impl<'c> Sequences<'c> {
    /// Sequences in blocks, a row each.
    pub fn new(cache: &'c mut ModelCache, ids: &[u64]) -> Self {
        Sequences { cache, ids: ids.to_vec(), starts: None, step: None }
    }

    /// One sequence in tensors, a row for each of `paddings`: tokens in front of it that are none.
    pub fn padded(cache: &'c mut ModelCache, id: u64, paddings: &[u32]) -> Self {
        let starts = paddings.iter().map(|&padding| padding as i32).collect();
        Sequences { cache, ids: vec![id], starts: Some(starts), step: None }
    }

    /// The sequences, by their numbers.
    #[must_use]
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// The cache.
    #[must_use]
    pub fn cache(&mut self) -> &mut ModelCache {
        self.cache
    }

    /// The positions of so many new tokens in each row.
    fn positions(&self, tokens: usize) -> Vec<u32> {
        let length = |id: &u64| self.cache.sequence_length(*id);
        match &self.starts {
            Some(starts) => {
                let first = length(&self.ids[0]);
                let of_row = |&start: &i32| (0..tokens as u32).map(move |at| (first + at).saturating_sub(start as u32));
                starts.iter().flat_map(of_row).collect()
            }
            None => self.ids.iter().flat_map(|id| (0..tokens as u32).map(move |at| length(id) + at)).collect(),
        }
    }

    fn open(&mut self) -> Result<(&mut ModelCache, &mut ModelStep)> {
        match &mut self.step {
            Some((step, _)) => Ok((self.cache, step)),
            None => Err(Error::step("none was begun")),
        }
    }

    /// True when each row is a sequence of its own, and there are several.
    fn is_ragged(&self) -> bool {
        self.starts.is_none() && self.ids.len() > 1
    }
}

impl Cache for Sequences<'_> {
    fn rows(&self) -> usize {
        self.starts.as_ref().map_or(self.ids.len(), Vec::len)
    }

    fn begin(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        if self.step.is_some() {
            return Err(Error::step("the last one was not committed"));
        }
        let each = tokens.len() / self.rows();
        let offsets: Vec<u32> = (0..=self.ids.len()).map(|row| (row * each) as u32).collect();
        let positions = self.positions(each);
        let of = StepTokens { sequences: &self.ids, offsets: Some(&offsets), parents: None };
        self.step = Some((self.cache.begin_step(of)?, tokens.to_vec()));
        Ok(positions)
    }

    fn write(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()> {
        let ragged = self.is_ragged();
        let (cache, step) = self.open()?;
        let flat = |x: &Tensor| -> Result<Tensor> {
            let (rows, heads, tokens, dim) = x.dims4()?;
            Ok(x.transpose(0, 1)?.reshape((heads, rows * tokens, dim))?)
        };
        match ragged {
            true => cache.write_layer(step, layer as u32, &flat(k)?, &flat(v)?)?,
            false => cache.write_layer(step, layer as u32, k, v)?,
        }
        Ok(())
    }

    fn attend(&mut self, layer: usize, q: &Tensor) -> Result<Tensor> {
        let (ragged, starts) = (self.is_ragged(), self.starts.clone());
        let padded = starts.filter(|starts| starts.iter().any(|&start| start > 0));
        let (cache, step) = self.open()?;
        let options = AttendOptions { starts: padded.as_deref(), ..Default::default() };
        if !ragged {
            return Ok(cache.attend_layer(step, layer as u32, q, &options)?.out.tensor()?);
        }
        let (rows, heads, tokens, dim) = q.dims4()?;
        let q = q.transpose(1, 2)?.reshape((rows * tokens, heads, dim))?;
        let out = cache.attend_layer(step, layer as u32, &q, &options)?.out.tensor()?;
        let dim = out.dim(2)?;
        Ok(out.reshape((rows, tokens, heads, dim))?.transpose(1, 2)?)
    }

    fn commit(&mut self) -> Result<()> {
        let Some((mut step, tokens)) = self.step.take() else { return Err(Error::step("none was begun")) };
        let known = self.starts.is_none().then_some(tokens.as_slice());
        Ok(self.cache.commit_step(&mut step, known)?)
    }
}
