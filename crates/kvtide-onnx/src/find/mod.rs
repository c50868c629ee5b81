//! Finds the attentions of a graph by its structure. Each form has one file; all of them return a [`FoundAttention`].
//! Layers that keep a state are in `states`. O(nodes), plus the evaluations of masks.

mod cached;
mod contrib;
mod cross;
mod found_attention;
mod gqa;
mod layer;
mod lookup;
mod mask;
mod mha;
mod plain;
mod scattered;
mod states;

pub(crate) use cross::{Crossed, crossed};
pub(crate) use found_attention::{Axes, FoundAttention, HeadNorms, Operands, Output};
pub use layer::{Form, Layer, Layout, Rotary};
pub(crate) use lookup::{LONG, Lookup, SIZES, unrecognised};
pub(crate) use states::{FoundState, StateInput, states};
pub use states::{State, StateForm};

use crate::error::{Error, RefusalKind, Result};
use crate::proto::ValueInfo;

/// Finds all attentions with a past, in the order of layers, and numbers the layers together with those of states.
/// `O(nodes)`.
pub(crate) fn attentions(lookup: &Lookup<'_>, states: &mut [FoundState]) -> Result<Vec<FoundAttention>> {
    let mut all = Vec::new();
    for (index, node) in lookup.graph().nodes.iter().enumerate() {
        match (node.domain.as_str(), node.operator.as_str()) {
            _ if cross::is_crossed(lookup, node)? => (),
            ("com.microsoft", "GroupQueryAttention") => all.push(gqa::find(lookup, index)?),
            ("com.microsoft", "MultiHeadAttention") => all.push(mha::multi_head(lookup, index)?),
            ("com.microsoft", "Attention") => all.push(contrib::find(lookup, index)?),
            ("com.microsoft", "DecoderMaskedMultiHeadAttention" | "PagedAttention" | "SparseAttention") => {
                return Err(unrecognised(node, "this kind of attention is not supported"));
            }
            ("", "Attention") => all.push(mha::standard(lookup, index)?),
            ("", "Softmax") => all.extend(plain::find(lookup, index)?),
            _ => (),
        }
        inside(node)?;
    }
    if all.is_empty() && states.is_empty() && stored(lookup).next().is_none() {
        let reason = "it contains no attention with a past";
        return Err(Error::unrecognised(RefusalKind::Past, "nodes", "graph", reason));
    }
    for found in &all {
        // A constant for all keys of a query does not drop out of a softmax over sink logits.
        if found.layer.alibi_slopes.is_some() && found.layer.sinks.is_some() {
            return Err(unrecognised(lookup.node(found.index), "it has both slopes and sink logits"));
        }
    }
    let sources = share(lookup, &all)?;
    claim(lookup, &all, &sources)?;
    number(lookup, &mut all, &sources, states)?;
    Ok(all)
}

/// For each attention that reads all keys and values of an earlier one, the index of that one.
fn share(lookup: &Lookup<'_>, all: &[FoundAttention]) -> Result<Vec<Option<usize>>> {
    let source = |(index, found): (usize, &FoundAttention)| {
        let Some(read) = &found.joined else { return Ok(None) };
        let is_of = |other: &FoundAttention| other.joined.as_ref() == Some(read);
        let Some(at) = all[..index].iter().position(is_of) else { return Ok(None) };
        if all[at].layer.window == found.layer.window {
            return Ok(Some(at));
        }
        let reason = format!("it reads the keys of {}, which has another window", all[at].layer.node);
        Err(unrecognised(lookup.node(found.index), reason))
    };
    all.iter().enumerate().map(source).collect()
}

/// Returns an error for attentions inside branches and loops: they cannot be replaced.
fn inside(node: &crate::proto::Node) -> Result<()> {
    let mut graphs: Vec<_> = node.graphs().collect();
    while let Some(graph) = graphs.pop() {
        for inner in &graph.nodes {
            if inner.operator.ends_with("Attention") || inner.operator == "Softmax" {
                let reason = format!("it is inside a subgraph of {} ({})", node.called(), node.operator);
                return Err(unrecognised(inner, reason).of(RefusalKind::Subgraph));
            }
            graphs.extend(inner.graphs());
        }
    }
    Ok(())
}

/// The inputs with keys or values of earlier tokens.
fn stored<'a>(lookup: &'a Lookup<'_>) -> impl Iterator<Item = &'a ValueInfo> {
    lookup.graph().inputs.iter().filter(|input| lookup.roles.is_past(input) || lookup.past(&input.name).is_some())
}

/// Checks that each past belongs to one attention, and that each is used. Layers with a source have none of their own.
fn claim(lookup: &Lookup<'_>, all: &[FoundAttention], sources: &[Option<usize>]) -> Result<()> {
    let mut claimed: Vec<&String> = Vec::new();
    for (found, _) in all.iter().zip(sources).filter(|(_, source)| source.is_none()) {
        let [keys, values] = &found.layer.pasts;
        let own = if lookup.pair(keys).is_some() && keys == values { vec![keys] } else { vec![keys, values] };
        for past in own {
            if !claimed.contains(&past) {
                claimed.push(past);
                continue;
            }
            return Err(unrecognised(lookup.node(found.index), format!("{past} is read by another attention as well")));
        }
    }
    for input in stored(lookup) {
        if claimed.contains(&&input.name) {
            continue;
        }
        let reader = lookup.readers.get(input.name.as_str()).and_then(|readers| readers.first());
        let reason = format!("{} is a past that no recognised attention reads", input.name);
        return Err(match reader {
            Some(&reader) => unrecognised(lookup.node(reader), reason),
            None => Error::unrecognised(RefusalKind::Input, &input.name, "input", reason),
        });
    }
    Ok(())
}

/// Numbers the layers: by the last number in the names of their pasts if all of these differ, else by their order in
/// the graph. Layers without keys and values of their own follow, in the order of the graph.
///
/// A graph with states numbers all layers together: each layer's number is its place among all numbers in names, as for the
/// unmodified graph.
fn number(
    lookup: &Lookup<'_>,
    all: &mut [FoundAttention],
    sources: &[Option<usize>],
    states: &mut [FoundState],
) -> Result<()> {
    let own = all.iter().enumerate().filter(|&(index, _)| sources[index].is_none());
    let mut order: Vec<(Option<u32>, usize)> =
        own.map(|(index, found)| (number_in(&found.layer.pasts[0]), index)).collect();
    let mut numbers: Vec<_> = order.iter().map(|entry| entry.0).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let are_named = numbers.len() == order.len() && numbers.iter().all(Option::is_some);
    if are_named {
        order.sort_unstable();
    }
    if let (false, false, Some(found)) = (states.is_empty(), are_named, all.first()) {
        let reason = "the names of pasts do not have the numbers of their layers, but those of states do";
        return Err(unrecognised(lookup.node(found.index), reason).of(RefusalKind::State));
    }
    let mut places: Vec<Option<u32>> = states.iter().map(|found| Some(found.state.number)).chain(numbers).collect();
    places.sort_unstable();
    places.dedup();
    let place_of = |number: Option<u32>| places.iter().position(|&place| place == number).unwrap_or(0);
    let first = if states.is_empty() { order.len() } else { places.len() };
    for (place, &(number, index)) in order.iter().enumerate() {
        all[index].layer.layer = if states.is_empty() { place } else { place_of(number) } as u32;
    }
    for found in states {
        found.state.layer = place_of(Some(found.state.number)) as u32;
    }
    let shared = (0..all.len()).filter(|&index| sources[index].is_some());
    for (layer, index) in (first..).zip(shared) {
        all[index].layer.layer = layer as u32;
    }
    for (index, source) in sources.iter().enumerate() {
        all[index].layer.source = source.map(|at| all[at].layer.layer);
    }
    all.sort_unstable_by_key(|found| found.layer.layer);
    Ok(())
}

/// The last number in a name.
pub(crate) fn number_in(name: &str) -> Option<u32> {
    let digits = |part: &&str| !part.is_empty();
    name.split(|letter: char| !letter.is_ascii_digit()).rfind(digits)?.parse().ok()
}
