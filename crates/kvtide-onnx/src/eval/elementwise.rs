//! Operators that work element by element.

use super::Known;
use super::known::{broadcast, coordinates, place};
use crate::proto::{ElementType, Node};

pub(super) fn apply(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let operator = node.operator.as_str();
    if operator == "Where" {
        let [condition, yes, no] = inputs else { return None };
        return Some(vec![joined(yes.element, &[condition, yes, no], |numbers| {
            if numbers[0] != 0. { numbers[1] } else { numbers[2] }
        })?]);
    }
    if let Some(function) = unary(operator) {
        let value = inputs.first()?;
        let element = if matches!(operator, "Not" | "IsNaN") { Some(ElementType::BOOL) } else { value.element };
        return Some(vec![mapped(value, element, function)]);
    }
    if operator == "Cast" {
        let to = ElementType(node.int("to")? as i32);
        let value = *inputs.first()?;
        if to.is_float() && value.element.is_some_and(ElementType::is_float) {
            return Some(vec![Known { element: Some(to), ..value.clone() }]);
        }
        return Some(vec![mapped(value, Some(to), |number| cast(number, to))]);
    }
    if operator == "CastLike" {
        let [value, like] = inputs else { return None };
        let to = like.element?;
        return Some(vec![mapped(value, Some(to), |number| cast(number, to))]);
    }
    if same_shape(operator) {
        let value = inputs.first()?;
        let dims = value.dims.clone()?;
        // These norms return the type of their scale.
        let scale = inputs.get(1).and_then(|scale| scale.element);
        let takes_scale = matches!(operator, "SimplifiedLayerNormalization" | "RMSNormalization");
        let same = Known::sized(scale.filter(|_| takes_scale).or(value.element), dims);
        // Norms with a skip return the sum as their last output.
        let count = if operator.starts_with("Skip") { node.outputs.len() } else { 1 };
        return Some(vec![same; count.min(4)]);
    }
    let function = match binary(operator, inputs.first()?.is_whole())? {
        _ if operator == "Mod" && node.int("fmod") == Some(1) => |one, other| one % other,
        function => function,
    };
    let element = if is_comparison(operator) { Some(ElementType::BOOL) } else { inputs.first()?.element };
    let [first, rest @ ..] = inputs else { return None };
    let mut value = (*first).clone();
    if let (true, [other]) = (operator == "Mul" && value.data.is_some(), rest)
        && other.data.as_ref().is_some_and(|data| data.as_slice() == [1.])
        && other.dims.as_ref().is_some_and(Vec::is_empty)
    {
        return Some(vec![Known { element, ..value }]);
    }
    for other in rest {
        value = joined(element, &[&value, other], |numbers| function(numbers[0], numbers[1]))?;
    }
    Some(vec![Known { element, ..value }])
}

fn mapped(value: &Known, element: Option<ElementType>, function: impl Fn(f64) -> f64) -> Known {
    let data = value.data.as_ref().map(|data| data.iter().map(|&number| function(number)).collect::<Vec<_>>().into());
    Known { element, dims: value.dims.clone(), data, band: value.band.map(|band| band.map(function)) }
}

fn joined(element: Option<ElementType>, values: &[&Known], function: impl Fn(&[f64]) -> f64) -> Option<Known> {
    let mut dims = Vec::new();
    for value in values {
        dims = broadcast(&dims, value.dims.as_ref()?)?;
    }
    let all: Option<Vec<_>> = values.iter().map(|value| Some((value.data.as_ref()?, value.dims.as_ref()?))).collect();
    let Some(all) = all else { return Some(Known::sized(element, dims)) };
    let mut at = vec![0; dims.len()];
    let mut numbers = vec![0.; all.len()];
    let shape = dims.clone();
    Some(Known::filled(element, dims, |index| {
        coordinates(index, &shape, &mut at);
        for (number, (data, own)) in numbers.iter_mut().zip(&all) {
            *number = data[place(&at, own)];
        }
        function(&numbers)
    }))
}

fn cast(number: f64, to: ElementType) -> f64 {
    match to {
        ElementType::BOOL => f64::from(number != 0.),
        ElementType::F32 | ElementType::BF16 | ElementType::F64 | ElementType::F16 => number,
        _ => number.trunc(),
    }
}

fn unary(operator: &str) -> Option<fn(f64) -> f64> {
    Some(match operator {
        "Identity" | "Dropout" => |number| number,
        "Neg" => |number| -number,
        "Sqrt" => f64::sqrt,
        "Abs" => f64::abs,
        "Exp" => f64::exp,
        "Log" => f64::ln,
        "Cos" => f64::cos,
        "Sin" => f64::sin,
        "Tanh" => f64::tanh,
        "Floor" => f64::floor,
        "Ceil" => f64::ceil,
        "Sign" => |number| if number == 0. { 0. } else { number.signum() },
        "Reciprocal" => |number| 1. / number,
        "Not" => |number| f64::from(number == 0.),
        "IsNaN" => |number| f64::from(number.is_nan()),
        _ => return None,
    })
}

/// Operators whose numbers are never needed.
fn same_shape(operator: &str) -> bool {
    matches!(
        operator,
        "Softmax"
            | "LogSoftmax"
            | "Sigmoid"
            | "Relu"
            | "Erf"
            | "Gelu"
            | "FastGelu"
            | "QuickGelu"
            | "BiasGelu"
            | "Softplus"
    ) || matches!(
        operator,
        "Clip" | "Round" | "RotaryEmbedding" | "Swish" | "Silu" | "HardSigmoid" | "QMoE" | "MoE" | "LpNormalization"
    ) || operator.ends_with("LayerNormalization")
        || operator == "RMSNormalization"
}

fn is_comparison(operator: &str) -> bool {
    matches!(operator, "And" | "Or" | "Xor" | "Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual")
}

fn binary(operator: &str, whole: bool) -> Option<fn(f64, f64) -> f64> {
    fn truth(value: bool) -> f64 {
        f64::from(value)
    }
    Some(match operator {
        "Add" | "Sum" => |one, other| one + other,
        "Sub" => |one, other| one - other,
        "Mul" => |one, other| one * other,
        "Div" if whole => |one, other| (one / other).trunc(),
        "Div" => |one, other| one / other,
        "Pow" => f64::powf,
        "Mod" => |one, other| one - (one / other).floor() * other,
        "Min" => f64::min,
        "Max" => f64::max,
        "And" => |one, other| truth(one != 0. && other != 0.),
        "Or" => |one, other| truth(one != 0. || other != 0.),
        "Xor" => |one, other| truth((one != 0.) != (other != 0.)),
        "Equal" => |one, other| truth(one == other),
        "Less" => |one, other| truth(one < other),
        "LessOrEqual" => |one, other| truth(one <= other),
        "Greater" => |one, other| truth(one > other),
        "GreaterOrEqual" => |one, other| truth(one >= other),
        _ => return None,
    })
}
