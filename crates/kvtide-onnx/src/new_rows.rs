//! A suffix for a model's bytes that adds outputs with chosen rows of its presents.
//!
//! ```text
//! model's bytes                    suffix
//! present.0.key  [1, 2, 900, 64]   Gather of rows kvtide.new_rows -> kvtide.new.present.0.key [1, 2, 1, 64]
//! ```
//! Protobuf messages merge when their bytes are concatenated, so nothing of the model is read, copied or changed: a
//! step costs its new rows instead of the whole past. Only names, and the types and ranks of outputs, are needed, so
//! this also works for graphs that are not recognised. The presents stay outputs.

use std::collections::HashSet;

use crate::error::{Error, RefusalKind, Result};
use crate::proto::{Attribute, Dim, ElementType, Graph, Model, Node, ValueInfo, Weights};
use crate::wire::Segments;

/// The input with the indices of the rows: `int64`, `[rows]`, counted from the first row of a present.
pub const NEW_ROWS: &str = "kvtide.new_rows";

/// The axis of rows in `[batch, heads, rows, head dimension]`.
const ROWS_AXIS: i64 = 2;

/// The name of the output with a present's chosen rows.
pub fn new_rows_of(present: &str) -> String {
    format!("kvtide.new.{present}")
}

impl Model {
    /// Returns bytes to append to the model's own. The model then has the input [`NEW_ROWS`], and for each of
    /// `presents` an output with the name that [`new_rows_of`] returns. `O(presents)`.
    pub fn new_rows_suffix(&self, presents: &[&str]) -> Result<Vec<u8>> {
        let taken: HashSet<&str> = self.graph.defined().collect();
        if taken.contains(NEW_ROWS) {
            return Err(refused(NEW_ROWS, "the graph already has a tensor of this name"));
        }
        let mut suffix = Graph::default();
        suffix.inputs.push(ValueInfo::new(NEW_ROWS, ElementType::I64, Some(&[Dim::Name(NEW_ROWS.into())])));
        for (index, &present) in presents.iter().enumerate() {
            let output = self.graph.outputs.iter().find(|output| output.name == present);
            let output = output.ok_or_else(|| refused(present, "the graph has no output of this name"))?;
            let Some(element) = output.element else {
                return Err(refused(present, "the graph does not declare its type"));
            };
            let mut dims = output.dims.clone().unwrap_or_else(|| vec![Dim::Unknown; 4]);
            if dims.len() != 4 {
                return Err(refused(
                    present,
                    &format!("it has {} dimensions, not batch, heads, rows and elements", dims.len()),
                ));
            }
            dims[ROWS_AXIS as usize] = Dim::Name(NEW_ROWS.into());
            let name = new_rows_of(present);
            if taken.contains(name.as_str()) || presents[..index].contains(&present) {
                return Err(refused(&name, "the graph already has a tensor of this name"));
            }
            let gather = Node::new("Gather", "", &name, &[present, NEW_ROWS], &[&name]);
            suffix.nodes.push(gather.with(Attribute::int("axis", ROWS_AXIS)));
            suffix.outputs.push(ValueInfo::new(&name, element, Some(&dims)));
        }
        let mut bytes = Segments::default();
        bytes.message(7, &suffix.write(Weights::Inline));
        bytes.to_bytes(&[].as_slice())
    }
}

fn refused(name: &str, reason: &str) -> Error {
    Error::unrecognised(RefusalKind::Output, name, "output", reason)
}
