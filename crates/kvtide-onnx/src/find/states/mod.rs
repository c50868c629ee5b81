//! Finds the layers that keep a state: short convolutions, linear attentions and state space models. Each form has one
//! file; all of them return a [`FoundState`]. O(nodes), plus the evaluations of slices.
//!
//! ```text
//! past_conv.3 -> Concat -> Conv ..     convolution.rs
//!                CausalConvWithState   contrib.rs
//!                LinearAttention       contrib.rs
//!                Scan                  scan.rs
//!                anything else         refused: the graph runs unmodified
//! ```
//! A call computes all sequences of a step as one row, so a state that stayed in the graph would mix them.

mod contrib;
mod convolution;
mod found_state;
mod scan;
mod state;

pub(crate) use found_state::{FoundState, StateInput};
pub use state::{State, StateForm};

use std::collections::HashSet;

use super::lookup::{Lookup, unrecognised};
use crate::error::{Error, RefusalKind, Result};
use crate::proto::{Dim, ElementType, Node, ValueInfo};
use crate::state_names::StateName;

/// The error of a node that uses a state in another form.
pub(super) fn refused(node: &Node, reason: impl Into<String>) -> Error {
    unrecognised(node, reason).of(RefusalKind::State)
}

/// Finds the layers of all states, in the order of their numbers and names. `O(nodes)`.
pub(crate) fn states(lookup: &Lookup<'_>) -> Result<Vec<FoundState>> {
    let mut ports = lookup.graph().inputs.iter().filter_map(|input| port(lookup, input)).collect::<Result<Vec<_>>>()?;
    ports.sort_by(|one, other| (one.number, &one.name).cmp(&(other.number, &other.name)));
    for pair in ports.windows(2) {
        if (pair[0].number, &pair[0].name) == (pair[1].number, &pair[1].name) {
            let reason = format!("it is the same state as {}", pair[0].past);
            return Err(Error::unrecognised(RefusalKind::State, pair[1].past, "input", reason));
        }
    }
    for output in &lookup.graph().outputs {
        let is_known = |port: &StatePort<'_>| port.present == output.name;
        if StateName::of_present(&output.name).is_some() && !ports.iter().any(is_known) {
            let reason = "it is a new state, but the graph takes none of this name";
            return Err(Error::unrecognised(RefusalKind::State, &output.name, "output", reason));
        }
    }
    ports.iter().map(|port| layer(lookup, port)).collect()
}

/// A state among the inputs and outputs of a graph.
struct StatePort<'a> {
    past: &'a str,
    present: String,
    number: u32,
    name: String,
    shape: Vec<u32>,
    element: ElementType,
}

impl StatePort<'_> {
    /// The description of the state, found at a node.
    fn state(&self, form: StateForm, node: &Node) -> State {
        State {
            layer: self.number,
            number: self.number,
            name: self.name.clone(),
            past: self.past.into(),
            present: self.present.clone(),
            shape: self.shape.clone(),
            element: self.element,
            form,
            node: node.called().into(),
        }
    }

    /// Fails unless the state has these dimensions.
    fn check_shape(&self, node: &Node, shape: &[usize]) -> Result<()> {
        if self.shape.iter().map(|&size| size as usize).eq(shape.iter().copied()) {
            return Ok(());
        }
        Err(refused(
            node,
            format!("{} has dimensions {:?} behind the batch, expected {shape:?}", self.past, self.shape),
        ))
    }
}

/// The state that an input is; [`None`] if it is none.
fn port<'a>(lookup: &Lookup<'a>, input: &'a ValueInfo) -> Option<Result<StatePort<'a>>> {
    let found = StateName::of_past(&input.name)?;
    let wrong = |reason: String| Err(Error::unrecognised(RefusalKind::State, &input.name, "input", reason));
    let present = found.present();
    if !lookup.graph().outputs.iter().any(|output| output.name == present) {
        return Some(wrong(format!("the graph has no output {present} with the new state")));
    }
    let Some(element) = input.element.filter(|element| element.is_float()) else {
        let found = input.element.map_or("unknown".into(), |element| element.to_string());
        return Some(wrong(format!("its type is {found}, expected f32, f16 or bf16")));
    };
    let size = |dim: &Dim| match dim {
        Dim::Size(size) => u32::try_from(*size).ok().filter(|&size| size > 0),
        _ => None,
    };
    let shape = match input.dims.as_deref() {
        Some([Dim::Size(batch), ..]) if *batch != 1 => {
            return Some(wrong(format!("it is for {batch} sequences, expected the batch, or 1, at the start")));
        }
        Some([_, sizes @ ..]) if !sizes.is_empty() => sizes.iter().map(size).collect::<Option<Vec<_>>>(),
        _ => None,
    };
    let Some(shape) = shape else { return Some(wrong("its sizes behind the batch are not fixed".into())) };
    let (number, name) = (found.number, found.tensor().into());
    Some(Ok(StatePort { past: &input.name, present, number, name, shape, element }))
}

/// The layer of a state.
fn layer(lookup: &Lookup<'_>, port: &StatePort<'_>) -> Result<FoundState> {
    let (index, name) = reader(lookup, port)?;
    let node = lookup.node(index);
    let place = node.inputs.iter().position(|input| input == name);
    let is_ours = ["com.microsoft", ""].contains(&node.domain.as_str());
    match (node.operator.as_str(), place) {
        ("CausalConvWithState", Some(3)) if is_ours => contrib::convolution(lookup, port, index),
        ("LinearAttention", Some(3)) if is_ours => contrib::attention(lookup, port, index),
        ("Concat", Some(0)) if node.is("", "Concat") => convolution::find(lookup, port, index),
        ("Scan", Some(0)) if node.is("", "Scan") => scan::find(lookup, port, index),
        _ => {
            Err(refused(node, format!("it reads the state {}, which no form of this operator is known for", port.past)))
        }
    }
}

/// The only node that reads a state's numbers, and the name by which it reads them.
fn reader<'a>(lookup: &Lookup<'a>, port: &StatePort<'a>) -> Result<(usize, &'a str)> {
    let mut name = port.past;
    loop {
        let all = lookup.readers.get(name).into_iter().flatten();
        let readers: Vec<usize> = all.copied().filter(|&index| !lookup.node(index).is("", "Shape")).collect();
        match readers.as_slice() {
            [] => {
                let reason = "no node reads this state";
                return Err(Error::unrecognised(RefusalKind::State, port.past, "input", reason));
            }
            &[index] => match passed(lookup.node(index)).and_then(|node| node.output(0)) {
                Some(next) => name = next,
                None => return Ok((index, name)),
            },
            &[first, other, ..] => {
                let reason = format!("{} reads the state {} as well", lookup.node(first).called(), port.past);
                return Err(refused(lookup.node(other), reason));
            }
        }
    }
}

/// A node that passes floats on.
fn passed(node: &Node) -> Option<&Node> {
    let is_cast =
        |node: &Node| node.is("", "Cast") && node.int("to").is_some_and(|to| ElementType(to as i32).is_float());
    Some(node).filter(|node| node.is("", "Identity") || is_cast(node))
}

/// Fails unless the state's output is `made`, which a node computes, and nothing else reads that.
fn check_present(lookup: &Lookup<'_>, port: &StatePort<'_>, node: &Node, made: Option<&str>) -> Result<()> {
    let wrong = || refused(node, format!("{} is not its new state", port.present));
    let made = made.ok_or_else(wrong)?;
    let mut name = port.present.as_str();
    check_readers(lookup, name, None)?;
    while name != made {
        let maker = lookup.maker(name).ok_or_else(wrong)?;
        let before = passed(maker).and_then(|maker| maker.input(0)).ok_or_else(wrong)?;
        check_readers(lookup, before, Some(name))?;
        name = before;
    }
    Ok(())
}

/// Fails if another node than the one that computes `link` reads a new state, or if that is another output as well.
fn check_readers(lookup: &Lookup<'_>, name: &str, link: Option<&str>) -> Result<()> {
    let mut readers = lookup.readers.get(name).into_iter().flatten().map(|&index| lookup.node(index));
    if let Some(other) = readers.find(|node| link.is_none() || node.output(0) != link) {
        return Err(refused(other, format!("it reads {name}, the new state of a layer")));
    }
    if link.is_some() && lookup.graph().outputs.iter().any(|output| output.name == name) {
        let reason = "it is the new state of a layer, which has another output as well";
        return Err(Error::unrecognised(RefusalKind::State, name, "output", reason));
    }
    Ok(())
}

/// True if a tensor is computed from weights alone.
fn is_constant(lookup: &Lookup<'_>, name: &str) -> bool {
    let mut todo = vec![name];
    let mut seen = HashSet::new();
    while let Some(name) = todo.pop() {
        if !seen.insert(name) {
            continue;
        }
        match lookup.maker(name) {
            Some(node) => todo.extend(node.reads()),
            None if lookup.graph().initializers.iter().any(|tensor| tensor.name == name) => (),
            None if lookup.graph().input(name).is_some() => return false,
            None => (),
        }
    }
    true
}

/// Fails unless a tensor is computed from weights alone.
fn check_constant(lookup: &Lookup<'_>, node: &Node, what: &str, name: &str) -> Result<()> {
    if is_constant(lookup, name) {
        return Ok(());
    }
    Err(refused(node, format!("its {what} {name} depends on the inputs of the graph, expected weights")))
}
