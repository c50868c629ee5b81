//! Operators that compute each element from those at the same place of their inputs, which are broadcast.

use super::reach::{Axis, Reach};
use super::step::{Cause, Step};
use super::walk::Call;
use crate::eval::ELEMENTWISE;

/// The kinds of one axis of two tensors together; [`None`] if an element would depend on several tokens, or on the place
/// of its token.
pub(super) fn both(one: Axis, other: Axis) -> Option<Axis> {
    match (one, other) {
        (Axis::Same, other) => Some(other),
        (one, Axis::Same) => Some(one),
        (Axis::Index, Axis::Index) => Some(Axis::Index),
        (Axis::Tokens(one), Axis::Tokens(other)) => (one == other).then_some(Axis::Tokens(one)),
        _ => None,
    }
}

impl<'a> Call<'_, 'a> {
    /// The dependence on the step that some inputs have, behind this node.
    pub fn stepped(&self, reaches: &[Reach<'a>]) -> Option<Step<'a>> {
        let has_tokens = reaches.iter().any(|reach| reach.tokens().is_some());
        let steps = reaches.iter().filter_map(|reach| match reach {
            Reach::Step(step) => Some(step.clone()),
            _ => None,
        });
        let has_others = steps.clone().any(|step| !step.is_size());
        let is_met = has_tokens || has_others || !self.keeps_sizes();
        Some(steps.reduce(Step::and)?.behind(self.node, is_met))
    }

    /// True if sizes stay sums of multiples of numbers of tokens: two steps then show all others. An integer that was
    /// rounded, or compared, may be the same in both.
    fn keeps_sizes(&self) -> bool {
        let operator = self.node.operator.as_str();
        let numbers = |name: &str| self.known(name).map(|value| value.data.clone());
        let pairs = |of: [&str; 2], fits: &dyn Fn(f64, f64) -> bool| {
            numbers(of[0]).iter().zip(numbers(of[1])).all(|pair| match pair {
                (Some(one), Some(other)) => {
                    one.len() == other.len() && one.iter().zip(other.iter()).all(|(&one, &other)| fits(one, other))
                }
                _ => false,
            })
        };
        match operator {
            "Add" | "Sub" | "Sum" | "Mul" | "Neg" | "Identity" => true,
            "Cast" | "Ceil" | "Floor" | "Round" => pairs([self.input(0), self.output()], &|one, other| one == other),
            "Div" => {
                let divisor = self.known(self.input(1)).map(|value| value.data.as_ref()?.first().copied());
                let is_one = self
                    .known(self.input(1))
                    .iter()
                    .all(|value| value.data.as_ref().is_some_and(|data| data.len() == 1));
                let fits = |one: f64, other: f64| divisor[0].is_some_and(|by| one == other * by);
                is_one && divisor[0] == divisor[1] && pairs([self.input(0), self.output()], &fits)
            }
            "Where" => self.reach(self.input(0)).is_fixed(),
            _ => !ELEMENTWISE.contains(&operator),
        }
    }

    /// The reach of a tensor of `rank` axes, each element of which is computed from those of `inputs` at the same place.
    /// Axes are aligned at the back.
    pub fn joined(&self, inputs: &[&str], rank: Option<usize>) -> Reach<'a> {
        let reaches: Vec<Reach<'a>> = inputs.iter().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let has_tokens = reaches.iter().any(|reach| reach.tokens().is_some());
        let unknown = |name: &str| match has_tokens {
            true => self.step(Cause::Sizes(name.into())),
            false => Reach::Fixed,
        };
        let Some(rank) = rank else { return unknown(self.node.output(0).unwrap_or_default()) };
        let mut axes = vec![Axis::Same; rank];
        for (name, reach) in inputs.iter().zip(&reaches) {
            let Reach::Apart(own) = reach else { return unknown(name) };
            for (at, &axis) in own.iter().enumerate() {
                let Some(to) = (at + rank).checked_sub(own.len()) else { return unknown(name) };
                match both(axes[to], axis) {
                    Some(both) => axes[to] = both,
                    None => return self.step(Cause::Numbered),
                }
            }
        }
        Reach::Apart(axes)
    }

    /// The same for all inputs and the first output.
    pub fn elementwise(&self) -> Reach<'a> {
        let inputs: Vec<&str> = self.inputs().collect();
        self.joined(&inputs, self.rank(self.output()))
    }

    /// The reach of the first input, for operators whose other inputs must not depend on tokens or on the step.
    pub fn first_alone(&self) -> Reach<'a> {
        let reaches: Vec<Reach<'a>> = self.inputs().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        match reaches.iter().skip(1).any(|reach| reach.tokens().is_some()) {
            true => self.step(Cause::Unknown),
            false => reaches.into_iter().next().unwrap_or(Reach::Fixed),
        }
    }
}
