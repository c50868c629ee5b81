//! Follows the keys or values of an attention back to the place where new rows are appended to the past.
//!
//! The nodes in between may repeat heads, transpose, reshape and scale. They are checked by an experiment: distinct
//! elements go in, and must arrive at the right places.

use std::collections::{HashMap, HashSet};

use super::lookup::{Lookup, SIZES, unrecognised};
use super::scattered::{Slots, scattered};
use crate::cross_names::is_cross;
use crate::error::Result;
use crate::eval::{Known, pasts_of};
use crate::proto::Node;

/// The layout in which an attention reads keys or values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reading {
    /// `[batch, heads, tokens, dim]`.
    Rows,
    /// `[batch, heads, dim, tokens]`.
    Columns,
    /// `[batch, tokens, heads * dim]`.
    Packed,
}

/// Keys or values that are appended to a past.
pub(super) struct Cached<'a> {
    pub past: &'a str,
    /// The half of the past, if that has keys and values: 0 or 1.
    pub half: Option<usize>,
    /// New keys or values, `[batch, heads, tokens, dim]`.
    pub new: &'a str,
    /// Past and new rows together.
    pub joined: &'a str,
    /// The number of heads, and their dimension.
    pub heads: usize,
    pub dim: usize,
    /// The slots of a static cache.
    pub slots: Option<Slots<'a>>,
}

/// If a node only moves or scales its first input, returns that input. A scale may be the first input instead.
fn view<'a>(lookup: &Lookup<'a>, node: &'a Node) -> Result<Option<&'a str>> {
    let first = node.input(0);
    Ok(match node.operator.as_str() {
        "Unsqueeze" | "Expand" | "Reshape" | "Transpose" | "Cast" | "Squeeze" | "Identity" | "Tile" | "Gather" => first,
        "Mul" | "Div" => scaled(lookup, node)?.map(|(name, _)| name),
        _ => None,
    })
}

/// The tensor that a node multiplies by one number, and the number.
pub(super) fn scaled<'a>(lookup: &Lookup<'a>, node: &'a Node) -> Result<Option<(&'a str, f64)>> {
    let (Some(one), Some(other)) = (node.input(0), node.input(1)) else { return Ok(None) };
    Ok(match node.operator.as_str() {
        "Mul" => match (lookup.scalar(one)?, lookup.scalar(other)?) {
            (_, Some(factor)) => Some((one, factor)),
            (Some(factor), _) => Some((other, factor)),
            _ => None,
        },
        "Div" => lookup.scalar(other)?.map(|divisor| (one, 1. / divisor)),
        _ => None,
    })
}

/// Follows `name` back to a `Concat` of a past and new rows, to a `TensorScatter` into a static cache, or to a present
/// of an operator; [`None`] if it leads elsewhere.
pub(super) fn trace<'a>(lookup: &Lookup<'a>, name: &'a str) -> Result<Option<Cached<'a>>> {
    let mut name = name;
    loop {
        let Some(node) = lookup.maker(name) else { return Ok(None) };
        if node.is("", "Concat") {
            return joined(lookup, node);
        }
        if node.is("", "TensorScatter") {
            return scattered(lookup, node, None);
        }
        if let Some(cached) = present(lookup, node, name)? {
            return Ok(Some(cached));
        }
        let Some(before) = view(lookup, node)? else { return Ok(None) };
        name = before;
    }
}

/// Follows `name` back to an input with keys or values of an encoder's states; [`None`] if it leads elsewhere.
pub(super) fn trace_crossed<'a>(lookup: &Lookup<'a>, name: &'a str) -> Result<Option<Cached<'a>>> {
    let mut name = name;
    while let Some(node) = lookup.maker(name) {
        let Some(before) = view(lookup, node)? else { return Ok(None) };
        name = before;
    }
    if !is_cross(name) || lookup.graph().input(name).is_none() {
        return Ok(None);
    }
    Ok(match lookup.at(SIZES[0])?.dims(name) {
        Some(&[_, heads, _, dim]) => {
            Some(Cached { past: name, half: None, new: name, joined: name, heads, dim, slots: None })
        }
        _ => None,
    })
}

fn joined<'a>(lookup: &Lookup<'a>, node: &'a Node) -> Result<Option<Cached<'a>>> {
    let (Some(past), Some(new), Some(joined)) = (node.input(0), node.input(1), node.output(0)) else { return Ok(None) };
    let past = lookup.uncast(past);
    let half = half(lookup, past)?;
    let (past, half) = half.map_or((past, None), |(pair, half)| (pair, Some(half)));
    if half.is_none() && lookup.past(past).is_none() || node.inputs.len() != 2 {
        return Ok(None);
    }
    if !matches!(node.int("axis"), Some(2 | -2)) {
        return Err(unrecognised(node, format!("new rows must be appended to {past} on axis 2")));
    }
    match lookup.at(SIZES[0])?.dims(new) {
        Some(&[_, heads, _, dim]) => Ok(Some(Cached { past, half, new, joined, heads, dim, slots: None })),
        _ => Err(unrecognised(node, format!("the dimensions of {new} are not known"))),
    }
}

/// The past of keys and values of which a tensor is one half, and the number of that half.
fn half<'a>(lookup: &Lookup<'a>, name: &'a str) -> Result<Option<(&'a str, usize)>> {
    let mut chain = Vec::new();
    let mut pair = name;
    while lookup.pair(pair).is_none() {
        let Some(node) = lookup.maker(pair) else { return Ok(None) };
        let is_view = ["Gather", "Split", "Squeeze", "Slice", "Reshape", "Cast", "Identity"].contains(&&*node.operator);
        let Some(before) = node.input(0).filter(|_| is_view) else { return Ok(None) };
        chain.push(node);
        pair = before;
    }
    chain.reverse();
    let evaluation = lookup.at(SIZES[0])?;
    let Some(own) = evaluation.dims(pair).map(<[_]>::to_vec) else { return Ok(None) };
    let marked = Known::filled(evaluation.get(pair).element, own.clone(), |place| place as f64);
    let given = HashMap::from([(pair.to_owned(), marked)]);
    let found = evaluation.rerun(&chain, &lookup.constants, given)?.remove(name).unwrap_or_default();
    let (Some(dims), Some(data)) = (found.dims, found.data) else { return Ok(None) };
    let Some(half) = [0, 1].into_iter().find(|half| data.first() == Some(&((half * data.len()) as f64))) else {
        return Ok(None);
    };
    let in_order = data.iter().enumerate().all(|(place, &number)| number == (half * data.len() + place) as f64);
    Ok(Some((pair, half)).filter(|_| in_order && dims == own[1..]))
}

/// Keys or values that an operator returns: those of a layer that an operator without its own takes as its past.
pub(super) fn present_named<'a>(lookup: &Lookup<'a>, name: &'a str) -> Result<Option<Cached<'a>>> {
    lookup.maker(name).map_or(Ok(None), |node| present(lookup, node, name))
}

/// Keys or values that an operator puts together itself and returns: layers without their own read those of another.
fn present<'a>(lookup: &Lookup<'a>, node: &'a Node, name: &'a str) -> Result<Option<Cached<'a>>> {
    let Some(pasts) = pasts_of(node) else { return Ok(None) };
    let Some(side) = (0..2).find(|side| node.output(side + 1) == Some(name)) else { return Ok(None) };
    let past = node.input(pasts[side]).map(|past| lookup.uncast(past));
    let Some(past) = past.filter(|past| lookup.past(past).is_some()) else { return Ok(None) };
    Ok(match lookup.at(SIZES[0])?.dims(name) {
        Some(&[_, heads, _, dim]) => {
            let new = node.input(side + 1).unwrap_or(past);
            Some(Cached { past, half: None, new, joined: name, heads, dim, slots: None })
        }
        _ => None,
    })
}

impl Cached<'_> {
    /// The graph's output that contains past and new rows together.
    pub fn present(&self, lookup: &Lookup<'_>) -> Option<String> {
        let outputs = &lookup.graph().outputs;
        let (mut names, mut seen) = (vec![self.joined], HashSet::new());
        while let Some(name) = names.pop() {
            if !seen.insert(name) {
                continue;
            }
            if outputs.iter().any(|output| output.name == name) {
                return Some(name.into());
            }
            let readers = lookup.readers.get(name).into_iter().flatten().map(|&index| lookup.node(index));
            let same = readers.filter(|node| match node.operator.as_str() {
                "Identity" | "Cast" => true,
                // Keys and values are put into one tensor.
                "Unsqueeze" | "Concat" => self.half.is_some(),
                _ => false,
            });
            names.extend(same.filter_map(|node| node.output(0)));
        }
        None
    }

    /// Checks that `name` is this tensor with its heads repeated to `heads`, in the layout `reading`, and returns its
    /// factor.
    pub fn factor(&self, lookup: &Lookup<'_>, node: &Node, name: &str, heads: usize, reading: Reading) -> Result<f64> {
        let wrong = || unrecognised(node, format!("{name} is not {} with its heads repeated in order", self.joined));
        let mut chain = Vec::new();
        let mut at = name;
        while at != self.joined {
            let link = lookup.maker(at).ok_or_else(wrong)?;
            chain.push(link);
            at = view(lookup, link)?.ok_or_else(wrong)?;
        }
        if chain.is_empty() && reading == Reading::Rows && heads == self.heads && heads > 0 {
            return Ok(1.);
        }
        chain.reverse();
        let evaluation = lookup.at(SIZES[0])?;
        let sizes = evaluation.sizes;
        let slots = self.slots.and_then(|slots| slots.count(&evaluation));
        let rows = evaluation.dims(self.joined).and_then(|dims| dims.get(2)).copied();
        let (batch, tokens) = (sizes.batch, slots.or(rows).unwrap_or(sizes.total()));
        let own = vec![batch, self.heads, tokens, self.dim];
        let marked = Known::filled(evaluation.get(self.joined).element, own, |place| (place + 1) as f64);
        let given = HashMap::from([(self.joined.to_owned(), marked)]);
        let found = evaluation.rerun(&chain, &lookup.constants, given)?.remove(name).ok_or_else(wrong)?;
        let dims = |heads: usize| match reading {
            Reading::Rows => vec![batch, heads, tokens, self.dim],
            Reading::Columns => vec![batch, heads, self.dim, tokens],
            Reading::Packed => vec![batch, tokens, heads.saturating_mul(self.dim)],
        };
        // The product itself repeats a single head.
        let is_one = self.heads == 1 && reading != Reading::Packed && found.dims.as_ref() == Some(&dims(1));
        let heads = if is_one { 1 } else { heads };
        let dims = dims(heads);
        // Batch and heads may be one axis: then their rows have the same order.
        let merged = [vec![batch.saturating_mul(heads)], dims[2..].to_vec()].concat();
        let fits = |found: &Vec<usize>| *found == dims || reading != Reading::Packed && *found == merged;
        if !found.dims.as_ref().is_some_and(fits) || self.heads == 0 || !heads.is_multiple_of(self.heads) {
            return Err(wrong());
        }
        let data = found.data.ok_or_else(wrong)?;
        let factor = data.first().copied().ok_or_else(wrong)?;
        let repeats = heads / self.heads;
        for (index, &number) in data.iter().enumerate() {
            let (head, token, element) = match reading {
                Reading::Rows => (index / (tokens * self.dim), index / self.dim % tokens, index % self.dim),
                Reading::Columns => (index / (tokens * self.dim), index % tokens, index / tokens % self.dim),
                Reading::Packed => {
                    let row = index / (heads * self.dim);
                    (row / tokens * heads + index / self.dim % heads, row % tokens, index % self.dim)
                }
            };
            let (sequence, head) = (head / heads, head % heads / repeats);
            let place = ((sequence * self.heads + head) * tokens + token) * self.dim + element;
            if (number - factor * (place + 1) as f64).abs() > 1e-6 * number.abs() {
                return Err(wrong());
            }
        }
        Ok(factor)
    }
}
