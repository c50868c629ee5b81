//! The passes of a unit over its keys, if pages are available both as floats and quantised.
//!
//! ```text
//!             page 3    page 4    page 5        pages of the unit's queries
//! queries of
//!   page 3    own                               floats
//!   page 4    before    own                     page 3 quantised, page 4 as floats
//!   page 5    before    before    own
//! ```
//!
//! A query reads the pages before its own page quantised and its own page as floats, as if its step had only that token. So
//! a unit reads the own pages of its queries twice: quantised for later queries, and as floats for the queries of the page.

use std::ops::Range;

/// The keys of a pass that the queries attend to, among those that the rules allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    All,
    /// Keys in pages before the query's own page.
    Before,
    /// Keys in the query's own page, and later ones.
    Own,
}

/// Keys that a unit reads in one form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    pub keys: Range<usize>,
    /// The index of the first page that is read as floats, among those with both forms.
    pub own: usize,
    pub seen: Seen,
}

impl Pass {
    /// A pass without keys, over pages with one form.
    pub const NONE: Pass = Pass { keys: 0..0, own: 0, seen: Seen::All };

    /// The passes over some keys in pages of `size`, for queries with these own pages.
    pub fn of(keys: Range<usize>, own: Range<usize>, size: usize) -> [Pass; 3] {
        let Range { start: first, end: last } = own;
        if first == last {
            return [Pass { keys, own: first, seen: Seen::All }, Pass::NONE, Pass::NONE];
        }
        let at = |place: usize| place.saturating_mul(size).clamp(keys.start, keys.end.max(keys.start));
        let (start, end) = (at(first), at(last));
        [
            Pass { keys: keys.start..start, own: usize::MAX, seen: Seen::All },
            Pass { keys: start..end, own: usize::MAX, seen: Seen::Before },
            Pass { keys: start..keys.end, own: 0, seen: Seen::Own },
        ]
    }

    /// The keys of a tile that this pass shows to a query whose own page starts with the key `own`: one bit per key.
    pub fn shown(&self, tile: &Range<usize>, own: usize) -> u128 {
        let before = own.saturating_sub(tile.start).min(tile.len());
        let bits = u128::MAX.checked_shr(128 - before as u32).unwrap_or(0);
        match self.seen {
            Seen::All => u128::MAX,
            Seen::Before => bits,
            Seen::Own => !bits,
        }
    }
}

/// Calls `each` with the runs of keys that a row attends to, among the first `count`. Values of other keys are not read:
/// they may be NaN, and a weight of 0 would not remove that.
pub(super) fn each_run(shown: u128, count: usize, mut each: impl FnMut(Range<usize>)) {
    let bits = |from: usize| shown.checked_shr(from as u32).unwrap_or(0);
    let mut from = shown.trailing_zeros() as usize;
    while from < count {
        let to = from + bits(from).trailing_ones() as usize;
        each(from..to.min(count));
        from = to + bits(to).trailing_zeros() as usize;
    }
}

/// True if a row attends to a key of the tile; false after the end of the tile.
pub(super) fn is_shown(shown: u128, index: usize) -> bool {
    shown.checked_shr(index as u32).unwrap_or(0) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_seen_once_quantised_before_a_query_s_own_page_and_in_floats_from_there_on() {
        let size = 4;
        for (keys, own) in [(0..23, 2..5), (5..19, 0..0), (0..8, 3..6), (9..30, 1..9), (3..3, 0..2), (0..300, 1..70)] {
            for query in own.start..=own.end {
                for key in keys.clone() {
                    let passes = Pass::of(keys.clone(), own.clone(), size);
                    let of_key = passes.iter().filter(|pass| pass.keys.contains(&key));
                    let tile = |pass: &Pass| {
                        let start = pass.keys.start + (key - pass.keys.start) / 128 * 128;
                        start..pass.keys.end.min(start + 128)
                    };
                    let seen = of_key.filter(|pass| {
                        let tile = tile(pass);
                        pass.shown(&tile, query * size) >> (key - tile.start) & 1 == 1
                    });
                    let quantised: Vec<_> = seen.map(|pass| key / size < pass.own).collect();
                    assert_eq!(quantised, [key / size < query], "key {key} of {keys:?}, own page {query} of {own:?}");
                }
            }
        }
    }
}
