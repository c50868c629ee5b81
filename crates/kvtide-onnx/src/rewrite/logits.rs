//! Computes logits of chosen rows only, mostly of the last ones. Tensors before the head still have one row for each
//! token.

use super::GraphEdit;
use crate::error::{Error, Result};
use crate::find::{SIZES, unrecognised};
use crate::proto::{Attribute, Dim, ElementType, Node, ValueInfo};

/// The input with the rows that go through the head, counted over all tokens of the call.
const ROWS: &str = "logit_rows";

impl GraphEdit<'_> {
    /// Adds a `Gather` before the product that computes the logits.
    pub(super) fn choose_rows(&mut self) -> Result<()> {
        let refused =
            |name: &str, reason: String| Error::Unrecognised { node: name.into(), operator: "output".into(), reason };
        let named = self.graph.outputs.iter().position(|output| output.name == "logits");
        let Some(at) = named.or((self.graph.outputs.len() == 1).then_some(0)) else {
            return Err(refused("logits", "the graph has no output of this name".into()));
        };
        let name = self.graph.outputs[at].name.clone();
        let head = self.head(&name)?;
        let node = &self.graph.nodes[head];
        let rows = node.input(0).unwrap_or_default().to_owned();
        let evaluation = self.lookup.at(SIZES[0])?;
        let sizes = SIZES[0];
        match evaluation.dims(&rows) {
            Some(&[batch, new, _]) if (batch, new) == (sizes.batch, sizes.new) => (),
            dims => {
                return Err(unrecognised(
                    node,
                    format!("{rows} has no row for each token: its dimensions are {dims:?}"),
                ));
            }
        }
        self.graph.nodes[head].replace_input(0, "kvtide/chosen");
        let gather = Node::new("Gather", "", "kvtide/chosen", &[&rows, ROWS], &["kvtide/chosen"]);
        self.add(gather.with(Attribute::int("axis", 1)));
        self.graph.inputs.push(ValueInfo::new(ROWS, ElementType::I64, Some(&[Dim::Name("rows".into())])));
        let output = &self.graph.outputs[at];
        let element = output.element.or(evaluation.get(&name).element).unwrap_or(ElementType::F32);
        let mut dims = output.dims.clone();
        if let Some(dim) = dims.as_mut().and_then(|dims| dims.get_mut(1)) {
            *dim = Dim::Name("rows".into());
        }
        self.graph.outputs[at] = ValueInfo::new(&name, element, dims.as_deref());
        // Declarations of tensors behind the head describe all rows.
        self.graph.values.retain(|value| value.name != name);
        Ok(())
    }

    /// The product before an output, behind which rows are not mixed.
    fn head(&self, output: &str) -> Result<usize> {
        let evaluation = self.lookup.at(SIZES[0])?;
        let mut name = output.to_owned();
        loop {
            let made = self.graph.nodes.iter().position(|node| node.outputs.contains(&name));
            let Some(index) = made else {
                let reason = "it does not come from a product with weights".into();
                return Err(Error::Unrecognised { node: name, operator: "output".into(), reason });
            };
            let node = &self.graph.nodes[index];
            match node.operator.as_str() {
                "MatMul" | "MatMulNBits" | "MatMulBnb4" | "Gemm" => return Ok(index),
                "Cast" | "Identity" | "Mul" | "Div" | "Add" | "Sub" | "Tanh" | "Clip" => {
                    let scores =
                        node.inputs.iter().find(|input| evaluation.dims(input).is_some_and(|dims| dims.len() == 3));
                    name =
                        scores.ok_or_else(|| unrecognised(node, "it has no input with a row for each token"))?.clone();
                }
                _ => return Err(unrecognised(node, "its operator is not supported between the head and the logits")),
            }
        }
    }
}
