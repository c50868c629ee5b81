//! Splits pasts whose rows have keys and values beside each other: `past_key_values.3.key_value` of older exports of
//! gpt_bigcode.
//!
//! ```text
//! past [batch, past, 2 * dim], new rows -> Concat -> Split -> keys, values      one head for all queries
//! past [batch, heads, past, 2 * dim]                                            the same with heads
//!
//! past of keys [batch, heads, past, dim], new keys -> Concat -> keys            and values alike
//! ```
//! The new graph computes the same, and its pasts and presents are those of other exports.

use std::collections::HashMap;

use crate::error::Result;
use crate::eval::{Constants, Evaluation, Known, Roles};
use crate::find::SIZES;
use crate::proto::{Attribute, Dim, ElementType, Graph, Model, Node, ValueInfo, checked};
use crate::source::Source;

/// The end of the names of such pasts and of their presents.
const ENDING: &str = "key_value";

/// A node by its place, and its outputs with the number of the half that each is.
type Reader = (usize, Vec<(String, usize)>);

/// The names of the two halves have these ends.
const HALVES: [&str; 2] = ["key", "value"];

/// A past with keys and values beside each other.
struct Beside {
    past: ValueInfo,
    /// The number of heads; [`None`] if the past has no axis of heads.
    heads: Option<u64>,
    /// Elements of a head.
    dim: u64,
    /// The node that appends new rows.
    concat: usize,
    /// The output of the graph with all rows.
    present: String,
}

impl Model {
    /// The same model with a past of keys and a past of values in place of each past that has both in its rows; [`None`] if
    /// there is no such past. `O(graph)`.
    pub fn split_pasts(&self, source: &dyn Source) -> Result<Option<Self>> {
        let all: Vec<Beside> = self.graph.inputs.iter().filter_map(|input| Beside::of(&self.graph, input)).collect();
        if all.is_empty() {
            return Ok(None);
        }
        let constants = Constants::new(source);
        let roles = Roles::of(&self.graph, &[]).unwrap_or_default();
        let evaluation = Evaluation::run(self, &constants, &roles, SIZES[0])?;
        let mut model = self.clone();
        let has_attributes = self.opset("").is_some_and(|version| version < 13);
        for beside in &all {
            let mut split = Split { graph: &mut model.graph, beside, has_attributes };
            split.replace(&evaluation, &constants)?;
        }
        model.graph = checked(model.graph)?;
        Ok(Some(model))
    }
}

impl Beside {
    fn of(graph: &Graph, input: &ValueInfo) -> Option<Self> {
        input.element.filter(|element| element.is_float() && input.name.ends_with(ENDING))?;
        let dims = input.dims.as_deref()?;
        let (heads, width) = match dims {
            [_, _, Dim::Size(width)] => (None, *width),
            [_, Dim::Size(heads), _, Dim::Size(width)] => (Some(*heads), *width),
            _ => return None,
        };
        let axis = dims.len() as i64 - 2;
        let appends = |node: &Node| {
            let along = node.int("axis").is_some_and(|own| own == axis || own == -2);
            node.is("", "Concat") && along && node.inputs.len() == 2 && node.inputs[0] == input.name
        };
        let concat = graph.nodes.iter().position(appends)?;
        let present = &graph.nodes[concat].outputs[0];
        let is_output = graph.outputs.iter().any(|output| output.name == *present) && present.ends_with(ENDING);
        (is_output && width % 2 == 0 && width > 0).then(|| Self {
            past: input.clone(),
            heads,
            dim: width / 2,
            concat,
            present: present.clone(),
        })
    }

    /// The names of the halves of a past or of a present.
    fn halves(name: &str) -> [String; 2] {
        let stem = name.strip_suffix(ENDING).unwrap_or(name);
        HALVES.map(|half| format!("{stem}{half}"))
    }
}

/// A graph in which one past is split.
struct Split<'a> {
    graph: &'a mut Graph,
    beside: &'a Beside,
    /// True if axes and sizes are attributes: before opset 13.
    has_attributes: bool,
}

impl Split<'_> {
    fn replace(&mut self, evaluation: &Evaluation, constants: &Constants<'_>) -> Result<()> {
        let Beside { past, present, .. } = self.beside;
        let concat = self.graph.nodes.iter().position(|node| node.outputs.first() == Some(present));
        let concat = concat.unwrap_or(self.beside.concat);
        let new = self.graph.nodes[concat].inputs[1].clone();
        let [pasts, presents] = [&past.name, present].map(|name| Beside::halves(name));
        self.replace_ports(&pasts, &presents);
        // The past as it was, for nodes that read its size.
        let mut before = Vec::new();
        let old = pasts.each_ref().map(|name| self.without_heads(&mut before, name));
        before.push(joined(&old, &past.name));
        let mut nodes = Vec::new();
        let rows = [0, 1].map(|half| format!("{new}.{}", HALVES[half]));
        let sizes = [self.beside.dim as i64; 2];
        self.add(&mut nodes, ["Split", "split"], &new, &rows.each_ref().map(String::as_str), &sizes);
        for (half, row) in rows.iter().enumerate() {
            let row = if self.beside.heads.is_none() {
                let apart = format!("{row}.apart");
                self.add(&mut nodes, ["Unsqueeze", "axes"], row, &[&apart], &[1]);
                apart
            } else {
                row.clone()
            };
            let append = Node::new("Concat", "", &presents[half], &[&pasts[half], &row], &[&presents[half]]);
            nodes.push(append.with(Attribute::int("axis", 2)));
        }
        let all = presents.each_ref().map(|name| self.without_heads(&mut nodes, name));
        nodes.push(joined(&all, present));
        let halves = self.readers(evaluation, constants)?;
        for (at, readers) in halves {
            let taken = readers
                .into_iter()
                .map(|(output, half)| Node::new("Identity", "", &format!("half {output}"), &[&all[half]], &[&output]));
            let mut taken: Vec<Node> = taken.collect();
            self.graph.nodes[at] = taken.remove(0);
            nodes.extend(taken);
        }
        self.graph.nodes.splice(concat..=concat, nodes);
        self.graph.nodes.splice(0..0, before);
        Ok(())
    }

    /// Replaces the past and the present by their halves.
    fn replace_ports(&mut self, pasts: &[String; 2], presents: &[String; 2]) {
        let Beside { past, heads, dim, present, .. } = self.beside;
        let dims = past.dims.as_deref().unwrap_or_default();
        let (batch, rows) = (&dims[0], &dims[dims.len() - 2]);
        let of = |name: &String, rows: &Dim| {
            let dims = [batch.clone(), Dim::Size(heads.unwrap_or(1)), rows.clone(), Dim::Size(*dim)];
            ValueInfo::new(name, past.element.unwrap_or(ElementType::F32), Some(&dims))
        };
        let total = self.graph.outputs.iter().find(|output| output.name == *present);
        let total = total.and_then(|output| output.dims.as_ref()?.iter().rev().nth(1).cloned()).unwrap_or(Dim::Unknown);
        let replace = |ports: &mut Vec<ValueInfo>, old: &str, names: &[String; 2], rows: &Dim| {
            if let Some(at) = ports.iter().position(|port| port.name == old) {
                ports.splice(at..=at, names.iter().map(|name| of(name, rows)));
            }
        };
        replace(&mut self.graph.inputs, &past.name, pasts, rows);
        replace(&mut self.graph.outputs, present, presents, &total);
    }

    /// A half without its axis of heads, if the past as a whole has none.
    fn without_heads(&self, nodes: &mut Vec<Node>, name: &str) -> String {
        if self.beside.heads.is_some() {
            return name.to_owned();
        }
        let flat = format!("{name}.flat");
        self.add(nodes, ["Squeeze", "axes"], name, &[&flat], &[1]);
        flat
    }

    /// Adds a node with a list of integers: an attribute, or the second input.
    fn add(&self, nodes: &mut Vec<Node>, [operator, list]: [&str; 2], from: &str, to: &[&str], values: &[i64]) {
        let mut node = Node::new(operator, "", to[0], &[from], to);
        if self.has_attributes {
            node = node.with(Attribute::ints(list, values));
        } else {
            let name = format!("{}.{list}", to[0]);
            nodes.push(Node::new("Constant", "", &name, &[], &[&name]).with(Attribute::ints("value_ints", values)));
            node.inputs.push(name);
        }
        nodes.push(if operator == "Split" { node.with(Attribute::int("axis", -1)) } else { node });
    }

    /// The nodes whose outputs are halves of the present, with the number of each half: found by marking its elements.
    fn readers(&self, evaluation: &Evaluation, constants: &Constants<'_>) -> Result<Vec<Reader>> {
        let Beside { heads, dim, present, past, .. } = self.beside;
        let dim = *dim as usize;
        let rows = 6;
        let dims = match heads {
            Some(heads) => vec![2, *heads as usize, rows / 2, 2 * dim],
            None => vec![2, rows / 2, 2 * dim],
        };
        let mut found = Vec::new();
        for (at, node) in self.graph.nodes.iter().enumerate() {
            if node.input(0) != Some(present) || node.is("", "Shape") {
                continue;
            }
            let marked = Known::filled(past.element, dims.clone(), |place| place as f64);
            let given = HashMap::from([(present.clone(), marked)]);
            let made = evaluation.rerun(&[node], constants, given)?;
            let half = |name: &String| {
                let Known { data: Some(data), dims: Some(found), .. } = made.get(name)? else { return None };
                let fits = found.last() == Some(&dim) && found.len() == dims.len();
                let is = |half: &usize| {
                    let place = |index: usize| (index / dim * 2 + half) * dim + index % dim;
                    data.iter().enumerate().all(|(index, &number)| number == place(index) as f64)
                };
                Some((name.clone(), [0, 1].into_iter().find(|half| fits && is(half))?))
            };
            let halves: Option<Vec<_>> = node.outputs.iter().filter(|name| !name.is_empty()).map(half).collect();
            found.extend(halves.filter(|halves| !halves.is_empty()).map(|halves| (at, halves)));
        }
        Ok(found)
    }
}

/// Keys and values beside each other.
fn joined(halves: &[String; 2], to: &str) -> Node {
    let [keys, values] = halves;
    Node::new("Concat", "", &format!("joined {to}"), &[keys, values], &[to]).with(Attribute::int("axis", -1))
}
