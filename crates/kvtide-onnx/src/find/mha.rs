//! Recognises `com.microsoft.MultiHeadAttention` and ONNX's `Attention`: one call with a mask. The past is an input of
//! the operator, or a `Concat` puts it before the keys and values.

use super::cached::{Reading, trace};
use super::found_attention::{FoundAttention, Operands, Output};
use super::gqa::{heads, scale};
use super::layer::{Form, Layer, Layout};
use super::lookup::{Lookup, SIZES, unrecognised};
use super::mask::{Rules, rules, term};
use super::scattered::{Slots, scattered};
use crate::error::{RefusalKind, Result};
use crate::proto::{ElementType, Node};

/// The differences between the two operators.
struct Call<'a> {
    form: Form,
    num_heads: Option<u32>,
    mask: Option<&'a str>,
    pasts: [Option<&'a str>; 2],
    bias: Option<&'a str>,
    /// The number of all tokens of each sequence in a static cache.
    counts: Option<&'a str>,
    causal: bool,
}

/// Recognises a MultiHeadAttention.
pub(super) fn multi_head(lookup: &Lookup<'_>, index: usize) -> Result<FoundAttention> {
    let node = lookup.node(index);
    if let Some(padding) = node.input(4) {
        let evaluation = lookup.at(SIZES[0])?;
        if evaluation.get(padding).data.as_ref().is_none_or(|data| data.contains(&0.)) {
            return Err(unrecognised(node, format!("its key_padding_mask {padding} may hide keys")));
        }
    }
    if node.input(8).is_some() || node.input(9).is_some() {
        return Err(unrecognised(node, "its inputs past_sequence_length and cache_indirection are not supported"));
    }
    if node.output(3).is_some() {
        return Err(unrecognised(node, "it outputs its scores, which is not supported").of(RefusalKind::Scores));
    }
    let call = Call {
        form: Form::MultiHeadAttention,
        num_heads: heads(node, "num_heads"),
        mask: node.input(5),
        pasts: [node.input(6), node.input(7)],
        bias: node.input(3),
        counts: None,
        causal: node.int("unidirectional") == Some(1),
    };
    find(lookup, index, &call)
}

/// Recognises ONNX's own Attention.
pub(super) fn standard(lookup: &Lookup<'_>, index: usize) -> Result<FoundAttention> {
    let node = lookup.node(index);
    if node.output(3).is_some() {
        return Err(unrecognised(node, "it outputs its scores, which is not supported").of(RefusalKind::Scores));
    }
    let call = Call {
        form: Form::Attention,
        num_heads: heads(node, "q_num_heads"),
        mask: node.input(3),
        pasts: [node.input(4), node.input(5)],
        bias: None,
        counts: node.input(6),
        causal: node.int("is_causal") == Some(1),
    };
    find(lookup, index, &call)
}

/// Keys or values: the new rows, the past, and their layout.
struct Side<'a> {
    new: String,
    past: String,
    heads: u32,
    dim: u32,
    is_packed: bool,
    factor: f64,
    present: Option<String>,
    /// Past and new rows as one tensor, if the operator reads or returns it.
    joined: Option<String>,
    /// The slots of a static cache.
    slots: Option<Slots<'a>>,
}

fn side<'a>(lookup: &Lookup<'a>, node: &'a Node, at: usize, past: Option<&'a str>, num_heads: u32) -> Result<Side<'a>> {
    let wrong = |reason: String| unrecognised(node, reason);
    let name =
        node.input(at).ok_or_else(|| wrong(format!("input {at} is missing: packed inputs are not supported")))?;
    let evaluation = lookup.at(SIZES[0])?;
    let dims = evaluation.dims(name).ok_or_else(|| wrong(format!("the dimensions of {name} are not known")))?;
    let Some(past) = past.map(|past| lookup.uncast(past)) else {
        // The rows of a static cache may have their heads side by side, as the operator reads them.
        let writer = lookup.maker(name).filter(|maker| dims.len() == 3 && maker.is("", "TensorScatter"));
        let is_packed = writer.is_some();
        let own = heads(node, "kv_num_heads").unwrap_or(num_heads);
        let cached = match writer {
            Some(writer) => scattered(lookup, writer, Some(own))?,
            None => trace(lookup, name)?,
        };
        let cached = cached.ok_or_else(|| wrong(format!("{name} has no past before it")))?;
        if cached.half.is_some() {
            return Err(wrong(format!("{} has keys and values in one tensor: expected a past for each", cached.past)));
        }
        let reading = if dims.len() == 3 { Reading::Packed } else { Reading::Rows };
        // The operator may repeat heads itself: then it reads as many as there are.
        let read = if dims.len() == 3 { dims[2] / cached.dim.max(1) } else { dims[1] };
        let factor = if is_packed { 1. } else { cached.factor(lookup, node, name, read, reading)? };
        let (heads, dim) = (cached.heads as u32, cached.dim as u32);
        let present = cached.present(lookup);
        let (new, past) = (cached.new.into(), cached.past.into());
        let joined = Some(cached.joined.into());
        return Ok(Side { new, past, heads, dim, is_packed, factor, present, joined, slots: cached.slots });
    };
    if lookup.past(past).is_none() {
        return Err(wrong(format!("{past} is not a past that the graph takes as an input")));
    }
    let (heads, dim, is_packed) = match *dims {
        [_, heads, _, dim] => (heads as u32, dim as u32, false),
        [_, _, width] => {
            let heads = heads(node, "kv_num_heads").unwrap_or(num_heads);
            (heads, (width as u32).checked_div(heads).ok_or_else(|| wrong("it has no heads".into()))?, true)
        }
        _ => return Err(wrong(format!("{name} has dimensions {dims:?}"))),
    };
    let joined = node.output(at).map(str::to_owned);
    let present = joined.as_ref().and_then(|name| lookup.returned(name));
    let (new, past) = (name.into(), past.into());
    Ok(Side { new, past, heads, dim, is_packed, factor: 1., present, joined, slots: None })
}

fn find<'a>(lookup: &Lookup<'a>, index: usize, call: &Call<'a>) -> Result<FoundAttention> {
    let node = lookup.node(index);
    let wrong = |reason: &str| unrecognised(node, reason);
    let (Some(query), Some(output)) = (node.input(0), node.output(0)) else {
        return Err(wrong("it has no queries or no output"));
    };
    let evaluation = lookup.at(SIZES[0])?;
    let (num_heads, head_dim, is_packed) = match (evaluation.dims(query), call.num_heads) {
        (Some(&[_, heads, _, dim]), _) => (heads as u32, dim as u32, false),
        (Some(&[_, _, width]), Some(heads)) => (heads, width as u32 / heads, true),
        _ => return Err(wrong("the heads of its queries are not known")),
    };
    let key = side(lookup, node, 1, call.pasts[0], num_heads)?;
    let value = side(lookup, node, 2, call.pasts[1], num_heads)?;
    if key.heads != value.heads || key.heads == 0 || num_heads % key.heads != 0 || key.dim != head_dim {
        return Err(wrong("heads of queries, keys and values do not fit together"));
    }
    if (value.factor - 1.).abs() > 1e-6 {
        return Err(wrong("its values are scaled"));
    }
    if call.mask.is_none() && !call.causal {
        return Err(wrong("nothing hides later tokens: it has no mask and is not causal"));
    }
    let names = [query, &key.new, &value.new].map(str::to_owned);
    let (layout, operands) = match (is_packed, key.is_packed, value.is_packed) {
        (false, false, false) => (Layout::HeadsFirst, Operands::Apart(names)),
        (true, true, true) => (Layout::Packed, Operands::Apart(names)),
        (true, false, false) => (Layout::Packed, Operands::Mixed(names)),
        _ => return Err(wrong("its queries have their heads first, but its keys or values do not")),
    };
    if call.bias.is_some() && !matches!((layout, &operands), (Layout::Packed, Operands::Apart(_))) {
        return Err(wrong("it has a bias, but its inputs are not packed"));
    }
    let softcap = node.float("softcap").filter(|&cap| cap > 0.);
    let slots = slots(lookup, node, call, [&key, &value])?;
    let term = term(lookup, call.mask, softcap.is_some())?;
    let Rules { window, slopes, context_length } =
        rules(lookup, node, term.as_slice(), call.causal, num_heads as usize, slots)?;
    let layer = Layer {
        layer: 0,
        form: call.form,
        node: node.called().into(),
        num_heads,
        kv_num_heads: key.heads,
        head_dim,
        value_dim: value.dim,
        element: lookup.past(&key.past).and_then(|past| past.element).unwrap_or(ElementType::F32),
        past_bits: None,
        scale: scale(node, head_dim) * key.factor as f32,
        softcap,
        window,
        context_length,
        sinks: None,
        alibi_slopes: slopes,
        rotary: None,
        layout,
        source: None,
        presents: [key.present, value.present],
        pasts: [key.past, value.past],
    };
    let bias = call.bias.map(str::to_owned);
    let joined = key.joined.zip(value.joined).map(|(key, value)| [key, value]);
    let (positions, norms, output) = (None, None, Output::of(output));
    Ok(FoundAttention { layer, operands, positions, bias, norms, joined, output, index })
}

/// The slots of a static cache that an operator reads. Fails unless it attends to all tokens and to no slot behind them.
fn slots<'a>(lookup: &Lookup<'_>, node: &Node, call: &Call<'_>, sides: [&Side<'a>; 2]) -> Result<Option<Slots<'a>>> {
    let wrong = |reason: String| unrecognised(node, reason);
    let [key, value] = sides;
    let Some(slots) = key.slots.filter(|_| value.slots.is_some()) else {
        if key.slots.is_some() || value.slots.is_some() {
            return Err(wrong("only one of its keys and values is in a static cache".into()));
        }
        return match call.counts {
            Some(name) => Err(wrong(format!(
                "it has nonpad_kv_seqlen {name}, but its keys and values do not come from TensorScatter into inputs"
            ))),
            None if call.causal && call.pasts == [None; 2] => {
                let reason = "it is causal over keys that were joined before it, so it counts from the first of them";
                Err(wrong(reason.into()))
            }
            None => Ok(None),
        };
    };
    let Some(name) = call.counts else {
        if call.causal {
            let reason = "it is causal over a static cache without nonpad_kv_seqlen, so it counts from the first slot";
            return Err(wrong(reason.into()));
        }
        return Ok(Some(slots));
    };
    for sizes in SIZES {
        let evaluation = lookup.at(sizes)?;
        let data = evaluation.get(name).data.as_ref();
        if data.is_none_or(|data| data.iter().any(|&count| count != sizes.total() as f64)) {
            return Err(wrong(format!("its nonpad_kv_seqlen {name} is not the number of all tokens")));
        }
    }
    Ok(Some(Slots { is_bounded: true, ..slots }))
}
