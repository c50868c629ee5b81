//! Transactions.

use kvtide_core::{Code, TransactionId};
use proptest::prelude::*;

use super::{Cache, Done, World};

impl<C: Cache> World<C> {
    pub(super) fn innermost(&self, id: u64) -> Option<TransactionId> {
        self.open.get(&id).and_then(|ids| ids.last()).copied()
    }

    pub(super) fn begin(&mut self, id: u64) -> Done {
        let length = self.sequences[&id].values.len();
        // Sometimes with room, which there may not be.
        let room = (id + length as u64).is_multiple_of(3).then_some(length as u32 + 5);
        let begun = self.cache.begin(id, self.innermost(id), room);
        if begun == Err(Code::OutOfBlocks) {
            prop_assert!(room.is_some());
        } else if !self.refuses_step(id, &begun)? {
            self.open.entry(id).or_default().push(begun.expect("a transaction"));
            self.sequence(id).drafts.push((length, Vec::new()));
        }
        Ok(())
    }

    /// Tokens whose ids are known, or not.
    pub(super) fn draft_append(&mut self, id: u64, tokens: &[u32], parents: Option<&[u32]>) -> Done {
        let Some(transaction) = self.innermost(id) else { return Ok(()) };
        let mut after = self.sequences[&id].clone();
        let nodes = after.drafts.last().map_or(0, |draft| draft.1.len()) as i32;
        let parents: Option<Vec<i32>> = parents
            .filter(|parents| parents.len() >= tokens.len())
            .map(|parents| (0..tokens.len()).map(|at| (nodes + at as i32 - 1 - parents[at] as i32).max(-1)).collect());
        let (known, ids) = (after.values.len().is_multiple_of(2), after.ids.len());
        let values = after.append_nodes(tokens, parents.as_deref(), self.shape.layers);
        if !known {
            after.ids.truncate(ids);
        }
        let of = (id, transaction);
        let done = self.cache.append_draft(of, parents.as_deref(), &values, known.then_some(tokens));
        if done != Err(Code::OutOfBlocks) && !self.refuses_step(id, &done)? {
            self.sequences.insert(id, after);
        }
        Ok(())
    }

    pub(super) fn commit(&mut self, id: u64, tokens: u32) -> Done {
        let Some(transaction) = self.innermost(id) else { return Ok(()) };
        let nodes = self.sequences[&id].drafts.last().map_or(0, |draft| draft.1.len());
        let wanted = if tokens as usize == nodes && tokens.is_multiple_of(2) { None } else { Some(u64::from(tokens)) };
        let done = self.cache.commit((id, transaction), wanted);
        if !self.is_stepping(id) && tokens as usize > nodes {
            prop_assert_eq!(done, Err(Code::InvalidArgument));
            return Ok(());
        }
        if self.refuses_step(id, &done)? {
            return Ok(());
        }
        self.ended(id, transaction)?;
        let of = self.sequence(id);
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
        let done = self.cache.commit_path((id, transaction), &path);
        if done == Err(Code::OutOfBlocks) || self.refuses_step(id, &done)? {
            return Ok(());
        }
        self.ended(id, transaction)?;
        let of = self.sequence(id);
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
        prop_assert_eq!(self.cache.commit((id, transaction), None), Err(Code::TransactionClosed));
        Ok(())
    }

    /// Drops a transaction and those on top of it.
    pub(super) fn undo(&mut self, id: u64, depth: usize) {
        let Some(ids) = self.open.get_mut(&id).filter(|ids| !ids.is_empty()) else { return };
        let depth = depth % ids.len();
        self.cache.undo((id, ids[depth]));
        ids.truncate(depth);
        if self.is_stepping(id)
            && let Some(step) = &mut self.step
        {
            step.left.push(id);
        }
        let of = self.sequence(id);
        let base = of.drafts[depth].0;
        of.truncate(base);
        of.drafts.truncate(depth);
    }
}
