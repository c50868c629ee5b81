//! Ranks that may change once, when their limit passes, and chains that hand ranks on from block to block.
//!
//! ```text
//! released   tail  50 ........   block  90 until 7, then 50   head  50 .............
//! listed     tail  50            block  90 until 7, then 50   head  90 until 7, then 50
//! ```
//!
//! Blocks of a sequence are released tail first. Each is listed with its own rank combined with those of all blocks
//! released before it, so a block never ranks below one behind it. O(1).

/// `top` until a time, `floor` from then on; equal if there is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rank {
    pub top: u8,
    pub floor: u8,
    /// Meaningless if `top` and `floor` are equal.
    pub until: u64,
}

impl Rank {
    pub(super) fn flat(rank: u8) -> Self {
        Rank { top: rank, floor: rank, until: 0 }
    }

    pub(super) fn is_flat(&self) -> bool {
        self.top == self.floor
    }

    /// The rank at a time: flat if its limit has passed.
    pub(super) fn at(self, now: u64) -> Self {
        if self.is_flat() || self.until > now { self } else { Rank::flat(self.floor) }
    }

    /// The lowest rank of this form that is never below either; both limits must be in the future.
    pub(super) fn join(self, other: Rank) -> Self {
        let (top, floor) = (self.top.max(other.top), self.floor.max(other.floor));
        let limits = [self, other].into_iter().filter(|rank| !rank.is_flat()).map(|rank| rank.until);
        // A falling rank falls at the later limit, a rising one rises at the earlier.
        let until = if top > floor { limits.max() } else { limits.min() };
        match until {
            Some(until) if top != floor => Rank { top, floor, until },
            _ => Rank::flat(top),
        }
    }
}

/// The rank that is handed on while the blocks of one sequence are released, from its tail to its head.
#[derive(Clone, Copy, Debug)]
pub struct RankChain(pub(super) Rank);

impl Default for RankChain {
    fn default() -> Self {
        RankChain(Rank::flat(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All ranks with small values.
    fn all() -> Vec<Rank> {
        let limited = |(top, floor, until)| if top == floor { Rank::flat(top) } else { Rank { top, floor, until } };
        let of = |top| (0..3).flat_map(move |floor| (1..4).map(move |until| limited((top, floor, until))));
        (0..3).flat_map(of).collect()
    }

    #[test]
    fn a_join_is_at_no_time_below_either() {
        for (a, b, now) in
            all().into_iter().flat_map(|a| all().into_iter().flat_map(move |b| (0..5).map(move |t| (a, b, t))))
        {
            let joined = a.join(b).at(now).top;
            assert!(joined >= a.at(now).top && joined >= b.at(now).top, "{a:?} {b:?} at {now}");
            assert!(joined <= a.top.max(a.floor).max(b.top).max(b.floor));
            assert_eq!(a.join(b), b.join(a));
        }
    }

    #[test]
    fn a_chain_that_begins_changes_nothing() {
        for rank in all() {
            assert_eq!(RankChain::default().0.join(rank), rank);
        }
    }
}
