//! Operators that give a tensor other axes: views keep the order of elements in memory, so the place of tokens in it
//! tells the axis of tokens behind any view.
//!
//! ```text
//! [tokens, heads, dim] -> [tokens * heads, dim]      an axis of tokens with an inner factor of `heads`
//! [tokens, width] -> [tokens / 4, 4 * width]         no axis of tokens: refused
//! ```

use super::reach::{Axis, Reach, Tokens};
use super::step::Cause;
use super::walk::Call;

/// The axes of a view, if it keeps tokens apart. `varies` tells the axes whose sizes follow from the number of tokens,
/// and `count` is the number of tokens in a set.
pub(super) fn viewed(
    axes: &[Axis],
    [from, to]: [&[usize]; 2],
    varies: &[bool],
    count: impl Fn(usize) -> usize,
) -> Option<Vec<Axis>> {
    if from.iter().chain(to).any(|&dim| dim == 0) || from.len() != axes.len() {
        return None;
    }
    let mut out = vec![Axis::Same; to.len()];
    let (mut i, mut j) = (0, 0);
    while i < from.len() || j < to.len() {
        let (first, start) = (i, j);
        let (mut before, mut behind) = (1usize, 1usize);
        if i < from.len() {
            before = from[i];
            i += 1;
        }
        if j < to.len() {
            behind = to[j];
            j += 1;
        }
        while before != behind {
            if before < behind {
                before = before.checked_mul(*from.get(i)?)?;
                i += 1;
            } else {
                behind = behind.checked_mul(*to.get(j)?)?;
                j += 1;
            }
        }
        let group =
            Group { axes: &axes[first..i], from: &from[first..i], to: &to[start..j], varies: &varies[first..i] };
        out[start..j].copy_from_slice(&group.viewed(&count)?);
    }
    Some(out)
}

/// Neighbouring axes with as many elements before and behind a view.
struct Group<'a> {
    axes: &'a [Axis],
    from: &'a [usize],
    to: &'a [usize],
    varies: &'a [bool],
}

impl Group<'_> {
    fn viewed(&self, count: &impl Fn(usize) -> usize) -> Option<Vec<Axis>> {
        let large = |dims: &[usize]| dims.iter().filter(|&&dim| dim > 1).count();
        let is_one = large(self.from) <= 1 && large(self.to) <= 1;
        let tokens = self.axes.iter().position(|axis| matches!(axis, Axis::Tokens(_)));
        let others = || (0..self.axes.len()).filter(|&at| Some(at) != tokens && self.from[at] > 1);
        let is_same = others().all(|at| self.axes[at] == Axis::Same);
        let Some(at) = tokens else {
            let first = self.from.iter().position(|&dim| dim > 1);
            // Elements would move if the size of a later axis changed.
            if !is_one && !is_same && others().any(|at| Some(at) != first && self.varies[at]) {
                return None;
            }
            let kind = |&dim: &usize| if is_same || dim == 1 { Axis::Same } else { Axis::Index };
            return Some(self.to.iter().map(kind).collect());
        };
        let Axis::Tokens(Tokens { set, outer: _, inner }) = self.axes[at] else { return None };
        if others().any(|at| self.varies[at]) {
            return None;
        }
        let stride = self.from[at + 1..].iter().try_fold(inner, |stride, &dim| stride.checked_mul(dim))?;
        let end = stride.checked_mul(count(set))?;
        let mut out = vec![Axis::Same; self.to.len()];
        let (mut behind, mut found) = (1, false);
        for (axis, &dim) in out.iter_mut().zip(self.to).rev() {
            let size = behind * dim;
            let has_tokens = !found && behind <= stride && end <= size && stride % behind == 0 && size % end == 0;
            if has_tokens && dim > 1 {
                *axis = Axis::Tokens(Tokens { set, outer: size / end, inner: stride / behind });
                found = true;
            } else if dim > 1 {
                *axis = Axis::Index;
            }
            behind = size;
        }
        found.then_some(out)
    }
}

impl<'a> Call<'_, 'a> {
    /// A view of the first input: Reshape, Flatten, Squeeze, Unsqueeze.
    pub fn view(&self) -> Reach<'a> {
        let name = self.input(0);
        let axes = match self.reach(name) {
            Reach::Apart(axes) => axes,
            reach => return self.carried(reach),
        };
        let has_tokens = axes.iter().any(|axis| matches!(axis, Axis::Tokens(_)));
        let (Some(from), Some(to)) = (self.dims(name), self.dims(self.output())) else {
            return if has_tokens { self.step(Cause::Sizes(self.output().into())) } else { Reach::Fixed };
        };
        let varies: Vec<bool> = self.varies(name);
        let [one, other] =
            [0, 1].map(|at| viewed(&axes, [from[at], to[at]], &varies, |set| self.walk.sets[set].counts()[at]));
        match (one, other) {
            (Some(one), Some(other)) if one == other => Reach::Apart(one),
            _ if has_tokens => self.step(Cause::Mixed),
            _ => self.step(Cause::Count),
        }
    }

    pub fn transposed(&self) -> Reach<'a> {
        let axes = match self.reach(self.input(0)) {
            Reach::Apart(axes) => axes,
            reach => return self.carried(reach),
        };
        let rank = axes.len();
        let order: Option<Vec<usize>> = match self.node.ints("perm") {
            Some(order) => order.iter().map(|&at| self.axis(at, rank)).collect(),
            None => Some((0..rank).rev().collect()),
        };
        match order.filter(|order| order.len() == rank) {
            Some(order) => Reach::Apart(order.into_iter().map(|at| axes[at]).collect()),
            None => self.step(Cause::Unknown),
        }
    }

    /// A tensor that is repeated: Expand to a shape, which only gives sizes.
    pub fn expanded(&self) -> Reach<'a> {
        match self.reach(self.input(0)) {
            Reach::Apart(_) => self.joined(&[self.input(0)], self.rank(self.output())),
            reach => self.carried(reach),
        }
    }

    /// A tensor that is repeated along its axes.
    pub fn tiled(&self) -> Reach<'a> {
        let name = self.input(0);
        let mut axes = match self.reach(name) {
            Reach::Apart(axes) => axes,
            reach => return self.carried(reach),
        };
        let has_tokens = axes.iter().any(|axis| matches!(axis, Axis::Tokens(_)));
        let (Some(from), Some(to)) = (self.dims(name), self.dims(self.output())) else {
            return self.without_sizes(has_tokens);
        };
        for (at, axis) in axes.iter_mut().enumerate() {
            let times = [0, 1].map(|of: usize| to[of].get(at).map_or(0, |&size| size / from[of][at].max(1)));
            match axis {
                Axis::Tokens(tokens) if times[0] == times[1] => tokens.outer = tokens.outer.saturating_mul(times[0]),
                Axis::Same => (),
                Axis::Index if times == [1, 1] || from[0][at] == from[1][at] => (),
                _ => return self.step(Cause::Mixed),
            }
        }
        Reach::Apart(axes)
    }
}
