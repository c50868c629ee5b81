//! Snapshots of a rotating cache: taking one, restoring it, and going on from it in a new cache.

use kvtide_core::RotatingState;

use super::window::Rotating;
use crate::base::error::{Error, Result};
use crate::contiguous::HeldRows;
use crate::contiguous::options::RotatingCacheOptions;
use crate::tensor::buffer::RowShape;
use crate::tensor::resolved::Resolved;

/// What a rotating cache held at one moment. Immutable.
#[derive(Clone, Debug)]
pub struct RotatingSnapshot<const PARTS: usize> {
    options: RotatingCacheOptions,
    state: RotatingState,
    held: HeldRows,
    shape: Option<RowShape>,
}

impl<const PARTS: usize> RotatingSnapshot<PARTS> {
    /// Tokens that had ever been appended.
    #[must_use]
    pub fn current_seq_len(&self) -> u64 {
        self.state.current()
    }

    /// The window of its cache.
    #[must_use]
    pub fn max_seq_len(&self) -> u32 {
        self.options.max_seq_len
    }

    /// The sinks of its cache.
    #[must_use]
    pub fn sinks(&self) -> u32 {
        self.options.sinks
    }

    /// The axis of the sequence.
    #[must_use]
    pub fn dim(&self) -> usize {
        self.options.dim
    }

    /// Tokens that it keeps.
    #[must_use]
    pub fn retained_len(&self) -> u32 {
        self.state.retained()
    }
}

impl<const PARTS: usize> Rotating<PARTS> {
    /// What it holds now, whatever happens to it later.
    pub fn snapshot(&self) -> Result<RotatingSnapshot<PARTS>> {
        self.rows.check()?;
        let state = self.planner.settled();
        Ok(RotatingSnapshot {
            options: self.options.clone(),
            state,
            held: self.rows.hold(state.live()),
            shape: self.shape,
        })
    }

    /// Makes it hold again what `snapshot` saw: O(1) for a snapshot of its own, a copy for one of another cache.
    pub fn restore(&mut self, snapshot: &RotatingSnapshot<PARTS>) -> Result<()> {
        self.rows.check_undrafted()?;
        let refused = |reason| Err(kvtide_core::Error::SnapshotInvalid { reason }.into());
        let window = |options: &RotatingCacheOptions| (options.dim, options.max_seq_len, options.sinks);
        if window(&snapshot.options) != window(&self.options) {
            return refused("it is of a cache with another dim, maxSeqLen or sinks");
        }
        if let (Some(own), Some(theirs)) = (self.shape, snapshot.shape)
            && own != theirs
        {
            return refused("it is of a cache with another shape or dtype");
        }
        match &snapshot.held {
            None => self.planner.reset(),
            Some(held) if self.rows.owns(held) => {
                self.rows.restore(held)?;
                self.planner.commit(snapshot.state);
            }
            Some(_) => self.take_over(snapshot, &mut [], snapshot.state.current())?,
        }
        self.shape = self.shape.or(snapshot.shape);
        self.last = None;
        Ok(())
    }

    /// True when `tokens` more can follow `snapshot` here: as many tokens so far, the same window and sinks, and no more than they
    /// hold. Which tokens they are is not compared.
    #[must_use]
    pub fn can_append_from_snapshot(&self, snapshot: &RotatingSnapshot<PARTS>, tokens: u64) -> bool {
        snapshot.current_seq_len() == self.current_seq_len()
            && snapshot.max_seq_len() == self.max_seq_len()
            && snapshot.sinks() == self.sinks()
            && tokens <= u64::from(self.planner.limit())
    }

    /// A new cache that goes on from `snapshot` with the tokens of `sources`.
    pub(super) fn restored(
        snapshot: &RotatingSnapshot<PARTS>,
        sources: &mut [Resolved<'_>],
        keep_len: u64,
    ) -> Result<Self> {
        let accepted = sources.first().map_or(0, |source| u64::from(source.tokens()));
        if keep_len.checked_sub(snapshot.current_seq_len()) != Some(accepted) {
            let expected = format!("{} (the snapshot's tokens) + {accepted} (accepted)", snapshot.current_seq_len());
            return Err(Error::argument("keepLen", keep_len, expected));
        }
        let mut cache = Self::new(snapshot.options.clone())?;
        cache.take_over(snapshot, sources, keep_len)?;
        Ok(cache)
    }

    /// Takes over a snapshot's tokens, followed by those of `sources`.
    fn take_over(
        &mut self,
        snapshot: &RotatingSnapshot<PARTS>,
        sources: &mut [Resolved<'_>],
        current: u64,
    ) -> Result<()> {
        let Some(shape) = snapshot.shape.or_else(|| sources.first().map(|source| source.row_shape(PARTS))) else {
            return Ok(());
        };
        for (source, argument) in sources.iter().zip(["accepted", "accepted"]) {
            source.check(argument, &shape)?;
        }
        let accepted = sources.first().map_or(0, Resolved::tokens);
        let total = snapshot.retained_len() + accepted;
        let (taken, next) = self.planner.plan_adopt(total, current);
        self.rows.fill(snapshot.held.as_deref(), taken, next.slots(), shape, sources)?;
        self.planner.commit(next);
        self.shape = Some(shape);
        Ok(())
    }
}
