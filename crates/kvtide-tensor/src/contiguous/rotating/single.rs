//! The rotating cache of one tensor.

use super::window::{Rotating, RotatingSnapshot};
use crate::base::error::Result;
use crate::tensor::shown::Shown;
use crate::tensor::source::Source;
use crate::tensor::view::View;

/// One tensor with a sliding window.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use kvtide_tensor::{RotatingCache, RotatingCacheOptions};
///
/// let mut cache = RotatingCache::new(RotatingCacheOptions { max_seq_len: 4, ..Default::default() })?;
/// let tokens = |from: f32, to: f32| Tensor::arange(from, to, &Device::Cpu)?.reshape((1, 1, (), 1));
/// cache.append(&tokens(0., 3.)?)?;
/// let seen = cache.append(&tokens(3., 6.)?)?;
/// assert_eq!(seen.to_f32()?, [0., 1., 2., 3., 4., 5.]);
/// assert_eq!(cache.current_data()?.unwrap().to_f32()?, [2., 3., 4., 5.]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type RotatingCache = Rotating<1>;

impl Rotating<1> {
    /// Appends tokens and returns the tokens that their queries may attend to: after a single token, everything retained;
    /// after more tokens than the window can take, everything retained before and all new ones.
    pub fn append<'a>(&mut self, source: impl Into<Source<'a>>) -> Result<View> {
        Ok(self.append_shown(source)?.into_view(0))
    }

    /// Like [`append`](Self::append), without making views.
    pub fn append_shown<'a>(&mut self, source: impl Into<Source<'a>>) -> Result<Shown> {
        self.rows.check_undrafted()?;
        let source = source.into().resolve("src", self.options.dim)?;
        if let Some(own) = &self.rows.shape {
            source.check("src", own)?;
        }
        self.append_parts(&mut [source])
    }

    /// A view of the retained tokens, oldest first.
    pub fn current_data(&self) -> Result<Option<View>> {
        Ok(self.current_shown()?.map(|shown| shown.into_view(0)))
    }

    /// The result of the last append.
    #[must_use]
    pub fn last_append_result(&self) -> Option<View> {
        self.last_append_shown().map(|shown| shown.into_view(0))
    }

    /// A view of the whole buffer, which shows later writes; for inspection.
    pub fn all_data(&self) -> Result<Option<View>> {
        Ok(self.all_shown()?.map(|shown| shown.into_view(0)))
    }

    /// The accepted tokens of row `row` of `batch` in the last append, which began at `snapshot`.
    pub fn accepted_append_from_batched_append(
        &self,
        snapshot: &RotatingSnapshot<1>,
        keep_len: u64,
        row: u64,
        batch: u64,
    ) -> Result<Option<View>> {
        Ok(self.accepted_parts(snapshot, keep_len, row, batch)?.map(|[view]| view))
    }

    /// A new cache that continues from `snapshot` with the `accepted` tokens, `keep_len` in all.
    pub fn restore_from_snapshot<'a>(
        snapshot: &RotatingSnapshot<1>,
        accepted: Option<Source<'a>>,
        keep_len: u64,
    ) -> Result<Self> {
        match accepted {
            Some(accepted) => Self::restored(snapshot, &mut [accepted.resolve("accepted", snapshot.dim())?], keep_len),
            None => Self::restored(snapshot, &mut [], keep_len),
        }
    }
}
