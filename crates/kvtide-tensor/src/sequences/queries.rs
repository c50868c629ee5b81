//! Queries of one sequence as pages take them, `[tokens, heads, headDim]`, that came as `[1, heads, tokens, headDim]`; what is answered
//! is of the same shape.

use std::borrow::Cow;

use candle_core::Tensor;

use crate::attention::{AttendOptions, Attended, KvRows, Room, attend, attend_with};
use crate::base::error::Result;
use crate::base::memory::Budget;
use crate::tensor::source::Source;
use crate::tensor::view::View;

/// A source, or a tensor that was made of it.
#[derive(Debug)]
enum Shaped<'a> {
    Given(Source<'a>),
    Made(Cow<'a, Tensor>),
}

/// Queries of one call.
#[derive(Debug)]
pub(super) struct Queries<'a> {
    shaped: Shaped<'a>,
    /// Whether a batch of one was taken away.
    changed: bool,
}

impl<'a> Queries<'a> {
    fn source(&self) -> Source<'_> {
        match &self.shaped {
            Shaped::Given(source) => source.clone(),
            Shaped::Made(tensor) => Source::Tensor(tensor),
        }
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
}

/// What attention answered, in the shape in which the queries came.
fn restored(attended: Attended, queries: &Queries<'_>) -> Result<Attended> {
    if !queries.changed {
        return Ok(attended);
    }
    let out = attended.out.tensor()?.transpose(0, 1)?.unsqueeze(0)?;
    Ok(Attended { out: View::from_tensor(&out, &Budget::process())?, lse: attended.lse })
}
