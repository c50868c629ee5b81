//! Appends tokens of all layers in one call.
//!
//! ```text
//! one tensor of all layers    one group: planned, moved and committed as one write
//! layer by layer              check the sequences and every layer -> begin_step -> write_layer, each -> commit_step
//! ```
//!
//! Beginning a step may evict cached blocks and copy shared ones, so the caller's arguments are checked before it. O(tokens)
//! in every layer.

use kvtide_core::paged::{Append, Writer};
use kvtide_core::{TransactionId, counted};

use super::cache::PagedKvCache;
use crate::base::error::{Error, Result};
use crate::paged::{StepTokens, check_ids};
use crate::tensor::source::Source;

/// Tokens of all layers for one sequence.
#[derive(Clone, Debug)]
pub struct Tokens<'a> {
    /// Their keys and values.
    pub kv: TokensKv<'a>,
    /// For each token the index of the token of the transaction that it follows, as in [`StepTokens::parents`].
    pub parents: Option<&'a [i32]>,
    /// The token ids, if known: prompts can then hit full blocks of them.
    pub ids: Option<&'a [u32]>,
}

/// Keys and values of all layers.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each call, and it is not moved")]
pub enum TokensKv<'a> {
    /// K and V `[layers, kvHeads, tokens, headDim]`, if all layers have the same sizes.
    All([Source<'a>; 2]),
    /// K and V of each layer that stores its own, as for [`PagedKvCache::write_layer`].
    Layers(&'a [[Source<'a>; 2]]),
}

impl<'a> Tokens<'a> {
    /// Tokens in one tensor of all layers.
    pub fn of_all(k: impl Into<Source<'a>>, v: impl Into<Source<'a>>) -> Self {
        Tokens { kv: TokensKv::All([k.into(), v.into()]), parents: None, ids: None }
    }

    /// Tokens layer by layer.
    #[must_use]
    pub fn of_layers(layers: &'a [[Source<'a>; 2]]) -> Self {
        Tokens { kv: TokensKv::Layers(layers), parents: None, ids: None }
    }
}

impl PagedKvCache {
    /// Appends tokens of all layers to sequences: K and V `[layers, kvHeads, tokens, headDim]`. Sequence i gets the tokens
    /// `offsets[i]..offsets[i + 1]`; one token each without offsets. A call that fails appends nothing.
    ///
    /// ```
    /// use kvtide_tensor::{DType, HostTensor, PagedKvCache, PagedKvCacheOptions};
    ///
    /// let options = PagedKvCacheOptions { capacity: 8, num_layers: 2, head_dim: 2, ..Default::default() };
    /// let mut cache = PagedKvCache::new(options)?;
    /// let (one, other) = (cache.create_sequence()?, cache.create_sequence()?);
    /// let zeros = vec![0; 2 * 3 * 2 * 4];
    /// let tokens = || HostTensor::new("k", &zeros, DType::F32, &[2, 1, 3, 2]);
    /// cache.append(&[one, other], tokens()?, tokens()?, Some(&[0, 2, 3]))?;
    /// assert_eq!((cache.sequence_length(one), cache.sequence_length(other)), (2, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn append<'a>(
        &mut self,
        sequences: &[u64],
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        offsets: Option<&[u32]>,
    ) -> Result<()> {
        self.append_known(sequences, k, v, offsets, None)
    }

    /// Like [`append`](Self::append), with token ids: prompts can hit full blocks of them from then on.
    pub fn append_known<'a>(
        &mut self,
        sequences: &[u64],
        k: impl Into<Source<'a>>,
        v: impl Into<Source<'a>>,
        offsets: Option<&[u32]>,
        ids: Option<&[u32]>,
    ) -> Result<()> {
        let append = Append { sequences, offsets, parents: None, writer: Writer::Direct };
        self.one_group("k")?.append_rows(&append, [k.into(), v.into()], ids)
    }

    /// Appends tokens to a sequence; a call that fails appends nothing. While a transaction is open, only that transaction
    /// can append: pass it as `draft`.
    pub fn append_to(&mut self, sequence: u64, draft: Option<TransactionId>, tokens: Tokens<'_>) -> Result<()> {
        let Tokens { kv, parents, ids } = tokens;
        let layers = match kv {
            TokensKv::All(sources) => {
                let writer = draft.map_or(Writer::Direct, Writer::Draft);
                return self.one_group("k")?.append_to(sequence, writer, sources, parents, ids);
            }
            TokensKv::Layers(layers) => layers,
        };
        self.check_stateless("layers")?;
        match draft {
            Some(draft) => self.check_draft(sequence, draft)?,
            None => self.check_idle(sequence)?,
        }
        let count = layers.first().map_or(0, |[k, _]| k.tokens());
        let count = u32::try_from(count)
            .map_err(|_| Error::argument("k", counted(count as u64, "token"), "at most 2^32 - 1"))?;
        check_ids(ids, count)?;
        if let Some(parents) = parents
            && parents.len() != count as usize
        {
            return Err(Error::argument("parents.length", parents.len(), format!("{count}, one for each token")));
        }
        self.append_layers(StepTokens { sequences: &[sequence], offsets: Some(&[0, count]), parents }, layers, ids)
    }

    /// Appends tokens to sequences layer by layer: K and V of each layer that stores its own, as for
    /// [`PagedKvCache::write_layer`]; a call that fails appends nothing. `ids` are the token ids, if known.
    pub fn append_layers(
        &mut self,
        tokens: StepTokens<'_>,
        layers: &[[Source<'_>; 2]],
        ids: Option<&[u32]>,
    ) -> Result<()> {
        self.check_stateless("layers")?;
        let own: Vec<u32> = self.own_layers().collect();
        if layers.len() != own.len() {
            let expected = format!("{}, one for each layer with keys and values of its own", own.len());
            return Err(Error::argument("layers.length", layers.len(), expected));
        }
        let count = tokens.count();
        check_ids(ids, count)?;
        for (index, (&layer, [k, v])) in own.iter().zip(layers).enumerate() {
            let group = self.group(self.place(layer)?);
            group.check_rows([k, v], count).map_err(|error| error.in_layer(index))?;
        }
        let mut step = self.begin_step(tokens)?;
        let mut written = || -> Result<()> {
            for (index, (&layer, [k, v])) in own.iter().zip(layers).enumerate() {
                let written = self.write_layer(&mut step, layer, k.clone(), v.clone());
                written.map_err(|error| error.in_layer(index))?;
            }
            self.commit_step(&mut step, ids)
        };
        match written() {
            Ok(()) => Ok(()),
            Err(refusal) => {
                // If this poisons the cache, the next call reports it.
                drop(self.undo_step(&mut step));
                Err(refusal)
            }
        }
    }
}
