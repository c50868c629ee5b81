//! Joins rotary tables that a graph chooses by the length of its input, as LongRoPE does: each sequence of a step then
//! reads those of its own length.
//!
//! ```text
//! length -> Greater -> If -> short or long table -> attention     the source: one table for a whole step
//! Concat(short, long) -> RotaryEmbedding <- positions             rewritten: long sequences add the rows of the short table
//! ```

use std::collections::{BTreeSet, HashMap, HashSet};

use super::GraphEdit;
use super::merged::inlined;
use crate::error::Result;
use crate::eval::{Evaluation, Sizes};
use crate::find::{FoundAttention, unrecognised};
use crate::proto::{Attribute, AttributeValue, Graph, Model, Node};

/// The longest input for which a choice is looked for.
const TOKENS_MAX: usize = 1 << 21;

/// Rotary tables for short and for long sequences, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongRope {
    /// The most tokens of a sequence that uses the first table.
    pub threshold: u64,
    /// A longer sequence adds this to its positions.
    pub offset: u64,
}

/// The tables that were joined, by their names before.
#[derive(Default)]
struct Joined {
    names: HashMap<String, String>,
    rope: Option<LongRope>,
}

impl GraphEdit<'_> {
    /// Joins tables that are outputs of an `If`: those of attentions, and those of nodes for rotary embedding. Returns
    /// [`None`] if there are none.
    pub(super) fn join_tables(&mut self, all: &mut [FoundAttention]) -> Result<Option<LongRope>> {
        let mut joined = Joined::default();
        for rotary in all.iter_mut().filter_map(|found| found.layer.rotary.as_mut()) {
            if let Some(tables) = self.joined(&mut joined, &rotary.tables)? {
                (rotary.tables, rotary.places) = (tables, [None, None]);
            }
        }
        for index in 0..self.graph.nodes.len() {
            let node = &self.graph.nodes[index];
            let first = match node.domain.as_str() {
                "com.microsoft" => 2,
                _ => 1,
            };
            let (Some(cos), Some(sin)) = (node.input(first), node.input(first + 1)) else { continue };
            if node.operator != "RotaryEmbedding" {
                continue;
            }
            let tables = [cos, sin].map(str::to_owned);
            if let Some(new) = self.joined(&mut joined, &tables)? {
                let names = HashMap::from([0, 1].map(|at| (tables[at].as_str(), new[at].as_str())));
                self.graph.nodes[index].rename(&names);
            }
        }
        Ok(joined.rope)
    }

    /// The joined tables for those of an `If`; [`None`] for all others.
    fn joined(&mut self, joined: &mut Joined, tables: &[String; 2]) -> Result<Option<[String; 2]>> {
        if let [Some(cos), Some(sin)] = tables.each_ref().map(|table| joined.names.get(table)) {
            return Ok(Some([cos.clone(), sin.clone()]));
        }
        let Some(&index) = self.lookup.makers.get(tables[0].as_str()) else { return Ok(None) };
        let node = self.lookup.node(index);
        if !node.is("", "If") {
            return Ok(None);
        }
        if !tables.iter().all(|table| node.outputs.contains(table)) {
            return Err(unrecognised(node, "cosines and sines are not chosen together"));
        }
        let choice = Choice::of(self.lookup.model, self.lookup, node, tables)?;
        if joined.rope.is_some_and(|rope| rope != choice.rope) {
            return Err(unrecognised(node, "its tables change at another length than those before"));
        }
        joined.rope = Some(choice.rope);
        self.inline(node, &choice)?;
        let names = tables.each_ref().map(|table| {
            let name = format!("kvtide/{table} of all lengths");
            let parts = [true, false].map(|is_short| part_of(table, is_short));
            let node = Node::new("Concat", "", &name, &[&parts[0], &parts[1]], &[&name]);
            self.add(node.with(Attribute::int("axis", 0)));
            joined.names.insert(table.clone(), name.clone());
            name
        });
        Ok(Some(names))
    }

    /// Adds the nodes and weights of both branches to the graph.
    fn inline(&mut self, node: &Node, choice: &Choice<'_>) -> Result<()> {
        for (branch, is_short) in [(choice.short, true), (choice.long, false)] {
            let mut renamed = node.clone();
            renamed.outputs = node.outputs.iter().map(|table| part_of(table, is_short)).collect();
            let nodes = inlined(&renamed, branch);
            let taken: HashSet<&str> = self.graph.defined().collect();
            let outputs = nodes.iter().flat_map(|node| &node.outputs);
            let mut added = outputs.chain(branch.initializers.iter().map(|tensor| &tensor.name));
            if let Some(name) = added.find(|name| taken.contains(name.as_str())) {
                return Err(unrecognised(node, format!("the name {name} inside of it is used outside as well")));
            }
            self.graph.nodes.extend(nodes);
            self.graph.initializers.extend(branch.initializers.iter().cloned());
        }
        Ok(())
    }
}

/// The name of a table for short or for long sequences.
fn part_of(table: &str, is_short: bool) -> String {
    format!("kvtide/{table} of {} sequences", if is_short { "short" } else { "long" })
}

/// Fails if positions, to which long sequences add an offset, are used for anything besides rotary embedding.
pub(super) fn check_positions(graph: &Graph, positions: &str) -> Result<()> {
    let reads = |node: &&Node| node.reads().any(|name| name == positions);
    match graph.nodes.iter().filter(reads).find(|node| node.operator != "RotaryEmbedding") {
        Some(node) => Err(unrecognised(
            node,
            "it reads positions, which are also the rows of tables for two lengths of sequences",
        )),
        None => Ok(()),
    }
}

/// An `If` between two tables.
struct Choice<'a> {
    short: &'a Graph,
    long: &'a Graph,
    rope: LongRope,
}

impl<'a> Choice<'a> {
    fn of(model: &Model, lookup: &crate::find::Lookup<'a>, node: &'a Node, tables: &[String; 2]) -> Result<Self> {
        let wrong = |reason: &str| unrecognised(node, reason);
        let branch = |name: &str| match node.attribute(name) {
            Some(AttributeValue::Graphs(graphs)) if graphs[0].outputs.len() == node.outputs.len() => Ok(&graphs[0]),
            _ => Err(wrong("a branch does not have the outputs of the node")),
        };
        let [then, other] = [branch("then_branch")?, branch("else_branch")?];
        let mut small = model.clone();
        small.graph.nodes = before(model, node);
        let condition = node.input(0).unwrap_or_default();
        let at = |past: usize, new: usize| {
            let sizes = Sizes { batch: 1, past, new };
            Evaluation::run(&small, &lookup.constants, &lookup.roles, sizes)
        };
        let is_met = |past: usize, new: usize| -> Result<bool> {
            let met = at(past, new)?.scalar(condition);
            met.map(|met| met != 0.).ok_or_else(|| wrong("its condition depends on more than the length of the input"))
        };
        let first = is_met(0, 1)?;
        let mut end = 2;
        while is_met(end - 1, 1)? == first {
            end *= 2;
            if end > TOKENS_MAX {
                return Err(wrong("its condition is the same for all lengths"));
            }
        }
        let mut start = end / 2;
        while end - start > 1 {
            let middle = start.midpoint(end);
            if is_met(middle - 1, 1)? == first { start = middle } else { end = middle }
        }
        // The new tokens alone, and those before them, do not matter.
        for (total, expected) in [(start, first), (end, !first)] {
            if is_met(0, total)? != expected || is_met(total / 2, total - total / 2)? != expected {
                return Err(wrong("its condition depends on more than the length of the input"));
            }
        }
        let rows = |past: usize| -> Result<Option<usize>> {
            let evaluation = at(past, 1)?;
            let [cos, sin] = [&tables[0], &tables[1]].map(|table| evaluation.dims(table).map(<[_]>::to_vec));
            Ok(cos.filter(|dims| dims.len() == 2 && Some(dims) == sin.as_ref()).map(|dims| dims[0]))
        };
        let (Some(offset), Some(_)) = (rows(0)?, rows(end - 1)?) else {
            return Err(wrong("its tables do not have two known dimensions"));
        };
        if offset < start {
            return Err(wrong("the table of short sequences has fewer rows than these have tokens"));
        }
        let [short, long] = if first { [then, other] } else { [other, then] };
        Ok(Choice { short, long, rope: LongRope { threshold: start as u64, offset: offset as u64 } })
    }
}

/// The nodes that a node depends on, and itself, in the order of the graph.
fn before<'a>(model: &'a Model, node: &'a Node) -> Vec<Node> {
    let nodes = &model.graph.nodes;
    let outputs = |(index, node): (usize, &'a Node)| node.outputs.iter().map(move |name| (name.as_str(), index));
    let makers: HashMap<&str, usize> = nodes.iter().enumerate().flat_map(outputs).collect();
    let mut todo: Vec<&str> = node.outputs.iter().map(String::as_str).collect();
    let mut all = BTreeSet::new();
    while let Some(name) = todo.pop() {
        if let Some(&index) = makers.get(name)
            && all.insert(index)
        {
            todo.extend(nodes[index].reads());
        }
    }
    all.into_iter().map(|index| nodes[index].clone()).collect()
}
