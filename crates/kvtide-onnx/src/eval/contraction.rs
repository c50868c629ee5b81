//! Operators that sum: products, reductions, attention. Only the dimensions of products are computed.

use std::collections::BTreeMap;

use super::known::{axis, broadcast, coordinates, count, place};
use super::movement::axes;
use super::{Known, pasts_of};
use crate::proto::{ElementType, Node};

pub(super) fn apply(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let value = *inputs.first()?;
    let sized = |dims: Vec<usize>| Some(vec![Known::sized(value.element, dims)]);
    match node.operator.as_str() {
        "MatMul" | "MatMulInteger" | "MatMulIntegerToFloat" | "DynamicQuantizeMatMul" => {
            let dims = product(value.dims.as_ref()?, inputs.get(1)?.dims.as_ref()?)?;
            let element = match node.operator.as_str() {
                "MatMulInteger" => Some(ElementType::I32),
                "MatMulIntegerToFloat" => inputs.get(2)?.element,
                _ => value.element,
            };
            Some(vec![Known::sized(element, dims)])
        }
        "FusedMatMul" => {
            let turned = |value: &Known, name: &str| {
                let mut dims = value.dims.clone()?;
                let rank = dims.len();
                if node.int(name) == Some(1) && rank > 1 {
                    dims.swap(rank - 1, rank - 2);
                }
                Some(dims)
            };
            sized(product(&turned(value, "transA")?, &turned(inputs.get(1)?, "transB")?)?)
        }
        "QLinearMatMul" => {
            let dims = product(value.dims.as_ref()?, inputs.get(3)?.dims.as_ref()?)?;
            Some(vec![Known::sized(inputs.get(7)?.element, dims)])
        }
        "MatMulNBits" | "MatMulBnb4" => {
            let mut dims = value.dims.clone()?;
            *dims.last_mut()? = usize::try_from(node.int("N")?).ok()?;
            sized(dims)
        }
        "Gemm" => {
            let (one, other) = (value.dims.as_ref()?, inputs.get(1)?.dims.as_ref()?);
            let pick = |dims: &[usize], turned: &str, index: usize| {
                dims.get(if node.int(turned) == Some(1) { 1 - index } else { index }).copied()
            };
            sized(vec![pick(one, "transA", 0)?, pick(other, "transB", 1)?])
        }
        "QuantizeLinear" => {
            let element = inputs.get(2).and_then(|zero| zero.element).or(Some(ElementType(2)));
            Some(vec![Known::sized(element, value.dims.clone()?)])
        }
        "DynamicQuantizeLinear" => {
            let number = |element| Known::sized(Some(element), Vec::new());
            let bytes = Known::sized(Some(ElementType(2)), value.dims.clone()?);
            Some(vec![bytes, number(ElementType::F32), number(ElementType(2))])
        }
        "DequantizeLinear" => Some(vec![Known::sized(inputs.get(1)?.element, value.dims.clone()?)]),
        "GatherBlockQuantized" => gathered(node, inputs),
        "Attention" if node.domain == "com.microsoft" => projected(inputs),
        "GroupQueryAttention" | "MultiHeadAttention" | "Attention" => attention(node, inputs),
        "CumSum" => cumulative(node, inputs),
        "Einsum" => sized(named(node.text("equation")?, inputs)?),
        operator if operator.starts_with("Reduce") => reduce(node, inputs),
        _ => None,
    }
}

fn product(one: &[usize], other: &[usize]) -> Option<Vec<usize>> {
    let ([front @ .., rows, inner], [rest @ .., again, columns]) = (one, other) else { return None };
    let mut dims = (inner == again).then(|| broadcast(front, rest)).flatten()?;
    dims.extend([*rows, *columns]);
    Some(dims)
}

/// The dimensions of the result of an `Einsum`, by the letters of its equation. Without a result in it, those are the letters
/// that stand there once, in the order of the alphabet. An ellipsis is not read.
fn named(equation: &str, inputs: &[&Known]) -> Option<Vec<usize>> {
    let equation: String = equation.chars().filter(|letter| !letter.is_whitespace()).collect();
    let (given, result) = match equation.split_once("->") {
        Some((given, result)) => (given, Some(result)),
        None => (equation.as_str(), None),
    };
    let mut sizes = BTreeMap::new();
    for (letters, input) in given.split(',').zip(inputs) {
        let dims = input.dims.as_ref().filter(|dims| dims.len() == letters.chars().count())?;
        for (letter, &dim) in letters.chars().zip(dims) {
            let size = sizes.entry(letter).or_insert(dim);
            *size = broadcast(&[*size], &[dim])?[0];
        }
    }
    let is_single = |letter: &char| given.matches(*letter).count() == 1;
    match result {
        Some(result) => result.chars().map(|letter| sizes.get(&letter).copied()).collect(),
        None => Some(sizes.into_iter().filter(|(letter, _)| is_single(letter)).map(|(_, size)| size).collect()),
    }
}

/// The dimensions of rows of a table that is quantised along its last axis.
fn gathered(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let (table, chosen, scales) = (inputs.first()?, inputs.get(1)?, inputs.get(2)?);
    let mut dims = chosen.dims.clone()?;
    let bits = node.int("bits").unwrap_or(4);
    let per_byte = if table.element == Some(ElementType(2)) { usize::try_from(8 / bits.clamp(1, 8)).ok()? } else { 1 };
    dims.push(table.dims.as_ref()?.last()?.checked_mul(per_byte)?);
    Some(vec![Known::sized(scales.element, dims)])
}

/// The output has the dimensions of the queries. They differ for packed inputs, and if values have their own dimension.
/// Presents have those of the pasts, with rows for the new tokens.
fn attention(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let queries = *inputs.first()?;
    let mut dims = queries.dims.clone()?;
    let is_packed = node.operator == "GroupQueryAttention" && node.input(1).is_none();
    if is_packed {
        let heads = |name: &str| usize::try_from(node.int(name)?).ok();
        let (queries, others) = (heads("num_heads")?, heads("kv_num_heads")?);
        let width = dims.last_mut()?;
        let all = others.checked_mul(2)?.checked_add(queries)?;
        *width = *width / all.max(1) * queries;
    }
    let new = match *queries.dims.as_deref()? {
        [_, _, new, _] | [_, new, _] => new,
        _ => return Some(vec![Known::sized(queries.element, dims)]),
    };
    let present =
        |at: Option<usize>| match at.and_then(|at| inputs.get(at)).map(|past| (past.element, past.dims.as_deref())) {
            Some((element, Some(&[batch, heads, past, dim]))) => {
                Known::sized(element, vec![batch, heads, past.saturating_add(new), dim])
            }
            _ => Known { element: queries.element, ..Known::default() },
        };
    let pasts = pasts_of(node);
    let [keys, values] = [0, 1].map(|side: usize| present(pasts.map(|pasts| pasts[side])));
    Some(vec![Known::sized(queries.element, dims), keys, values])
}

/// Attention over hidden states, by the weights of queries, keys and values. The present has the dimensions of the past,
/// `[2, batch, heads, past, head dimension]`, with rows for the new tokens.
fn projected(inputs: &[&Known]) -> Option<Vec<Known>> {
    let (hidden, weights) = (inputs.first()?, inputs.get(1)?);
    let mut dims = hidden.dims.clone()?;
    let new = *dims.get(1)?;
    *dims.last_mut()? = *weights.dims.as_ref()?.last()? / 3;
    let mut present = inputs.get(4).and_then(|past| past.dims.clone());
    if let Some(rows) = present.as_mut().and_then(|dims| dims.get_mut(3)) {
        *rows = rows.saturating_add(new);
    }
    Some(vec![Known::sized(hidden.element, dims), Known { element: hidden.element, dims: present, ..Known::default() }])
}

fn cumulative(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let value = inputs.first()?;
    let own = value.dims.as_ref()?;
    let Some(data) = &value.data else { return Some(vec![Known::sized(value.element, own.clone())]) };
    let at = axis(inputs.get(1)?.ints()?.first().copied()?, own.len())?;
    let stride = count(&own[at + 1..])?;
    let exclusive = node.int("exclusive") == Some(1);
    if node.int("reverse") == Some(1) {
        return None;
    }
    let mut sums = data.to_vec();
    for index in 0..sums.len() {
        if !(index / stride.max(1)).is_multiple_of(own[at].max(1)) {
            sums[index] += sums[index - stride];
        }
    }
    if exclusive {
        sums.iter_mut().zip(data.iter()).for_each(|(sum, number)| *sum -= number);
    }
    Some(vec![Known::full(value.element, own.clone(), sums)])
}

fn reduce(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let value = inputs.first()?;
    let own = value.dims.as_ref()?;
    let chosen: Vec<usize> = match axes(node, inputs) {
        Some(axes) if !axes.is_empty() => axes.iter().map(|&at| axis(at, own.len())).collect::<Option<_>>()?,
        _ if node.inputs.get(1).is_some_and(|name| !name.is_empty() && inputs[1].data.is_none()) => return None,
        _ if node.int("noop_with_empty_axes") == Some(1) => Vec::new(),
        _ => (0..own.len()).collect(),
    };
    let full: Vec<usize> = (0..own.len()).map(|index| if chosen.contains(&index) { 1 } else { own[index] }).collect();
    let keep = node.int("keepdims").unwrap_or(1) == 1;
    let dims = (0..own.len()).filter(|index| keep || !chosen.contains(index)).map(|index| full[index]).collect();
    let (start, function): (f64, fn(f64, f64) -> f64) = match node.operator.as_str() {
        "ReduceSum" | "ReduceMean" => (0., |one, other| one + other),
        "ReduceMax" => (f64::NEG_INFINITY, f64::max),
        "ReduceMin" => (f64::INFINITY, f64::min),
        "ReduceProd" => (1., |one, other| one * other),
        _ => return Some(vec![Known::sized(value.element, dims)]),
    };
    let Some(data) = value.data.as_ref().filter(|_| node.operator != "ReduceMean") else {
        return Some(vec![Known::sized(value.element, dims)]);
    };
    let length = count(&full).filter(|&length| length <= data.len().max(1));
    let Some(length) = length else { return Some(vec![Known::sized(value.element, dims)]) };
    let mut result = vec![start; length];
    let mut at = vec![0; own.len()];
    for (index, &number) in data.iter().enumerate() {
        coordinates(index, own, &mut at);
        let to = &mut result[place(&at, &full)];
        *to = function(*to, number);
    }
    Some(vec![Known::full(value.element, dims, result)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_equation_names_the_dimensions_of_its_result() {
        let of = |equation: &str, dims: &[&[usize]]| {
            let inputs: Vec<Known> = dims.iter().map(|dims| Known::sized(None, dims.to_vec())).collect();
            named(equation, &inputs.iter().collect::<Vec<_>>())
        };
        assert_eq!(of("i,j->ij", &[&[3], &[5]]), Some(vec![3, 5]));
        assert_eq!(of(" b i , b j -> j i b ", &[&[2, 3], &[2, 5]]), Some(vec![5, 3, 2]));
        assert_eq!(of("bij,bjk", &[&[2, 3, 4], &[2, 4, 5]]), Some(vec![3, 5]));
        assert_eq!(of("ji", &[&[3, 5]]), Some(vec![5, 3]));
        assert_eq!(of("bi,bi->bi", &[&[1, 3], &[4, 3]]), Some(vec![4, 3]));
        assert_eq!(of("i,i->", &[&[3], &[3]]), Some(vec![]));
        for (equation, dims) in [
            ("i,i->i", [&[3][..], &[4]]),
            ("ij,j->i", [&[3], &[4]]),
            ("i,j->ik", [&[3], &[4]]),
            ("...i,j->...", [&[3], &[4]]),
            ("é,j->é", [&[3, 3], &[4]]),
        ] {
            assert_eq!(of(equation, &dims), None, "{equation}");
        }
    }
}
