//! Replaces an attention by a node of kvtide's, and adds nodes before it for the operations that were inside the
//! operator.

use super::GraphEdit;
use crate::error::Result;
use crate::find::{Axes, FoundAttention, HeadNorms, Layer, Layout, Operands, Output, Rotary, SIZES};
use crate::proto::{Attribute, ElementType, Node};

/// The domain of kvtide's operators.
pub(super) const DOMAIN: &str = "kvtide";

impl GraphEdit<'_> {
    /// Replaces an attention that was found by `kvtide::Attention`.
    pub(super) fn attend(&mut self, found: &FoundAttention) -> Result<()> {
        let layer = &found.layer;
        let is_own = layer.source.is_none() && !layer.is_crossed();
        let mut operands = self.apart(found);
        if let Some(bias) = &found.bias {
            operands = self.biased(layer, bias, operands);
        }
        if let Some(norms) = &found.norms {
            let [query, key, value] = operands;
            let query = self.normed(layer, norms, 0, &query);
            let key = if is_own { self.normed(layer, norms, 1, &key) } else { key };
            operands = [query, key, value];
        }
        if let Some(rotary) = &layer.rotary {
            let own = found.positions.clone().filter(|positions| *positions != self.positions);
            let positions = own.map_or_else(|| self.positions(), Ok)?;
            let [query, key, value] = operands;
            let query = self.turned(layer, rotary, query, &positions, "q", layer.num_heads);
            let key = if is_own { self.turned(layer, rotary, key, &positions, "k", layer.kv_num_heads) } else { key };
            operands = [query, key, value];
        }
        let [query, mut key, mut value] = self.cast_to_pages(layer, found.operands.tensors(), operands)?;
        if !is_own {
            // Its keys and values are those of another layer, or of an encoder: the operator does not read these inputs.
            [key, value] = [query.clone(), query.clone()];
        }
        let Output { name, axes } = &found.output;
        let was = self.lookup.at(SIZES[0])?.get(name).element.unwrap_or(layer.element);
        let prefix = format!("kvtide/attended.{}", layer.tag());
        let output = if was == layer.element { name.clone() } else { prefix.clone() };
        let attended = if *axes != Axes::Apart { format!("{prefix}.apart") } else { output.clone() };
        self.add(node(layer, [&query, &key, &value], &attended));
        match axes {
            Axes::Apart => self.declare(&output, name, layer.element)?,
            Axes::BatchAndHeads => self.merge(layer, &attended, &output),
            Axes::TokensAndHeads => self.reshape(&attended, &output, layer.value_dim.into()),
        }
        if was != layer.element {
            self.cast(&output, name, was);
        }
        Ok(())
    }

    /// Converts `[batch, heads, tokens, dim]` to `[batch * heads, tokens, dim]`.
    fn merge(&mut self, layer: &Layer, from: &str, to: &str) {
        let flat = format!("{from}.flat");
        self.add(Node::new("Flatten", "", &flat, &[from], &[&flat]).with(Attribute::int("axis", 2)));
        let shape = self.ints(format!("{from}.shape"), &[0, -1, layer.value_dim.into()]);
        self.add(Node::new("Reshape", "", &format!("{from}.merged"), &[&flat, &shape], &[to]));
    }

    /// Gives `[batch, tokens, ..]` rows of another width, for tokens and heads apart or together.
    fn reshape(&mut self, from: &str, to: &str, width: i64) {
        let shape = self.ints(format!("{to}.shape"), &[0, -1, width]);
        self.add(Node::new("Reshape", "", &format!("{to}.rows"), &[from, &shape], &[to]));
    }

    /// Returns queries, keys and values as three tensors of one layout.
    fn apart(&mut self, found: &FoundAttention) -> [String; 3] {
        let layer = &found.layer;
        match &found.operands {
            Operands::Apart(names) => names.clone(),
            Operands::Packed(name) => self.split(layer, name, "split"),
            Operands::Projected { hidden, weights, bias } => {
                let name = self.projected(layer, hidden, weights, bias.as_deref());
                self.split(layer, &name, "split")
            }
            Operands::Mixed([query, key, value]) => {
                [query.clone(), self.packed(layer, key, "k"), self.packed(layer, value, "v")]
            }
            Operands::Rows([query, key, value]) => {
                let packed = format!("kvtide/packed.{}.q", layer.layer);
                let width = i64::from(layer.num_heads).saturating_mul(layer.head_dim.into());
                self.reshape(query, &packed, width);
                [packed, self.packed(layer, key, "k"), self.packed(layer, value, "v")]
            }
        }
    }

    /// Returns queries, keys and values as one packed tensor.
    fn projected(&mut self, layer: &Layer, hidden: &str, weights: &str, bias: Option<&str>) -> String {
        let prefix = format!("kvtide/projected.{}", layer.layer);
        self.add(Node::new("MatMul", "", &prefix, &[hidden, weights], &[&prefix]));
        let Some(bias) = bias else { return prefix };
        let sum = format!("{prefix}.sum");
        self.add(Node::new("Add", "", &sum, &[&prefix, bias], &[&sum]));
        sum
    }

    /// Splits a packed tensor into queries, keys and values along its last axis.
    fn split(&mut self, layer: &Layer, name: &str, what: &str) -> [String; 3] {
        let prefix = format!("kvtide/{what}.{}", layer.layer);
        let [heads, others] = [layer.num_heads, layer.kv_num_heads].map(i64::from);
        let [dim, values] = [layer.head_dim, layer.value_dim].map(i64::from);
        let sizes = [heads.saturating_mul(dim), others.saturating_mul(dim), others.saturating_mul(values)];
        let parts = ["q", "k", "v"].map(|part| format!("{prefix}.{part}"));
        let outputs: Vec<&str> = parts.iter().map(String::as_str).collect();
        // Before opset 13 the sizes are an attribute.
        let node = if self.lookup.model.opset("").is_some_and(|version| version < 13) {
            Node::new("Split", "", &prefix, &[name], &outputs).with(Attribute::ints("split", &sizes))
        } else {
            let sizes = self.ints(format!("{prefix}.sizes"), &sizes);
            Node::new("Split", "", &prefix, &[name, &sizes], &outputs)
        };
        self.add(node.with(Attribute::int("axis", -1)));
        parts
    }

    /// Converts `[batch, heads, tokens, dim]` to `[batch, tokens, heads * dim]`.
    fn packed(&mut self, layer: &Layer, name: &str, part: &str) -> String {
        let prefix = format!("kvtide/packed.{}.{part}", layer.layer);
        let turned = format!("{prefix}.turned");
        let turn = Node::new("Transpose", "", &turned, &[name], &[&turned]);
        self.add(turn.with(Attribute::ints("perm", &[0, 2, 1, 3])));
        let shape = self.ints(format!("{prefix}.shape"), &[0, 0, -1]);
        self.add(Node::new("Reshape", "", &prefix, &[&turned, &shape], &[&prefix]));
        prefix
    }

    fn biased(&mut self, layer: &Layer, bias: &str, operands: [String; 3]) -> [String; 3] {
        let parts = self.split(layer, bias, "bias");
        let mut sums = operands;
        for (sum, part) in sums.iter_mut().zip(&parts) {
            let name = format!("{part}.sum");
            self.add(Node::new("Add", "", &name, &[sum, part], &[&name]));
            *sum = name;
        }
        sums
    }

    /// Returns packed queries or keys with the norm of each head.
    fn normed(&mut self, layer: &Layer, norms: &HeadNorms, part: usize, name: &str) -> String {
        let prefix = format!("kvtide/norm.{}.{}", layer.layer, ["q", "k"][part]);
        let heads = self.ints(format!("{prefix}.heads"), &[0, 0, -1, layer.head_dim.into()]);
        let packed = self.ints(format!("{prefix}.packed"), &[0, 0, -1]);
        let (apart, normed) = (format!("{prefix}.apart"), format!("{prefix}.normed"));
        self.add(Node::new("Reshape", "", &apart, &[name, &heads], &[&apart]));
        let norm = Node::new("SimplifiedLayerNormalization", "", &normed, &[&apart, &norms.weights[part]], &[&normed]);
        self.add(norm.with(Attribute::int("axis", -1)).with(Attribute::float("epsilon", norms.epsilon)));
        self.add(Node::new("Reshape", "", &prefix, &[&normed, &packed], &[&prefix]));
        prefix
    }

    fn turned(
        &mut self,
        layer: &Layer,
        rotary: &Rotary,
        name: String,
        positions: &str,
        part: &str,
        heads: u32,
    ) -> String {
        let turned = format!("kvtide/rotary.{}.{part}", layer.layer);
        let inputs = [name.as_str(), positions, &rotary.tables[0], &rotary.tables[1]];
        let mut node = Node::new("RotaryEmbedding", "com.microsoft", &turned, &inputs, &[&turned])
            .with(Attribute::int("interleaved", i64::from(rotary.interleaved)))
            .with(Attribute::int("num_heads", i64::from(heads)));
        if rotary.dims < layer.head_dim {
            node = node.with(Attribute::int("rotary_embedding_dim", i64::from(rotary.dims)));
        }
        self.add(node);
        turned
    }

    /// Casts the operands, which have the types of the tensors that they come `from`, to the type of the past: it is the
    /// type of the pages unless the caller chooses another one.
    fn cast_to_pages(&mut self, layer: &Layer, from: [&str; 3], mut operands: [String; 3]) -> Result<[String; 3]> {
        let evaluation = self.lookup.at(SIZES[0])?;
        for ((name, from), part) in operands.iter_mut().zip(from).zip(["q", "k", "v"]) {
            if evaluation.get(from).element.is_some_and(|element| element != layer.element) {
                let cast = format!("kvtide/cast.{}.{part}", layer.tag());
                self.cast(name, &cast, layer.element);
                *name = cast;
            }
        }
        Ok(operands)
    }

    pub(super) fn cast(&mut self, from: &str, to: &str, element: ElementType) {
        self.add(cast_node(&format!("kvtide/cast to {to}"), from, to, element));
    }
}

/// A node with this name that casts a tensor to a type.
pub(super) fn cast_node(name: &str, from: &str, to: &str, element: ElementType) -> Node {
    Node::new("Cast", "", name, &[from], &[to]).with(Attribute::int("to", element.0.into()))
}

fn node(layer: &Layer, inputs: [&str; 3], output: &str) -> Node {
    let name = format!("kvtide/attention.{}", layer.tag());
    let mut node = Node::new("Attention", DOMAIN, &name, &inputs, &[output])
        .with(Attribute::int("layer", layer.layer.into()))
        .with(Attribute::int("num_heads", layer.num_heads.into()))
        .with(Attribute::int("kv_num_heads", layer.kv_num_heads.into()))
        .with(Attribute::int("head_dim", layer.head_dim.into()))
        .with(Attribute::int("value_dim", layer.value_dim.into()))
        .with(Attribute::int("heads_first", i64::from(layer.layout == Layout::HeadsFirst)))
        .with(Attribute::float("scale", layer.scale));
    if layer.is_crossed() {
        node = node.with(Attribute::int("crossed", 1));
    }
    if let Some(softcap) = layer.softcap {
        node = node.with(Attribute::float("softcap", softcap));
    }
    if let Some(window) = layer.window {
        node = node.with(Attribute::int("window", window.into()));
    }
    if let Some(sinks) = &layer.sinks {
        node = node.with(Attribute::floats("sinks", sinks));
    }
    if let Some(slopes) = &layer.alibi_slopes {
        node = node.with(Attribute::floats("alibi_slopes", slopes));
    }
    node
}
