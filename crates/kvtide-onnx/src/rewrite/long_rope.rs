//! Joins rotary tables that a graph chooses by the length of its input, as LongRoPE does: each sequence of a step then
//! reads those of its own length.
//!
//! ```text
//! length -> Greater -> If -> short or long table -> attention     the source: one table for a whole step
//! length -> Greater -> Mul -> Add(positions) -> Gather(tables)    or one offset for a whole step
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

/// Operators between a comparison of lengths and the offset that is made of it.
const OF_COMPARISON: [&str; 6] = ["Cast", "Mul", "Where", "Unsqueeze", "Squeeze", "Reshape"];

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

    /// Drops offsets that are added to the positions of long inputs. Returns [`None`] if there are none; otherwise also the
    /// first outputs of the nodes that read positions with an offset.
    pub(super) fn drop_offsets(&mut self) -> Result<Option<Offsets>> {
        let (lookup, positions, mut found) = (self.lookup, self.positions.clone(), None);
        let mut readers = HashSet::new();
        for node in &lookup.model.graph.nodes {
            let Some(rope) = self.offset_of(node)? else { continue };
            if found.is_some_and(|other| other != rope) {
                return Err(unrecognised(node, "it adds another offset to positions than the nodes before"));
            }
            found = Some(rope);
            let names = HashMap::from([(node.outputs[0].as_str(), positions.as_str())]);
            self.graph.nodes.retain(|other| other.outputs != node.outputs);
            for reader in &mut self.graph.nodes {
                if reader.reads().any(|name| *name == node.outputs[0]) {
                    reader.rename(&names);
                    readers.extend(reader.outputs.first().cloned());
                }
            }
        }
        Ok(found.map(|rope| (rope, readers)))
    }

    /// The offset that a node adds to positions of long inputs, if it does.
    fn offset_of(&self, node: &Node) -> Result<Option<LongRope>> {
        let (Some(one), Some(other), true) = (node.input(0), node.input(1), node.is("", "Add")) else {
            return Ok(None);
        };
        let offset = match (one == self.positions, other == self.positions) {
            (true, false) => other,
            (false, true) => one,
            _ => return Ok(None),
        };
        if !self.is_compared(offset) {
            return Ok(None);
        }
        let probe = Probe::of(self.lookup, node);
        let (length, [short, long]) =
            probe.change(node, |past, new| Ok(probe.at(past, new)?.scalar(offset)), "its offset")?;
        if short != 0. || long < length as f64 {
            return Err(unrecognised(
                node,
                format!("it adds {short} to the positions of short inputs, and {long} to others"),
            ));
        }
        Ok(Some(LongRope { threshold: length as u64, offset: long as u64 }))
    }

    /// True for a value that is made of a comparison.
    fn is_compared(&self, name: &str) -> bool {
        let (mut todo, mut steps) = (vec![name], 0);
        while let Some(name) = todo.pop() {
            let Some(&index) = self.lookup.makers.get(name) else { continue };
            let node = self.lookup.node(index);
            if matches!(node.operator.as_str(), "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual") {
                return true;
            }
            steps += 1;
            if OF_COMPARISON.contains(&node.operator.as_str()) && steps < 16 {
                todo.extend(node.reads());
            }
        }
        false
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
        let choice = Choice::of(self.lookup, node, tables)?;
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

/// Positions of long inputs that had an offset, and the first outputs of the nodes that read them.
pub(super) type Offsets = (LongRope, HashSet<String>);

/// The tables by length of a graph. Fails if positions, to which long sequences add an offset, are used for anything
/// besides rotary embedding, and by the nodes that read them with the offset before.
pub(super) fn check_ropes(
    graph: &Graph,
    positions: &str,
    tables: Option<LongRope>,
    offsets: Option<Offsets>,
) -> Result<Option<LongRope>> {
    let (offset, readers) = offsets.unzip();
    let Some(rope) = tables.or(offset) else { return Ok(None) };
    let readers = readers.filter(|_| offset == Some(rope)).unwrap_or_default();
    let reads = |node: &&Node| node.reads().any(|name| name == positions);
    let may_read = |node: &Node| {
        node.operator == "RotaryEmbedding" || node.outputs.first().is_some_and(|output| readers.contains(output))
    };
    match graph.nodes.iter().filter(reads).find(|node| !may_read(node)) {
        Some(node) => Err(unrecognised(
            node,
            "it reads positions, which are also the rows of tables for two lengths of sequences",
        )),
        None => Ok(Some(rope)),
    }
}

/// An `If` between two tables.
struct Choice<'a> {
    short: &'a Graph,
    long: &'a Graph,
    rope: LongRope,
}

impl<'a> Choice<'a> {
    fn of(lookup: &'a crate::find::Lookup<'a>, node: &'a Node, tables: &[String; 2]) -> Result<Self> {
        let wrong = |reason: &str| unrecognised(node, reason);
        let branch = |name: &str| match node.attribute(name) {
            Some(AttributeValue::Graphs(graphs)) if graphs[0].outputs.len() == node.outputs.len() => Ok(&graphs[0]),
            _ => Err(wrong("a branch does not have the outputs of the node")),
        };
        let [then, other] = [branch("then_branch")?, branch("else_branch")?];
        let probe = Probe::of(lookup, node);
        let condition = node.input(0).unwrap_or_default();
        let (start, [first, _]) =
            probe.change(node, |past, new| Ok(probe.at(past, new)?.scalar(condition)), "its condition")?;
        let rows = |past: usize| -> Result<Option<usize>> {
            let evaluation = probe.at(past, 1)?;
            let [cos, sin] = [&tables[0], &tables[1]].map(|table| evaluation.dims(table).map(<[_]>::to_vec));
            Ok(cos.filter(|dims| dims.len() == 2 && Some(dims) == sin.as_ref()).map(|dims| dims[0]))
        };
        let (Some(offset), Some(_)) = (rows(0)?, rows(start)?) else {
            return Err(wrong("its tables do not have two known dimensions"));
        };
        if offset < start {
            return Err(wrong("the table of short sequences has fewer rows than these have tokens"));
        }
        let [short, long] = if first != 0. { [then, other] } else { [other, then] };
        Ok(Choice { short, long, rope: LongRope { threshold: start as u64, offset: offset as u64 } })
    }
}

/// Evaluates what a node depends on, for inputs of several lengths.
struct Probe<'a> {
    lookup: &'a crate::find::Lookup<'a>,
    model: Model,
}

impl<'a> Probe<'a> {
    fn of(lookup: &'a crate::find::Lookup<'a>, node: &'a Node) -> Self {
        let mut model = lookup.model.clone();
        model.graph.nodes = before(lookup.model, node);
        Self { lookup, model }
    }

    fn at(&self, past: usize, new: usize) -> Result<Evaluation> {
        let sizes = Sizes { batch: 1, past, new };
        Evaluation::run(&self.model, &self.lookup.constants, &self.lookup.roles, sizes)
    }

    /// The longest input for which a number is the first one, and both numbers.
    fn change(
        &self,
        node: &Node,
        number: impl Fn(usize, usize) -> Result<Option<f64>>,
        subject: &str,
    ) -> Result<(usize, [f64; 2])> {
        let more = || unrecognised(node, format!("{subject} depends on more than the length of the input"));
        let of = |past: usize, new: usize| -> Result<f64> { number(past, new)?.ok_or_else(more) };
        let first = of(0, 1)?;
        let mut end = 2;
        while of(end - 1, 1)? == first {
            end *= 2;
            if end > TOKENS_MAX {
                return Err(unrecognised(node, format!("{subject} is the same for all lengths")));
            }
        }
        let mut start = end / 2;
        while end - start > 1 {
            let middle = start.midpoint(end);
            if of(middle - 1, 1)? == first { start = middle } else { end = middle }
        }
        let last = of(end - 1, 1)?;
        // The new tokens alone, those before them, and more tokens do not matter.
        let halves = |total: usize| (total / 2, total - total / 2);
        for (total, expected) in [(start, first), (end, last), (2 * end, last)] {
            let (past, new) = halves(total);
            if of(0, total)? != expected || of(past, new)? != expected {
                return Err(more());
            }
        }
        Ok((start, [first, last]))
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
