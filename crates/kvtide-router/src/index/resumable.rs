//! The prefixes from which workers can continue, if some workers keep states.
//!
//! ```text
//! a worker     has a prefix of n blocks if
//! of tokens    it holds all n of them
//! of both      it holds all n of them, and a state at the end of block n
//! of states    it holds a state at the end of block n: its model has no attention
//! ```
//!
//! Unlike the blocks that are held, the states of a prompt have no order that a search could bisect. So positions are
//! read from the end of the prompt, eight at once, in a table of states alone, which is small. O(keys), and only down to
//! the first length that is wanted; prompts of indexes without states never come here.

use super::choice::Choice;
use super::search::Step;
use super::worker_index::WorkerIndex;
use super::worker_sets::{STRIDE_MAX, SetId, Workers};

/// The words of a set of workers that is stored nowhere.
type Words = [u64; STRIDE_MAX];

/// Workers that have a prefix of the same length.
pub(super) struct Group {
    pub(super) blocks: usize,
    words: Words,
}

impl Group {
    /// The workers, at least one, in order.
    pub(super) fn workers(&self) -> Workers<'_> {
        Workers::of_words(&self.words)
    }

    pub(super) fn into_workers(self) -> Workers<'static> {
        Workers::of_owned(self.words.to_vec())
    }
}

/// The workers that have some of a prompt, by length, the longest first.
pub(super) struct Lengths<'a> {
    index: &'a WorkerIndex,
    keys: &'a [u64],
    /// The next length of workers of tokens, and the workers that have more.
    step: Step,
    before: SetId,
    /// States of longer prefixes have been read.
    place: usize,
    /// All workers so far.
    seen: Words,
}

impl<'a> Lengths<'a> {
    pub(super) fn new(index: &'a WorkerIndex, keys: &'a [u64]) -> Self {
        let step = index.longest(keys);
        // Without attention, states may be anywhere; otherwise there is nothing behind the blocks.
        let has_lone = index.of_states.iter().zip(&index.of_tokens).any(|(states, tokens)| states & !tokens != 0);
        let place = if has_lone { keys.len() } else { step.blocks };
        Lengths { index, keys, step, before: SetId::EMPTY, place, seen: [0; STRIDE_MAX] }
    }

    /// The workers of the next length, if it is more than `floor` blocks. Later calls have the same floor or a higher one.
    pub(super) fn next(&mut self, floor: usize) -> Option<Group> {
        let of_tokens = self.of_tokens();
        let least = of_tokens.as_ref().map_or(0, |group| group.blocks).max(floor + 1);
        let group = match (self.of_states(least), of_tokens) {
            (Some(states), Some(tokens)) if states.blocks == tokens.blocks => {
                self.take_step();
                let words = std::array::from_fn(|word| states.words[word] | tokens.words[word]);
                Group { blocks: states.blocks, words }
            }
            (Some(states), _) => states,
            (None, tokens) => {
                let group = tokens?;
                if group.blocks <= floor {
                    return None;
                }
                self.take_step();
                group
            }
        };
        self.seen.iter_mut().zip(group.words).for_each(|(seen, word)| *seen |= word);
        Some(group)
    }

    /// The next workers without states. Stays there until `take_step`.
    fn of_tokens(&mut self) -> Option<Group> {
        let sets = &self.index.tree.sets;
        while self.step.blocks > 0 {
            let (whole, part) = (sets.words(self.step.complete), sets.words(self.before));
            let mut words = [0; STRIDE_MAX];
            for (at, word) in words.iter_mut().enumerate().take(whole.len()) {
                *word = whole[at] & !part[at] & !self.index.of_states.get(at).copied().unwrap_or(0);
            }
            if words.iter().any(|&word| word != 0) {
                return Some(Group { blocks: self.step.blocks, words });
            }
            self.take_step();
        }
        None
    }

    fn take_step(&mut self) {
        self.before = self.step.complete;
        self.step = self.index.shorter(self.keys, self.step);
    }

    /// The next workers with states, if they have at least `least` blocks.
    fn of_states(&mut self, least: usize) -> Option<Group> {
        let tree = &self.index.tree;
        while self.place >= least {
            let top = self.place;
            let keys = std::array::from_fn(|back| self.keys[top.saturating_sub(back + 1)]);
            let holders = tree.states.holders(keys);
            for (back, &holders) in holders.iter().enumerate().take(top) {
                let blocks = top - back;
                if blocks < least {
                    self.place = blocks;
                    return None;
                }
                self.place = blocks - 1;
                if let Some(group) = self.resumable(blocks, holders) {
                    return Some(group);
                }
            }
        }
        None
    }

    /// The workers with a state at a position that can use it, and have no longer prefix.
    fn resumable(&self, blocks: usize, holders: SetId) -> Option<Group> {
        if holders.is_empty() {
            return None;
        }
        let (tree, mut words) = (&self.index.tree, [0; STRIDE_MAX]);
        let complete = tree.sets.words(tree.table.complete_of([self.keys[blocks - 1]])[0]);
        let (of_states, of_tokens) = (&self.index.of_states, &self.index.of_tokens);
        for (at, &held) in tree.sets.words(holders).iter().enumerate() {
            let of = |words: &Vec<u64>| words.get(at).copied().unwrap_or(0);
            let (states, tokens) = (of(of_states), of(of_tokens));
            words[at] = held & states & !self.seen[at] & (complete[at] | !tokens);
        }
        words.iter().any(|&word| word != 0).then_some(Group { blocks, words })
    }
}

impl WorkerIndex {
    /// Picks a worker as `choose` does, if some keep states; by the longest prefix without a weight.
    pub(super) fn choose_resumable(&self, keys: &[u64], weight: Option<f64>) -> Option<Choice> {
        let least = self.least?;
        let mut lengths = Lengths::new(self, keys);
        let mut best: Option<Choice> = None;
        let mut floor = 0;
        while let Some(group) = lengths.next(floor) {
            let (worker, load) = self.least_busy(group.workers(), keys)?;
            let cost = (keys.len() - group.blocks) as f64 + weight.map_or(0.0, |weight| weight * load);
            if best.is_none_or(|best| cost < best.cost) {
                best = Some(Choice { worker, blocks: group.blocks, cost });
            }
            let (Some(weight), Some(found)) = (weight, best) else { return best };
            // No worker has less than the least load: to cost less, a prefix has to be longer than this.
            floor = (keys.len() as f64 + weight * least - found.cost).max(0.0) as usize;
        }
        if floor > 0 {
            return best;
        }
        let rest = self.workers().filter(|worker| lengths.seen[worker.index() / 64] >> (worker.index() % 64) & 1 == 0);
        let computed = keys.len() as f64;
        let other = self.least_busy(rest, keys).map(|(worker, load)| {
            let cost = computed + weight.map_or(0.0, |weight| weight * load);
            Choice { worker, blocks: 0, cost }
        });
        match (best, other) {
            (Some(best), Some(other)) => Some(if other.cost < best.cost { other } else { best }),
            (best, other) => best.or(other),
        }
    }
}
