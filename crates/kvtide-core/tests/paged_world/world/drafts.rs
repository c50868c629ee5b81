//! Transactions.

use kvtide_core::Code;
use kvtide_core::paged::{Append, EndPlan, Keep, Writer};
use proptest::prelude::*;

use super::{Done, World};

impl World {
    pub(super) fn draft_append(&mut self, id: u64, tokens: &[u32], parents: Option<&[u32]>) -> Done {
        let Some(transaction) = self.open.get(&id).and_then(|ids| ids.last()).copied() else { return Ok(()) };
        let nodes = self.sequences[&id].drafts.last().unwrap().1.len() as i32;
        let parents: Option<Vec<i32>> = parents
            .filter(|parents| parents.len() >= tokens.len())
            .map(|parents| (0..tokens.len()).map(|at| (nodes + at as i32 - 1 - parents[at] as i32).max(-1)).collect());
        let offsets = [0, tokens.len() as u32];
        let append = Append {
            sequences: &[id],
            offsets: Some(&offsets),
            parents: parents.as_deref(),
            writer: Writer::Draft(transaction),
        };
        let write = self.planner.check_append(&append);
        if self.refuses_step(id, &write)? {
            return Ok(());
        }
        let targets = self.targets(&[(id, tokens.to_vec())]);
        self.check_one_go(write, &targets, self.planner.plan_append(&append))?;
        if !self.copy(&targets)? {
            return Ok(());
        }
        let plan = self.planner.plan_append(&append).unwrap();
        let of = self.sequences.get_mut(&id).unwrap();
        let values = of.append_nodes(tokens, parents.as_deref(), self.shape.layers);
        self.memory.write(&self.planner, &plan, |layer, token| values[token as usize][layer as usize]);
        self.planner.commit(&plan, Some(tokens)).unwrap();
        Ok(())
    }

    pub(super) fn commit(&mut self, id: u64, tokens: u32) -> Done {
        let Some(transaction) = self.open.get(&id).and_then(|ids| ids.last()).copied() else { return Ok(()) };
        let plan = self.planner.plan_end(id, transaction, Keep::First(tokens.into()));
        let nodes = self.sequences[&id].drafts.last().unwrap().1.len();
        if !self.is_stepping(id) && tokens as usize > nodes {
            prop_assert_eq!(plan.unwrap_err().code(), Code::InvalidArgument);
            return Ok(());
        }
        if self.refuses_step(id, &plan)? {
            return Ok(());
        }
        self.end_transaction(id, &plan.unwrap())?;
        let of = self.sequences.get_mut(&id).unwrap();
        let (base, mut draft) = of.drafts.pop().unwrap();
        of.truncate(base + tokens as usize);
        draft.truncate(tokens as usize);
        of.end_draft(&draft);
        self.note_all_committed();
        Ok(())
    }

    pub(super) fn commit_path(&mut self, id: u64, chosen: &[bool]) -> Done {
        let Some(transaction) = self.open.get(&id).and_then(|ids| ids.last()).copied() else { return Ok(()) };
        let (base, draft) = self.sequences[&id].drafts.last().unwrap().clone();
        let (mut path, mut last) = (Vec::new(), -1);
        for (node, &parent) in draft.iter().enumerate() {
            if parent == last && chosen.get(node).copied().unwrap_or(false) {
                path.push(node as u32);
                last = node as i32;
            }
        }
        let target = self.planner.path_target(id, transaction, &path);
        if self.refuses_step(id, &target)? || !self.copy(&[target.unwrap()])? {
            return Ok(());
        }
        let plan = self.planner.plan_end(id, transaction, Keep::Path(&path));
        self.end_transaction(id, &plan.unwrap())?;
        let of = self.sequences.get_mut(&id).unwrap();
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

    pub(super) fn end_transaction(&mut self, id: u64, plan: &EndPlan) -> Done {
        for moved in plan.moves() {
            self.memory.move_row(&self.planner, moved);
        }
        for &seal in plan.seals() {
            self.memory.seal(&self.planner, seal);
        }
        self.planner.end(plan).unwrap();
        self.open.get_mut(&id).unwrap().pop();
        Ok(())
    }

    pub(super) fn undo(&mut self, id: u64, depth: usize) -> Done {
        let Some(ids) = self.open.get_mut(&id).filter(|ids| !ids.is_empty()) else { return Ok(()) };
        let depth = depth % ids.len();
        self.planner.undo(id, ids[depth]).unwrap();
        ids.truncate(depth);
        if self.is_stepping(id) {
            self.step.as_mut().unwrap().left.push(id);
        }
        let of = self.sequences.get_mut(&id).unwrap();
        let base = of.drafts[depth].0;
        of.truncate(base);
        of.drafts.truncate(depth);
        Ok(())
    }
}
