//! Prefixes over groups: compares the prefix that is found with the index of each group, and with everything ever
//! computed.

use kvtide_core::paged::{
    Extras, HeldContent, Identity, MissReason, PagedPlanner, can_allocate_in_groups, explain_in_groups, find_in_groups,
};
use proptest::prelude::*;

use super::{Done, Group, Sequence, World, identity};

impl World {
    pub(super) fn find(&mut self, tokens: &[u32], salt: u8, partial: bool, keep: bool) -> Done {
        let (expected, identity) = (self.longest(tokens, salt), identity(salt));
        self.explain(tokens, &identity, expected)?;
        let planners: Vec<&PagedPlanner> = self.groups.iter().map(|of| &of.planner).collect();
        let has_room = can_allocate_in_groups(&planners, tokens, &identity, 0).unwrap();
        let mut planners: Vec<&mut PagedPlanner> = self.groups.iter_mut().map(|of| &mut of.planner).collect();
        let held = find_in_groups(&mut planners, tokens, &identity, partial).unwrap();
        let length = held[0].length() as usize;
        prop_assert!(held.iter().all(|held| held.length() as usize == length));
        let all_full = self.groups.iter().all(|of| of.window.is_none());
        let most = if partial && all_full { self.block_size - 1 } else { 0 };
        prop_assert!((expected..=expected + most).contains(&length), "{} found, {} expected", length, expected);
        prop_assert!(length < tokens.len().max(1));
        if !keep {
            let give_back = |(of, held): (&mut Group, HeldContent)| of.planner.release(held);
            self.groups.iter_mut().zip(held).for_each(give_back);
            return Ok(());
        }
        let create = |(of, held): (&mut Group, HeldContent)| of.planner.create_from(held).unwrap();
        let ids: Vec<u64> = self.groups.iter_mut().zip(held).map(create).collect();
        let known = vec![length; self.groups.len()];
        self.add(&ids, Sequence { salt, tokens: tokens[..length].to_vec(), known, drafts: Vec::new() })?;
        if !partial {
            // There is room when, and only when, the rest can be appended at once.
            self.append(ids[0], &tokens[length..], true)?;
            prop_assert_eq!(self.sequences[&ids[0]].tokens.len() == tokens.len(), has_room);
        }
        Ok(())
    }

    /// Tokens of the longest run of whole blocks from which all groups can go on, tried one by one: each has the block of the last
    /// token, of the sinks, and of what the next token sees.
    fn longest(&self, tokens: &[u32], salt: u8) -> usize {
        let size = self.block_size;
        let mut keys = vec![];
        let mut last = identity(salt).root;
        for (at, block) in tokens[..tokens.len().saturating_sub(1) / size * size].chunks(size).enumerate() {
            last = last.child(block, (at * size) as u32, &Extras::default());
            keys.push(last);
        }
        let goes_on = |of: &Group, length: usize| {
            let is_needed = |token: usize| {
                let sees = |(window, sinks): (u32, u32)| token < sinks as usize || token + window as usize > length;
                token + 1 == length || of.window.is_none_or(sees)
            };
            (0..length).filter(|&token| is_needed(token)).all(|token| {
                let place = token / size;
                match of.is_exact {
                    // Nothing was evicted: everything ever computed is cached, and nothing else.
                    true => of.computed.contains_key(&(salt, tokens[..(place + 1) * size].to_vec())),
                    false => of.keys.contains(&keys[place]),
                }
            })
        };
        let all = |blocks: &usize| self.groups.iter().all(|of| goes_on(of, blocks * size));
        (0..=keys.len()).rev().find(all).unwrap_or(0) * size
    }

    fn explain(&self, tokens: &[u32], identity: &Identity, expected: usize) -> Done {
        let planners: Vec<&PagedPlanner> = self.groups.iter().map(|of| &of.planner).collect();
        let why = explain_in_groups(&planners, tokens, identity).unwrap();
        prop_assert_eq!(why.matched as usize, expected);
        let whole = tokens.len().saturating_sub(1) / self.block_size;
        prop_assert_eq!(
            why.missing.map(|missing| missing.0 as usize),
            (expected / self.block_size < whole).then_some(expected / self.block_size)
        );
        let full = self.groups.iter().filter(|of| of.window.is_none());
        let of_full = full.map(|of| of.planner.explain(tokens, identity).unwrap()).min_by_key(|of| of.matched);
        if let Some(of_full) = of_full {
            let gone = why.missing.is_some_and(|missing| missing.1 == MissReason::WindowGone);
            prop_assert_eq!(gone, of_full.matched as usize > expected);
            prop_assert!(gone || why == of_full);
        }
        Ok(())
    }
}
