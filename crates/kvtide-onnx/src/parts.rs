//! Cuts a rewritten graph at its attentions and at its layers with a state into subgraphs, for a runtime without kvtide's
//! operators.
//!
//! ```text
//! subgraph 0 -> attention of layer 0 -> subgraph 1 -> state of layer 1 -> .. -> subgraph n, which has the graph's outputs
//! ```
//! A tensor that a later subgraph needs is an output of the subgraph that computes it. Tensors that depend on weights
//! alone are computed again in each subgraph that uses them, so no weight is passed on, except those of a layer with a state:
//! they are outputs of the subgraph before it.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::error::Result;
use crate::eval::{Constants, Evaluation, Roles};
use crate::find::{SIZES, unrecognised};
use crate::proto::{AttributeValue, ElementType, Graph, Model, Node, ValueInfo};
use crate::source::Source;

/// An attention between two subgraphs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartAttention {
    /// The layer's number.
    pub layer: u32,
    /// True for an attention over the states of an encoder: it reads no keys and values of subgraphs.
    pub is_crossed: bool,
    /// Queries, keys and values: outputs of subgraphs.
    pub inputs: [String; 3],
    /// The output, which later subgraphs read.
    pub output: String,
}

/// A layer with a state between two subgraphs.
#[derive(Clone, Debug, PartialEq)]
pub struct PartState {
    /// The node's name.
    pub node: String,
    /// The operator: `ShortConv`, `LinearAttention` or `StateSpace`.
    pub operator: String,
    /// The node's attributes; a single number is a list of one.
    pub attributes: Vec<(String, Vec<f64>)>,
    /// The inputs by their places, all of them outputs of subgraphs; [`None`] for one that is left out.
    pub inputs: Vec<Option<String>>,
    /// The output, which later subgraphs read.
    pub output: String,
    /// The type of the inputs and of the output.
    pub element: ElementType,
}

/// A subgraph: a stretch of the graph without an attention and without a state.
#[derive(Clone, Debug)]
pub struct GraphPart {
    /// The graph, with the weights that it uses.
    pub model: Model,
    /// Inputs of the whole graph, outputs of earlier subgraphs, and outputs of attentions and of layers with a state.
    pub inputs: Vec<String>,
    /// Tensors that later subgraphs, attentions, layers with a state or the caller read.
    pub outputs: Vec<String>,
    /// The attentions to compute after this subgraph.
    pub attentions: Vec<PartAttention>,
    /// The layers with a state to compute after this subgraph.
    pub states: Vec<PartState>,
}

/// The subgraph that computes each tensor; [`None`] for any subgraph, if the tensor depends on weights alone.
struct Stages<'a> {
    of: HashMap<&'a str, Option<usize>>,
    nodes: Vec<Vec<&'a Node>>,
    constants: HashMap<&'a str, &'a Node>,
    /// Nodes of kvtide's operators behind each subgraph.
    own: Vec<Vec<&'a Node>>,
}

impl<'a> Stages<'a> {
    fn of(graph: &'a Graph) -> Self {
        let mut of: HashMap<&str, Option<usize>> = graph.given().map(|name| (name, None)).collect();
        of.extend(graph.inputs.iter().map(|input| (input.name.as_str(), Some(0))));
        let mut stages = Self { of, nodes: vec![Vec::new()], constants: HashMap::new(), own: vec![Vec::new()] };
        for node in &graph.nodes {
            let stage = node.reads().filter_map(|name| stages.of.get(name).copied().flatten()).max();
            let is_own = node.domain == "kvtide";
            let outputs = node.outputs.iter().map(String::as_str).filter(|name| !name.is_empty());
            // An operator without inputs may draw random numbers: only nodes that read weights, or are weights, are
            // computed again.
            match stage {
                None => stages.constants.extend(outputs.clone().map(|name| (name, node))),
                Some(stage) if is_own => stages.own[stage].push(node),
                Some(stage) => stages.nodes[stage].push(node),
            }
            stages.of.extend(outputs.map(|name| (name, stage.map(|stage| stage + usize::from(is_own)))));
            let last = stage.map_or(0, |stage| stage + usize::from(is_own));
            stages.nodes.resize(stages.nodes.len().max(last + 1), Vec::new());
            stages.own.resize(stages.nodes.len(), Vec::new());
        }
        stages
    }

    fn stage(&self, name: &str) -> Option<usize> {
        self.of.get(name).copied().flatten()
    }

    /// The layers with a state behind a subgraph.
    fn states(&self, stage: usize) -> impl Iterator<Item = &'a Node> {
        self.own[stage].iter().copied().filter(|node| !is_attention(node))
    }

    /// Tensors that layers with a state behind a subgraph read, and that depend on weights alone.
    fn given(&self, stage: usize) -> BTreeSet<&'a str> {
        self.states(stage).flat_map(Node::reads).filter(|name| self.stage(name).is_none()).collect()
    }

    /// The nodes of a subgraph; those that depend on weights alone come first.
    fn part(&self, stage: usize) -> Vec<&'a Node> {
        let mut made = Vec::new();
        let mut seen: HashSet<*const Node> = HashSet::new();
        let given = self.given(stage).into_iter().filter_map(|name| self.constants.get(name));
        let all = self.nodes[stage].iter().rev().chain(given);
        let mut todo: Vec<(&Node, bool)> = all.map(|&node| (node, false)).collect();
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
    let roles = Roles::of(graph, &[]).unwrap_or_default();
    let types = Evaluation::run(model, &Constants::new(source), &roles, SIZES[0])?;
    let stages = Stages::of(graph);
    let mut crossing: BTreeSet<&str> = graph.outputs.iter().map(|output| output.name.as_str()).collect();
    for (stage, nodes) in stages.nodes.iter().enumerate() {
        let reads = nodes.iter().flat_map(|node| node.reads());
        crossing.extend(reads.filter(|name| stages.stage(name).is_some_and(|made| made != stage)));
        crossing.extend(stages.own[stage].iter().flat_map(|node| node.reads()));
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
    let given = stages.given(stage);
    let weights = given.iter().copied().filter(|name| !stages.constants.contains_key(name));
    let copies: Vec<Node> = weights.map(copy).collect();
    let mut nodes: Vec<&Node> = stages.part(stage);
    nodes.extend(&copies);
    let made: HashSet<&str> = nodes.iter().flat_map(|node| &node.outputs).map(String::as_str).collect();
    let (mut inputs, mut seen) = (Vec::new(), HashSet::new());
    for name in nodes.iter().flat_map(|node| node.reads()) {
        if stages.stage(name).is_some() && !made.contains(name) && seen.insert(name) {
            inputs.push(name.to_owned());
        }
    }
    let is_read = |name: &str| crossing.contains(name) && (stages.stage(name).is_some() || is_output(graph, name));
    let is_given = |name: &str| given.contains(name) || copies.iter().any(|copy| copy.outputs[0] == name);
    let outputs = nodes.iter().flat_map(|node| &node.outputs);
    let outputs: Vec<String> = outputs.filter(|name| is_read(name) || is_given(name)).cloned().collect();
    let describe = |name: &String| {
        let declared = graph.inputs.iter().chain(&graph.outputs).find(|value| value.name == *name).cloned();
        let from = copies.iter().find(|copy| copy.outputs[0] == *name).map_or(name, |copy| &copy.inputs[0]);
        let element = || types.get(from).element.unwrap_or(ElementType::F32);
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
    let attentions = stages.own[stage].iter().filter(|node| is_attention(node));
    let attentions = attentions.map(|node| attention(node)).collect::<Result<_>>()?;
    let states = stages.states(stage).map(|node| state(node, stages, types)).collect::<Result<_>>()?;
    Ok(GraphPart { model: own, inputs, outputs, attentions, states })
}

fn is_output(graph: &Graph, name: &str) -> bool {
    graph.outputs.iter().any(|output| output.name == name)
}

fn is_attention(node: &Node) -> bool {
    node.operator == "Attention"
}

/// The name under which a weight is an output of a subgraph.
fn copy_of(weight: &str) -> String {
    format!("kvtide/weight {weight}")
}

/// A node that makes a weight an output.
fn copy(weight: &str) -> Node {
    let name = copy_of(weight);
    Node::new("Identity", "", &name, &[weight], &[&name])
}

fn attention(node: &Node) -> Result<PartAttention> {
    match (node.int("layer"), node.inputs.as_slice(), node.output(0)) {
        (Some(layer), [query, key, value], Some(output)) => Ok(PartAttention {
            layer: layer as u32,
            is_crossed: node.int("crossed") == Some(1),
            inputs: [query.clone(), key.clone(), value.clone()],
            output: output.into(),
        }),
        _ => Err(unrecognised(node, "it must have a layer, three inputs and an output")),
    }
}

fn state(node: &Node, stages: &Stages<'_>, types: &Evaluation) -> Result<PartState> {
    let (Some(first), Some(output)) = (node.input(0), node.output(0)) else {
        return Err(unrecognised(node, "it must have an input and an output"));
    };
    let numbers = |value: &AttributeValue| match value {
        AttributeValue::Int(value) => vec![*value as f64],
        AttributeValue::Ints(values) => values.iter().map(|&value| value as f64).collect(),
        AttributeValue::Float(value) => vec![f64::from(*value)],
        AttributeValue::Floats(values) => values.iter().copied().map(f64::from).collect(),
        _ => Vec::new(),
    };
    let attributes = node.attributes.iter().map(|attribute| (attribute.name.clone(), numbers(&attribute.value)));
    let input = |name: &str| {
        let is_weight = stages.stage(name).is_none() && !stages.constants.contains_key(name);
        if is_weight { copy_of(name) } else { name.to_owned() }
    };
    Ok(PartState {
        node: node.called().into(),
        operator: node.operator.clone(),
        attributes: attributes.collect(),
        inputs: (0..node.inputs.len()).map(|place| node.input(place).map(input)).collect(),
        output: output.into(),
        element: types.get(first).element.unwrap_or(ElementType::F32),
    })
}
