//! Recognises `com.microsoft.Attention`, which onnxruntime's optimizer makes of gpt2: the projection of hidden states to
//! queries, keys and values, and attention with one past of keys and values.

use super::found_attention::{FoundAttention, Operands, Output};
use super::gqa::{heads, scale};
use super::layer::{Form, Layer, Layout};
use super::lookup::{Lookup, SIZES, unrecognised};
use super::mask::{Rules, Term, rules};
use crate::error::Result;
use crate::proto::Node;

pub(super) fn find(lookup: &Lookup<'_>, index: usize) -> Result<FoundAttention> {
    let node = lookup.node(index);
    let wrong = |reason: String| unrecognised(node, reason);
    let (Some(hidden), Some(weights), Some(output)) = (node.input(0), node.input(1), node.output(0)) else {
        return Err(wrong("it has no input, no weights or no output".into()));
    };
    let Some((past, element)) =
        node.input(4).and_then(|name| lookup.pair(name)).and_then(|past| Some((past, past.element?)))
    else {
        let reason = "it has no past that the graph takes as an input, [2, batch, heads, past, head dimension]";
        return Err(wrong(reason.into()));
    };
    refuse(lookup, node)?;
    let num_heads = heads(node, "num_heads").ok_or_else(|| wrong("num_heads is missing".into()))?;
    let width = match lookup.at(SIZES[0])?.dims(weights) {
        Some(&[_, width]) => u32::try_from(width).unwrap_or(0),
        _ => return Err(wrong(format!("the width of {weights} is not known"))),
    };
    if width == 0 || width % (3 * num_heads) != 0 {
        return Err(wrong(format!(
            "{weights} has {width} columns, which cannot be divided into 3 * {num_heads} heads"
        )));
    }
    let sizes = node.ints("qkv_hidden_sizes").unwrap_or_default();
    if sizes.iter().any(|&size| size != i64::from(width / 3)) {
        return Err(wrong(format!("qkv_hidden_sizes is {sizes:?}, but a past of keys and values needs equal sizes")));
    }
    let head_dim = width / 3 / num_heads;
    let causal = node.int("unidirectional") == Some(1);
    let term = node.input(5).map(|name| Term::added(name, false));
    if !causal && term.is_none() {
        return Err(wrong("nothing hides later tokens: unidirectional is not 1, and it has no attention_bias".into()));
    }
    let Rules { window, slopes, context_length } =
        rules(lookup, node, term.as_slice(), causal, num_heads as usize, None)?;
    let present = node.output(1).map(str::to_owned);
    let layer = Layer {
        layer: 0,
        form: Form::ContribAttention,
        node: node.called().into(),
        num_heads,
        kv_num_heads: num_heads,
        head_dim,
        value_dim: head_dim,
        element,
        past_bits: None,
        scale: scale(node, head_dim),
        softcap: None,
        window,
        context_length,
        sinks: None,
        alibi_slopes: slopes,
        rotary: None,
        layout: Layout::Packed,
        source: None,
        presents: [present.clone(), present],
        pasts: [past.name.clone(), past.name.clone()],
    };
    let bias = node.input(2).map(str::to_owned);
    let operands = Operands::Projected { hidden: hidden.into(), weights: weights.into(), bias };
    let output = Output::of(output);
    Ok(FoundAttention { layer, operands, positions: None, bias: None, norms: None, joined: None, output, index })
}

/// Refuses rotary embedding inside of the operator, buffers of a fixed length, and masks that may hide keys.
fn refuse(lookup: &Lookup<'_>, node: &Node) -> Result<()> {
    let wrong = |reason: String| Err(unrecognised(node, reason));
    if node.int("do_rotary") == Some(1) {
        return wrong("do_rotary is 1: expected rotary embedding outside of the operator".into());
    }
    if node.int("past_present_share_buffer") == Some(1) || node.input(6).is_some() {
        return wrong("past and present share a buffer: expected a past with as many rows as there are tokens".into());
    }
    let Some(mask) = node.input(3) else { return Ok(()) };
    for sizes in SIZES {
        let evaluation = lookup.at(sizes)?;
        let (dims, data) = (evaluation.dims(mask), evaluation.get(mask).data.as_ref());
        let is_raw = matches!(dims, Some([_, tokens] | [_, _, tokens]) if *tokens == sizes.total());
        if !is_raw || data.is_none_or(|data| data.contains(&0.)) {
            return wrong(format!("its mask_index {mask} may hide keys: expected ones, [batch, past and new tokens]"));
        }
    }
    Ok(())
}
