//! An input or output of a graph as a caller sees it: texts, without the message that they were read from.

use std::fmt;

use super::{Dim, ValueInfo};

/// An input or output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Its name.
    pub name: String,
    /// The type of its elements; empty if the graph does not declare it.
    pub element: String,
    /// Its dimensions: sizes, names, or `?`.
    pub dims: Vec<String>,
}

pub(crate) fn port(value: &ValueInfo) -> Port {
    let dims = value.dims.iter().flatten().map(|dim| match dim {
        Dim::Size(size) => size.to_string(),
        Dim::Name(name) => name.clone(),
        Dim::Unknown => "?".into(),
    });
    let element = value.element.map(|element| element.to_string()).unwrap_or_default();
    Port { name: value.name.clone(), element, dims: dims.collect() }
}

impl fmt::Display for Port {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{} {} [{}]", self.name, self.element, self.dims.join(", "))
    }
}
