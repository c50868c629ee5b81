//! The tokens that were seen: those of the prompt, and the number of occurrences of generated ones.
//!
//! A bit for each token of the prompt, and a count for each generated token. Generated tokens can be removed, since a
//! draft may be rejected. O(log n) for each token that is added or removed; O(vocabulary / 64 + n) to iterate.

use std::collections::BTreeMap;

use crate::options::VOCABULARY_MAX;

#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// A bit for each token of the prompt.
    prompt: Vec<u64>,
    counts: BTreeMap<u32, u32>,
}

impl Seen {
    /// Ids beyond all vocabularies cannot be drawn, and are left out.
    pub fn of_prompt(tokens: &[u32]) -> Self {
        let known = || tokens.iter().copied().filter(|&id| id < VOCABULARY_MAX);
        let mut prompt = vec![0; known().max().map_or(0, |most| most as usize / 64 + 1)];
        known().for_each(|id| prompt[id as usize / 64] |= 1 << (id % 64));
        Seen { prompt, counts: BTreeMap::new() }
    }

    pub fn add(&mut self, id: u32) {
        *self.counts.entry(id).or_default() += 1;
    }

    /// Removes one occurrence of a token that was added.
    pub fn take_back(&mut self, id: u32) {
        let times = self.counts.get_mut(&id).expect("a token that was added");
        *times -= 1;
        if *times == 0 {
            self.counts.remove(&id);
        }
    }

    /// Calls `call` once for each token that was seen.
    pub fn each(&self, mut call: impl FnMut(u32)) {
        for (place, &word) in self.prompt.iter().enumerate() {
            let mut left = word;
            while left != 0 {
                call(place as u32 * 64 + left.trailing_zeros());
                left &= left - 1;
            }
        }
        self.counts.keys().filter(|&&id| !self.is_in_prompt(id)).for_each(|&id| call(id));
    }

    fn is_in_prompt(&self, id: u32) -> bool {
        self.prompt.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Each generated token, and its number of occurrences.
    pub fn generated(&self) -> impl Iterator<Item = (u32, u32)> {
        self.counts.iter().map(|(&id, &times)| (id, times))
    }
}

#[cfg(test)]
mod tests {
    use super::Seen;

    #[test]
    fn each_token_is_seen_once() {
        let mut seen = Seen::of_prompt(&[3, 64, 3, u32::MAX, 0]);
        [3, 7, 7, u32::MAX].into_iter().for_each(|id| seen.add(id));
        let mut found = Vec::new();
        seen.each(|id| found.push(id));
        assert_eq!(found, [0, 3, 64, 7, u32::MAX]);
        seen.take_back(7);
        seen.take_back(u32::MAX);
        assert_eq!(seen.generated().collect::<Vec<_>>(), [(3, 1), (7, 1)]);
    }
}
