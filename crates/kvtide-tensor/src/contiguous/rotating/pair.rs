//! The rotating cache of K and V.

use std::sync::Arc;

use super::snapshot::RotatingSnapshot;
use super::window::Rotating;
use crate::base::error::Result;
use crate::contiguous::kv_pair::{check_pair, resolve_pair};
use crate::tensor::shown::Shown;
use crate::tensor::source::Source;
use crate::tensor::view::Kv;

/// K and V with one sliding window, written in one operation.
pub type RotatingKvCache = Rotating<2>;

impl Rotating<2> {
    /// Adds tokens, `[batch, kv_heads, n, head_dim]` each, and shows what their queries may see, as
    /// [`RotatingCache::append`](Rotating::append) does.
    pub fn append<'a>(&mut self, k: impl Into<Source<'a>>, v: impl Into<Source<'a>>) -> Result<Kv> {
        Ok(self.append_shown(k, v)?.into_kv())
    }

    /// As [`append`](Self::append), before anyone looks at it.
    pub fn append_shown<'a>(&mut self, k: impl Into<Source<'a>>, v: impl Into<Source<'a>>) -> Result<Shown> {
        self.rows.check_undrafted()?;
        let mut sources = resolve_pair(&k.into(), &v.into())?;
        check_pair(&sources, self.shape.as_ref())?;
        self.append_parts(&mut sources)
    }

    /// What is retained, oldest first.
    pub fn current_data(&self) -> Result<Option<Kv>> {
        Ok(self.current_shown()?.map(Shown::into_kv))
    }

    /// What the last append returned.
    #[must_use]
    pub fn last_append_result(&self) -> Option<Kv> {
        self.last_append_shown().map(Shown::into_kv)
    }

    /// The whole buffers, live windows for inspection.
    pub fn all_data(&self) -> Result<Option<Kv>> {
        Ok(self.all_shown()?.map(Shown::into_kv))
    }

    /// The tokens of row `row` of `batch` that were accepted of the last append, which began at `snapshot`.
    pub fn accepted_append_from_batched_append(
        &self,
        snapshot: &RotatingSnapshot<2>,
        keep_len: u64,
        row: u64,
        batch: u64,
    ) -> Result<Option<Kv>> {
        Ok(self.accepted_parts(snapshot, keep_len, row, batch)?.map(Kv::from))
    }

    /// A new cache that goes on from `snapshot` with the `accepted` tokens of K and V, `keep_len` in all.
    pub fn restore_from_snapshot<'a>(
        snapshot: &RotatingSnapshot<2>,
        accepted: Option<(Source<'a>, Source<'a>)>,
        keep_len: u64,
    ) -> Result<Self> {
        match accepted {
            Some((k, v)) => {
                let mut sources = resolve_pair(&k, &v)?;
                check_pair(&sources, None)?;
                Self::restored(snapshot, &mut sources, keep_len)
            }
            None => Self::restored(snapshot, &mut [], keep_len),
        }
    }
}

#[expect(dead_code, reason = "keeps the promise that a cache may move to another thread")]
fn caches_are_send() {
    fn send<T: Send>() {}
    send::<RotatingKvCache>();
    send::<Arc<RotatingSnapshot<2>>>();
}
