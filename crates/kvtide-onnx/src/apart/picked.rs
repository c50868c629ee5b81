//! Operators that take some elements of a tensor, or put tensors behind each other.

use super::join::both;
use super::reach::{Axis, Reach};
use super::step::Cause;
use super::walk::Call;
use crate::eval::Known;

/// Ends of slices from here on stand for the end of an axis.
const END: i64 = i32::MAX as i64 - 1;

/// The bounds of a slice along one axis, in both evaluations.
struct Bounds {
    at: usize,
    starts: [i64; 2],
    ends: [i64; 2],
    step: i64,
}

impl<'a> Call<'_, 'a> {
    /// True if the sizes of an axis show that a node keeps all of it.
    fn is_whole(&self, name: &str, at: usize) -> bool {
        match (self.dims(name), self.dims(self.output())) {
            (Some(from), Some(to)) => (0..2).all(|of| to[of].get(at) == from[of].get(at)),
            _ => false,
        }
    }

    fn bounds(&self, rank: usize) -> Option<Vec<Bounds>> {
        let list = |name: &str, at: usize| match self.node.ints(name) {
            Some(list) => Some([list.to_vec(), list.to_vec()]),
            None => self.ints(self.input(at)),
        };
        let (starts, ends) = (list("starts", 1)?, list("ends", 2)?);
        let count = starts[0].len();
        let all: Vec<i64> = (0..count as i64).collect();
        let axes = if self.has("axes", 3) { list("axes", 3)?[0].clone() } else { all };
        let steps = if self.has("steps", 4) { list("steps", 4)?[0].clone() } else { vec![1; count] };
        let of = |lists: &[Vec<i64>; 2], at: usize| Some([*lists[0].get(at)?, *lists[1].get(at)?]);
        let bounds = |at: usize| {
            let axis = self.axis(*axes.get(at)?, rank)?;
            Some(Bounds { at: axis, starts: of(&starts, at)?, ends: of(&ends, at)?, step: *steps.get(at)? })
        };
        (0..count).map(bounds).collect()
    }

    pub fn sliced(&self) -> Reach<'a> {
        let name = self.input(0);
        let own = match self.reach(name) {
            Reach::Apart(axes) => axes,
            reach => return self.carried(reach),
        };
        let has_tokens = own.iter().any(|axis| matches!(axis, Axis::Tokens(_)));
        let limits: Vec<Reach<'a>> = (1..self.node.inputs.len()).map(|at| self.reach(self.input(at))).collect();
        if limits.iter().any(|reach| matches!(reach, Reach::Step(step) if !step.is_size()) || reach.tokens().is_some())
        {
            return self.stepped(&limits).map_or_else(|| self.step(Cause::Chosen), Reach::Step);
        }
        let Some(bounds) = self.bounds(own.len()) else { return self.without_sizes(has_tokens) };
        let varies = self.varies(name);
        for Bounds { at, starts, ends, step } in bounds {
            let is_end = ends[0] >= END || starts[0] == 0 && ends[0] != ends[1];
            match own[at] {
                Axis::Tokens(_) if starts == [0, 0] && step == 1 && is_end && self.is_whole(name, at) => (),
                Axis::Tokens(_) => return self.step(Cause::Chosen),
                Axis::Same => (),
                // The place of a row must not follow from the number of tokens.
                Axis::Index if starts[0] != starts[1] || varies[at] && (starts[0] < 0 || step < 0) => {
                    return self.stepped(&limits).map_or_else(|| self.step(Cause::Count), Reach::Step);
                }
                Axis::Index => (),
            }
        }
        Reach::Apart(own)
    }

    pub fn split(&self) -> Reach<'a> {
        let name = self.input(0);
        let own = match self.reach(name) {
            Reach::Apart(axes) => axes,
            reach => return self.carried(reach),
        };
        let Some(at) = self.axis(self.node.int("axis").unwrap_or(0), own.len()) else {
            return self.step(Cause::Unknown);
        };
        match own[at] {
            Axis::Tokens(_) if self.node.outputs.len() > 1 => self.step(Cause::Chosen),
            Axis::Index if self.varies(name)[at] && self.node.outputs.len() > 1 => self.step(Cause::Count),
            _ => Reach::Apart(own),
        }
    }

    pub fn concatenated(&self) -> Reach<'a> {
        let inputs: Vec<&str> = self.inputs().collect();
        let reaches: Vec<Reach<'a>> = inputs.iter().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let has_tokens = reaches.iter().any(|reach| reach.tokens().is_some());
        let mut axes: Option<Vec<Axis>> = None;
        for (place, (name, reach)) in inputs.iter().zip(&reaches).enumerate() {
            let Reach::Apart(own) = reach else { return self.without_sizes(has_tokens) };
            let at = self.axis(self.node.int("axis").unwrap_or(0), own.len());
            let Some(at) = at else { return self.step(Cause::Unknown) };
            if inputs.len() > 1 && matches!(own[at], Axis::Tokens(_)) {
                return self.step(Cause::Chosen);
            }
            // Elements behind a part whose size varies would move.
            if place + 1 < inputs.len() && self.varies(name).get(at) == Some(&true) {
                return self.step(Cause::Count);
            }
            let Some(axes) = &mut axes else {
                axes = Some(own.clone());
                continue;
            };
            for (index, (axis, &other)) in axes.iter_mut().zip(own).enumerate() {
                match both(*axis, other) {
                    _ if index == at => *axis = Axis::Index,
                    Some(both) => *axis = both,
                    None => return self.step(Cause::Numbered),
                }
            }
        }
        axes.map_or(Reach::Fixed, Reach::Apart)
    }

    /// Rows of a tensor, by a list of their places.
    pub fn gathered(&self) -> Reach<'a> {
        let (data, indices) = (self.input(0), self.input(1));
        let reaches = [self.reach(data), self.reach(indices)];
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let [Reach::Apart(own), Reach::Apart(list)] = &reaches else {
            return self.without_sizes(reaches.iter().any(|reach| reach.tokens().is_some()));
        };
        let name = if self.node.operator == "Gather" { "axis" } else { "gather_axis" };
        let Some(at) = self.axis(self.node.int(name).unwrap_or(0), own.len()) else { return self.step(Cause::Unknown) };
        let chosen = match own[at] {
            Axis::Tokens(_) if self.picks(own[at], indices) => list.clone(),
            Axis::Tokens(_) => return self.step(Cause::Chosen),
            Axis::Same => vec![Axis::Same; list.len()],
            Axis::Index if self.counts_from_end(data, at, indices) => return self.step(Cause::Count),
            Axis::Index => list.clone(),
        };
        self.alone([&own[..at], &chosen, &own[at + 1..]].concat())
    }

    /// True if indices that do not depend on tokens count from the end of an axis whose size varies.
    fn counts_from_end(&self, data: &str, at: usize, indices: &str) -> bool {
        let is_negative =
            |value: &Known| value.data.as_ref().is_some_and(|data| data.iter().any(|&number| number < 0.));
        self.varies(data)[at] && self.known(indices).into_iter().any(is_negative)
    }

    /// True if a list has the places, on an axis of tokens, of the tokens that its own elements belong to.
    pub fn picks(&self, axis: Axis, indices: &str) -> bool {
        self.picks_in(axis, indices, self.known(indices))
    }

    /// The same for numbers that are a part of a list, of all its axes but the last.
    fn picks_in(&self, axis: Axis, indices: &str, values: [&Known; 2]) -> bool {
        let (Axis::Tokens(of), Some((place, chosen))) = (axis, self.reach(indices).tokens()) else { return false };
        let set = &self.walk.sets[chosen.set];
        let is_part = chosen.set != of.set && set.parent == of.set && chosen.is_pure();
        is_part && set.is_own(values, place, of.inner, self.walk.sets[of.set].counts())
    }

    /// True if a column of a list of coordinates has the places of its own tokens on an axis.
    pub fn picks_by(&self, axis: Axis, indices: &str, column: usize) -> bool {
        let of_column = |value: &Known| {
            let (dims, data) = (value.dims.as_ref()?, value.data.as_ref()?);
            let (depth, front) = dims.split_last()?;
            let numbers = data.iter().skip(column).step_by((*depth).max(1)).copied().collect();
            Some(Known::full(value.element, front.to_vec(), numbers))
        };
        let [one, other] = self.known(indices).map(of_column);
        matches!((one, other), (Some(one), Some(other)) if self.picks_in(axis, indices, [&one, &other]))
    }

    /// Elements by a place on one axis, and their own places on the others.
    pub fn gathered_elements(&self) -> Reach<'a> {
        let (data, indices) = (self.input(0), self.input(1));
        let reaches = [self.reach(data), self.reach(indices)];
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let has_tokens = reaches.iter().any(|reach| reach.tokens().is_some());
        let [Reach::Apart(own), Reach::Apart(list)] = &reaches else { return self.without_sizes(has_tokens) };
        let (Some(at), true) = (self.axis(self.node.int("axis").unwrap_or(0), own.len()), own.len() == list.len())
        else {
            return self.step(Cause::Unknown);
        };
        let mut axes = list.clone();
        if matches!(own[at], Axis::Tokens(_)) && !self.picks(own[at], indices) {
            return self.step(Cause::Chosen);
        }
        for (index, axis) in axes.iter_mut().enumerate().filter(|(index, _)| *index != at) {
            if matches!(own[index], Axis::Tokens(_)) && !self.is_same_size([data, indices], index) {
                return self.step(Cause::Chosen);
            }
            match both(*axis, own[index]) {
                Some(both) => *axis = both,
                None => return self.step(Cause::Numbered),
            }
        }
        if axes[at] == Axis::Same && own[at] != Axis::Same {
            axes[at] = Axis::Index;
        }
        self.alone(axes)
    }

    /// True if two tensors have the same size on an axis.
    pub fn is_same_size(&self, names: [&str; 2], at: usize) -> bool {
        match names.map(|name| self.dims(name)) {
            [Some(one), Some(other)] => (0..2).all(|of| one[of].get(at) == other[of].get(at)),
            _ => false,
        }
    }

    /// Slices by lists of coordinates.
    pub fn gathered_slices(&self) -> Reach<'a> {
        let (data, indices) = (self.input(0), self.input(1));
        let reaches = [self.reach(data), self.reach(indices)];
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let has_tokens = reaches.iter().any(|reach| reach.tokens().is_some());
        let [Reach::Apart(own), Reach::Apart(list)] = &reaches else { return self.without_sizes(has_tokens) };
        let shared = usize::try_from(self.node.int("batch_dims").unwrap_or(0)).unwrap_or(usize::MAX);
        let depth = self.dims(indices).and_then(|dims| dims[0].last().copied());
        let (Some(depth), Some((last, front))) = (depth, list.split_last()) else {
            return self.without_sizes(has_tokens);
        };
        let is_fit = shared <= front.len() && shared.saturating_add(depth) <= own.len();
        if !is_fit || matches!(last, Axis::Tokens(_)) {
            return self.step(Cause::Unknown);
        }
        let columns = own[shared..shared + depth].iter().enumerate();
        let mut tokens = columns.filter(|(_, axis)| matches!(axis, Axis::Tokens(_)));
        if tokens.any(|(column, &axis)| !self.picks_by(axis, indices, column)) {
            return self.step(Cause::Chosen);
        }
        let mut axes = front.to_vec();
        for (axis, &other) in axes.iter_mut().zip(&own[..shared]) {
            match both(*axis, other) {
                Some(both) => *axis = both,
                None => return self.step(Cause::Numbered),
            }
        }
        axes.extend(&own[shared + depth..]);
        self.alone(axes)
    }

    /// A tensor with further elements around it.
    pub fn padded(&self) -> Reach<'a> {
        let own = match self.reach(self.input(0)) {
            Reach::Apart(axes) => axes,
            reach => return self.carried(reach),
        };
        let has_tokens = own.iter().any(|axis| matches!(axis, Axis::Tokens(_)));
        let pads = match self.node.ints("pads") {
            Some(pads) => Some(pads.to_vec()),
            None => self.ints(self.input(1)).filter(|pads| pads[0] == pads[1]).map(|[pads, _]| pads),
        };
        let rank = own.len();
        let Some(pads) = pads.filter(|pads| pads.len() == 2 * rank && !self.has("axes", 3)) else {
            return if has_tokens { self.step(Cause::Unknown) } else { self.step(Cause::Count) };
        };
        let (mut axes, varies) = (own, self.varies(self.input(0)));
        for (at, axis) in axes.iter_mut().enumerate() {
            match axis {
                _ if pads[at] == 0 && pads[at + rank] == 0 => (),
                Axis::Tokens(_) => return self.step(Cause::Chosen),
                _ if varies[at] => return self.step(Cause::Count),
                _ => *axis = Axis::Index,
            }
        }
        Reach::Apart(axes)
    }
}
