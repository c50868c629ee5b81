//! Recognises plain attention: a product with the keys, operations on scores, a softmax, a product with the values.
//!
//! ```text
//! softmax -> .. -> MatMul(_, values)    forwards: the output of the attention
//! softmax <- mask, soft cap, scale, sinks <- MatMul(queries, keys)    backwards
//! ```

use std::collections::HashMap;

use super::cached::{Cached, Reading, scaled, trace, trace_crossed};
use super::cross::{Masked, frames};
use super::found_attention::{Axes, FoundAttention, Operands, Output};
use super::layer::{Form, Layer, Layout};
use super::lookup::{Lookup, SIZES, unrecognised};
use super::mask::{Added, Rules, Term, rules};
use super::scattered::Slots;
use crate::error::{RefusalKind, Result};
use crate::eval::{Evaluation, Known};
use crate::proto::{ElementType, Node};

/// The most nodes between a softmax and the product with the values.
const STEPS_MAX: usize = 8;

/// The attention around a softmax; [`None`] if the values have no past.
pub(super) fn find(lookup: &Lookup<'_>, softmax: usize) -> Result<Option<FoundAttention>> {
    let Some(Around { mut found, scores, slots }) = Around::of(lookup, softmax, trace)? else { return Ok(None) };
    let node = lookup.node(softmax);
    if scores.terms.is_empty() {
        return Err(unrecognised(node, "nothing hides later tokens: there is no mask before it"));
    }
    let heads = found.layer.num_heads as usize;
    let Rules { window, slopes, context_length } = rules(lookup, node, &scores.terms, false, heads, slots)?;
    found.layer.window = window;
    found.layer.context_length = context_length;
    found.layer.alibi_slopes = slopes;
    Ok(Some(found))
}

/// The attention over the states of an encoder around a softmax; [`None`] if the values are not those of an encoder.
pub(super) fn find_crossed(lookup: &Lookup<'_>, softmax: usize) -> Result<Option<Masked>> {
    let Some(Around { mut found, scores, .. }) = Around::of(lookup, softmax, trace_crossed)? else { return Ok(None) };
    let Operands::Apart([query, ..]) = &found.operands else {
        return Err(unrecognised(lookup.node(softmax), "its tokens and heads are one axis"));
    };
    found.operands = Operands::Apart([query.clone(), query.clone(), query.clone()]);
    found.joined = None;
    let mask_stride = frames(lookup, lookup.node(softmax), &scores.terms, found.layer.num_heads as usize)?;
    Ok(Some((found, mask_stride)))
}

/// Follows keys or values back to the place where they come from.
type Trace = for<'a> fn(&Lookup<'a>, &'a str) -> Result<Option<Cached<'a>>>;

/// An attention around a softmax, and the operations on its scores.
struct Around<'a> {
    found: FoundAttention,
    scores: Scores<'a>,
    /// The slots of a static cache.
    slots: Option<Slots<'a>>,
}

impl<'a> Around<'a> {
    fn of(lookup: &Lookup<'a>, softmax: usize, trace: Trace) -> Result<Option<Self>> {
        let Some((weighted, values)) = product_behind(lookup, softmax, trace)? else { return Ok(None) };
        let (node, output) = (lookup.node(weighted), lookup.node(weighted).output(0).unwrap_or_default());
        let wrong = |reason: &str| unrecognised(node, reason);
        let scores = Scores::before(lookup, lookup.node(softmax))?;
        let (Some(query), Some(keys)) = (scores.product.input(0), scores.product.input(1)) else {
            return Err(wrong("its product with the keys has no inputs"));
        };
        let keys_read = keys;
        let bare = || unrecognised(scores.product, "its keys have no past before them").of(RefusalKind::Past);
        let keys = trace(lookup, keys)?.ok_or_else(bare)?;
        fit(&keys, &values).map_err(wrong)?;
        let element = lookup.graph().input(keys.past).and_then(|past| past.element).unwrap_or(ElementType::F32);
        let (query, factor) = queries(lookup, query, element)?;
        let is_rows = scores.axes == Axes::TokensAndHeads;
        let heads = heads_of(lookup, &scores, query, &keys)?;
        let read = node.input(1).unwrap_or_default();
        // Rows of tokens and heads read the keys of one head.
        let repeated = if is_rows { 1 } else { heads };
        if (values.factor(lookup, node, read, repeated, Reading::Rows)? - 1.).abs() > 1e-6 {
            return Err(wrong("its values are scaled"));
        }
        let factor = factor * keys.factor(lookup, scores.product, keys_read, repeated, Reading::Columns)?;
        let layer = Layer {
            layer: 0,
            form: Form::Plain,
            node: lookup.node(softmax).called().into(),
            num_heads: heads as u32,
            kv_num_heads: keys.heads as u32,
            head_dim: keys.dim as u32,
            value_dim: values.dim as u32,
            element,
            past_bits: None,
            scale: (factor * scores.factor * scores.softcap.unwrap_or(1.)) as f32,
            softcap: scores.softcap.map(|cap| cap as f32),
            window: None,
            context_length: None,
            sinks: scores.sinks(lookup, lookup.node(softmax), heads)?,
            alibi_slopes: None,
            rotary: None,
            layout: if is_rows { Layout::Packed } else { Layout::HeadsFirst },
            source: None,
            presents: [&keys, &values].map(|cached| cached.present(lookup)),
            pasts: [keys.past, values.past].map(str::to_owned),
        };
        let axes =
            output_axes(lookup, output, is_rows)?.ok_or_else(|| wrong("its output has other axes than its scores"))?;
        let operands = [query, keys.new, values.new].map(str::to_owned);
        let operands = if is_rows { Operands::Rows(operands) } else { Operands::Apart(operands) };
        let found = FoundAttention {
            layer,
            operands,
            positions: None,
            bias: None,
            norms: None,
            joined: Some([keys.joined, values.joined].map(str::to_owned)),
            output: Output { name: output.into(), axes },
            index: weighted,
        };
        Ok(Some(Self { found, scores, slots: keys.slots }))
    }
}

/// The number of heads of queries.
fn heads_of(lookup: &Lookup<'_>, scores: &Scores<'_>, query: &str, keys: &Cached<'_>) -> Result<usize> {
    let (sizes, is_rows) = (SIZES[0], scores.axes == Axes::TokensAndHeads);
    let evaluation = lookup.at(sizes)?;
    let of_keys = (sizes.batch, keys.dim);
    match evaluation.dims(query) {
        Some(&[batch, heads, new, dim]) if !is_rows && (batch, dim) == of_keys && new == sizes.new => Ok(heads),
        Some(&[batch, rows, dim])
            if is_rows && (batch, dim) == of_keys && keys.heads == 1 && rows.is_multiple_of(sizes.new) =>
        {
            Ok(rows / sizes.new)
        }
        dims => Err(unrecognised(scores.product, format!("its queries have dimensions {dims:?}"))),
    }
}

/// The axes of an output; [`None`] if they are not those of scores with a row for each token and head.
fn output_axes(lookup: &Lookup<'_>, output: &str, is_rows: bool) -> Result<Option<Axes>> {
    Ok(match (lookup.at(SIZES[0])?.dims(output), is_rows) {
        (Some([_, _, _]), true) => Some(Axes::TokensAndHeads),
        (_, true) => None,
        (Some([_, _, _]), false) => Some(Axes::BatchAndHeads),
        (_, false) => Some(Axes::Apart),
    })
}

/// Fails if keys and values do not belong together.
fn fit(keys: &Cached<'_>, values: &Cached<'_>) -> Result<(), &'static str> {
    if !matches!((keys.half, values.half), (None, None) | (Some(0), Some(1)))
        || keys.half.is_some() && keys.past != values.past
    {
        return Err("its keys and values are not the first and the second half of one past");
    }
    if keys.heads != values.heads {
        return Err("its keys and values have different numbers of heads");
    }
    if keys.slots.is_some() != values.slots.is_some() {
        return Err("only one of its keys and values is in a static cache");
    }
    Ok(())
}

/// The product of a softmax with values that have a past.
fn product_behind<'a>(lookup: &Lookup<'a>, softmax: usize, trace: Trace) -> Result<Option<(usize, Cached<'a>)>> {
    let mut names: Vec<&str> = lookup.node(softmax).output(0).into_iter().collect();
    for _ in 0..STEPS_MAX {
        let mut next = Vec::new();
        for name in names {
            for &index in lookup.readers.get(name).into_iter().flatten() {
                let node = lookup.node(index);
                match node.operator.as_str() {
                    "MatMul" if node.input(0) == Some(name) => {
                        if let Some(values) = node.input(1).map(|values| trace(lookup, values)).transpose()?.flatten() {
                            return Ok(Some((index, values)));
                        }
                    }
                    "Cast" | "Identity" | "Dropout" => next.extend(node.output(0)),
                    "Slice" if cuts_end(lookup, node, name)? => next.extend(node.output(0)),
                    "Reshape" => {
                        if let Some(output) = node.output(0)
                            && (lookup.is_merged(output, name)? || lookup.is_rows(output, name)?)
                        {
                            next.push(output);
                        }
                    }
                    "Where" if replaces_nan(lookup, node, name) => next.extend(node.output(0)),
                    _ => (),
                }
            }
        }
        next.sort_unstable();
        next.dedup();
        names = next;
    }
    Ok(None)
}

/// True for `Where(IsNaN(x), 0, x)`: it handles a row that attends to nothing, which never happens with a causal mask.
fn replaces_nan(lookup: &Lookup<'_>, node: &Node, name: &str) -> bool {
    let condition = node.input(0).and_then(|condition| lookup.maker(condition));
    let is_nan = condition.is_some_and(|node| node.operator == "IsNaN" && node.input(0) == Some(name));
    is_nan && node.input(2) == Some(name)
}

/// True if a slice of `name` keeps the first columns of all rows: it cuts off sinks, which are behind the scores.
fn cuts_end(lookup: &Lookup<'_>, node: &Node, name: &str) -> Result<bool> {
    for sizes in SIZES {
        let evaluation = lookup.at(sizes)?;
        let Some(own) = evaluation.dims(name).map(<[_]>::to_vec) else { return Ok(false) };
        let marked = Known::filled(evaluation.get(name).element, own.clone(), |place| place as f64);
        let mut made = evaluation.rerun(&[node], &lookup.constants, HashMap::from([(name.to_owned(), marked)]))?;
        let found = node.output(0).and_then(|output| made.remove(output)).unwrap_or_default();
        let (Some(dims), Some(data)) = (found.dims, found.data) else { return Ok(false) };
        let (Some((&kept, rows)), Some((&width, all))) = (dims.split_last(), own.split_last()) else {
            return Ok(false);
        };
        let is_first = |(place, &mark): (usize, &f64)| mark == (place / kept * width + place % kept) as f64;
        if rows != all || data.is_empty() || !data.iter().enumerate().all(is_first) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// True for a node that subtracts the maximum of each row of scores, which does not change their softmax.
fn is_shift(evaluation: &Evaluation, node: Option<&Node>, scores: &str) -> bool {
    let Some(most) = node.filter(|most| most.operator == "ReduceMax" && most.input(0) == Some(scores)) else {
        return false;
    };
    let given = most.input(1).and_then(|axes| evaluation.get(axes).ints());
    let axes = most.ints("axes").map(<[_]>::to_vec).or(given).unwrap_or_default();
    let rank = evaluation.dims(scores).map_or(4, <[_]>::len) as i64;
    matches!(axes[..], [axis] if axis == -1 || axis == rank - 1) && most.int("keepdims").unwrap_or(1) == 1
}

/// Returns the queries, their heads apart, before they are scaled, and the factor.
fn queries<'a>(lookup: &Lookup<'a>, name: &'a str, element: ElementType) -> Result<(&'a str, f64)> {
    let (mut name, mut factor) = (name, 1.);
    loop {
        let Some(node) = lookup.maker(name) else { return Ok((name, factor)) };
        if let Some((before, by)) = scaled(lookup, node)? {
            (name, factor) = (before, factor * by);
            continue;
        }
        if let Some(apart) = node.input(0).filter(|_| node.operator == "Reshape")
            && lookup.is_merged(name, apart)?
        {
            name = apart;
            continue;
        }
        let before = node.input(0).filter(|_| node.operator == "Cast");
        match before {
            Some(before) if lookup.at(SIZES[0])?.get(before).element == Some(element) => name = before,
            _ => return Ok((name, factor)),
        }
    }
}

/// The operations on scores between the product with the keys and the softmax.
struct Scores<'a> {
    product: &'a Node,
    terms: Vec<Term<'a>>,
    /// The factor before the soft cap.
    factor: f64,
    softcap: Option<f64>,
    sinks: Option<&'a str>,
    /// The axes of the scores that were reached. Tokens may come before heads, as one axis with them or apart.
    axes: Axes,
}

impl<'a> Scores<'a> {
    fn before(lookup: &Lookup<'a>, softmax: &'a Node) -> Result<Self> {
        // Before opset 13, a softmax without an axis was computed over all axes from the second one on.
        let is_flat = softmax.int("axis").is_none() && lookup.model.opset("").is_some_and(|version| version < 13);
        if is_flat || !matches!(softmax.int("axis"), None | Some(-1 | 3)) {
            return Err(unrecognised(softmax, "it is not computed over the last axis"));
        }
        let mut name = softmax.input(0).unwrap_or_default();
        let axes = if Self::has_tokens_first(lookup, name)? { Axes::TokensAndHeads } else { Axes::Apart };
        let mut scores = Self { product: softmax, terms: Vec::new(), factor: 1., softcap: None, sinks: None, axes };
        loop {
            let Some(node) = lookup.maker(name) else {
                return Err(unrecognised(
                    softmax,
                    format!("its scores come from {name}, which is not the output of a node"),
                ));
            };
            if node.operator == "MatMul" {
                scores.product = node;
                return Ok(scores);
            }
            let before = scores.step(lookup, node)?;
            name = before
                .ok_or_else(|| unrecognised(node, "its operator is not supported between the keys and the softmax"))?;
        }
    }

    /// True for scores `[batch, tokens, heads, keys]`.
    fn has_tokens_first(lookup: &Lookup<'_>, name: &str) -> Result<bool> {
        for sizes in SIZES {
            let is_second = |dims: &[usize]| dims.len() == 4 && dims[1] == sizes.new;
            if !lookup.at(sizes)?.dims(name).is_some_and(is_second) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Interprets one node, and returns the scores before it.
    fn step(&mut self, lookup: &Lookup<'a>, node: &'a Node) -> Result<Option<&'a str>> {
        if let Some((before, by)) = scaled(lookup, node)? {
            self.factor *= by;
            return Ok(Some(before));
        }
        let evaluation = lookup.at(SIZES[0])?;
        let is_known = |at: usize| node.input(at).is_some_and(|name| evaluation.get(name).data.is_some());
        let input = |at: usize| node.input(at);
        Ok(match node.operator.as_str() {
            "Cast" | "Identity" => input(0),
            "Reshape" => {
                let (Some(before), Some(after)) = (input(0), node.output(0)) else { return Ok(None) };
                if self.axes == Axes::TokensAndHeads {
                    return Ok(Some(before).filter(|_| lookup.is_rows(before, after).unwrap_or(false)));
                }
                let is_merged = lookup.is_merged(before, after)?;
                self.axes = if is_merged { Axes::BatchAndHeads } else { Axes::Apart };
                Some(before).filter(|_| is_merged)
            }
            "Tanh" if self.softcap.is_none() => {
                self.softcap = Some(self.factor);
                self.factor = 1.;
                input(0)
            }
            "Add" => {
                let (before, mask) = if is_known(0) { (1, 0) } else { (0, 1) };
                let factor = Some(self.factor).filter(|_| self.softcap.is_none());
                let axes = self.axes;
                self.terms.extend(input(mask).map(|name| Term::Added(Added { name, factor, axes })));
                input(before)
            }
            "Where" => {
                let (before, other, when) = if is_known(1) { (2, 1, false) } else { (1, 2, true) };
                let other = input(other).and_then(|name| evaluation.get(name).data.clone());
                if other.is_none_or(|data| data.iter().any(|&number| number > -1e4)) {
                    return Err(unrecognised(node, "its replacement for hidden scores is above -1e4"));
                }
                self.terms.extend(input(0).map(|name| Term::Kept(name, when, self.axes)));
                input(before)
            }
            // A soft cap behind it, or sinks beside the scores, would not be shifted.
            "Sub" if self.softcap.is_none() && self.sinks.is_none() => {
                let most = input(1).and_then(|name| lookup.maker(name));
                input(0).filter(|&name| is_shift(&evaluation, most, name))
            }
            "Max" => input(0)
                .filter(|_| input(1).and_then(|name| evaluation.scalar(name)).is_some_and(|least| least <= -1e4)),
            "Concat" if node.inputs.len() == 2 && matches!(node.int("axis"), Some(-1 | 3)) && self.sinks.is_none() => {
                if self.factor != 1. || self.softcap.is_some() {
                    return Err(unrecognised(node, "the scores are scaled or capped together with their sinks"));
                }
                self.sinks = input(1);
                input(0)
            }
            _ => None,
        })
    }

    /// One sink logit for each head, if a column of them is appended to the scores.
    fn sinks(&self, lookup: &Lookup<'_>, node: &Node, heads: usize) -> Result<Option<Vec<f32>>> {
        let Some(name) = self.sinks else { return Ok(None) };
        let wrong = || unrecognised(node, format!("{name} is not one number for each head behind the scores"));
        let evaluation = lookup.at(SIZES[0])?;
        let (dims, data) = (evaluation.dims(name), evaluation.get(name).data.as_ref());
        let (Some(&[_, found, queries, 1]), Some(data)) = (dims, data) else { return Err(wrong()) };
        let sinks: Vec<f32> = (0..heads).filter_map(|head| data.get(head * queries)).map(|&sink| sink as f32).collect();
        let head = |index: usize| index.checked_div(queries)?.checked_rem(heads);
        let of_head = |index: usize| sinks.get(head(index)?).copied();
        let same = data.iter().enumerate().all(|(index, &sink)| of_head(index) == Some(sink as f32));
        if heads == 0 || found != heads || sinks.len() != heads || !same {
            return Err(wrong());
        }
        Ok(Some(sinks))
    }
}
