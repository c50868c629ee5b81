//! Operators of layers that keep a state. Only dimensions are computed.

use std::cell::Cell;
use std::collections::HashMap;

use super::known::axis;
use super::{Constants, Evaluation, Known};
use crate::error::Result;
use crate::proto::Node;

pub(super) fn apply(node: &Node, inputs: &[&Known]) -> Option<Vec<Known>> {
    let value = *inputs.first()?;
    let like = |value: &Known| value.dims.clone().map(|dims| Known::sized(value.element, dims));
    let state = || inputs.get(3).and_then(|state| like(state)).unwrap_or_default();
    match node.operator.as_str() {
        "Conv" => Some(vec![Known::sized(value.element, convolved(node, inputs)?)]),
        "CausalConvWithState" => Some(vec![like(value)?, state()]),
        "LinearAttention" => {
            let values = inputs.get(2)?.dims.as_ref()?;
            let heads = |name: &str| usize::try_from(node.int(name)?).ok().filter(|&heads| heads > 0);
            let (queries, others) = (heads("q_num_heads")?, heads("kv_num_heads")?);
            let mut dims = value.dims.clone()?;
            *dims.last_mut()? = (values.last()? / others).checked_mul(queries.max(others))?;
            Some(vec![Known::sized(value.element, dims), state()])
        }
        "LinearAttentionGate" => {
            let rates = inputs.get(3).and_then(|rates| like(rates)).unwrap_or_default();
            Some(vec![like(value)?, rates])
        }
        "GatedRMSNorm" | "MRotaryEmbedding" => Some(vec![like(value)?]),
        _ => None,
    }
}

fn convolved(node: &Node, inputs: &[&Known]) -> Option<Vec<usize>> {
    if node.text("auto_pad").is_some_and(|pad| pad != "NOTSET") {
        return None;
    }
    let (own, kernel) = (inputs.first()?.dims.as_ref()?, inputs.get(1)?.dims.as_ref()?);
    let axes = own.len().checked_sub(2)?;
    let list = |name: &str, count: usize, other: usize| match node.ints(name) {
        Some(list) if list.len() == count => list.iter().map(|&one| usize::try_from(one).ok()).collect(),
        Some(_) => None,
        None => Some(vec![other; count]),
    };
    let (strides, dilations) = (list("strides", axes, 1)?, list("dilations", axes, 1)?);
    let pads = list("pads", axes.checked_mul(2)?, 0)?;
    if kernel.len() != own.len() {
        return None;
    }
    let mut dims = vec![*own.first()?, *kernel.first()?];
    for at in 0..axes {
        let whole = own[at + 2].checked_add(pads[at])?.checked_add(pads[at + axes])?;
        let seen = kernel[at + 2].checked_sub(1)?.checked_mul(dilations[at])?.checked_add(1)?;
        dims.push(whole.checked_sub(seen)?.checked_div(strides[at])?.checked_add(1)?);
    }
    Some(dims)
}

impl Evaluation {
    /// The outputs of a `Scan`: the last states, and the results of all steps as one tensor each.
    pub(super) fn scanned(
        &self,
        node: &Node,
        constants: &Constants<'_>,
        given: &HashMap<String, Known>,
        left: &Cell<usize>,
    ) -> Result<Option<Vec<Known>>> {
        let Some(graph) = node.graphs().next() else { return Ok(None) };
        let count = node.int("num_scan_inputs").and_then(|count| usize::try_from(count).ok());
        let Some(states) = count.and_then(|count| node.inputs.len().checked_sub(count)) else { return Ok(None) };
        if graph.inputs.len() != node.inputs.len() || graph.outputs.len() != node.outputs.len() {
            return Ok(None);
        }
        let mut values = given.clone();
        let mut steps = None;
        for (at, (input, name)) in graph.inputs.iter().zip(&node.inputs).enumerate() {
            let whole = given.get(name).unwrap_or_else(|| self.get(name));
            let Some(mut dims) = whole.dims.clone() else { return Ok(None) };
            if let Some(scanned) = at.checked_sub(states) {
                let Some(along) = along(node, "scan_input_axes", scanned, dims.len()) else { return Ok(None) };
                steps = Some(dims.remove(along));
            }
            values.insert(input.name.clone(), Known::sized(whole.element, dims));
        }
        for tensor in &graph.initializers {
            values.insert(tensor.name.clone(), constants.tensor(tensor)?);
        }
        let values = self.evaluated(&graph.nodes, constants, values, left)?;
        let output = |(at, output): (usize, &crate::proto::ValueInfo)| {
            let step = values.get(&output.name)?;
            let mut dims = step.dims.clone()?;
            if let Some(scanned) = at.checked_sub(states) {
                let along = along(node, "scan_output_axes", scanned, dims.len() + 1)?;
                dims.insert(along, steps?);
            }
            Some(Known::sized(step.element, dims))
        };
        Ok(graph.outputs.iter().enumerate().map(output).collect())
    }
}

/// The axis along which a tensor is cut into steps.
fn along(node: &Node, list: &str, at: usize, rank: usize) -> Option<usize> {
    axis(node.ints(list).map_or(Some(0), |axes| axes.get(at).copied())?, rank)
}
