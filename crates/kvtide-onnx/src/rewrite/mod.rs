//! Rewrites a graph so that it uses kvtide's attention.
//!
//! ```text
//! attention        -> kvtide::Attention, with the same output name       attention.rs
//! layer with a state -> kvtide::ShortConv, LinearAttention, StateSpace   states.rs
//! positions        -> from the input position_ids                        positions.rs
//! head             -> only the requested rows, as an option              logits.rs
//! tables by length -> one table, of which each sequence reads its part   long_rope.rs
//! other nodes      -> refused unless they compute each token apart       ../apart
//! merged decoders  -> the branch with a past                             merged.rs
//! pasts with keys and values beside each other -> a past for each        ../split_pasts.rs
//! nodes around an attention -> into its operator, in a second graph      fuse.rs, short_conv.rs
//! embeddings       -> from the weight of the head, in the second graph   tied.rs
//! products of floats -> kvtide::PackedMatMul, MatMul, in the second graph head.rs
//! products of 4 bits -> kvtide::MatMulNBits, in the second graph         blocks.rs, gated.rs
//! unused: pasts, presents, states, masks, and nodes that only served them        prune.rs
//! ```
//! Tensors keep their names: a tensor that replaces another one has its name, so its readers do not change.
//!
//! A rewrite is O(graph) and changes neither the source nor the model that was read.

mod attention;
mod blocks;
mod fuse;
mod gated;
mod head;
mod logits;
mod long_rope;
mod merged;
mod positions;
mod prune;
mod short_conv;
mod states;
mod tied;
mod windows;

use std::collections::HashSet;

pub use self::long_rope::LongRope;
use self::long_rope::check_ropes;
use self::prune::prune;
use self::windows::declare_windows;
use crate::apart::{Inputs, check_apart};
use crate::cross_names::is_cross_present;
use crate::error::{Error, RefusalKind, Result};
use crate::find::{Crossed, Layer, Lookup, SIZES, State, attentions, crossed, states};
use crate::inspect::{Found, Inspection};
use crate::parts::{GraphPart, cut};
use crate::proto::{Dim, ElementType, Graph, Model, Node, ValueInfo, checked};
use crate::source::Source;

/// The options of a rewrite.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// Computes logits only for the rows that the input `logit_rows` selects.
    pub logit_rows: bool,
    /// The window of each layer as a config declares it: of each attention, or, in a graph with states, of each number of a
    /// layer. If a graph has a window too, they must agree. A window that is too long to be found in a mask has to be
    /// declared here.
    pub windows: Option<Vec<Option<u32>>>,
    /// Inputs of floats that a step gives for each token, besides positions: `inputs_embeds` and the like. They are
    /// outputs of the model of embeddings.
    pub embedded: Vec<String>,
    /// In the second graph, products with weights of 4 bits are kvtide's.
    pub block_products: bool,
    /// In the second graph, products with weights of these types are kvtide's, which packs the weights: floats of 32 or 16
    /// bits.
    pub packed_products: Vec<ElementType>,
}

/// A model whose attentions and states run on kvtide.
#[derive(Clone, Debug)]
pub struct Rewritten {
    model: Model,
    fused: Model,
    inspection: Inspection,
    long_rope: Option<LongRope>,
    crossing: Option<Model>,
}

/// The input with positions: `[batch, tokens]`, or `[3, batch, tokens]` with a row for time, height and width each.
const POSITIONS: &str = "position_ids";

/// The input with embeddings, in place of token ids or beside them.
const EMBEDS: &str = "inputs_embeds";

/// The nodes and weights of the new graph, before unused ones are dropped.
struct GraphEdit<'a> {
    lookup: &'a Lookup<'a>,
    graph: Graph,
    /// The name of the input with positions.
    positions: String,
    /// True if the graph has that input.
    has_positions: bool,
}

impl Rewritten {
    /// Finds all attentions and all layers with a state, and replaces them, or returns an error that names the node that
    /// is not recognised. `O(graph)`.
    pub fn new(source: &dyn Source, model: &Model, options: &Options) -> Result<Self> {
        let (given, alone) = (model, merged::unmerged(model)?);
        let model = alone.as_ref().unwrap_or(given);
        let split = model.split_pasts(source)?;
        let model = split.as_ref().unwrap_or(model);
        let lookup = Lookup::new(model, source, &options.embedded)?;
        let mut kept = states(&lookup)?;
        let Crossed { all: crossed, mask_stride } = crossed(&lookup)?;
        let mut all = attentions(&lookup, &mut kept)?;
        declare_windows(&lookup, &mut all, &kept, options)?;
        let mut edit = GraphEdit::new(&lookup);
        let attended = all.iter().chain(&crossed).map(|found| found.index);
        let indices = attended.chain(kept.iter().map(|found| found.index));
        let replaced: HashSet<usize> = indices.collect();
        edit.graph.nodes = model
            .graph
            .nodes
            .iter()
            .enumerate()
            .filter(|(index, _)| !replaced.contains(index))
            .map(|(_, node)| node.clone())
            .collect();
        let tables = edit.join_tables(&mut all)?;
        let offsets = edit.drop_offsets()?;
        for found in all.iter().chain(&crossed) {
            edit.attend(found)?;
        }
        for (place, found) in kept.iter().enumerate() {
            edit.keep_state(place, found)?;
        }
        let layers: Vec<Layer> = all.into_iter().map(|found| found.layer).collect();
        let crossed: Vec<Layer> = crossed.into_iter().map(|found| found.layer).collect();
        let states: Vec<State> = kept.into_iter().map(|found| found.state).collect();
        let presents = layers.iter().flat_map(|layer| layer.presents.iter().flatten());
        let presents: HashSet<&String> = presents.chain(states.iter().map(|state| &state.present)).collect();
        edit.graph.outputs.retain(|output| !presents.contains(&output.name) && !is_cross_present(&output.name));
        // Rows of the head are chosen first: nodes that chose them by the mask are not needed then.
        if options.logit_rows {
            edit.choose_rows()?;
        }
        edit.replace_positions([&layers, &crossed], &states)?;
        let tokens = lookup.roles.tokens.as_str();
        prune(&mut edit.graph, tokens);
        let has_rotary = layers.iter().any(|layer| layer.rotary.is_some());
        let mut rewritten = model.clone();
        rewritten.graph = checked(edit.graph.clone())?;
        check_inputs(&rewritten.graph, tokens, &edit.positions, &options.embedded)?;
        let inputs = Inputs { positions: &edit.positions, rows: logits::ROWS };
        check_apart(&lookup, &rewritten.graph, &inputs, !states.is_empty())?;
        let long_rope = check_ropes(&rewritten.graph, &edit.positions, tables, offsets)?;
        rewritten.import("kvtide", 1);
        if has_rotary {
            rewritten.import("com.microsoft", 1);
        }
        edit.fuse([&layers, &crossed])?;
        edit.gather_columns()?;
        edit.multiply_floats(&options.packed_products)?;
        if options.block_products {
            edit.multiply_blocks();
            edit.gate_products()?;
        }
        prune(&mut edit.graph, tokens);
        let mut fused = rewritten.clone();
        fused.graph = checked(edit.graph)?;
        let vocabulary = vocabulary(&lookup, &rewritten.graph)?;
        let crossing = merged::crossing(given, tokens, &crossed)?;
        let found = Found { layers, crossed, mask_stride, states };
        let inspection = Inspection::new(given, &rewritten, found, vocabulary);
        Ok(Self { model: rewritten, fused, inspection, long_rope, crossing })
    }

    /// The new model. Its bytes are written with the source that the old model was read from.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The new model with fewer nodes, for a runtime that has `kvtide::Attention`: the operator does the work of the nodes
    /// around it.
    pub fn fused(&self) -> &Model {
        &self.fused
    }

    /// The findings and changes of the rewrite.
    pub fn inspection(&self) -> &Inspection {
        &self.inspection
    }

    /// The tables that are chosen by the length of a sequence.
    pub fn long_rope(&self) -> Option<LongRope> {
        self.long_rope
    }

    /// The layers with attention, by number. If the graph has states, numbers of other layers are left out.
    pub fn layers(&self) -> &[Layer] {
        &self.inspection.layers
    }

    /// The attentions over the states of an encoder, by number; empty for a model without an encoder. Attributes `layer` of their nodes
    /// are places in this list.
    pub fn crossed(&self) -> &[Layer] {
        &self.inspection.crossed
    }

    /// The distance of the numbers in the mask of the encoder that belong to neighbouring states: these attentions skip states whose
    /// number is 0. [`None`] if they read no mask.
    pub fn mask_stride(&self) -> Option<u32> {
        self.inspection.mask_stride
    }

    /// The model that computes their keys and values of the encoder's states, layer by layer, keys before values. It takes the
    /// states, perhaps their mask, and perhaps any tokens. [`None`] if the encoder gives keys and values.
    pub fn crossing(&self) -> Option<&Model> {
        self.crossing.as_ref()
    }

    /// The states, by number in the names and by tensor: attributes `state` of nodes are places in this list.
    pub fn states(&self) -> &[State] {
        &self.inspection.states
    }

    /// The most tokens that the tables of masks, and tables of positions in the new graph, have rows for; [`None`] if no table limits
    /// them.
    #[must_use]
    pub fn context_length(&self) -> Option<u32> {
        // Positions of long sequences are behind the rows for short ones.
        let offset = self.long_rope.map_or(0, |rope| rope.offset);
        let positions = self.model.context_length().map(|rows| rows.saturating_sub(offset));
        let positions = positions.and_then(|rows| u32::try_from(rows).ok());
        self.layers().iter().filter_map(|layer| layer.context_length).chain(positions).min()
    }

    /// Returns the same graph as subgraphs, cut at its attentions and at its layers with a state.
    pub fn parts(&self, source: &dyn Source) -> Result<Vec<GraphPart>> {
        cut(&self.model, source)
    }
}

/// Fails if the new graph has an input that a step does not give.
fn check_inputs(graph: &Graph, tokens: &str, positions: &str, embedded: &[String]) -> Result<()> {
    let error = |input: &ValueInfo, reason: &str| Error::unrecognised(RefusalKind::Input, &input.name, "input", reason);
    let refused = |input: &ValueInfo, reason: &str| Err(error(input, reason));
    for input in &graph.inputs {
        let is_whole = input.element.is_none_or(ElementType::is_int);
        if embedded.contains(&input.name) && !is_whole {
            if input.dims.as_ref().is_some_and(|dims| dims.len() < 3) {
                return refused(input, "it has fewer than 3 dimensions: a step gives [1, tokens, width]");
            }
            continue;
        }
        if [tokens, EMBEDS].contains(&input.name.as_str()) && !is_whole {
            let reason =
                "it takes embeddings, but a step gives token ids: the model of its embeddings is needed as well";
            return Err(error(input, reason).of(RefusalKind::Embeddings));
        }
        let is_known = [tokens, positions, logits::ROWS].contains(&input.name.as_str());
        if !is_known || !is_whole {
            return refused(input, "its purpose is not known: a step gives token ids and positions");
        }
        if input.name == positions && has_three_rows(input) {
            continue;
        }
        let rank = if input.name == logits::ROWS { 1 } else { 2 };
        if input.dims.as_ref().is_some_and(|dims| dims.len() != rank) {
            return refused(input, &format!("it does not have {rank} dimensions: a step gives [1, tokens]"));
        }
    }
    Ok(())
}

/// True for positions with a row for time, height and width each, `[3, batch, tokens]`.
fn has_three_rows(positions: &ValueInfo) -> bool {
    matches!(positions.dims.as_deref(), Some([Dim::Size(3), _, _]))
}

/// The last dimension of the logits, if it is the same for all sizes.
fn vocabulary(lookup: &Lookup<'_>, graph: &Graph) -> Result<Option<u32>> {
    let named = graph.outputs.iter().find(|output| output.name == "logits");
    let Some(logits) = named.or(graph.outputs.first()) else { return Ok(None) };
    if let Some(Dim::Size(size)) = logits.dims.as_ref().and_then(|dims| dims.last()) {
        return Ok(u32::try_from(*size).ok());
    }
    let [one, other] = [lookup.at(SIZES[0])?, lookup.at(SIZES[1])?];
    let [one, other] = [&one, &other].map(|at| at.dims(&logits.name).and_then(|dims| dims.last().copied()));
    Ok(one.filter(|_| one == other).and_then(|size| u32::try_from(size).ok()))
}

impl<'a> GraphEdit<'a> {
    fn new(lookup: &'a Lookup<'a>) -> Self {
        let graph = lookup.graph().clone();
        let positions = lookup.roles.positions.clone();
        let has_positions = positions.is_some();
        Self { lookup, graph, positions: positions.unwrap_or_else(|| POSITIONS.into()), has_positions }
    }

    /// Puts nodes in the places of others, which are in ascending order.
    fn replace_nodes(&mut self, found: Vec<(usize, impl IntoIterator<Item = Node>)>) {
        for (place, made) in found.into_iter().rev() {
            self.graph.nodes.splice(place..=place, made);
        }
    }

    /// The name of the input with positions, which is added if the graph has none. Fails if they have three rows: the
    /// index of a token does not follow from these.
    fn positions(&mut self) -> Result<String> {
        if let Some(input) = self.lookup.graph().input(&self.positions)
            && has_three_rows(input)
        {
            let reason = "it has rows for time, height and width, but the graph needs the index of each token as well";
            return Err(Error::unrecognised(RefusalKind::Form, &input.name, "input", reason));
        }
        if !self.has_positions {
            self.has_positions = true;
            let dims = self.token_dims();
            self.graph.inputs.push(ValueInfo::new(&self.positions, ElementType::I64, Some(&dims)));
        }
        Ok(self.positions.clone())
    }

    /// The dimensions of the tokens, batch and new ones, by the names of the graph.
    fn token_dims(&self) -> [Dim; 2] {
        let own = self.lookup.graph().input(&self.lookup.roles.tokens).and_then(|tokens| tokens.dims.clone());
        let dim = |index: usize, name: &str| {
            own.as_ref().and_then(|dims| dims.get(index).cloned()).unwrap_or_else(|| Dim::Name(name.into()))
        };
        [dim(0, "batch_size"), dim(1, "sequence_length")]
    }

    /// Declares a tensor with the dimensions of another one. The runtime cannot infer them for kvtide's operator, and it
    /// refuses a Reshape to several sizes that come from unknown dimensions.
    fn declare(&mut self, name: &str, like: &str, element: ElementType) -> Result<()> {
        let [one, other] = [self.lookup.at(SIZES[0])?, self.lookup.at(SIZES[1])?];
        let (Some(dims), Some(others)) = (one.dims(like), other.dims(like)) else { return Ok(()) };
        let [batch, new] = self.token_dims();
        let dim = |(&size, &again): (&usize, &usize)| match [size, again] {
            sizes if sizes == SIZES.map(|of| of.batch) => batch.clone(),
            sizes if sizes == SIZES.map(|of| of.new) => new.clone(),
            [size, again] if size == again => Dim::Size(size as u64),
            _ => Dim::Unknown,
        };
        let dims: Vec<Dim> = dims.iter().zip(others).map(dim).collect();
        self.graph.values.retain(|value| value.name != name);
        self.graph.values.push(ValueInfo::new(name, element, Some(&dims)));
        Ok(())
    }

    fn add(&mut self, node: Node) {
        self.graph.nodes.push(node);
    }

    /// Adds a small list of integers as a weight, and returns its name.
    fn ints(&mut self, name: String, values: &[i64]) -> String {
        self.graph.initializers.push(crate::proto::Tensor::of_ints(&name, &[values.len() as u64], values));
        name
    }
}
