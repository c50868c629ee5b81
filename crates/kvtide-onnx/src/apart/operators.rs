//! The tokens that the outputs of an operator depend on, by those of its inputs.

use super::reach::{Axis, Reach, Tokens};
use super::step::Cause;
use super::walk::Call;
use crate::eval::{ELEMENTWISE, Known, count};

impl<'a> Call<'_, 'a> {
    /// The reach of the node's outputs.
    pub fn reaches(&self) -> Reach<'a> {
        if let Some(reach) = self.by_parameters() {
            return reach;
        }
        match self.node.domain.as_str() {
            "kvtide" => self.own(),
            "" => self.standard(),
            "com.microsoft" => self.contrib(),
            _ => self.unknown(),
        }
    }

    /// The reach of outputs whose sizes, or axes, do not follow from the number of tokens alone: a size may hide a number
    /// in how many elements there are.
    fn by_parameters(&self) -> Option<Reach<'a>> {
        let operator = self.node.operator.as_str();
        let inputs = match operator {
            "ConstantOfShape" => 0..1,
            "Range" | "Reshape" | "Expand" | "Tile" | "TopK" | "Split" | "Squeeze" | "Unsqueeze" | "CumSum"
            | "CumProd" => 1..2,
            "Slice" | "Pad" => 1..5,
            _ if operator.starts_with("Reduce") => 1..2,
            _ => return None,
        };
        let has_sizes = self.dims(self.output()).is_some();
        inputs.into_iter().find_map(|at| match self.reach(self.input(at)) {
            Reach::Step(step) if step.is_plain_size() && has_sizes => None,
            Reach::Step(step) => Some(Reach::Step(step.behind(self.node, true))),
            reach if reach.tokens().is_some() => Some(self.step(Cause::Mixed)),
            _ => None,
        })
    }

    /// The operators of ONNX. Those of onnxruntime with the same names are the same.
    fn standard(&self) -> Reach<'a> {
        let operator = self.node.operator.as_str();
        match operator {
            "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" if self.is_decided() => Reach::Apart(Vec::new()),
            "Equal" if self.is_never() => Reach::Fixed,
            _ if ELEMENTWISE.contains(&operator) => self.elementwise(),
            _ if operator.starts_with("Reduce") => self.reduced(),
            "CastLike" => self.carried(self.reach(self.input(0))),
            "Constant" => Reach::Fixed,
            "ConstantOfShape" => {
                self.rank(self.output()).map_or(Reach::Fixed, |rank| Reach::Apart(vec![Axis::Same; rank]))
            }
            "Shape" | "Size" => self.counted(),
            "Range" => self.range(),
            "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" => self.view(),
            "Transpose" => self.transposed(),
            "Expand" => self.expanded(),
            "Tile" => self.tiled(),
            "Slice" => self.sliced(),
            "Split" => self.split(),
            "Concat" => self.concatenated(),
            "Pad" => self.padded(),
            "Gather" => self.gathered(),
            "GatherElements" => self.gathered_elements(),
            "GatherND" => self.gathered_slices(),
            "ScatterElements" => self.scattered_elements(),
            "ScatterND" => self.scattered_slices(),
            "OneHot" => self.one_hot(),
            "EyeLike" => self.numbered(0),
            "Trilu" => self.numbered(2),
            "ArgMax" | "ArgMin" => self.reduced(),
            "Softmax" | "LogSoftmax" | "Hardmax" | "LpNormalization" | "CumSum" | "CumProd" | "TopK" => {
                self.along_axis()
            }
            "LayerNormalization" | "SimplifiedLayerNormalization" | "RMSNormalization" => self.normed(),
            "InstanceNormalization" => self.normed_planes(2),
            "GroupNormalization" => self.normed_planes(1),
            "BatchNormalization" | "LRN" => self.weighted_channels(),
            "MatMul" => self.product([0, 1], None),
            "MatMulInteger" => self.product([0, 1], None),
            "QLinearMatMul" => self.product([0, 3], None),
            "Gemm" => self.product([0, 1], Some(2)),
            "Einsum" => self.named(),
            "Conv" | "ConvInteger" => self.convolved(),
            "QuantizeLinear" | "DequantizeLinear" => self.quantised(),
            "DynamicQuantizeLinear" => self.carried(self.reach(self.input(0))),
            "RotaryEmbedding" => self.turned(3, Some(1)),
            _ => self.unknown(),
        }
    }

    /// The operators of onnxruntime.
    fn contrib(&self) -> Reach<'a> {
        match self.node.operator.as_str() {
            "RotaryEmbedding" | "MRotaryEmbedding" => self.turned(1, None),
            "SkipLayerNormalization" | "SkipSimplifiedLayerNormalization" | "GatedRMSNorm" => self.normed(),
            "LinearAttentionGate" => self.rows(),
            "FusedMatMul" | "FusedMatMulActivation" | "MatMulIntegerToFloat" | "DynamicQuantizeMatMul" => {
                self.product([0, 1], None)
            }
            "QLinearMatMul" => self.product([0, 3], None),
            "FusedGemm" => self.product([0, 1], Some(2)),
            "MatMulNBits" | "MatMulBnb4" | "MatMulFpQ4" => self.weighted(),
            "GatherBlockQuantized" => self.gathered(),
            "MoE" | "QMoE" => self.routed(),
            "FusedConv" => self.convolved(),
            _ => self.standard(),
        }
    }

    /// The operators of kvtide, which know the sequences of a step.
    fn own(&self) -> Reach<'a> {
        let reaches: Vec<Reach<'a>> = self.inputs().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let counts = self.walk.sets[0].counts();
        let expected =
            (self.node.operator == "Attention").then(|| if self.node.int("heads_first") == Some(1) { 2 } else { 1 });
        for (name, reach) in self.inputs().zip(&reaches) {
            let Reach::Apart(axes) = reach else { return self.step(Cause::Sizes(name.into())) };
            match reach.tokens() {
                Some((at, tokens)) if tokens == Tokens::of(0) && expected.is_none_or(|expected| at == expected) => (),
                Some(_) => return self.step(Cause::Mixed),
                None => {
                    let varies = self.varies(name);
                    if axes.iter().zip(varies).any(|(axis, varies)| varies && *axis == Axis::Index) {
                        return self.step(Cause::Numbered);
                    }
                }
            }
        }
        let Some([one, other]) = self.dims(self.output()) else { return self.step(Cause::Sizes(self.output().into())) };
        let at = expected.or_else(|| (0..one.len()).find(|&at| [one[at], other[at]] == counts));
        let mut axes = vec![Axis::Index; one.len()];
        match at.filter(|&at| at < one.len() && [one[at], other[at]] == counts) {
            Some(at) => axes[at] = Axis::Tokens(Tokens::of(0)),
            None => return self.step(Cause::Sizes(self.output().into())),
        }
        Reach::Apart(axes)
    }

    /// The sizes of a tensor.
    fn counted(&self) -> Reach<'a> {
        if self.known(self.output()).iter().any(|value| value.data.is_none()) {
            let is_fixed = self.reach(self.input(0)).is_fixed();
            return if is_fixed { Reach::Fixed } else { self.step(Cause::Count) };
        }
        match self.has_equal_numbers(self.output()) {
            true => Reach::Apart(vec![Axis::Index; self.rank(self.output()).unwrap_or(0)]),
            false => self.step(Cause::Count),
        }
    }

    /// True for a comparison of a number of tokens that has one result for all numbers: each step has a token.
    fn is_decided(&self) -> bool {
        let counts = self.walk.sets[0].counts();
        let reaches = [0, 1].map(|at| self.reach(self.input(at)));
        let numbers = [0, 1].map(|at| {
            let [one, other] = self.known(self.input(at)).map(|value| value.data.as_ref()?.as_slice().first().copied());
            Some([one?, other?])
        });
        let [Some(left), Some(right)] = numbers else { return false };
        // The number of tokens times the result for one token.
        let least = |[one, other]: [f64; 2]| {
            let of_one = one / counts[0] as f64;
            (of_one > 0. && other == of_one * counts[1] as f64).then_some(of_one)
        };
        let is_size = |reach: &Reach<'_>| matches!(reach, Reach::Step(step) if step.is_plain_size());
        let (least, limit, is_strict) = match &reaches {
            [size, fixed] if is_size(size) && fixed.is_fixed() => (least(left), right, ["Greater", "LessOrEqual"]),
            [fixed, size] if is_size(size) && fixed.is_fixed() => (least(right), left, ["Less", "GreaterOrEqual"]),
            _ => return false,
        };
        let is_strict = is_strict.contains(&self.node.operator.as_str());
        let is_one = self.rank(self.output()) == Some(0) && limit[0] == limit[1];
        is_one && least.is_some_and(|least| if is_strict { least > limit[0] } else { least >= limit[0] })
    }

    /// True for a comparison of sizes with numbers below 0: a size of -1 stands for a free one, and no step has one.
    fn is_never(&self) -> bool {
        let is_size = |at: usize| matches!(self.reach(self.input(at)), Reach::Step(step) if step.is_plain_size());
        let (sizes, limits) = if is_size(0) { (0, 1) } else { (1, 0) };
        let [Some(one), Some(other)] = self.known(self.input(sizes)).map(|value| value.data.as_ref()) else {
            return false;
        };
        let counts = self.walk.sets[0].counts().map(|count| count as f64);
        // A number of tokens times another one, or the same number for all steps.
        let is_fit = |(one, other): (&f64, &f64)| one == other || *one > 0. && one * counts[1] == other * counts[0];
        let is_below = |value: &Known| value.data.as_ref().is_some_and(|data| data.iter().all(|&number| number < 0.));
        is_size(sizes)
            && self.reach(self.input(limits)).is_fixed()
            && self.known(self.input(limits)).into_iter().all(is_below)
            && one.len() == other.len()
            && one.iter().zip(other.iter()).all(is_fit)
    }

    /// Numbers that count up: a limit that follows from the step only makes them more.
    fn range(&self) -> Reach<'a> {
        let [start, limit, by] = [0, 1, 2].map(|at| self.reach(self.input(at)));
        if let Some(step) = self.stepped(&[start.clone(), by.clone()]) {
            return Reach::Step(step);
        }
        let is_apart = [&start, &limit, &by].iter().all(|reach| reach.tokens().is_none());
        if is_apart { Reach::Apart(vec![Axis::Index]) } else { self.step(Cause::Mixed) }
    }

    /// A tensor whose elements depend on their places on its last axes.
    fn numbered(&self, kept: usize) -> Reach<'a> {
        let mut axes = match self.reach(self.input(0)) {
            Reach::Apart(axes) => axes,
            reach => return self.carried(reach),
        };
        let rank = axes.len();
        if kept == 0 {
            return Reach::Apart(vec![Axis::Index; rank]);
        }
        for axis in &mut axes[rank.saturating_sub(kept)..] {
            if matches!(axis, Axis::Tokens(_)) {
                return self.step(Cause::Numbered);
            }
            *axis = Axis::Index;
        }
        Reach::Apart(axes)
    }

    /// A channel of its own for each place of the second axis.
    fn weighted_channels(&self) -> Reach<'a> {
        let Reach::Apart(mut axes) = self.first_alone() else { return self.first_alone() };
        match axes.get_mut(1) {
            Some(Axis::Tokens(_)) => return self.step(Cause::Mixed),
            Some(axis) => *axis = Axis::Index,
            None => (),
        }
        Reach::Apart(axes)
    }

    /// Codes of numbers, with scales that may differ along an axis.
    fn quantised(&self) -> Reach<'a> {
        let Reach::Apart(mut axes) = self.first_alone() else { return self.first_alone() };
        let has_axis = self.rank(self.input(1)) != Some(0);
        for axis in axes.iter_mut().filter(|axis| has_axis && **axis == Axis::Same) {
            *axis = Axis::Index;
        }
        let is_large = self.dims(self.input(1)).is_none_or(|dims| count(dims[0]).is_none_or(|all| all > 1));
        let at = self.axis(self.node.int("axis").unwrap_or(1), axes.len());
        match at.map(|at| axes[at]) {
            Some(Axis::Tokens(_)) if has_axis && is_large => self.step(Cause::Numbered),
            _ => Reach::Apart(axes),
        }
    }

    /// Rotary embedding of rows by their positions, or by tables with a row for each token.
    fn turned(&self, positions: usize, tables: Option<usize>) -> Reach<'a> {
        let reaches: Vec<Reach<'a>> = self.inputs().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let Reach::Apart(mut axes) = self.reach(self.input(0)) else {
            return self.without_sizes(reaches.iter().any(|reach| reach.tokens().is_some()));
        };
        let at = if axes.len() == 4 { 2 } else { 1 };
        let of_positions = |name: &str| {
            let rank = self.rank(name)?;
            self.reach(name).tokens().filter(|(at, _)| at + 1 == rank)
        };
        let of_tables = |name: &str| self.reach(name).tokens().filter(|&(at, _)| at == 1);
        let tokens = match self.input(positions) {
            "" => tables.and_then(|tables| {
                let both = [tables, tables + 1].map(|at| of_tables(self.input(at)));
                if both[0] == both[1] { both[0] } else { None }
            }),
            name => of_positions(name),
        };
        let Some((_, tokens)) = tokens.filter(|(_, tokens)| tokens.is_pure()) else {
            return self.step(Cause::Numbered);
        };
        match axes.get(at) {
            Some(Axis::Tokens(own)) if *own == tokens => (),
            Some(Axis::Same) => axes[at] = Axis::Tokens(tokens),
            _ => return self.step(Cause::Mixed),
        }
        let last = axes.len() - 1;
        if last == at {
            return self.step(Cause::Mixed);
        }
        axes[last] = Axis::Index;
        self.alone(axes)
    }

    /// Outputs of which each row is computed from the same row of the inputs.
    fn rows(&self) -> Reach<'a> {
        let reaches: Vec<Reach<'a>> = self.inputs().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        let found: Vec<(usize, Tokens)> = reaches.iter().filter_map(Reach::tokens).collect();
        match found.first() {
            Some(first) if first.0 == 1 && first.1.is_pure() && found.iter().all(|other| other == first) => {
                Reach::Apart(vec![Axis::Same, Axis::Tokens(first.1), Axis::Index])
            }
            Some(_) => self.step(Cause::Mixed),
            None => Reach::Fixed,
        }
    }

    /// An operator that may do anything with the tokens that it reads.
    fn unknown(&self) -> Reach<'a> {
        let reaches: Vec<Reach<'a>> = self.node.reads().map(|name| self.reach(name)).collect();
        if let Some(step) = self.stepped(&reaches) {
            return Reach::Step(step);
        }
        match reaches.iter().all(Reach::is_fixed) {
            true => Reach::Fixed,
            false => self.step(Cause::Unknown),
        }
    }
}
