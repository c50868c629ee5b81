//! Cuts a rewritten graph at its attentions into subgraphs, for a runtime without kvtide's operator.
//!
//! ```text
//! subgraph 0 -> attention of layer 0 -> subgraph 1 -> attention of layer 1 -> .. -> subgraph n, which has the graph's outputs
//! ```
//! A tensor that a later subgraph needs is an output of the subgraph that computes it. Tensors that depend on weights
//! alone are computed again in each subgraph that uses them, so no weight is passed on.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::error::Result;
use crate::eval::{Constants, Evaluation, Roles};
use crate::find::{SIZES, unrecognised};
use crate::proto::{ElementType, Graph, Model, Node, ValueInfo};
use crate::source::Source;

/// An attention between two subgraphs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartAttention {
    /// The layer's number.
    pub layer: u32,
    /// Queries, keys and values: outputs of subgraphs.
    pub inputs: [String; 3],
    /// The output, which later subgraphs read.
    pub output: String,
}

/// A subgraph: a stretch of the graph without an attention.
#[derive(Clone, Debug)]
pub struct GraphPart {
    /// The graph, with the weights that it uses.
    pub model: Model,
    /// Inputs of the whole graph, outputs of earlier subgraphs, and outputs of attentions.
    pub inputs: Vec<String>,
    /// Tensors that later subgraphs, attentions or the caller read.
    pub outputs: Vec<String>,
    /// The attentions to compute after this subgraph.
    pub attentions: Vec<PartAttention>,
}

/// The subgraph that computes each tensor; [`None`] for any subgraph, if the tensor depends on weights alone.
struct Stages<'a> {
    of: HashMap<&'a str, Option<usize>>,
    nodes: Vec<Vec<&'a Node>>,
    constants: HashMap<&'a str, &'a Node>,
    attentions: Vec<Vec<&'a Node>>,
}

impl<'a> Stages<'a> {
    fn of(graph: &'a Graph) -> Self {
        let mut of: HashMap<&str, Option<usize>> = graph.given().map(|name| (name, None)).collect();
        of.extend(graph.inputs.iter().map(|input| (input.name.as_str(), Some(0))));
        let mut stages = Self { of, nodes: vec![Vec::new()], constants: HashMap::new(), attentions: vec![Vec::new()] };
        for node in &graph.nodes {
            let stage = node.reads().filter_map(|name| stages.of.get(name).copied().flatten()).max();
            let is_attention = node.domain == "kvtide";
            let outputs = node.outputs.iter().map(String::as_str).filter(|name| !name.is_empty());
            // An operator without inputs may draw random numbers: only nodes that read weights, or are weights, are
            // computed again.
            match stage {
                None => stages.constants.extend(outputs.clone().map(|name| (name, node))),
                Some(stage) if is_attention => stages.attentions[stage].push(node),
                Some(stage) => stages.nodes[stage].push(node),
            }
            stages.of.extend(outputs.map(|name| (name, stage.map(|stage| stage + usize::from(is_attention)))));
            let last = stage.map_or(0, |stage| stage + usize::from(is_attention));
            stages.nodes.resize(stages.nodes.len().max(last + 1), Vec::new());
            stages.attentions.resize(stages.nodes.len(), Vec::new());
        }
        stages
    }

    fn stage(&self, name: &str) -> Option<usize> {
        self.of.get(name).copied().flatten()
    }

    /// The nodes of a subgraph; those that depend on weights alone come first.
    fn part(&self, stage: usize) -> Vec<&'a Node> {
        let mut made = Vec::new();
        let mut seen: HashSet<*const Node> = HashSet::new();
        let mut todo: Vec<(&Node, bool)> = self.nodes[stage].iter().rev().map(|&node| (node, false)).collect();
        while let Some((node, ready)) = todo.pop() {
            if ready {
                made.push(node);
            } else if seen.insert(node) {
                todo.push((node, true));
                todo.extend(node.reads().filter_map(|name| self.constants.get(name)).map(|&node| (node, false)));
            }
        }
        made
    }
}

/// Cuts a rewritten model. `O(graph)`.
pub(crate) fn cut(model: &Model, source: &dyn Source) -> Result<Vec<GraphPart>> {
    let graph = &model.graph;
    let roles = Roles::of(graph).unwrap_or_default();
    let types = Evaluation::run(model, &Constants::new(source), &roles, SIZES[0])?;
    let stages = Stages::of(graph);
    let mut crossing: BTreeSet<&str> = graph.outputs.iter().map(|output| output.name.as_str()).collect();
    for (stage, nodes) in stages.nodes.iter().enumerate() {
        let reads = nodes.iter().flat_map(|node| node.reads());
        crossing.extend(reads.filter(|name| stages.stage(name).is_some_and(|made| made != stage)));
        crossing.extend(stages.attentions[stage].iter().flat_map(|node| node.reads()));
    }
    (0..stages.nodes.len()).map(|stage| part(model, &stages, stage, &crossing, &types)).collect()
}

fn part(
    model: &Model,
    stages: &Stages<'_>,
    stage: usize,
    crossing: &BTreeSet<&str>,
    types: &Evaluation,
) -> Result<GraphPart> {
    let graph = &model.graph;
    let nodes = stages.part(stage);
    let made: HashSet<&str> = nodes.iter().flat_map(|node| &node.outputs).map(String::as_str).collect();
    let (mut inputs, mut seen) = (Vec::new(), HashSet::new());
    for name in nodes.iter().flat_map(|node| node.reads()) {
        if stages.stage(name).is_some() && !made.contains(name) && seen.insert(name) {
            inputs.push(name.to_owned());
        }
    }
    let outputs: Vec<String> = nodes
        .iter()
        .flat_map(|node| &node.outputs)
        .filter(|name| crossing.contains(name.as_str()) && (stages.stage(name).is_some() || is_output(graph, name)))
        .cloned()
        .collect();
    let describe = |name: &String| {
        let declared = graph.inputs.iter().chain(&graph.outputs).find(|value| value.name == *name).cloned();
        let element = || types.get(name).element.unwrap_or(ElementType::F32);
        declared.unwrap_or_else(|| ValueInfo::new(name, element(), None))
    };
    let used: HashSet<&str> = nodes.iter().flat_map(|node| node.reads()).collect();
    let mut own = model.clone_without_graph();
    own.graph = Graph {
        initializers: graph.initializers.iter().filter(|tensor| used.contains(tensor.name.as_str())).cloned().collect(),
        inputs: inputs.iter().map(describe).collect(),
        outputs: outputs.iter().map(describe).collect(),
        values: graph.values.iter().filter(|value| made.contains(value.name.as_str())).cloned().collect(),
        others: graph.others.clone(),
        nodes: nodes.into_iter().cloned().collect(),
        ..Graph::default()
    };
    let attentions = stages.attentions[stage].iter().map(|node| call(node)).collect::<Result<_>>()?;
    Ok(GraphPart { model: own, inputs, outputs, attentions })
}

fn is_output(graph: &Graph, name: &str) -> bool {
    graph.outputs.iter().any(|output| output.name == name)
}

fn call(node: &Node) -> Result<PartAttention> {
    match (node.int("layer"), node.inputs.as_slice(), node.output(0)) {
        (Some(layer), [query, key, value], Some(output)) => Ok(PartAttention {
            layer: layer as u32,
            inputs: [query.clone(), key.clone(), value.clone()],
            output: output.into(),
        }),
        _ => Err(unrecognised(node, "it must have a layer, three inputs and an output")),
    }
}
