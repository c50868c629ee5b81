//! Operators that write rows at places that a list has, and the lists of places that routing to experts makes.

use super::join::both;
use super::reach::{Axis, Reach, Tokens};
use super::step::Cause;
use super::walk::Call;

impl<'a> Call<'_, 'a> {
    /// A tensor with an axis for the classes that its integers stand for.
    pub fn one_hot(&self) -> Reach<'a> {
        let reaches: Vec<Reach<'a>> = self.inputs().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        match reaches.first() {
            Some(Reach::Apart(own)) if reaches.iter().skip(1).all(Reach::is_fixed) => {
                let Some(at) = self.axis(self.node.int("axis").unwrap_or(-1), own.len() + 1) else {
                    return self.step(Cause::Unknown);
                };
                Reach::Apart([&own[..at], &[Axis::Index], &own[at..]].concat())
            }
            _ => self.without_sizes(reaches.iter().any(|reach| reach.tokens().is_some())),
        }
    }

    /// The axis of tokens that a scatter writes to, if a list has the places of its own tokens on it: the axis is one of
    /// these tokens already, or all of its elements are equal before.
    fn written(&self, own: &[Axis], at: usize, indices: &str, picks: impl Fn(Axis) -> bool) -> Option<Tokens> {
        let (_, chosen) = self.reach(indices).tokens()?;
        let set = self.walk.sets[chosen.set].parent;
        let target = Tokens::of(set);
        let counts = self.walk.sets[set].counts();
        let has_all = self.dims(self.input(0))?.into_iter().zip(counts).all(|(dims, count)| dims[at] == count);
        let is_target = own[at] == Axis::Same || own[at] == Axis::Tokens(target);
        (has_all && is_target && picks(Axis::Tokens(target))).then_some(target)
    }

    /// Elements that are written by a place on one axis, and their own places on the others.
    pub fn scattered_elements(&self) -> Reach<'a> {
        let names = [self.input(0), self.input(1), self.input(2)];
        let reaches = names.map(|name| self.reach(name));
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let has_tokens = reaches.iter().any(|reach| reach.tokens().is_some());
        let [Reach::Apart(own), Reach::Apart(list), Reach::Apart(rows)] = &reaches else {
            return self.without_sizes(has_tokens);
        };
        let at = self.axis(self.node.int("axis").unwrap_or(0), own.len());
        let (Some(at), true) = (at, own.len() == list.len() && own.len() == rows.len()) else {
            return self.step(Cause::Unknown);
        };
        let mut axes = own.clone();
        let target = self.written(own, at, names[1], |axis| self.picks(axis, names[1]));
        match target {
            Some(target) if rows[at] == list[at] || rows[at] == Axis::Same => axes[at] = Axis::Tokens(target),
            _ if [own, list, rows].iter().any(|axes| matches!(axes[at], Axis::Tokens(_))) => {
                return self.step(Cause::Chosen);
            }
            _ => axes[at] = Axis::Index,
        }
        for index in (0..own.len()).filter(|&index| index != at) {
            let joined = both(list[index], rows[index]).and_then(|axis| both(own[index], axis));
            let Some(joined) = joined else { return self.step(Cause::Numbered) };
            if matches!(joined, Axis::Tokens(_)) && !self.is_same_size([names[0], names[1]], index) {
                return self.step(Cause::Chosen);
            }
            axes[index] = joined;
        }
        self.alone(axes)
    }

    /// Slices that are written by lists of coordinates.
    pub fn scattered_slices(&self) -> Reach<'a> {
        let names = [self.input(0), self.input(1), self.input(2)];
        let reaches = names.map(|name| self.reach(name));
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let has_tokens = reaches.iter().any(|reach| reach.tokens().is_some());
        let [Reach::Apart(own), Reach::Apart(list), Reach::Apart(rows)] = &reaches else {
            return self.without_sizes(has_tokens);
        };
        let depth = self.dims(names[1]).and_then(|dims| dims[0].last().copied());
        let (Some(depth), Some((last, front))) = (depth, list.split_last()) else {
            return self.without_sizes(has_tokens);
        };
        let is_fit = depth <= own.len() && front.len() + own.len() - depth == rows.len();
        if !is_fit || matches!(last, Axis::Tokens(_)) {
            return self.step(Cause::Unknown);
        }
        let mut axes = own.clone();
        let column = (0..depth).find_map(|column| {
            let picks = |axis| self.picks_by(axis, names[1], column);
            Some((column, self.written(own, column, names[1], picks)?))
        });
        for (at, axis) in axes.iter_mut().enumerate().take(depth) {
            *axis = match column {
                Some((column, target)) if column == at => Axis::Tokens(target),
                _ if matches!(own[at], Axis::Tokens(_)) => return self.step(Cause::Chosen),
                _ => Axis::Index,
            };
        }
        // Rows are written where their own token is, or have no token.
        let (written, kept) = rows.split_at(front.len());
        let is_kept = |(row, at): (&Axis, &Axis)| *row == *at || !matches!(row, Axis::Tokens(_));
        let is_routed = column.is_some() || !front.iter().any(|axis| matches!(axis, Axis::Tokens(_)));
        if !is_routed || !written.iter().zip(front).all(is_kept) {
            return self.step(Cause::Chosen);
        }
        for (axis, &other) in axes[depth..].iter_mut().zip(kept) {
            match both(*axis, other) {
                Some(both) => *axis = both,
                None => return self.step(Cause::Numbered),
            }
        }
        self.alone(axes)
    }
}
