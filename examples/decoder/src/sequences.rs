//! The [`Cache`] of a model on sequences of a [`PagedKvCache`], decoded as one batch.
//!
//! Each row is a sequence; rows may have different lengths, and share the blocks of common prefixes. The cache is borrowed
//! while they are decoded; its sequences can be forked, truncated or restored in between.

use candle_core::Tensor;
use kvtide_tensor::{PagedKvCache, PagedStep, StepTokens};

use crate::cache::Cache;
use crate::error::{Error, Result};

/// Sequences of a cache that are decoded together.
#[derive(Debug)]
pub struct Sequences<'c> {
    cache: &'c mut PagedKvCache,
    ids: Vec<u64>,
    step: Option<(PagedStep, Vec<u32>)>,
}

impl<'c> Sequences<'c> {
    /// Makes a batch of these sequences, one row each.
    pub fn new(cache: &'c mut PagedKvCache, ids: &[u64]) -> Self {
        Sequences { cache, ids: ids.to_vec(), step: None }
    }

    /// Returns the ids of the sequences.
    #[must_use]
    pub fn ids(&self) -> &[u64] {
        &self.ids
    }

    /// Returns the cache.
    #[must_use]
    pub fn cache(&mut self) -> &mut PagedKvCache {
        self.cache
    }

    fn open(&mut self) -> Result<(&mut PagedKvCache, &mut PagedStep)> {
        match &mut self.step {
            Some((step, _)) => Ok((self.cache, step)),
            None => Err(Error::step("no step is open")),
        }
    }
}

impl Cache for Sequences<'_> {
    fn rows(&self) -> usize {
        self.ids.len()
    }

    fn begin(&mut self, tokens: &[u32]) -> Result<Vec<u32>> {
        if self.step.is_some() {
            return Err(Error::step("the previous step was not committed"));
        }
        let each = tokens.len() / self.rows();
        let offsets: Vec<u32> = (0..=self.ids.len()).map(|row| (row * each) as u32).collect();
        let positions = |&id: &u64| (0..each as u32).map(move |at| (id, at));
        let positions: Vec<_> = self.ids.iter().flat_map(positions).collect();
        let positions = positions.into_iter().map(|(id, at)| self.cache.sequence_length(id) + at).collect();
        let of = StepTokens { sequences: &self.ids, offsets: Some(&offsets), parents: None };
        self.step = Some((self.cache.begin_step(of)?, tokens.to_vec()));
        Ok(positions)
    }

    fn write(&mut self, layer: usize, k: &Tensor, v: &Tensor) -> Result<()> {
        let (cache, step) = self.open()?;
        let flat = |x: &Tensor| -> Result<Tensor> {
            let (rows, heads, tokens, dim) = x.dims4()?;
            Ok(x.transpose(0, 1)?.reshape((heads, rows * tokens, dim))?)
        };
        Ok(cache.write_layer(step, layer as u32, &flat(k)?, &flat(v)?)?)
    }

    fn attend(&mut self, layer: usize, q: &Tensor) -> Result<Tensor> {
        let (cache, step) = self.open()?;
        let (rows, heads, tokens, dim) = q.dims4()?;
        let q = q.transpose(1, 2)?.reshape((rows * tokens, heads, dim))?;
        let out = cache.attend_layer(step, layer as u32, &q, &Default::default())?.out.tensor()?;
        let dim = out.dim(2)?;
        Ok(out.reshape((rows, tokens, heads, dim))?.transpose(1, 2)?)
    }

    fn commit(&mut self) -> Result<()> {
        let Some((mut step, tokens)) = self.step.take() else { return Err(Error::step("no step is open")) };
        Ok(self.cache.commit_step(&mut step, Some(&tokens))?)
    }
}
