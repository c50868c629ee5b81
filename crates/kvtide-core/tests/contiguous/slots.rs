//! A list that simulates a buffer: the token in each slot, or none if the slot was not written.

use kvtide_core::{Plan, Reads, Runs, SlotMove};

/// The content of each slot.
#[derive(Clone, Debug, Default)]
pub struct Slots(pub Vec<Option<u64>>);

impl Slots {
    /// The tokens in these slots, in reading order.
    pub fn read(&self, runs: &Runs) -> Vec<Option<u64>> {
        runs.iter().flat_map(|run| run.start..run.end()).map(|slot| self.0[slot as usize]).collect()
    }

    /// Carries out an append of `tokens`; answers what it shows.
    pub fn carry_out<S>(&mut self, plan: &Plan<S>, tokens: &[u64]) -> Vec<Option<u64>> {
        let before = self.clone();
        if let Some(slots) = plan.resize {
            self.0 = vec![None; slots as usize];
        }
        let moves: Vec<SlotMove> = plan.moves().collect();
        self.shift(&before, &moves);
        for write in plan.writes() {
            for place in 0..write.target.len {
                self.0[(write.target.start + place) as usize] = Some(tokens[(write.token + place) as usize]);
            }
        }
        match &plan.reads {
            Reads::Shared(runs) => self.read(runs),
            Reads::Assembled(runs) => {
                before.read(runs).into_iter().chain(tokens.iter().map(|&token| Some(token))).collect()
            }
        }
    }

    /// Moves rows as they were before any of the moves.
    pub fn shift(&mut self, before: &Slots, moves: &[SlotMove]) {
        for moved in moves {
            for place in 0..moved.source.len {
                self.0[(moved.target + place) as usize] = before.0[(moved.source.start + place) as usize];
            }
        }
    }
}

/// Every one of these tokens.
pub fn all(tokens: impl IntoIterator<Item = u64>) -> Vec<Option<u64>> {
    tokens.into_iter().map(Some).collect()
}
