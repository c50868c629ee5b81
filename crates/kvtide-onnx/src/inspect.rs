//! The result of a rewrite, as data and as text.

use std::collections::HashMap;
use std::fmt;

use crate::find::{Layer, State};
use crate::proto::{Graph, Model, Place, Port, ValueInfo, port};

/// The findings and changes of a rewrite.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspection {
    /// Attention layers, by number.
    pub layers: Vec<Layer>,
    /// Attentions over the states of an encoder, by number.
    pub crossed: Vec<Layer>,
    /// The distance of the numbers in the mask of the encoder that belong to neighbouring states, if these attentions read it.
    pub mask_stride: Option<u32>,
    /// States of layers, by number in the names and by tensor.
    pub states: Vec<State>,
    /// Inputs of the new graph.
    pub inputs: Vec<Port>,
    /// Outputs of the new graph.
    pub outputs: Vec<Port>,
    /// Inputs of the old graph that the new one lacks.
    pub dropped_inputs: Vec<String>,
    /// Outputs of the old graph that the new one lacks.
    pub dropped_outputs: Vec<String>,
    /// Inputs that the old graph lacks.
    pub added_inputs: Vec<String>,
    /// Number of nodes in the old and in the new graph.
    pub nodes: [usize; 2],
    /// Bytes of weights inside the model.
    pub inline_bytes: u64,
    /// Bytes of weights in separate files.
    pub external_bytes: u64,
    /// The files.
    pub external_files: Vec<String>,
    /// Number of logits in a row, if the graph determines it.
    pub vocabulary: Option<u32>,
}

/// The attentions and states of a graph.
pub(crate) struct Found {
    pub layers: Vec<Layer>,
    pub crossed: Vec<Layer>,
    pub mask_stride: Option<u32>,
    pub states: Vec<State>,
}

impl Inspection {
    pub(crate) fn new(old: &Model, new: &Model, found: Found, vocabulary: Option<u32>) -> Self {
        let Found { layers, crossed, mask_stride, states } = found;
        let (before, after) = (&old.graph, &new.graph);
        let missing = |from: &[ValueInfo], to: &[ValueInfo]| {
            let names = from.iter().filter(|value| !to.iter().any(|other| other.name == value.name));
            names.map(|value| value.name.clone()).collect()
        };
        let mut inspection = Self {
            layers,
            crossed,
            mask_stride,
            states,
            inputs: after.inputs.iter().map(port).collect(),
            outputs: after.outputs.iter().map(port).collect(),
            dropped_inputs: missing(&before.inputs, &after.inputs),
            dropped_outputs: missing(&before.outputs, &after.outputs),
            added_inputs: missing(&after.inputs, &before.inputs),
            nodes: [before.nodes.len(), after.nodes.len()],
            inline_bytes: 0,
            external_bytes: 0,
            external_files: Vec::new(),
            vocabulary,
        };
        inspection.weigh(after);
        inspection
    }

    fn weigh(&mut self, graph: &Graph) {
        for tensor in &graph.initializers {
            match &tensor.place {
                Place::Source(span) => self.inline_bytes += span.length,
                Place::External(external) => {
                    self.external_bytes += external.length;
                    if !self.external_files.contains(&external.location) {
                        self.external_files.push(external.location.clone());
                    }
                }
                Place::Inline => (),
            }
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "layers   form                 heads  kv  dim  type  rules")?;
        rows(to, self.layers.iter().map(|layer| (layer.layer, layer_row(layer))))?;
        if !self.crossed.is_empty() {
            writeln!(to, "encoder")?;
        }
        rows(to, self.crossed.iter().map(|layer| (layer.layer, layer_row(layer))))?;
        if !self.states.is_empty() {
            writeln!(to, "states   form                 tensor     type  dimensions")?;
        }
        rows(to, self.states.iter().map(|state| (state.layer, state_row(state))))?;
        for (title, ports) in [("inputs", &self.inputs), ("outputs", &self.outputs)] {
            writeln!(to, "{title}")?;
            ports.iter().try_for_each(|port| writeln!(to, "         {port}"))?;
        }
        for (title, names) in [
            ("added", &self.added_inputs),
            ("dropped inputs", &self.dropped_inputs),
            ("dropped outputs", &self.dropped_outputs),
        ] {
            if !names.is_empty() {
                writeln!(to, "{title}\n         {}", listed(names))?;
            }
        }
        writeln!(to, "nodes    {} -> {}", self.nodes[0], self.nodes[1])?;
        write!(to, "weights  {} bytes in the model", self.inline_bytes)?;
        if self.external_bytes > 0 {
            write!(to, ", {} in {}", self.external_bytes, self.external_files.join(", "))?;
        }
        Ok(())
    }
}

/// Writes a row for each run of layers with the same text.
fn rows(to: &mut fmt::Formatter<'_>, rows: impl Iterator<Item = (u32, String)>) -> fmt::Result {
    let mut runs: Vec<([u32; 2], String)> = Vec::new();
    for (layer, text) in rows {
        match runs.last_mut() {
            Some(([_, last], same)) if *same == text && layer == *last + 1 => *last = layer,
            _ => runs.push(([layer; 2], text)),
        }
    }
    runs.into_iter().try_for_each(|([first, last], text)| {
        let layers = if first == last { first.to_string() } else { format!("{first}-{last}") };
        writeln!(to, "{layers:>6}   {text}")
    })
}

fn layer_row(layer: &Layer) -> String {
    let (form, element) = (layer.form.to_string(), layer.element.to_string());
    let Layer { num_heads, kv_num_heads, head_dim, .. } = layer;
    format!("{form:<20} {num_heads:>5} {kv_num_heads:>3} {head_dim:>4}  {element:<4}  {}", rules(layer))
}

fn state_row(state: &State) -> String {
    let (form, element) = (state.form.to_string(), state.element.to_string());
    format!("{form:<20} {:<9}  {element:<4}  {:?}", state.name, state.shape)
}

/// Names in their order; three or more that differ in their numbers alone are one, with `*` for the number and their count.
fn listed(names: &[String]) -> String {
    let (mut like, mut places) = (Vec::<(String, Vec<&str>)>::new(), HashMap::new());
    for name in names {
        let pattern = starred(name);
        let place = *places.entry(pattern.clone()).or_insert(like.len());
        if place == like.len() {
            like.push((pattern, Vec::new()));
        }
        like[place].1.push(name);
    }
    let shown = |(pattern, own): (String, Vec<&str>)| match own.len() {
        count @ 3.. => format!("{pattern} ({count})"),
        _ => own.join(", "),
    };
    like.into_iter().map(shown).collect::<Vec<_>>().join(", ")
}

/// A name with `*` for each of its numbers.
fn starred(name: &str) -> String {
    let mut starred = String::new();
    for char in name.chars() {
        match char.is_ascii_digit() {
            true if starred.ends_with('*') => (),
            true => starred.push('*'),
            false => starred.push(char),
        }
    }
    starred
}

fn rules(layer: &Layer) -> String {
    let mut rules = vec![format!("scale {}", layer.scale)];
    rules.extend(layer.softcap.map(|softcap| format!("softcap {softcap}")));
    rules.extend(layer.window.map(|window| format!("window {window}")));
    rules.extend(layer.context_length.map(|tokens| format!("a mask for {tokens} tokens")));
    rules.extend(layer.sinks.as_ref().map(|sinks| format!("{} sink logits", sinks.len())));
    rules.extend(layer.alibi_slopes.as_ref().map(|slopes| format!("{} slopes of ALiBi", slopes.len())));
    rules.extend(
        layer
            .rotary
            .as_ref()
            .map(|rotary| format!("rotary of {} moved out ({}, {})", rotary.dims, rotary.tables[0], rotary.tables[1])),
    );
    rules.extend(layer.past_bits.map(|bits| format!("past of {bits} bits")));
    rules.extend(layer.source.map(|source| format!("keys and values of layer {source}")));
    if layer.value_dim != layer.head_dim {
        rules.push(format!("values of {}", layer.value_dim));
    }
    rules.join(", ")
}
