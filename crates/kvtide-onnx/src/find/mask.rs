//! Determines by evaluation what is added to the scores: the keys that a mask hides, and the slopes of ALiBi.
//!
//! A mask is accepted if it is causal, with or without a window. Numbers that remain at visible keys must be linear in the
//! key's position, with one slope for each head; a number that all keys of a query have in common drops out of the softmax.
//! All of it is evaluated for several sizes, one of them with a long past, so the nodes that compute it do not matter.
//! Masks that depend on more than sizes (a prefix with bidirectional attention) are an error.

use super::found_attention::Axes;
use super::lookup::{Lookup, SIZES, unrecognised};
use super::scattered::Slots;
use crate::error::Result;
use crate::eval::{Evaluation, Known, Sizes};
use crate::proto::{ElementType, Node};

/// Windows are found up to this length, or up to that of a graph's tables; a longer one must be declared.
const TOKENS: usize = 1 << 16;
/// A prompt without a past, and one token with a past.
const ALONE: [Sizes; 2] = [Sizes { batch: 2, past: 0, new: 5 }, Sizes { batch: 3, past: 7, new: 1 }];
/// The most heads with slopes.
const HEADS_MAX: usize = 1 << 16;
/// Masks that are cut out of a table are compared in full if the table has at most so many numbers. Larger ones were
/// compared when they were read.
const TABLE_MAX: usize = 1 << 14;
/// The largest number that hides a score when it is added to it.
pub(super) const HIDDEN: f64 = -1e4;

/// One tensor that changes scores.
#[derive(Clone, Copy, Debug)]
pub(super) enum Term<'a> {
    /// Added to scores: it hides them, or has the slopes of ALiBi.
    Added(Added<'a>),
    /// Keeps scores at which the tensor has this truth value.
    Kept(&'a str, bool, Axes),
}

/// A tensor that is added to scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct Added<'a> {
    pub name: &'a str,
    /// The factor of the sum; [`None`] if a soft cap follows.
    pub factor: Option<f64>,
    pub axes: Axes,
}

impl<'a> Term<'a> {
    /// A tensor that an operator adds before the softmax, or before its soft cap.
    pub fn added(name: &'a str, is_capped: bool) -> Self {
        Self::Added(Added { name, factor: (!is_capped).then_some(1.), axes: Axes::Apart })
    }

    pub fn name(&self) -> &'a str {
        match self {
            Self::Added(Added { name, .. }) | Self::Kept(name, ..) => name,
        }
    }

    /// The axes of the scores that it changes.
    pub fn axes(&self) -> Axes {
        match self {
            Self::Added(Added { axes, .. }) | Self::Kept(_, _, axes) => *axes,
        }
    }
}

/// The rules that an attention's terms stand for.
pub(super) struct Rules {
    /// The window; [`None`] if there is none.
    pub window: Option<u32>,
    /// The slope of each head; [`None`] if all are 0.
    pub slopes: Option<Vec<f32>>,
    /// The most tokens; [`None`] if no table limits them.
    pub context_length: Option<u32>,
}

/// The numbers of a term, `[batch, heads, queries, keys]`; any axis may be broadcast.
struct Grid<'a> {
    term: Term<'a>,
    known: &'a Known,
    dims: [usize; 4],
}

impl<'a> Grid<'a> {
    /// The numbers of a term. The error is a reason.
    fn new(evaluation: &'a Evaluation, term: Term<'a>, heads: usize, keys: &[usize]) -> Result<Self, String> {
        let name = term.name();
        let known = evaluation.get(name);
        let (Some(dims), Some(data)) = (&known.dims, &known.data) else {
            return Err(format!(
                "the mask {name} depends on more than sizes, or is cut out of a table that is not causal"
            ));
        };
        let shape = Self::shape(dims, &term, heads).ok_or_else(|| format!("{name} has more than 4 axes"))?;
        if data.is_empty() || !Self::fits(shape, evaluation.sizes, heads, keys) {
            return Err(format!("the mask {name} has dimensions {dims:?}"));
        }
        Ok(Self { term, known, dims: shape })
    }

    fn shape(dims: &[usize], term: &Term<'_>, heads: usize) -> Option<[usize; 4]> {
        match (dims, term) {
            (&[rows, queries, keys], Term::Added(Added { axes: Axes::BatchAndHeads, .. })) => {
                let apart = [rows / heads.max(1), heads, queries, keys];
                return Some(if rows == 1 { [1, 1, queries, keys] } else { apart });
            }
            (&[batch, rows, keys], term) if term.axes() == Axes::TokensAndHeads => {
                let apart = [batch, heads, rows / heads.max(1), keys];
                return Some(if rows == 1 { [batch, 1, 1, keys] } else { apart });
            }
            _ => (),
        }
        let mut shape = [1; 4];
        shape[4usize.checked_sub(dims.len())?..].copy_from_slice(dims);
        if term.axes() == Axes::TokensAndHeads {
            shape.swap(1, 2);
        }
        Some(shape)
    }

    /// True if the numbers fit the sizes, with one of these numbers of keys.
    fn fits(shape: [usize; 4], sizes: Sizes, heads: usize, keys: &[usize]) -> bool {
        let full = [sizes.batch, heads, sizes.new];
        shape.iter().zip(full).all(|(&size, full)| size == 1 || size == full)
            && (shape[3] == 1 || keys.contains(&shape[3]))
    }

    /// The numbers of one query and head.
    fn row(&self, mut place: [usize; 3]) -> Row<'a> {
        let own = |sum: usize, (at, size): (usize, usize)| sum * size + if size == 1 { 0 } else { at };
        let mut dims = self.dims;
        if self.term.axes() == Axes::TokensAndHeads {
            place.swap(1, 2);
            dims.swap(1, 2);
        }
        let first = place.into_iter().zip(dims).fold(0, own) * dims[3];
        let numbers = self.known.data.as_ref().and_then(|data| data.get(first..first + self.dims[3]));
        Row { term: self.term, numbers: numbers.unwrap_or_default() }
    }
}

/// The numbers of a term for one query and head; one number is that of all keys.
struct Row<'a> {
    term: Term<'a>,
    numbers: &'a [f64],
}

impl Row<'_> {
    fn at(&self, key: usize) -> f64 {
        let place = if self.numbers.len() == 1 { 0 } else { key };
        self.numbers.get(place).copied().unwrap_or(f64::NAN)
    }

    /// True if the numbers end before a key: the operator hides it then.
    fn ends(&self, key: usize) -> bool {
        self.numbers.len() > 1 && key >= self.numbers.len()
    }

    fn hides(&self, key: usize) -> bool {
        match self.term {
            Term::Kept(_, when, _) => (self.at(key) != 0.) != when,
            Term::Added(_) => self.at(key) <= HIDDEN,
        }
    }
}

/// All terms of an attention, evaluated for some sizes.
struct Grids<'a> {
    all: Vec<Grid<'a>>,
    sizes: Sizes,
    /// The number of keys that terms have to hide themselves, behind those of all tokens.
    spare: usize,
    /// The difference that rounding may make, relative to the numbers.
    rounding: f64,
}

impl<'a> Grids<'a> {
    fn new(
        evaluation: &'a Evaluation,
        terms: &[Term<'a>],
        heads: usize,
        slots: Option<Slots<'_>>,
    ) -> Result<Self, String> {
        let keys = keys_of(evaluation, slots);
        let grid = |&term: &Term<'a>| Grid::new(evaluation, term, heads, &keys);
        let all = terms.iter().map(grid).collect::<Result<Vec<_>, _>>()?;
        let total = evaluation.sizes.total();
        let spare =
            if slots.is_some_and(|slots| !slots.is_bounded) { keys[keys.len() - 1].saturating_sub(total) } else { 0 };
        // Tables of half floats hold rounded numbers.
        let rounding = |grid: &Grid<'_>| match grid.known.element {
            Some(ElementType::F16) => 1e-3,
            Some(ElementType::BF16) => 8e-3,
            _ => 5e-7,
        };
        let rounding = all.iter().map(rounding).fold(0., f64::max);
        Ok(Self { all, sizes: evaluation.sizes, spare, rounding })
    }

    /// The number of heads whose numbers may differ.
    fn heads(&self) -> usize {
        self.all.iter().map(|grid| grid.dims[1]).max().unwrap_or(1)
    }

    fn rows(&self, place: [usize; 3]) -> Vec<Row<'a>> {
        self.all.iter().map(|grid| grid.row(place)).collect()
    }

    /// The slope of a head by the last query: from its last two keys, and, while these are on the same line, from others
    /// that are farther apart.
    fn slope(&self, head: usize) -> f64 {
        let last = self.sizes.total() - 1;
        let rows = self.rows([0, head, self.sizes.new - 1]);
        let at = |key: usize| sum(&rows, key);
        let between = |gap: usize| (at(last) - at(last - gap)) / gap as f64;
        if last == 0 || at(last - 1) <= HIDDEN {
            return 0.;
        }
        let (mut gap, mut slope) = (1, between(1));
        while gap < last {
            gap = last.min(2 * gap);
            let found = between(gap);
            if (found - slope).abs() > 1e-3 * slope.abs() {
                break;
            }
            slope = found;
        }
        slope
    }

    /// The keys that each query attends to, `[batch * new][total]`; the same for all heads. The error is a reason.
    fn visible(&self, slopes: &[f64], causal: bool) -> Result<Vec<Vec<bool>>, String> {
        let Sizes { batch, past, new } = self.sizes;
        let mut all = Vec::with_capacity(batch * new);
        for row in 0..batch * new {
            let own = past + row % new;
            let mut seen: Vec<bool> = (0..self.sizes.total()).map(|key| !causal || key <= own).collect();
            for head in 0..self.heads() {
                let (slope, rows) = (of_head(slopes, head), self.rows([row / new, head, row % new]));
                let base = Some(sum(&rows, own)).filter(|&base| base > HIDDEN && slope != 0.).unwrap_or(0.);
                // Each slot behind the numbers of all rows is hidden, or shown, like the first one of them.
                let longest = rows.iter().map(|row| row.numbers.len()).max().unwrap_or(0);
                let total = self.sizes.total();
                for key in total..total.saturating_add(self.spare).min(longest.max(total + 1)) {
                    if !rows.iter().any(|row| row.ends(key) || row.hides(key)) {
                        return Err(format!("its mask shows slot {key} of a cache with {total} tokens"));
                    }
                }
                for (key, seen) in seen.iter_mut().enumerate() {
                    *seen &= self.shows(&rows, key, base, slope * (key as f64 - own as f64))?;
                }
            }
            all.push(seen);
        }
        Ok(all)
    }

    /// True if no term hides a key to which a slope adds `expected`.
    fn shows(&self, rows: &[Row<'_>], key: usize, base: f64, expected: f64) -> Result<bool, String> {
        let sum = sum(rows, key);
        let off = (sum - base - expected).abs();
        let is_on_line = off.is_finite() && off <= self.rounding * sum.abs().max(base.abs());
        let mut shown = true;
        for row in rows {
            let number = row.at(key);
            shown &= match row.term {
                Term::Added(added) if is_on_line && (number == 0. || added.factor.is_some()) => true,
                _ if row.hides(key) => false,
                Term::Kept(..) => true,
                // Another term may hide the key.
                Term::Added(added)
                    if number == 0. || added.factor.is_some() && rows.iter().any(|row| row.hides(key)) =>
                {
                    true
                }
                Term::Added(added) => return Err(format!("{} adds {number} to scores", added.name)),
            };
        }
        Ok(shown)
    }
}

/// The sum that terms add to the score of a key.
fn sum(rows: &[Row<'_>], key: usize) -> f64 {
    let number = |row: &Row<'_>| match row.term {
        Term::Added(added) => row.at(key) * added.factor.unwrap_or(1.),
        Term::Kept(..) => 0.,
    };
    rows.iter().map(number).sum()
}

/// The slope of a head; one slope is that of all heads.
fn of_head(slopes: &[f64], head: usize) -> f64 {
    slopes[if slopes.len() == 1 { 0 } else { head }]
}

fn is_causal(rows: &[Vec<bool>], sizes: Sizes, window: usize) -> bool {
    rows.iter().enumerate().all(|(row, seen)| {
        let query = sizes.past + row % sizes.new;
        seen.iter().enumerate().all(|(key, &seen)| seen == (key <= query && query - key < window))
    })
}

/// One token with a past, so many tokens together.
fn long(total: usize) -> Sizes {
    Sizes { batch: 1, past: total - 1, new: 1 }
}

/// The numbers of keys that a term may have: those of all tokens, or all slots of a static cache.
fn keys_of(evaluation: &Evaluation, slots: Option<Slots<'_>>) -> Vec<usize> {
    let slots = slots.and_then(|slots| slots.count(evaluation));
    std::iter::once(evaluation.sizes.total()).chain(slots).collect()
}

/// The most tokens at which all terms fit: a mask that is cut out of a table has an end, and so has a static cache.
fn longest(lookup: &Lookup<'_>, terms: &[Term<'_>], heads: usize, slots: Option<Slots<'_>>) -> Result<usize> {
    if let Some(count) = slots.map(|slots| slots.declared(lookup)).transpose()?.flatten() {
        return Ok(count.min(TOKENS));
    }
    let shapes = |total: usize| -> Result<Vec<Option<[usize; 4]>>> {
        let evaluation = lookup.at(long(total))?;
        let shape = |term: &Term<'_>| Grid::shape(evaluation.dims(term.name())?, term, heads);
        Ok(terms.iter().map(shape).collect())
    };
    let few = shapes(SIZES[0].total())?;
    let fits = |total: usize| -> Result<bool> {
        let keys = keys_of(&*lookup.at(long(total))?, slots);
        let fits = |(shape, few): (Option<[usize; 4]>, &Option<[usize; 4]>)| match (shape, few) {
            // A last column is not broadcast: it is the end of a table.
            (Some(shape), Some(few)) => {
                Grid::fits(shape, long(total), heads, &keys) && (keys.contains(&shape[3]) || few[3] == 1)
            }
            // Behind a table that is too short, no sizes are known.
            (shape, few) => shape.is_some() == few.is_some(),
        };
        Ok(shapes(total)?.into_iter().zip(&few).all(fits))
    };
    let (mut some, mut many) = (SIZES[0].total(), TOKENS);
    if fits(many)? || !fits(some)? {
        return Ok(many);
    }
    while many - some > 1 {
        let middle = some.midpoint(many);
        *(if fits(middle)? { &mut some } else { &mut many }) = middle;
    }
    Ok(some)
}

/// The window and the slopes of a causal mask. With `causal`, later keys are hidden in addition to the terms.
pub(super) fn rules<'a>(
    lookup: &Lookup<'_>,
    node: &Node,
    terms: &[Term<'a>],
    causal: bool,
    heads: usize,
    slots: Option<Slots<'_>>,
) -> Result<Rules> {
    if causal && terms.is_empty() {
        return Ok(Rules { window: None, slopes: None, context_length: None });
    }
    let total = longest(lookup, terms, heads, slots)?;
    let evaluation = lookup.at(long(total))?;
    let grids = Grids::new(&evaluation, terms, heads, slots).map_err(|reason| unrecognised(node, reason))?;
    let slopes: Vec<f64> = (0..grids.heads()).map(|head| grids.slope(head)).collect();
    let rows = |sizes| -> Result<Vec<Vec<bool>>> {
        let evaluation = lookup.at(sizes)?;
        let grids = Grids::new(&evaluation, terms, heads, slots);
        grids.and_then(|grids| grids.visible(&slopes, causal)).map_err(|reason| unrecognised(node, reason))
    };
    let seen = rows(long(total))?.concat();
    let window = seen.iter().rev().take_while(|&&seen| seen).count();
    if window == 0 {
        return Err(unrecognised(node, "its mask hides the key of the token itself"));
    }
    if !is_causal(&[seen], long(total), window) {
        return Err(unrecognised(node, "its mask hides keys between visible ones"));
    }
    // Some graphs can take several tokens only without a past: then such calls are tried instead.
    let alone = rows(SIZES[0]).is_err();
    let mut tried = if alone { ALONE.to_vec() } else { SIZES.to_vec() };
    if window < total {
        tried.push(Sizes { batch: 1, past: window, new: if alone { 1 } else { 4.min(total - window) } });
    }
    if total * total <= TABLE_MAX {
        tried.push(Sizes { batch: 1, past: 0, new: total });
    }
    for sizes in tried {
        if !is_causal(&rows(sizes)?, sizes, window) {
            return Err(unrecognised(
                node,
                "its mask is not causal: each token must attend to itself and to earlier tokens",
            ));
        }
    }
    let is_sloped = slopes.iter().any(|&slope| slope != 0.);
    if is_sloped && heads > HEADS_MAX {
        return Err(unrecognised(node, format!("slopes for {heads} heads, expected at most {HEADS_MAX}")));
    }
    Ok(Rules {
        window: (window < total).then_some(window as u32),
        slopes: is_sloped.then(|| (0..heads).map(|head| of_head(&slopes, head) as f32).collect()),
        context_length: (total < TOKENS).then_some(total as u32),
    })
}

/// Returns a term that keeps scores for a boolean mask, and one that is added to scores for any other mask.
pub(super) fn term<'a>(lookup: &Lookup<'_>, mask: Option<&'a str>, is_capped: bool) -> Result<Option<Term<'a>>> {
    let Some(mask) = mask else { return Ok(None) };
    let is_truth = lookup.at(SIZES[0])?.get(mask).element == Some(ElementType::BOOL);
    Ok(Some(if is_truth { Term::Kept(mask, true, Axes::Apart) } else { Term::added(mask, is_capped) }))
}
