//! Recognises `com.microsoft.GroupQueryAttention`, whose inputs and attributes determine everything.

use super::cached::present_named;
use super::found_attention::{FoundAttention, HeadNorms, Operands, Output};
use super::layer::{Form, Layer, Layout, Rotary};
use super::lookup::{Lookup, SIZES, unrecognised};
use super::mask::{Rules, Term, rules};
use crate::error::{RefusalKind, Result};
use crate::proto::{Node, ValueInfo};

/// The epsilon of norms whose node does not say it.
const EPSILON: f32 = 1e-6;

pub(super) fn find(lookup: &Lookup<'_>, index: usize) -> Result<FoundAttention> {
    let node = lookup.node(index);
    let wrong = |reason: String| unrecognised(node, reason);
    refuse(lookup, node)?;
    let heads = |name: &str| heads(node, name);
    let num_heads = heads("num_heads").ok_or_else(|| wrong("num_heads is missing".into()))?;
    let kv_num_heads = heads("kv_num_heads").ok_or_else(|| wrong("kv_num_heads is missing".into()))?;
    if num_heads % kv_num_heads != 0 {
        return Err(wrong(format!("{num_heads} query heads are not a multiple of {kv_num_heads} KV heads")));
    }
    let (Some(query), Some(output)) = (node.input(0), node.output(0)) else {
        return Err(wrong("it has no queries or no output".into()));
    };
    let borrowed = borrowed(lookup, node)?;
    let pasts = match &borrowed {
        Some(pair) => pair.pasts,
        None => [past(lookup, node, 3)?, past(lookup, node, 4)?],
    };
    let past_bits = past_bits(node, pasts)?;
    let element = if past_bits.is_some() { lookup.at(SIZES[0])?.get(query).element } else { pasts[0].element };
    let Some(element) = element.filter(|element| element.is_float()) else {
        return Err(wrong(format!("its queries {query} are not known to be f32, f16 or bf16")));
    };
    let operands = match (node.input(1), node.input(2)) {
        (Some(key), Some(value)) => Operands::Apart([query, key, value].map(str::to_owned)),
        (None, None) => Operands::Packed(query.into()),
        _ => return Err(wrong("keys and values must both be inputs, or both be packed with the queries".into())),
    };
    let shared = if matches!(operands, Operands::Packed(_)) { num_heads + 2 * kv_num_heads } else { num_heads };
    let head_dim = head_dim(lookup, node, query, shared)?;
    if borrowed.as_ref().is_some_and(|pair| pair.sizes != [kv_num_heads, head_dim]) {
        return Err(wrong("the heads of its keys are not those of the layer that it reads them from".into()));
    }
    let rotary = rotary(lookup, node, head_dim)?;
    let Rules { window, slopes, context_length } = rules_of(lookup, node, num_heads)?;
    let positions = node.input(9).filter(|_| rotary.is_some()).map(str::to_owned);
    let layer = Layer {
        layer: 0,
        form: Form::GroupQueryAttention,
        node: node.called().into(),
        num_heads,
        kv_num_heads,
        head_dim,
        value_dim: head_dim,
        element,
        past_bits,
        scale: scale(node, head_dim),
        softcap: node.float("softcap").filter(|&cap| cap > 0.),
        window,
        context_length,
        sinks: sinks(lookup, node, num_heads)?,
        alibi_slopes: slopes,
        rotary,
        layout: Layout::Packed,
        source: None,
        presents: [1, 2].map(|at| node.output(at).and_then(|name| lookup.returned(name))),
        pasts: pasts.map(|past| past.name.clone()),
    };
    let norms = norms(lookup, node, head_dim)?;
    let made = || Some([node.output(1)?, node.output(2)?].map(str::to_owned));
    let joined = borrowed.map_or_else(made, |pair| Some(pair.presents));
    let (bias, output) = (None, Output::of(output));
    Ok(FoundAttention { layer, operands, positions, bias, norms, joined, output, index })
}

/// The dimension of heads, so many of which are beside each other in a tensor.
fn head_dim(lookup: &Lookup<'_>, node: &Node, name: &str, heads: u32) -> Result<u32> {
    let width = match lookup.at(SIZES[0])?.dims(name) {
        Some(&[_, _, width]) => u32::try_from(width).unwrap_or(0),
        _ => return Err(unrecognised(node, format!("the width of {name} is not known"))),
    };
    if width % heads != 0 || width == 0 {
        let reason = format!("{name} has {width} elements, which cannot be divided into {heads} heads");
        return Err(unrecognised(node, reason));
    }
    Ok(width / heads)
}

/// The past of keys (input 3) or values (input 4): floats, perhaps cast to another type, or codes.
fn past<'a>(lookup: &Lookup<'a>, node: &'a Node, at: usize) -> Result<&'a ValueInfo> {
    let name = node.input(at).unwrap_or_default();
    let from = lookup.uncast(name);
    let past = if from == name { lookup.stored(name) } else { lookup.past(from) };
    past.ok_or_else(|| unrecognised(node, format!("input {at} is not a past that the graph takes as an input")))
}

/// Keys and values of an earlier layer that an operator reads in place of its own.
struct Borrowed<'a> {
    /// The presents of that layer, and its pasts.
    presents: [String; 2],
    pasts: [&'a ValueInfo; 2],
    /// The number of heads, and their dimension.
    sizes: [u32; 2],
}

/// The keys and values of an earlier layer, if its presents are the pasts of an operator. Such an operator must not append any.
fn borrowed<'a>(lookup: &Lookup<'a>, node: &'a Node) -> Result<Option<Borrowed<'a>>> {
    let of = |at: usize| node.input(at).map_or(Ok(None), |name| present_named(lookup, name));
    let (Some(keys), Some(values)) = (of(3)?, of(4)?) else { return Ok(None) };
    for sizes in SIZES {
        let evaluation = lookup.at(sizes)?;
        for name in [1, 2].map(|at| node.input(at).unwrap_or_default()) {
            if !matches!(evaluation.dims(name), Some([_, 0, _])) {
                let reason = format!("its past {} is that of an earlier layer, but it appends {name}", keys.joined);
                return Err(unrecognised(node, reason));
            }
        }
    }
    let (Some(key), Some(value)) = (lookup.past(keys.past), lookup.past(values.past)) else { return Ok(None) };
    let presents = [keys.joined, values.joined].map(str::to_owned);
    Ok(Some(Borrowed { presents, pasts: [key, value], sizes: [keys.heads as u32, keys.dim as u32] }))
}

/// A number of heads, at most 65,536.
pub(super) fn heads(node: &Node, name: &str) -> Option<u32> {
    let heads = node.int(name).and_then(|heads| u32::try_from(heads).ok());
    heads.filter(|heads| (1..=1 << 16).contains(heads))
}

/// The scale of an operator: its attribute, else one over the root of the head dimension.
pub(super) fn scale(node: &Node, head_dim: u32) -> f32 {
    node.float("scale").filter(|&scale| scale != 0.).unwrap_or_else(|| (1. / f64::from(head_dim).sqrt()) as f32)
}

fn refuse(lookup: &Lookup<'_>, node: &Node) -> Result<()> {
    if node.int("causal") == Some(0) {
        return Err(unrecognised(node, "nothing hides later tokens: its attribute causal is 0"));
    }
    if node.output(3).is_some() {
        return Err(unrecognised(node, "it outputs its scores, which is not supported").of(RefusalKind::Scores));
    }
    for sizes in SIZES {
        let evaluation = lookup.at(sizes)?;
        for (index, expected) in [(5, sizes.total() - 1), (6, sizes.total())] {
            let data = node.input(index).and_then(|name| evaluation.get(name).data.as_ref());
            if data.is_some_and(|data| data.iter().any(|&number| number != expected as f64)) {
                return Err(unrecognised(node, format!("input {index} is not the number of all tokens")));
            }
        }
    }
    Ok(())
}

/// The bits of a number in quantised pasts; [`None`] for pasts of floats. Pages have scales of their own, so those of the
/// graph are dropped with its pasts.
fn past_bits(node: &Node, pasts: [&ValueInfo; 2]) -> Result<Option<u32>> {
    let wrong = |reason: String| Err(unrecognised(node, reason).of(RefusalKind::QuantisedPast));
    let [element, other] = pasts.map(|past| past.element.expect("a past has a type"));
    if element != other {
        return wrong(format!("its pasts are {element} and {other}, expected the same type"));
    }
    let bits = element.code_bits();
    for name in ["k_quant_type", "v_quant_type"] {
        let kind = node.text(name).unwrap_or("NONE");
        let past = format!("but {} is {element}", pasts[0].name);
        match (kind, bits) {
            ("NONE", None) | ("PER_TENSOR" | "PER_CHANNEL", Some(_)) => (),
            ("NONE", Some(_)) => {
                return wrong(format!("its {name} is NONE, {past}, expected PER_TENSOR or PER_CHANNEL"));
            }
            ("PER_TENSOR" | "PER_CHANNEL", None) => {
                return wrong(format!("its {name} is {kind}, {past}, expected i8, f8e4m3fn, or u8 for 4 bits"));
            }
            _ => return wrong(format!("its {name} is {kind}, expected NONE, PER_TENSOR or PER_CHANNEL")),
        }
    }
    match (node.int("kv_cache_bit_width").unwrap_or(0), bits.map_or(0, i64::from)) {
        (0, _) => Ok(bits),
        (width, found) if width == found => Ok(bits),
        (width, found) => {
            let past = &pasts[0].name;
            wrong(format!("its kv_cache_bit_width is {width}, but {past} is {element}, expected {found}"))
        }
    }
}

fn rules_of(lookup: &Lookup<'_>, node: &Node, heads: u32) -> Result<Rules> {
    let is_capped = node.float("softcap").is_some_and(|cap| cap > 0.);
    let bias = node.input(10).map(|name| Term::added(name, is_capped));
    let found = rules(lookup, node, bias.as_slice(), true, heads as usize, None)?;
    let local = node.int("local_window_size").and_then(|size| u32::try_from(size).ok()).filter(|&size| size > 0);
    Ok(Rules { window: found.window.into_iter().chain(local).min(), ..found })
}

/// Norms of queries and keys: the builders for GPUs put them into the operator.
fn norms(lookup: &Lookup<'_>, node: &Node, head_dim: u32) -> Result<Option<HeadNorms>> {
    let weights = match [node.input(14), node.input(15)] {
        [None, None] => return Ok(None),
        [Some(query), Some(key)] => [query, key],
        _ => return Err(unrecognised(node, "it norms only one of queries and keys")),
    };
    let evaluation = lookup.at(SIZES[0])?;
    for name in weights {
        if evaluation.dims(name) != Some(&[head_dim as usize]) {
            let reason = format!("the norm {name} has dimensions {:?}, expected [{head_dim}]", evaluation.dims(name));
            return Err(unrecognised(node, reason));
        }
    }
    let epsilon = node.float("qk_norm_epsilon").unwrap_or(EPSILON);
    Ok(Some(HeadNorms { weights: weights.map(str::to_owned), epsilon }))
}

fn sinks(lookup: &Lookup<'_>, node: &Node, heads: u32) -> Result<Option<Vec<f32>>> {
    if let Some(name) = node.input(11) {
        let sinks = lookup.numbers(name)?.filter(|sinks| sinks.len() == heads as usize);
        return match sinks {
            Some(sinks) => Ok(Some(sinks)),
            None => Err(unrecognised(node, format!("head_sink {name} is not a weight with one number for each head"))),
        };
    }
    Ok((node.int("smooth_softmax") == Some(1)).then(|| vec![0.; heads as usize]))
}

fn rotary(lookup: &Lookup<'_>, node: &Node, head_dim: u32) -> Result<Option<Rotary>> {
    if node.int("do_rotary").unwrap_or(0) != 1 {
        return Ok(None);
    }
    let (Some(cos), Some(sin)) = (node.input(7), node.input(8)) else {
        return Err(unrecognised(node, "do_rotary is 1, but cos_cache or sin_cache is missing"));
    };
    let initializer = |name: &str| lookup.graph().initializers.iter().find(|tensor| tensor.name == name);
    let half = match lookup.at(SIZES[0])?.dims(cos) {
        Some(&[_, half]) => u32::try_from(half).unwrap_or(0),
        _ => return Err(unrecognised(node, format!("the dimensions of {cos} are not known"))),
    };
    if half == 0 || half > head_dim / 2 {
        return Err(unrecognised(node, format!("{cos} rotates 2 * {half} elements, but heads have {head_dim}")));
    }
    Ok(Some(Rotary {
        interleaved: node.int("rotary_interleaved") == Some(1),
        dims: half * 2,
        tables: [cos, sin].map(str::to_owned),
        places: [cos, sin].map(|name| initializer(name).map(|tensor| tensor.place.clone())),
    }))
}
