//! Transactions.

use kvtide_core::{Code, TransactionId};
use kvtide_tensor::{StepTokens, Tokens, Transactional};
use proptest::prelude::*;

use super::{Done, World, ran_out};
use crate::outcome::code;

impl World {
    fn innermost(&self, id: u64) -> Option<TransactionId> {
        self.open.get(&id).and_then(|ids| ids.last()).copied()
    }

    /// Some come in a step of their own, some in the sequence's own call, their ids known or not.
    pub(super) fn draft_append(&mut self, id: u64, tokens: &[u32], parents: Option<&[u32]>) -> Done {
        let Some(transaction) = self.innermost(id) else { return Ok(()) };
        let nodes = self.sequences[&id].drafts.last().map_or(0, |draft| draft.1.len()) as i32;
        let parents: Option<Vec<i32>> = parents
            .filter(|parents| parents.len() >= tokens.len())
            .map(|parents| (0..tokens.len()).map(|at| (nodes + at as i32 - 1 - parents[at] as i32).max(-1)).collect());
        let known = self.sequences[&id].values.len().is_multiple_of(2);
        let mut after = self.sequences[&id].clone();
        let values = after.append_nodes(tokens, parents.as_deref(), self.shape.layers);
        if !known {
            after.ids.truncate(self.sequences[&id].ids.len());
        }
        let done = match known && id.is_multiple_of(2) && !self.is_stepping(id) {
            true => self.draft_step(id, tokens, parents.as_deref(), &values),
            false => {
                let fed = self.fed_all(&values);
                let (ids, parents) = (known.then_some(tokens), parents.as_deref());
                let tokens = Tokens { parents, ids, ..Tokens::of_all(fed.host(0), fed.host(1)) };
                self.cache.append_to(id, Some(transaction), tokens)
            }
        };
        if ran_out(&done)? || self.refuses_step(id, &done)? {
            return Ok(());
        }
        self.sequences.insert(id, after);
        Ok(())
    }

    fn draft_step(
        &mut self,
        id: u64,
        tokens: &[u32],
        parents: Option<&[i32]>,
        values: &[Vec<u32>],
    ) -> Result<(), kvtide_tensor::Error> {
        let offsets = [0, tokens.len() as u32];
        let mut step = self.cache.begin_step(StepTokens { sequences: &[id], offsets: Some(&offsets), parents })?;
        for layer in 0..self.shape.layers {
            let of_layer = values.iter().map(|token| token[layer as usize]).collect();
            let fed = self.fed(&[of_layer], false);
            self.cache.write_layer(&mut step, layer, fed.host(0), fed.host(1))?;
        }
        self.cache.commit_step(&mut step, Some(tokens))
    }

    pub(super) fn commit(&mut self, id: u64, tokens: u32) -> Done {
        let Some(transaction) = self.innermost(id) else { return Ok(()) };
        let nodes = self.sequences[&id].drafts.last().map_or(0, |draft| draft.1.len());
        let wanted = if tokens as usize == nodes && tokens.is_multiple_of(2) { None } else { Some(u64::from(tokens)) };
        let done = self.cache.sequence(id)?.commit_draft(transaction, wanted);
        if !self.is_stepping(id) && tokens as usize > nodes {
            prop_assert_eq!(code(done), Err(Code::InvalidArgument));
            return Ok(());
        }
        if self.refuses_step(id, &done)? {
            return Ok(());
        }
        self.ended(id, transaction)?;
        let of = self.sequences.get_mut(&id).expect("a sequence of the model");
        let (base, mut draft) = of.drafts.pop().expect("an open transaction");
        of.truncate(base + tokens as usize);
        draft.truncate(tokens as usize);
        of.end_draft(&draft);
        self.note_all_committed();
        Ok(())
    }

    pub(super) fn commit_path(&mut self, id: u64, chosen: &[bool]) -> Done {
        let Some(transaction) = self.innermost(id) else { return Ok(()) };
        let (base, draft) = self.sequences[&id].drafts.last().cloned().unwrap_or_default();
        let (mut path, mut last) = (Vec::new(), -1);
        for (node, &parent) in draft.iter().enumerate() {
            if parent == last && chosen.get(node).copied().unwrap_or(false) {
                path.push(node as u32);
                last = node as i32;
            }
        }
        let done = self.cache.sequence(id)?.commit_draft_path(transaction, &path);
        if ran_out(&done)? || self.refuses_step(id, &done)? {
            return Ok(());
        }
        self.ended(id, transaction)?;
        let of = self.sequences.get_mut(&id).expect("a sequence of the model");
        of.drafts.pop();
        let at = |node: &u32| base + *node as usize;
        let values: Vec<_> = path.iter().map(|node| of.values[at(node)].clone()).collect();
        let ids: Vec<_> = path.iter().filter_map(|node| of.ids.get(at(node)).copied()).collect();
        of.truncate(base);
        of.values.extend(values);
        of.ids.extend(ids);
        let chain: Vec<i32> = (0..path.len() as i32).map(|at| at - 1).collect();
        of.end_draft(&chain);
        self.note_all_committed();
        Ok(())
    }

    fn ended(&mut self, id: u64, transaction: TransactionId) -> Done {
        self.open.get_mut(&id).expect("open transactions").pop();
        let mut of = self.cache.sequence(id)?;
        prop_assert_eq!(code(of.commit_draft(transaction, None)), Err(Code::TransactionClosed));
        Ok(())
    }

    /// Drops a transaction and those on top of it.
    pub(super) fn undo(&mut self, id: u64, depth: usize) -> Done {
        let Some(ids) = self.open.get_mut(&id).filter(|ids| !ids.is_empty()) else { return Ok(()) };
        let depth = depth % ids.len();
        self.cache.sequence(id)?.drop_draft(ids[depth]);
        ids.truncate(depth);
        if self.is_stepping(id)
            && let Some(step) = &mut self.step
        {
            step.left.push(id);
        }
        let of = self.sequences.get_mut(&id).expect("a sequence of the model");
        let base = of.drafts[depth].0;
        of.truncate(base);
        of.drafts.truncate(depth);
        Ok(())
    }
}
