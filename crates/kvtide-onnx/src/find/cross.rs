//! Finds the attentions of a decoder over the keys and values of an encoder's states. All tokens of a sequence attend to all of
//! these states, or to those that the mask of the encoder keeps.
//!
//! ```text
//! product with the keys -> softmax -> product with the values       plain.rs
//! MultiHeadAttention, Attention(queries, past_key_cross_0, ..)      here
//! ```

use std::collections::{HashMap, HashSet};

use super::cached::{Reading, trace_crossed};
use super::found_attention::{Axes, FoundAttention, Operands, Output};
use super::gqa::{heads, scale};
use super::layer::{Form, Layer, Layout};
use super::lookup::{Lookup, SIZES, unrecognised};
use super::mask::{Added, HIDDEN, Term, term};
use super::{number_in, plain};
use crate::cross_names::{ENCODER_MASK, is_cross, values_of};
use crate::error::{Error, RefusalKind, Result};
use crate::eval::{Known, Sizes};
use crate::proto::{ElementType, Node};

/// The attentions over the states of an encoder.
pub(crate) struct Crossed {
    /// By the numbers of their layers. Their operands are the queries alone.
    pub all: Vec<FoundAttention>,
    /// The distance of the numbers in the mask of the encoder that belong to neighbouring states; [`None`] if it hides none.
    pub mask_stride: Option<u32>,
}

/// An attention, and the distance of the numbers in the mask of the encoder.
pub(super) type Masked = (FoundAttention, Option<u32>);

/// Finds all attentions over the states of an encoder. `O(nodes)`, and as much again for each mask, plus the evaluations of masks.
pub(crate) fn crossed(lookup: &Lookup<'_>) -> Result<Crossed> {
    let inputs = lookup.graph().inputs.iter().filter(|input| is_cross(&input.name));
    let inputs: Vec<&str> = inputs.map(|input| input.name.as_str()).collect();
    let mut found = Vec::new();
    if !inputs.is_empty() {
        for (index, node) in lookup.graph().nodes.iter().enumerate() {
            found.extend(match (node.domain.as_str(), node.operator.as_str()) {
                ("", "Softmax") => plain::find_crossed(lookup, index)?,
                _ if is_crossed(lookup, node)? => Some(operator(lookup, index)?),
                _ => None,
            });
        }
    }
    let claimed: Vec<&String> = found.iter().flat_map(|(attention, _)| &attention.layer.pasts).collect();
    if let Some(unread) = inputs.iter().find(|&&input| claimed.iter().filter(|past| **past == input).count() != 1) {
        let reason = "not one attention over the states of the encoder reads these keys or values";
        return Err(Error::unrecognised(RefusalKind::Form, *unread, "input", reason));
    }
    let is_pair = |[keys, values]: &[String; 2]| values_of(keys).as_ref() == Some(values);
    if let Some((other, _)) = found.iter().find(|(attention, _)| !is_pair(&attention.layer.pasts)) {
        let [keys, values] = &other.layer.pasts;
        return Err(unrecognised(
            lookup.node(other.index),
            format!("{keys} and {values} are not keys and values of a layer"),
        ));
    }
    found.sort_by_key(|(attention, _)| number_in(&attention.layer.pasts[0]));
    let mask_stride = found.first().and_then(|found| found.1);
    if let Some((other, _)) = found.iter().find(|found| found.1 != mask_stride) {
        return Err(unrecognised(
            lookup.node(other.index),
            format!("it reads {ENCODER_MASK} in another way than others"),
        ));
    }
    let number = |(layer, (mut attention, _)): (usize, Masked)| {
        attention.layer.layer = layer as u32;
        attention
    };
    Ok(Crossed { all: found.into_iter().enumerate().map(number).collect(), mask_stride })
}

/// True for an operator of attention whose keys are those of an encoder's states.
pub(super) fn is_crossed(lookup: &Lookup<'_>, node: &Node) -> Result<bool> {
    let is_attention = node.is("com.microsoft", "MultiHeadAttention") || node.is("", "Attention");
    let Some(keys) = node.input(1).filter(|_| is_attention) else { return Ok(false) };
    Ok(trace_crossed(lookup, keys)?.is_some())
}

/// Recognises a MultiHeadAttention, or ONNX's own Attention.
fn operator(lookup: &Lookup<'_>, index: usize) -> Result<Masked> {
    let node = lookup.node(index);
    let wrong = |reason: &str| unrecognised(node, reason);
    let is_standard = node.domain.is_empty();
    let (form, own, mask) =
        if is_standard { (Form::Attention, "q_num_heads", 3) } else { (Form::MultiHeadAttention, "num_heads", 5) };
    let (Some(query), Some(keys), Some(values), Some(output)) =
        (node.input(0), node.input(1), node.input(2), node.output(0))
    else {
        return Err(wrong("it has no queries, keys, values or output"));
    };
    let others = (3..10).filter(|&at| at != mask && node.input(at).is_some());
    if let Some(at) = others.into_iter().next() {
        return Err(wrong(&format!("its input {at} is not supported over the states of an encoder")));
    }
    if node.int("unidirectional") == Some(1) || node.int("is_causal") == Some(1) {
        return Err(wrong("it is causal, but attends to the states of an encoder"));
    }
    if (1..4).any(|at| node.output(at).is_some()) {
        return Err(wrong("it has several outputs"));
    }
    let evaluation = lookup.at(SIZES[0])?;
    let (num_heads, head_dim, layout) = match (evaluation.dims(query), heads(node, own)) {
        (Some(&[_, heads, _, dim]), _) => (heads as u32, dim as u32, Layout::HeadsFirst),
        (Some(&[_, _, width]), Some(heads)) => (heads, width as u32 / heads, Layout::Packed),
        _ => return Err(wrong("the heads of its queries are not known")),
    };
    let foreign = || wrong("its keys or values are not those of the states of an encoder");
    let key = trace_crossed(lookup, keys)?.ok_or_else(foreign)?;
    let value = trace_crossed(lookup, values)?.ok_or_else(foreign)?;
    if key.heads != value.heads || key.dim != head_dim as usize || !num_heads.is_multiple_of(key.heads.max(1) as u32) {
        return Err(wrong("heads of queries, keys and values do not fit together"));
    }
    let reading =
        |name| if evaluation.dims(name).is_some_and(|dims| dims.len() == 3) { Reading::Packed } else { Reading::Rows };
    if (value.factor(lookup, node, values, key.heads, reading(values))? - 1.).abs() > 1e-6 {
        return Err(wrong("its values are scaled"));
    }
    let factor = key.factor(lookup, node, keys, key.heads, reading(keys))?;
    let softcap = node.float("softcap").filter(|&cap| cap > 0.);
    let terms = term(lookup, node.input(mask), softcap.is_some())?;
    let mask_stride = frames(lookup, node, terms.as_slice(), num_heads as usize)?;
    let layer = Layer {
        layer: 0,
        form,
        node: node.called().into(),
        num_heads,
        kv_num_heads: key.heads as u32,
        head_dim,
        value_dim: value.dim as u32,
        element: lookup.graph().input(key.past).and_then(|past| past.element).unwrap_or(ElementType::F32),
        past_bits: None,
        scale: scale(node, head_dim) * factor as f32,
        softcap,
        window: None,
        context_length: None,
        sinks: None,
        alibi_slopes: None,
        rotary: None,
        layout,
        source: None,
        presents: [None, None],
        pasts: [key.past, value.past].map(str::to_owned),
    };
    let operands = Operands::Apart([query; 3].map(str::to_owned));
    let output = Output::of(output);
    let found =
        FoundAttention { layer, operands, positions: None, bias: None, norms: None, joined: None, output, index };
    Ok((found, mask_stride))
}

/// The distance of the numbers in the encoder's mask that belong to neighbouring states, if terms hide the states at which the mask is
/// 0; [`None`] if they hide none. Fails if they change scores in another way.
///
/// A mask with a number for each sample of an audio is shortened by the decoder to one for each state.
pub(super) fn frames(lookup: &Lookup<'_>, node: &Node, terms: &[Term<'_>], heads: usize) -> Result<Option<u32>> {
    let mut strides = Vec::new();
    for sizes in SIZES {
        let own = Shown { lookup, node, terms, heads, sizes };
        strides.push(own.stride()?);
    }
    match strides[..] {
        [one, other] if one == other => Ok(one),
        _ => Err(own_mask(node)),
    }
}

fn own_mask(node: &Node) -> Error {
    unrecognised(node, format!("it hides other states than those at which {ENCODER_MASK} is 0"))
}

/// The numbers of a mask with one for each sample, and the bits of their places.
const SAMPLES: usize = 1 << SAMPLE_BITS;
const SAMPLE_BITS: usize = 13;

/// The terms of an attention over states, for some sizes.
struct Shown<'l, 'a> {
    lookup: &'l Lookup<'a>,
    node: &'l Node,
    terms: &'l [Term<'l>],
    heads: usize,
    sizes: Sizes,
}

impl Shown<'_, '_> {
    fn stride(&self) -> Result<Option<u32>> {
        let Sizes { batch, .. } = self.sizes;
        let frames = self.sizes.frames();
        let kept = |sequence: usize, frame: usize| (sequence + frame) % 3 != 1;
        let agrees = |hidden: &[bool]| {
            hidden.iter().enumerate().all(|(place, &hidden)| hidden != kept(place / frames, place % frames))
        };
        let refused = |error: Option<Error>| Err(error.unwrap_or_else(|| own_mask(self.node)));
        let hides = |hidden: &[bool]| hidden.contains(&true);
        if !self.reads_mask() {
            return if hides(&self.hidden(frames, |_, _| true)?) { refused(None) } else { Ok(None) };
        }
        let plain = self.hidden(frames, kept);
        if plain.as_ref().is_ok_and(|hidden| agrees(hidden)) {
            return if hides(&self.hidden(frames, |_, _| true)?) { refused(None) } else { Ok(Some(1)) };
        }
        // Each bit of a place in a longer mask is shown by a mask of its own.
        let mut sampled = Vec::new();
        for bit in 0..SAMPLE_BITS {
            sampled.extend(self.hidden(SAMPLES, |_, place| place >> bit & 1 == 1));
        }
        if plain.as_ref().is_ok_and(|hidden| !hides(hidden)) && !sampled.iter().any(|hidden| hides(hidden)) {
            return Ok(None);
        }
        let mut places = vec![0; batch * frames];
        for (bit, hidden) in sampled.iter().enumerate() {
            places.iter_mut().zip(hidden).for_each(|(place, hidden)| *place |= usize::from(!hidden) << bit);
        }
        let stride = places[1];
        let is_even = places.iter().enumerate().all(|(index, &place)| place == index % frames * stride);
        if sampled.len() < SAMPLE_BITS || stride == 0 || !is_even {
            return refused(plain.err());
        }
        let own = self.hidden(SAMPLES, |sequence, place| kept(sequence, place / stride))?;
        if !agrees(&own) || hides(&self.hidden(SAMPLES, |_, _| true)?) {
            return refused(None);
        }
        Ok(u32::try_from(stride).ok())
    }

    /// True if the terms depend on the mask of the encoder.
    fn reads_mask(&self) -> bool {
        self.terms.iter().any(|term| !self.chain(term.name()).is_empty())
    }

    /// For each sequence and state, true if terms hide the state under a mask. All queries and heads have to agree.
    fn hidden(&self, length: usize, is_shown: impl Fn(usize, usize) -> bool) -> Result<Vec<bool>> {
        let mut hidden = vec![false; self.sizes.batch * self.sizes.frames()];
        let shown = |place: usize| f64::from(u8::from(is_shown(place / length, place % length)));
        let element = self.lookup.at(self.sizes)?.get(ENCODER_MASK).element;
        let mask = Known::filled(element, vec![self.sizes.batch, length], shown);
        for &term in self.terms {
            self.hide(term, &mask, &mut hidden)?;
        }
        Ok(hidden)
    }

    /// Marks the states that a term hides under a mask.
    fn hide(&self, term: Term<'_>, mask: &Known, hidden: &mut [bool]) -> Result<()> {
        let Self { sizes, heads, .. } = *self;
        let wrong = |reason: &str| unrecognised(self.node, format!("the mask {} {reason}", term.name()));
        let known = self.evaluated(term.name(), mask)?;
        let (Some(dims), Some(data)) = (&known.dims, &known.data) else {
            return Err(wrong("depends on more than the mask of the encoder"));
        };
        let full = [sizes.batch, heads, sizes.new, sizes.frames()];
        let mut shape = [1; 4];
        let Some(skipped) = 4usize.checked_sub(dims.len()) else { return Err(wrong("has more than 4 axes")) };
        shape[skipped..].copy_from_slice(dims);
        if term.axes() != Axes::Apart || !shape.iter().zip(full).all(|(&size, full)| size == 1 || size == full) {
            return Err(wrong("has other axes than the scores"));
        }
        let hides = |place: usize| {
            let number = data[place];
            match term {
                Term::Kept(_, when, _) => Ok((number != 0.) != when),
                Term::Added(Added { factor: Some(factor), .. }) if number * factor <= HIDDEN => Ok(true),
                Term::Added(_) if number == 0. => Ok(false),
                Term::Added(_) => Err(wrong(&format!("adds {number} to scores"))),
            }
        };
        let [rows, columns] = [data.len() / shape[0], shape[3]];
        for place in 0..data.len() {
            let (sequence, frame) = (place / rows, place % columns);
            let is_hidden = hides(place)?;
            if is_hidden != hides(sequence * rows + frame)? {
                return Err(wrong("hides a state from some queries or heads only"));
            }
            let sequences = if shape[0] == 1 { 0..sizes.batch } else { sequence..sequence + 1 };
            let frames = if columns == 1 { 0..sizes.frames() } else { frame..frame + 1 };
            for at in sequences.flat_map(|sequence| frames.clone().map(move |frame| sequence * sizes.frames() + frame))
            {
                hidden[at] |= is_hidden;
            }
        }
        Ok(())
    }

    /// The numbers of a tensor under a mask.
    fn evaluated(&self, name: &str, mask: &Known) -> Result<Known> {
        let evaluation = self.lookup.at(self.sizes)?;
        let given = HashMap::from([(ENCODER_MASK.to_owned(), mask.clone())]);
        let mut found = evaluation.rerun(&self.chain(name), &self.lookup.constants, given)?;
        Ok(found.remove(name).unwrap_or_else(|| evaluation.get(name).clone()))
    }

    /// The nodes between the mask of the encoder and a tensor, in their order.
    fn chain(&self, name: &str) -> Vec<&Node> {
        let lookup = self.lookup;
        let (mut behind, mut todo) = (HashSet::new(), vec![name]);
        while let Some(name) = todo.pop() {
            if let Some(&index) = lookup.makers.get(name)
                && behind.insert(index)
            {
                todo.extend(lookup.node(index).reads());
            }
        }
        let mut changed = HashSet::from([ENCODER_MASK]);
        let mut chain = Vec::new();
        for (index, node) in lookup.graph().nodes.iter().enumerate().filter(|(index, _)| behind.contains(index)) {
            if node.reads().any(|name| changed.contains(name)) {
                changed.extend(lookup.node(index).outputs.iter().map(String::as_str));
                chain.push(node);
            }
        }
        chain
    }
}
