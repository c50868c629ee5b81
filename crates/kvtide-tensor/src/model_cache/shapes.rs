//! One sequence's tokens as both kinds of a model's cache take them: with a batch of one before them, or without.
//!
//! ```text
//! K, V       [kvHeads, tokens, headDim]      or [1, kvHeads, tokens, headDim]
//! queries    [tokens, heads, headDim]        or [1, heads, tokens, headDim]; what is answered is of the same shape
//! ```

use std::borrow::Cow;

use candle_core::Tensor;

use crate::attention::{AttendOptions, Attended, KvRows, Room, attend, attend_with};
use crate::error::Result;
use crate::memory::Budget;
use crate::source::Source;
use crate::view::View;

/// A source, or a tensor that was made of it.
#[derive(Debug)]
pub(super) enum Shaped<'a> {
    Given(Source<'a>),
    Made(Cow<'a, Tensor>),
}

impl<'a> Shaped<'a> {
    pub fn source(&self) -> Source<'_> {
        match self {
            Shaped::Given(source) => source.clone(),
            Shaped::Made(tensor) => Source::Tensor(tensor),
        }
    }

    /// Keys or values with a batch before them.
    pub fn batched(source: Source<'a>) -> Result<Self> {
        if source.rank() != 3 {
            return Ok(Shaped::Given(source));
        }
        Ok(match source {
            Source::Host(host) => Shaped::Given(Source::Host(host.with_batch())),
            Source::Tensor(tensor) => Shaped::Made(Cow::Owned(tensor.unsqueeze(0)?)),
            Source::View(view) => Shaped::Made(Cow::Owned(view.tensor()?.unsqueeze(0)?)),
        })
    }
}

/// Queries of one call.
#[derive(Debug)]
pub(super) struct Queries<'a> {
    shaped: Shaped<'a>,
    /// Whether the batch was taken away, or was put before them.
    changed: bool,
}

impl<'a> Queries<'a> {
    pub fn source(&self) -> Source<'_> {
        self.shaped.source()
    }

    /// Attends, and answers in the shape in which the queries came.
    pub fn attend(&self, kv: KvRows<'_>, options: &AttendOptions<'_>) -> Result<Attended> {
        restored(attend(self.source(), kv, options)?, self)
    }

    /// The same, into memory that `take` gives.
    pub fn attend_with<'o>(
        &self,
        kv: KvRows<'_>,
        options: &AttendOptions<'_>,
        take: impl FnOnce(&Room) -> Result<(&'o mut [u8], &'o mut [f32])>,
    ) -> Result<()> {
        if !self.changed {
            return attend_with(self.source(), kv, options, take);
        }
        let Attended { out, lse } = self.attend(kv, options)?;
        let room = Room { shape: out.shape().to_vec(), dtype: out.dtype(), sums: lse.len() };
        let (bytes, sums) = take(&room)?;
        room.check(bytes, sums)?;
        out.read_into(bytes)?;
        sums.copy_from_slice(&lse);
        Ok(())
    }

    /// `[tokens, heads, dim]`, whatever they were.
    pub fn tokens_first(source: &Source<'a>) -> Result<Self> {
        let changed = source.rank() == 4 && source.dims()[0] == 1;
        let shaped = match source {
            _ if !changed => Shaped::Given(source.clone()),
            Source::Host(host) => Shaped::Given(Source::Host(host.clone().without_batch())),
            Source::Tensor(tensor) => Shaped::Made(Cow::Owned(tensor.squeeze(0)?.transpose(0, 1)?)),
            Source::View(view) => Shaped::Made(Cow::Owned(view.tensor()?.squeeze(0)?.transpose(0, 1)?)),
        };
        Ok(Queries { shaped, changed })
    }

    /// `[batch, heads, tokens, dim]`, whatever they were.
    pub fn batched(source: &Source<'a>) -> Result<Self> {
        let changed = source.rank() == 3;
        let shaped = match source {
            _ if !changed => Shaped::Given(source.clone()),
            Source::Host(host) => Shaped::Given(Source::Host(host.clone().with_batch().swapped())),
            Source::Tensor(tensor) => Shaped::Made(Cow::Owned(tensor.transpose(0, 1)?.unsqueeze(0)?)),
            Source::View(view) => Shaped::Made(Cow::Owned(view.tensor()?.transpose(0, 1)?.unsqueeze(0)?)),
        };
        Ok(Queries { shaped, changed })
    }
}

/// What attention answered, in the shape in which the queries came.
fn restored(attended: Attended, queries: &Queries<'_>) -> Result<Attended> {
    if !queries.changed {
        return Ok(attended);
    }
    let out = attended.out.tensor()?;
    let out = match out.rank() {
        3 => out.transpose(0, 1)?.unsqueeze(0)?,
        _ => out.squeeze(0)?.transpose(0, 1)?,
    };
    Ok(Attended { out: View::from_tensor(&out, &Budget::process())?, lse: attended.lse })
}
