//! Plans the number of shares into which the keys of each sequence are divided, so that a GPU is busy to the end even if
//! lengths differ.
//!
//! ```text
//! one sequence of 131,072 keys, 63 of 1,000    89 shares, and 1 each: every block has about the same number of keys
//! 64 sequences of 8,192 keys                   2 each
//! ```
//!
//! The plan depends on sizes and the number of multiprocessors alone: the same call gives the same bits each time on the
//! same GPU. O(sequences).

/// The number of blocks per multiprocessor: two run at a time, and four rounds keep it busy while the last ones end.
const BLOCKS: usize = 8;

/// The fewest keys of a share.
const SHARE_MIN: usize = 256;

/// The most shares of one row: a warp can hold the weights of so many (`kernels/attend_merge.cu`).
const SHARES_MAX: usize = 128;

/// The most bytes for the results of shares.
const SHARES_BYTES_MAX: usize = 64 << 20;

/// The work for one sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// The rows of its output: queries times heads.
    pub rows: usize,
    /// The blocks for its rows with one share, over all KV heads.
    pub blocks: usize,
    /// The keys that its rows attend to, or the most that they may.
    pub keys: usize,
    /// True if its results are merged with those of others: its rows are kept, however few shares there are.
    pub is_part: bool,
}

impl Work {
    /// True if rows are kept with this many shares.
    pub fn keeps(&self, shares: usize) -> bool {
        shares > 1 || self.is_part
    }
}

/// The number of shares of each sequence and stem; `row_bytes` is the size of one kept row of one share.
pub(super) fn shares(work: &[Work], multiprocessors: usize, row_bytes: usize) -> Vec<usize> {
    let all: usize = work.iter().map(|of| of.blocks * of.keys).sum();
    let mut share = all.div_ceil(BLOCKS * multiprocessors.max(1)).max(SHARE_MIN);
    let most = work.iter().map(|of| of.keys).max().unwrap_or(0);
    loop {
        let of = |of: &Work| {
            // One warp merges the shares of a stem and of its member together.
            let shares_max = if of.is_part { SHARES_MAX / 2 } else { SHARES_MAX };
            ((of.keys + share / 2) / share).clamp(1, shares_max).min((of.keys / SHARE_MIN).max(1))
        };
        let shares: Vec<usize> = work.iter().map(of).collect();
        let kept: usize = work
            .iter()
            .zip(&shares)
            .filter(|(of, shares)| of.keeps(**shares))
            .map(|(of, shares)| of.rows * shares)
            .sum();
        // Rows that must be kept in any case may exceed the limit.
        if kept * row_bytes <= SHARES_BYTES_MAX || share > most {
            return shares;
        }
        share *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMS: usize = 132;

    /// A decode step of a model with 8 KV heads and 32 query heads.
    fn step(lengths: impl IntoIterator<Item = usize>) -> Vec<Work> {
        lengths.into_iter().map(|keys| Work { rows: 32, blocks: 8, keys, is_part: false }).collect()
    }

    fn planned(lengths: impl IntoIterator<Item = usize>) -> Vec<usize> {
        shares(&step(lengths), SMS, 130 * 4)
    }

    #[test]
    fn one_long_sequence_among_short_ones_is_cut_as_if_it_were_alone() {
        let lengths: Vec<usize> = std::iter::once(131_072).chain([1000; 63]).collect();
        let shares = planned(lengths.clone());
        assert!(shares[1..].iter().all(|&shares| shares == 1), "{shares:?}");
        // No block has much more keys than the average.
        let blocks: usize = shares.iter().map(|shares| 8 * shares).sum();
        let mean = 8 * lengths.iter().sum::<usize>() / blocks;
        let most = lengths.iter().zip(&shares).map(|(keys, shares)| keys.div_ceil(*shares)).max().unwrap();
        assert!(most <= 2 * mean, "{most} keys of one block, {mean} on average, in {shares:?}");
        assert!(blocks >= 4 * SMS, "{blocks} blocks");
    }

    #[test]
    fn alike_sequences_are_cut_alike() {
        assert_eq!(planned([8192; 64]), [2; 64]);
        assert_eq!(planned([131_072]), [128]);
        assert_eq!(planned([511]), [1]);
        assert_eq!(planned([0, 1]), [1, 1]);
        assert_eq!(planned([]), [0; 0]);
    }

    #[test]
    fn what_keeps_shares_has_a_limit() {
        let wide = Work { rows: 1 << 20, blocks: 1, keys: 8192, is_part: false };
        assert_eq!(shares(&[wide], SMS, 130 * 4), [1]);
        let many = shares(&[Work { rows: 4096, blocks: 64, keys: 131_072, is_part: false }], SMS, 130 * 4)[0];
        assert!(many >= 8 && many * 4096 * 130 * 4 <= SHARES_BYTES_MAX, "{many}");
    }

    #[test]
    fn a_stem_and_what_follows_it_have_no_more_shares_together_than_a_warp_puts_together() {
        let part = |rows, keys| Work { rows, blocks: 8, keys, is_part: true };
        assert_eq!(shares(&[part(32, 131_072), part(32, 131_072)], SMS, 130 * 4), [64, 64]);
        // More than the limit is kept if necessary.
        assert_eq!(shares(&[part(1 << 20, 8192)], SMS, 130 * 4), [1]);
    }
}
