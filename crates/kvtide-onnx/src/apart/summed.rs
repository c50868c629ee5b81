//! Operators that sum or compare along axes: reductions, norms, products, convolutions.

use super::join::both;
use super::reach::{Axis, Reach};
use super::step::{Cause, Step};
use super::walk::Call;
use crate::eval::count;

/// Reductions that do not change if equal elements are added.
const BY_VALUE: [&str; 3] = ["ReduceMax", "ReduceMin", "ReduceMean"];

impl<'a> Call<'_, 'a> {
    /// The dependence of a node that reads all elements along an axis.
    fn read_along(&self, axis: Axis, varies: bool, name: &str) -> Option<Step<'a>> {
        let cause = match axis {
            Axis::Tokens(_) => {
                // Numbers that are known follow from positions.
                let is_length = self.node.operator == "ReduceMax" && self.known(name)[0].data.is_some();
                if is_length { Cause::Longest } else { Cause::Mixed }
            }
            Axis::Same if varies && !BY_VALUE.contains(&self.node.operator.as_str()) => Cause::Count,
            Axis::Index if varies => Cause::Count,
            _ => return None,
        };
        Some(Step::new(cause, self.node))
    }

    /// The axes that an attribute or an input lists, or all of them.
    fn reduced_axes(&self, rank: usize) -> Option<Vec<usize>> {
        let given = match self.node.ints("axes") {
            Some(axes) => Some(axes.to_vec()),
            None if self.input(1).is_empty() => None,
            None => Some(self.ints(self.input(1))?[0].clone()),
        };
        let is_noop = self.node.int("noop_with_empty_axes") == Some(1);
        match given.filter(|axes| !axes.is_empty()) {
            Some(axes) => axes.iter().map(|&at| self.axis(at, rank)).collect(),
            None if is_noop => Some(Vec::new()),
            None => Some((0..rank).collect()),
        }
    }

    /// True if a reduction compares several elements.
    fn compares(&self, name: &str) -> bool {
        let is_sum = ["ReduceSum", "ReduceMean"].contains(&self.node.operator.as_str());
        let is_one = self.dims(name).is_some_and(|dims| dims.iter().all(|dims| count(dims) == Some(1)));
        !is_sum && !is_one
    }

    pub fn reduced(&self) -> Reach<'a> {
        let name = self.input(0);
        let own = match self.reach(name) {
            Reach::Apart(axes) => axes,
            Reach::Step(step) => return Reach::Step(step.behind(self.node, self.compares(name))),
            Reach::Fixed => return Reach::Fixed,
        };
        let is_arg = self.node.operator.starts_with("Arg");
        let chosen = match is_arg {
            true => self.axis(self.node.int("axis").unwrap_or(0), own.len()).map(|at| vec![at]),
            false => self.reduced_axes(own.len()),
        };
        let Some(chosen) = chosen else { return self.step(Cause::Unknown) };
        let varies = self.varies(name);
        let steps = chosen.iter().filter_map(|&at| self.read_along(own[at], varies[at], name));
        if let Some(step) = steps.reduce(Step::and) {
            return Reach::Step(step);
        }
        let keeps = self.node.int("keepdims").unwrap_or(1) == 1;
        let axes = own.iter().enumerate().filter(|(at, _)| keeps || !chosen.contains(at));
        Reach::Apart(axes.map(|(at, &axis)| if chosen.contains(&at) { Axis::Same } else { axis }).collect())
    }

    /// A tensor of the same dimensions, each element of which depends on all elements along some axes.
    fn along(&self, reach: Reach<'a>, chosen: impl Fn(usize) -> bool) -> Reach<'a> {
        let Reach::Apart(mut axes) = reach else { return reach };
        let name = self.input(0);
        let varies = self.varies(name);
        for (at, axis) in axes.iter_mut().enumerate().filter(|(at, _)| chosen(*at)) {
            let varies = varies.get(at).copied().unwrap_or(true);
            if let Some(step) = self.read_along(*axis, varies, name) {
                return Reach::Step(step);
            }
            *axis = Axis::Index;
        }
        Reach::Apart(axes)
    }

    /// Softmax, TopK, CumSum and others, along one axis.
    pub fn along_axis(&self) -> Reach<'a> {
        let operator = self.node.operator.as_str();
        let reach = match self.reach(self.input(0)) {
            Reach::Step(step) => return Reach::Step(step.behind(self.node, operator != "CumSum")),
            reach => reach,
        };
        let Reach::Apart(axes) = &reach else { return reach };
        let is_flat = ["Softmax", "LogSoftmax", "Hardmax"].contains(&operator)
            && self.walk.lookup.model.opset("").is_some_and(|version| version < 13);
        let given = match operator {
            "CumSum" | "CumProd" => self.ints(self.input(1)).and_then(|at| at[0].first().copied()),
            _ => Some(self.node.int("axis").unwrap_or(if is_flat { 1 } else { -1 })),
        };
        let Some(chosen) = given.and_then(|at| self.axis(at, axes.len())) else { return self.step(Cause::Unknown) };
        // Before opset 13, all axes from this one on were one.
        self.along(reach, |at| at == chosen || is_flat && at > chosen)
    }

    /// A norm over the last axes of a tensor, or of a sum of several.
    pub fn normed(&self) -> Reach<'a> {
        let reach = self.elementwise();
        let Some(rank) = self.rank(self.output()) else { return reach };
        let Some(from) = self.axis(self.node.int("axis").unwrap_or(-1), rank) else { return self.step(Cause::Unknown) };
        self.along(reach, |at| at >= from)
    }

    /// A norm over all axes but the batch, and the channels if each has its own.
    pub fn normed_planes(&self, first: usize) -> Reach<'a> {
        let reach = self.first_alone();
        self.along(reach, |at| at >= first)
    }

    /// A product with weights that the operator packs: each row by itself. Experts are such products as well.
    pub fn weighted(&self) -> Reach<'a> {
        let Reach::Apart(mut axes) = self.first_alone() else { return self.first_alone() };
        let Some(last) = axes.last_mut() else { return self.step(Cause::Unknown) };
        if matches!(last, Axis::Tokens(_)) {
            return self.step(Cause::Mixed);
        }
        *last = Axis::Index;
        Reach::Apart(axes)
    }

    /// Experts, which a router chooses for each row.
    pub fn routed(&self) -> Reach<'a> {
        let reaches: Vec<Reach<'a>> = self.inputs().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let (Some(Reach::Apart(own)), Some(Reach::Apart(router))) = (reaches.first(), reaches.get(1)) else {
            return self.without_sizes(reaches.iter().any(|reach| reach.tokens().is_some()));
        };
        let is_row = |axes: &[Axis]| {
            let rows = axes.split_last().map_or(&[][..], |(_, rows)| rows);
            rows.iter().all(|axis| matches!(axis, Axis::Same | Axis::Tokens(_)))
        };
        let of = |axes: &[Axis]| Reach::Apart(axes.to_vec()).tokens().map(|(_, tokens)| tokens);
        let is_apart = is_row(own) && is_row(router) && of(own).is_none_or(|tokens| tokens.is_pure());
        let is_known = of(own) == of(router) && reaches.iter().skip(2).all(Reach::is_fixed);
        if !is_apart || !is_known || own.last().is_some_and(|axis| matches!(axis, Axis::Tokens(_))) {
            return self.step(Cause::Mixed);
        }
        let mut axes = own.clone();
        axes.iter_mut().last().into_iter().for_each(|last| *last = Axis::Index);
        Reach::Apart(axes)
    }

    /// A product of two inputs. All others must be the same for all tokens, but for a bias.
    pub fn product(&self, places: [usize; 2], bias: Option<usize>) -> Reach<'a> {
        let names = places.map(|at| self.input(at));
        let reaches: Vec<Reach<'a>> = self.inputs().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let has_tokens = reaches.iter().any(|reach| reach.tokens().is_some());
        let is_operand = |at: usize| places.contains(&at) || bias == Some(at);
        let mut others = (0..self.node.inputs.len()).filter(|&at| !is_operand(at)).map(|at| self.reach(self.input(at)));
        if others.any(|reach| !reach.is_fixed()) || self.node.int("transBatchA") == Some(1) {
            return self.step(Cause::Unknown);
        }
        let [Reach::Apart(mut one), Reach::Apart(mut other)] = names.map(|name| self.reach(name)) else {
            return self.without_sizes(has_tokens);
        };
        let [mut varies, mut varies_other] = names.map(|name| self.varies(name));
        let turned = ["transA", "transB"].map(|name| self.node.int(name) == Some(1));
        for (axes, varies, is_turned) in
            [(&mut one, &mut varies, turned[0]), (&mut other, &mut varies_other, turned[1])]
        {
            let rank = axes.len();
            if is_turned && rank > 1 {
                axes.swap(rank - 2, rank - 1);
                varies.swap(rank - 2, rank - 1);
            }
        }
        let inner = other.len().saturating_sub(2);
        let (Some(&left), Some(&right)) = (one.last(), other.get(inner)) else { return self.step(Cause::Unknown) };
        let steps = [
            self.read_along(left, varies.last() == Some(&true), names[0]),
            self.read_along(right, varies_other.get(inner) == Some(&true), names[1]),
        ];
        if let Some(step) = steps.into_iter().flatten().reduce(Step::and) {
            return Reach::Step(step);
        }
        let is_list = [one.len() == 1, other.len() == 1];
        let columns = if is_list[1] { None } else { other.last().copied() };
        let front = [one.len().saturating_sub(2), inner].map(|rank| rank);
        let rank = front[0].max(front[1]);
        let mut axes = vec![Axis::Same; rank];
        for (own, kept) in [(&one, front[0]), (&other, front[1])] {
            for (at, &axis) in own[..kept].iter().enumerate() {
                match both(axes[at + rank - kept], axis) {
                    Some(both) => axes[at + rank - kept] = both,
                    None => return self.step(Cause::Numbered),
                }
            }
        }
        axes.extend(if is_list[0] { None } else { one.get(one.len() - 2).copied() });
        axes.extend(columns);
        match bias.map(|at| self.input(at)).filter(|name| !name.is_empty()) {
            Some(bias) => self.biased(axes, bias),
            None => self.alone(axes),
        }
    }

    fn biased(&self, mut axes: Vec<Axis>, bias: &str) -> Reach<'a> {
        let Reach::Apart(own) = self.reach(bias) else { return self.step(Cause::Sizes(bias.into())) };
        let rank = axes.len();
        for (at, &axis) in own.iter().enumerate() {
            let to = (at + rank).checked_sub(own.len());
            match to.and_then(|to| Some((to, both(axes[to], axis)?))) {
                Some((to, both)) => axes[to] = both,
                None => return self.step(Cause::Numbered),
            }
        }
        self.alone(axes)
    }

    /// A sum of products by the letters of an equation.
    pub fn named(&self) -> Reach<'a> {
        let reaches: Vec<Reach<'a>> = self.inputs().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let has_tokens = reaches.iter().any(|reach| reach.tokens().is_some());
        let equation: String =
            self.node.text("equation").unwrap_or_default().chars().filter(|letter| !letter.is_whitespace()).collect();
        let Some((given, result)) = equation.split_once("->").filter(|_| !equation.contains('.')) else {
            return if has_tokens { self.step(Cause::Unknown) } else { Reach::Fixed };
        };
        let mut letters: Vec<(char, Axis)> = Vec::new();
        for ((list, name), reach) in given.split(',').zip(self.inputs()).zip(&reaches) {
            let Reach::Apart(own) = reach else { return self.without_sizes(has_tokens) };
            if list.chars().count() != own.len() {
                return self.step(Cause::Unknown);
            }
            let varies = self.varies(name);
            for (at, letter) in list.chars().enumerate() {
                if let Some(step) = self.read_along(own[at], varies[at], name).filter(|_| !result.contains(letter)) {
                    return Reach::Step(step);
                }
                match letters.iter_mut().find(|known| known.0 == letter) {
                    Some(known) => match both(known.1, own[at]) {
                        Some(both) => known.1 = both,
                        None => return self.step(Cause::Numbered),
                    },
                    None => letters.push((letter, own[at])),
                }
            }
        }
        let axis = |letter: char| letters.iter().find(|known| known.0 == letter).map(|known| known.1);
        match result.chars().map(axis).collect() {
            Some(axes) => self.alone(axes),
            None => self.step(Cause::Unknown),
        }
    }

    /// A convolution: its places are apart if it sees one at a time.
    pub fn convolved(&self) -> Reach<'a> {
        let Reach::Apart(own) = self.first_alone() else { return self.first_alone() };
        let weight = self.dims(self.input(1)).map(|dims| dims[0]);
        let list = |name: &str| self.node.ints(name).unwrap_or_default();
        let sees_one = |at: usize| {
            let size = weight.and_then(|dims| dims.get(at).copied());
            let other = |name: &str, other: i64, at: usize| list(name).get(at).copied().unwrap_or(other) != other;
            let axes = own.len().saturating_sub(2);
            let is_padded = other("pads", 0, at - 2) || other("pads", 0, at - 2 + axes);
            size == Some(1)
                && !other("strides", 1, at - 2)
                && !is_padded
                && self.node.text("auto_pad").is_none_or(|pad| pad == "NOTSET")
        };
        let mut axes = own.clone();
        let varies = self.varies(self.input(0));
        for (at, axis) in axes.iter_mut().enumerate().skip(1) {
            let is_apart = at > 1 && sees_one(at);
            match axis {
                Axis::Tokens(_) if !is_apart => return self.step(Cause::Mixed),
                Axis::Tokens(_) => (),
                _ if varies[at] && !is_apart => return self.step(Cause::Count),
                _ => *axis = Axis::Index,
            }
        }
        Reach::Apart(axes)
    }
}
