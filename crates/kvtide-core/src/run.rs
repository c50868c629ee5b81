//! Runs of neighbouring slots, and the one or two runs that a view presents as one sequence.

/// Neighbouring slots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Run {
    /// The first slot.
    pub start: u32,
    /// The number of slots.
    pub len: u32,
}

impl Run {
    /// Returns the slots `start .. start + len`.
    #[must_use]
    pub const fn new(start: u32, len: u32) -> Self {
        Run { start, len }
    }

    /// The slot behind the last one.
    #[must_use]
    pub const fn end(self) -> u32 {
        self.start + self.len
    }

    /// True if the run is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The slots that are in both runs; may be empty.
    #[must_use]
    pub fn overlap(self, other: Run) -> Run {
        let start = self.start.max(other.start);
        Run::new(start, self.end().min(other.end()).saturating_sub(start))
    }

    /// The `len` slots from `offset` on, or fewer if the run ends before.
    #[must_use]
    pub fn slice(self, offset: u32, len: u32) -> Run {
        let offset = offset.min(self.len);
        Run::new(self.start + offset, len.min(self.len - offset))
    }
}

/// One run, or two that are read one after the other (sinks and window).
///
/// The two runs may be neighbours in memory, if the tokens between them were dropped: a caller that gets one run knows
/// that its positions have no gap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runs {
    first: Run,
    second: Run,
}

impl Runs {
    /// Returns a single run.
    #[must_use]
    pub const fn one(run: Run) -> Self {
        Runs { first: run, second: Run::new(0, 0) }
    }

    /// Returns `first` followed by `second`; empty runs are dropped.
    #[must_use]
    pub fn two(first: Run, second: Run) -> Self {
        if second.is_empty() {
            Runs::one(first)
        } else if first.is_empty() {
            Runs::one(second)
        } else {
            Runs { first, second }
        }
    }

    /// Number of tokens.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.first.len + self.second.len
    }

    /// True if there are no tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The only run; [`None`] if there are two.
    #[must_use]
    pub fn single(&self) -> Option<Run> {
        self.second.is_empty().then_some(self.first)
    }

    /// The first and the second run; a missing run is empty.
    #[must_use]
    pub const fn parts(&self) -> [Run; 2] {
        [self.first, self.second]
    }

    /// The runs in reading order, without empty ones.
    pub fn iter(&self) -> impl Iterator<Item = Run> + '_ {
        [self.first, self.second].into_iter().filter(|run| !run.is_empty())
    }

    /// The tokens `offset .. offset + len`, or fewer if the runs end before.
    #[must_use]
    pub fn slice(&self, offset: u32, len: u32) -> Runs {
        let head = self.first.slice(offset, len);
        let tail = self.second.slice(offset.saturating_sub(self.first.len), len - head.len);
        Runs::two(head, tail)
    }

    /// The slot behind the highest one.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.first.end().max(self.second.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_runs_are_dropped() {
        assert_eq!(Runs::two(Run::new(7, 0), Run::new(2, 3)), Runs::one(Run::new(2, 3)));
        assert_eq!(Runs::two(Run::new(0, 2), Run::new(9, 0)), Runs::one(Run::new(0, 2)));
        assert_eq!(Runs::two(Run::new(0, 2), Run::new(5, 3)).single(), None);
    }

    #[test]
    fn a_slice_equals_the_slots_counted_one_by_one() {
        let slots = |runs: Runs| runs.iter().flat_map(|run| run.start..run.end()).collect::<Vec<_>>();
        let runs = Runs::two(Run::new(0, 3), Run::new(10, 4));
        for offset in 0..9 {
            for len in 0..9 {
                let expected: Vec<u32> = slots(runs).into_iter().skip(offset).take(len).collect();
                assert_eq!(slots(runs.slice(offset as u32, len as u32)), expected, "{offset} {len}");
            }
        }
    }

    #[test]
    fn an_overlap_has_the_slots_of_both() {
        assert_eq!(Run::new(2, 4).overlap(Run::new(4, 9)), Run::new(4, 2));
        assert!(Run::new(2, 2).overlap(Run::new(4, 9)).is_empty());
        assert!(Run::new(6, 2).overlap(Run::new(0, 3)).is_empty());
    }
}
