//! Invariants after every step, and at the end.

use kvtide_core::Code;
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::kind::Kind;
use super::run::Run;
use crate::outcome::{Done, code, unless_out_of_memory};
use crate::sightings::Wrote;
use crate::tokens::Id;

impl<C: Kind> Run<C> {
    pub fn check(&mut self) -> Done {
        self.cache.invariants().map_err(TestCaseError::fail)?;
        let everything = self.lists.everything();
        prop_assert_eq!(self.cache.length() as usize, everything.len());
        let model = self.lists.model(everything);
        let rows = &self.setup.rows;
        let bytes = |ids: &[Id]| [0, 1].map(|part| rows.bytes(part, ids));
        let read = |seen: Option<C::Seen>| seen.map(|seen| C::bytes(&seen)).transpose();
        let expected = bytes(&model.ids(&model.retained()));
        match read(self.cache.visible()?)? {
            None => prop_assert!(model.tokens.is_empty()),
            found => prop_assert_eq!(found, Some(expected)),
        }
        if C::LATEST {
            match read(self.cache.latest()) {
                Err(error) => prop_assert_eq!(error.code(), Code::StaleView),
                Ok(found) => prop_assert_eq!(found, self.lists.last.as_deref().map(bytes)),
            }
        }
        for (depth, draft) in self.lists.open.iter().enumerate() {
            prop_assert_eq!(self.cache.drafted(draft.id)? as usize, draft.nodes.len());
            if depth + 1 < self.lists.open.len() {
                prop_assert_eq!(code(self.cache.commit_draft(draft.id, None)), Err(Code::TransactionOpen));
            }
        }
        self.check_tree()?;
        self.sightings.check(if self.repeats { Wrote::AnyTokens } else { Wrote::NewTokens })
    }

    /// The mask and the positions of the innermost draft.
    fn check_tree(&self) -> Done {
        let Some(draft) = self.lists.open.last() else { return Ok(()) };
        let parents = self.lists.parents();
        let (base, first) = (self.lists.tokens.len(), parents.len() - draft.nodes.len());
        let ancestors = |node: usize| {
            std::iter::successors(Some(node), |&at| usize::try_from(parents[at]).ok()).collect::<Vec<_>>()
        };
        let position = |node: usize| base + ancestors(node).len() - 1;
        let positions: Vec<u64> = (first..parents.len()).map(|node| position(node) as u64).collect();
        prop_assert_eq!(self.cache.draft_positions(draft.id)?, positions);
        let model = self.lists.model(self.lists.tokens.clone());
        let sees = |from: usize, other: usize| other < model.sinks || other + model.window > from;
        let mut mask = Vec::new();
        for node in first..parents.len() {
            let (from, seen) = (position(node), ancestors(node));
            mask.extend(model.retained().iter().map(|&other| sees(from, other)));
            mask.extend((0..parents.len()).map(|other| seen.contains(&other) && sees(from, position(other))));
        }
        let view = self.cache.draft_mask(draft.id, &self.budget)?;
        prop_assert_eq!(view.shape(), &[draft.nodes.len(), model.retained().len() + parents.len()][..]);
        let found = view.to_f32()?;
        prop_assert!(found.iter().all(|&value| value == 0.0 || value == f32::NEG_INFINITY));
        prop_assert_eq!(found.iter().map(|&value| value == 0.0).collect::<Vec<_>>(), mask);
        Ok(())
    }

    /// Whatever has happened: all is given back, and a cache that ends takes its transactions with it.
    pub fn check_at_the_end(mut self) -> Done {
        while !self.lists.open.is_empty() {
            self.drop(0)?;
            self.check()?;
        }
        let Some(()) = self.restore_all()? else { return Ok(()) };
        self.sightings.clear();
        self.snapshots.clear();
        self.begin(None)?;
        self.cache.close();
        if !C::CLOSES {
            return Ok(());
        }
        if let Some(draft) = self.lists.open.last() {
            prop_assert_eq!(code(self.cache.drafted(draft.id)), Err(Code::Disposed));
            prop_assert_eq!(code(self.cache.commit_draft(draft.id, None)), Err(Code::Disposed));
            self.cache.drop_draft(draft.id);
        }
        drop(self.lists.last.take());
        prop_assert_eq!(self.cache.stats().used_bytes, 0);
        Ok(())
    }

    /// Every snapshot gives what it saw, drafted tokens among it.
    fn restore_all(&mut self) -> Result<Option<()>, TestCaseError> {
        for (snapshot, tokens) in &self.snapshots {
            if unless_out_of_memory(self.setup.limit, self.cache.restore(snapshot))?.is_none() {
                return Ok(None);
            }
            let model = self.lists.model(tokens.clone());
            let found = self.cache.visible()?.map(|seen| C::bytes(&seen)).transpose()?;
            let expected = [0, 1].map(|part| self.setup.rows.bytes(part, &model.ids(&model.retained())));
            prop_assert_eq!(found.unwrap_or_default(), if tokens.is_empty() { Default::default() } else { expected });
        }
        Ok(Some(()))
    }
}
