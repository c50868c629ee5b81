//! Changes of one sequence, in all groups or in none.

use kvtide_core::Code;
use kvtide_core::paged::{Append, Keep, Writer};
use proptest::prelude::*;

use super::{Done, Group, Snapshot, World, value};

impl World {
    /// Appends in all groups, or in none where one has too few blocks: to the innermost transaction where one is open.
    pub(super) fn append(&mut self, id: u64, tokens: &[u32], known: bool) -> Done {
        let offsets = [0, tokens.len() as u32];
        let (ids, drafts) = ([id], self.open.get(&id).and_then(|open| open.last()));
        let of_group = |at: usize| Append {
            sequences: &ids,
            offsets: Some(&offsets),
            parents: None,
            writer: drafts.map_or(Writer::Direct, |drafts| Writer::Draft(drafts[at])),
        };
        let appends: Vec<Append<'_>> = (0..self.groups.len()).map(of_group).collect();
        let fits = |(of, append): (&Group, &Append<'_>)| {
            of.planner.plan_write(of.planner.check_append(append).unwrap()).is_ok()
        };
        if !self.groups.iter().zip(&appends).all(fits) {
            return Ok(());
        }
        let sequence = self.sequences.get_mut(&id).unwrap();
        let before = sequence.tokens.len();
        sequence.tokens.extend(tokens);
        for (at, (of, append)) in self.groups.iter_mut().zip(&appends).enumerate() {
            let Group { planner, memory, overwritten, .. } = of;
            let (copies, mut plan) = planner.plan_write(planner.check_append(append).unwrap()).unwrap();
            copies.copies().iter().for_each(|copy| memory.copy(planner, copy));
            planner.commit_copies_before(&copies, &mut plan).unwrap();
            if planner.free_count() == plan.new_blocks() {
                // There may have been none left to copy to.
                *overwritten += plan.runs().len() as u64;
            }
            memory.write(planner, &plan, |_, at| value(sequence.salt, &sequence.tokens[..=before + at as usize]));
            planner.commit(&plan, known.then_some(tokens)).unwrap();
            if known && sequence.known[at] == before {
                sequence.known[at] += tokens.len();
            }
        }
        Ok(())
    }

    pub(super) fn truncate(&mut self, id: u64, length: u32) -> Done {
        let sequence = self.sequences.get_mut(&id).unwrap();
        if !sequence.drafts.is_empty() || length as usize > sequence.tokens.len() {
            return Ok(());
        }
        // What the next token would see and is gone in one group refuses for all.
        let goes = |of: &Group| {
            let gap = of.planner.gap(id).unwrap();
            let first = of.window.map_or(0, |(tokens, _)| (length + 1).saturating_sub(tokens));
            gap.is_empty() || first >= gap.end || length <= gap.start || length as usize == sequence.tokens.len()
        };
        for of in &self.groups {
            let refused = of.planner.check_truncate(id, length).map_err(|error| error.code());
            prop_assert_eq!(refused, if goes(of) { Ok(()) } else { Err(Code::CannotRollBack) });
        }
        if self.groups.iter().all(goes) {
            self.groups.iter_mut().for_each(|of| of.planner.truncate(id, length).unwrap());
            sequence.truncate(length as usize);
        }
        Ok(())
    }

    pub(super) fn snapshot(&mut self, id: u64) {
        let held = self.groups.iter_mut().map(|of| of.planner.snapshot(id).unwrap()).collect();
        let gaps = self.groups.iter().map(|of| of.planner.gap(id).unwrap()).collect();
        self.snapshots.push(Snapshot { held, gaps, sequence: self.sequences[&id].copied() });
    }

    pub(super) fn restore(&mut self, id: u64, at: usize) {
        let Some(at) = at.checked_rem(self.snapshots.len()) else { return };
        let (snapshot, sequence) = (&self.snapshots[at], self.sequences.get_mut(&id).unwrap());
        if sequence.drafts.is_empty() && snapshot.sequence.salt == sequence.salt {
            let restore = |(of, held): (&mut Group, _)| of.planner.restore(id, held).unwrap();
            self.groups.iter_mut().zip(&snapshot.held).for_each(restore);
            *sequence = snapshot.sequence.clone();
        }
    }

    pub(super) fn begin(&mut self, id: u64) {
        let open = self.open.entry(id).or_default();
        let outer = open.last().cloned();
        let begin = |(at, of): (usize, &mut Group)| of.planner.begin(id, outer.as_ref().map(|ids| ids[at])).unwrap();
        open.push(self.groups.iter_mut().enumerate().map(begin).collect());
        let sequence = self.sequences.get_mut(&id).unwrap();
        sequence.drafts.push(sequence.tokens.len());
    }

    /// Keeps the first tokens of the innermost transaction, or none of them.
    pub(super) fn end_draft(&mut self, id: u64, kept: Option<usize>) {
        let Some(ids) = self.open.get_mut(&id).and_then(Vec::pop) else { return };
        let sequence = self.sequences.get_mut(&id).unwrap();
        let base = sequence.drafts.pop().unwrap();
        let kept = kept.map(|kept| kept.min(sequence.tokens.len() - base));
        for (of, &draft) in self.groups.iter_mut().zip(&ids) {
            match kept {
                None => of.planner.undo(id, draft).unwrap(),
                Some(kept) => {
                    let plan = of.planner.plan_end(id, draft, Keep::First(kept as u64)).unwrap();
                    of.planner.end(&plan).unwrap();
                }
            }
        }
        sequence.truncate(base + kept.unwrap_or(0));
    }
}
