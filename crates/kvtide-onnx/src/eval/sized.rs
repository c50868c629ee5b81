//! Dimensions of operators whose numbers are never needed.

use super::known::{Known, axis, broadcast};
use crate::proto::Node;

/// Operators that compute each element from those at the same place of their inputs, which are broadcast.
pub(crate) const ELEMENTWISE: [&str; 79] = [
    "Abs",
    "Acos",
    "Acosh",
    "Add",
    "And",
    "Asin",
    "Asinh",
    "Atan",
    "Atanh",
    "BiasAdd",
    "BiasGelu",
    "BitShift",
    "BitwiseAnd",
    "BitwiseNot",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "Div",
    "Dropout",
    "Elu",
    "Equal",
    "Erf",
    "Exp",
    "FastGelu",
    "Floor",
    "Gelu",
    "Greater",
    "GreaterOrEqual",
    "HardSigmoid",
    "HardSwish",
    "Identity",
    "IsInf",
    "IsNaN",
    "LeakyRelu",
    "Less",
    "LessOrEqual",
    "Log",
    "Max",
    "Mean",
    "Min",
    "Mish",
    "Mod",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "PRelu",
    "Pow",
    "QLinearAdd",
    "QLinearLeakyRelu",
    "QLinearMul",
    "QLinearSigmoid",
    "QuickGelu",
    "Reciprocal",
    "Relu",
    "Round",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Silu",
    "Sin",
    "Sinh",
    "Softplus",
    "Softsign",
    "Sqrt",
    "Sub",
    "Sum",
    "Swish",
    "Tan",
    "Tanh",
    "ThresholdedRelu",
    "Where",
    "Xor",
];

/// Operators whose first output has the dimensions of their first input.
const LIKE_FIRST: [&str; 10] = [
    "BatchNormalization",
    "CastLike",
    "CumProd",
    "CumSum",
    "EyeLike",
    "GroupNormalization",
    "Hardmax",
    "InstanceNormalization",
    "LRN",
    "Trilu",
];

/// The outputs of a node: they have the same dimensions, and their types follow from the operator.
pub(super) fn apply(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let dims = dims_of(node, inputs)?;
    let output = |index| Known::sized(super::element_of(node, index, inputs), dims.clone());
    Some((0..node.outputs.len().min(2)).map(output).collect())
}

/// The dimensions of the first output.
fn dims_of(node: &Node, inputs: &[&Known]) -> Option<Vec<usize>> {
    let operator = node.operator.as_str();
    let first = inputs.first()?.dims.as_ref();
    if ELEMENTWISE.contains(&operator) {
        let dims = inputs.iter().map(|value| value.dims.as_ref()).collect::<Option<Vec<_>>>()?;
        return dims.into_iter().try_fold(Vec::new(), |all, dims| broadcast(&all, dims));
    }
    match operator {
        _ if LIKE_FIRST.contains(&operator) => first.cloned(),
        "ArgMax" | "ArgMin" => {
            let mut dims = first?.clone();
            let at = axis(node.int("axis").unwrap_or(0), dims.len())?;
            match node.int("keepdims") {
                Some(0) => drop(dims.remove(at)),
                _ => dims[at] = 1,
            }
            Some(dims)
        }
        "TopK" => {
            let mut dims = first?.clone();
            let at = axis(node.int("axis").unwrap_or(-1), dims.len())?;
            let count = inputs.get(1).and_then(|count| count.ints()).and_then(|count| count.first().copied());
            dims[at] = usize::try_from(count.or(node.int("k"))?).ok()?;
            Some(dims)
        }
        "OneHot" => {
            let mut dims = first?.clone();
            let at = axis(node.int("axis").unwrap_or(-1), dims.len() + 1)?;
            dims.insert(at, usize::try_from(*inputs.get(1)?.ints()?.first()?).ok()?);
            Some(dims)
        }
        "Pad" => {
            let pads = node.ints("pads").map(<[_]>::to_vec).or_else(|| inputs.get(1)?.ints())?;
            let own = first?;
            let size = |(at, &dim): (usize, &usize)| {
                let [before, behind] = [*pads.get(at)?, *pads.get(at + own.len())?];
                usize::try_from(i64::try_from(dim).ok()?.checked_add(before)?.checked_add(behind)?).ok()
            };
            own.iter().enumerate().map(size).collect()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Attribute;

    #[test]
    fn padding_that_exceeds_64_bits_is_unknown() {
        let padded = |pads: [i64; 2]| {
            let node = Node::new("Pad", "", "", &["rows"], &["padded"]).with(Attribute::ints("pads", &pads));
            dims_of(&node, &[&Known::sized(None, vec![5])])
        };
        assert_eq!(padded([1, 2]), Some(vec![8]));
        assert_eq!(padded([-1, -2]), Some(vec![2]));
        assert_eq!(padded([i64::MAX, i64::MAX]), None);
        assert_eq!(padded([i64::MIN, 0]), None);
    }
}
