//! The tokens that a grammar allows at a position, as one bit for each token of the vocabulary.

/// The tokens that may come next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedTokens {
    /// Bit `id % 32` of word `id / 32` is set for each allowed token.
    words: Vec<u32>,
    may_end: bool,
    is_over: bool,
}

impl AllowedTokens {
    /// Reads the parser's bits, of which that of id `size` is the end's. O(size / 32).
    pub(crate) fn of(bits: &[u32], size: u32) -> Self {
        let (words, rest) = ((size / 32) as usize, size % 32);
        let may_end = bits.get(words).is_some_and(|word| word >> rest & 1 == 1);
        let mut words = bits[..bits.len().min(size.div_ceil(32) as usize)].to_vec();
        if rest > 0
            && let Some(last) = words.get_mut((size / 32) as usize)
        {
            *last &= (1 << rest) - 1;
        }
        let is_over = may_end && words.iter().all(|&word| word == 0);
        AllowedTokens { words, may_end, is_over }
    }

    /// The mask of a text that must end.
    pub(crate) fn end(size: u32) -> Self {
        AllowedTokens { words: vec![0; size.div_ceil(32) as usize], may_end: true, is_over: true }
    }

    /// True if the text may end here.
    #[must_use]
    pub fn may_end(&self) -> bool {
        self.may_end
    }

    /// True if nothing but the end is possible.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// True if a token may come next.
    #[must_use]
    pub fn allows(&self, id: u32) -> bool {
        self.words.get((id / 32) as usize).is_some_and(|word| word >> (id % 32) & 1 == 1)
    }

    /// The mask for a row of `vocabulary` logits: ids behind the last token are not allowed, and those of `ends`, which end
    /// a text, exactly where it may end. O(vocabulary / 32).
    #[must_use]
    pub fn fitted(&self, vocabulary: u32, ends: &[u32]) -> Vec<u32> {
        let mut words = self.words.clone();
        words.resize(vocabulary.div_ceil(32) as usize, 0);
        for &end in ends.iter().filter(|&&end| end < vocabulary) {
            let (word, bit) = (&mut words[(end / 32) as usize], 1 << (end % 32));
            *word = if self.may_end { *word | bit } else { *word & !bit };
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::AllowedTokens;

    #[test]
    fn the_bit_behind_the_last_token_is_the_end() {
        for size in [1, 31, 32, 33, 64] {
            let mut bits = vec![u32::MAX; size as usize / 32 + 1];
            let mask = AllowedTokens::of(&bits, size);
            assert!(mask.may_end() && !mask.is_over() && mask.allows(size - 1) && !mask.allows(size), "{size}");
            bits[size as usize / 32] &= !(1 << (size % 32));
            assert!(!AllowedTokens::of(&bits, size).may_end(), "{size}");
        }
    }

    #[test]
    fn ends_are_allowed_where_the_text_may_end_and_nowhere_else() {
        let open = AllowedTokens::of(&[0b0110], 4);
        assert_eq!(open.fitted(40, &[1, 3, 39, 99]), [0b0100, 0]);
        let closed = AllowedTokens::of(&[0b1_0110], 4);
        assert_eq!(closed.fitted(40, &[1, 3, 39, 99]), [0b1110, 1 << 7]);
        assert_eq!(closed.fitted(2, &[3]), [0b0110]);
        assert!(AllowedTokens::end(4).is_over());
    }
}
