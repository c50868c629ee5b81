//! What was accepted of an append that verified the drafts of several sequences at once.

use super::snapshot::RotatingSnapshot;
use super::window::{LastAppend, Rotating};
use crate::base::error::{Error, Result};
use crate::tensor::view::View;

impl<const PARTS: usize> Rotating<PARTS> {
    /// The tokens that were accepted of the last append, of one row of its batch.
    pub(super) fn accepted_parts(
        &self,
        snapshot: &RotatingSnapshot<PARTS>,
        keep_len: u64,
        row: u64,
        batch: u64,
    ) -> Result<Option<[View; PARTS]>> {
        self.rows.check()?;
        let dim = self.options.dim;
        let current = snapshot.current_seq_len();
        let Some(accepted) = keep_len.checked_sub(current) else {
            return Err(Error::argument("keepLen", keep_len, format!("at least {current}, the snapshot's tokens")));
        };
        let Some(LastAppend { shown, tokens }) = &self.last else {
            return Err(kvtide_core::Error::CacheEmpty { operation: "acceptedAppendFromBatchedAppend" }.into());
        };
        let views: [View; PARTS] = shown.views();
        let rows = if dim == 0 { 1 } else { views[0].shape()[0] as u64 };
        if batch == 0 || rows % batch != 0 {
            return Err(Error::argument("batchLen", batch, format!("a divisor of {rows}, the size of dimension 0")));
        }
        if row >= batch {
            return Err(Error::argument("rowIdx", row, format!("below {batch}")));
        }
        if accepted > u64::from(*tokens) {
            let expected = format!("at most {}, what was appended last", current + u64::from(*tokens));
            return Err(Error::argument("keepLen", keep_len, expected));
        }
        if accepted == 0 {
            return Ok(None);
        }
        let part = |view: &View| {
            let first = view.shape()[dim] - *tokens as usize;
            let taken = view.narrow(dim, first, accepted as usize)?;
            let rows = (rows / batch) as usize;
            if dim == 0 { Ok(taken) } else { taken.narrow(0, row as usize * rows, rows) }
        };
        let mut parts = views;
        for view in &mut parts {
            *view = part(view)?;
        }
        Ok(Some(parts))
    }
}
