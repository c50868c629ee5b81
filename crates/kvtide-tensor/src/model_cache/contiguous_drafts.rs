//! Transactions of sequences in tensors: one in each layer, of the same number in all of them.

use std::sync::Arc;

use kvtide_core::TransactionId;
use kvtide_core::model::LayerPlace;

use super::contiguous::ContiguousLayers;
use super::store::DraftStore;
use crate::error::{Error, Result};
use crate::memory::Budget;
use crate::transaction::BeginOptions;
use crate::view::View;

impl DraftStore for ContiguousLayers {
    fn begin(&mut self, sequence: u64, parent: Option<TransactionId>, options: BeginOptions) -> Result<TransactionId> {
        let of = match parent {
            Some(parent) => self.drafting(sequence, parent)?.0,
            None => self.idle(sequence)?,
        };
        let id = of.begin(parent, options)?;
        of.open.push((id, of.length));
        Ok(id)
    }

    fn drafted(&mut self, sequence: u64, id: TransactionId) -> Result<u32> {
        self.sequence(sequence)?.layers[0].drafted(id)
    }

    fn check_draft(&mut self, sequence: u64, id: TransactionId) -> Result<()> {
        self.drafting(sequence, id)?.0.check_idle()
    }

    fn commit(&mut self, sequence: u64, id: TransactionId, tokens: Option<u64>) -> Result<()> {
        let (of, before) = self.drafting(sequence, id)?;
        let drafted = u64::from(of.length - before);
        if tokens.is_some_and(|tokens| tokens > drafted) {
            let expected = format!("at most {drafted}, the number of drafted tokens");
            return Err(Error::argument("n", tokens.unwrap_or(0), expected));
        }
        of.change(|layer| layer.commit(id, tokens))?;
        of.length = before + tokens.unwrap_or(drafted) as u32;
        of.open.pop();
        Ok(())
    }

    fn commit_path(&mut self, sequence: u64, id: TransactionId, path: &[u32]) -> Result<()> {
        let (of, before) = self.drafting(sequence, id)?;
        // The first layer says whether it is a path; the others agree.
        of.change(|layer| layer.commit_path(id, path))?;
        of.length = before + path.len() as u32;
        of.open.pop();
        Ok(())
    }

    fn drop_draft(&mut self, sequence: u64, id: TransactionId) {
        let Ok(of) = self.sequence(sequence) else { return };
        if let Some(depth) = of.open.iter().position(|(open, _)| *open == id) {
            of.layers.iter_mut().for_each(|layer| layer.drop_draft(id));
            (of.length, of.step) = (of.open[depth].1, None);
            of.open.truncate(depth);
        }
    }

    fn draft_mask(
        &mut self,
        (sequence, id): (u64, TransactionId),
        place: LayerPlace,
        budget: &Arc<Budget>,
    ) -> Result<View> {
        let index = self.index(place);
        self.drafting(sequence, id)?.0.layers[index].draft_mask(id, budget)
    }

    fn draft_positions(&mut self, sequence: u64, id: TransactionId) -> Result<Vec<u64>> {
        // Tokens have the same positions in all layers.
        self.drafting(sequence, id)?.0.layers[0].draft_positions(id)
    }
}
