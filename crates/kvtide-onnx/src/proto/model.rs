//! A model: its graph, the operator sets that it imports, and all other fields unchanged.

use std::collections::{HashMap, HashSet};
use std::io::ErrorKind;

use super::{Attribute, External, Graph, Node, Place, Port, Weights, checked, port};
use crate::error::{Error, Result};
use crate::source::{Source, Span};
use crate::wire::{Reader, Segments};

/// The default limit of memory for a graph without its weights.
pub const GRAPH_BYTES_MAX: u64 = 512 << 20;

/// A model as it was read: a graph, and the places of its weights. It contains no bytes of weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    pub(crate) graph: Graph,
    /// Domain and version.
    opsets: Vec<(String, i64)>,
    /// The number of opsets in the source; later ones are new.
    imported: usize,
    /// Unchanged fields, by number.
    others: Vec<(u32, Span)>,
}

impl Model {
    /// Reads a model. `O(graph)`: only the places of weights are read.
    pub fn read(source: &dyn Source) -> Result<Self> {
        Self::read_within(source, GRAPH_BYTES_MAX)
    }

    /// Like [`read`](Self::read), with a limit for the memory of the graph.
    pub fn read_within(source: &dyn Source, graph_bytes_max: u64) -> Result<Self> {
        let mut reader = Reader::new(source, graph_bytes_max);
        let (mut graph, mut seen) = (Graph::default(), false);
        let (mut opsets, mut others) = (Vec::new(), Vec::new());
        let mut at = 0;
        while let Some(field) = reader.field(&mut at, source.size(), "ModelProto")? {
            match field.number {
                7 => {
                    seen = true;
                    graph.read_fields(&mut reader, field.bytes()?, 0)?;
                }
                number => {
                    if number == 8 {
                        opsets.push(read_opset(&mut reader, field.bytes()?)?);
                    }
                    reader.keep(size_of::<(u32, Span)>() as u64, field.whole.offset)?;
                    others.push((number, field.whole));
                }
            }
        }
        if !seen {
            return Err(Error::Malformed { offset: 0, message: "ModelProto", expected: "a graph".into() });
        }
        let imported = opsets.len();
        Ok(Self { graph: checked(graph)?, opsets, imported, others })
    }

    /// Sets the `accuracy_level` of all products with weights of 4 bits, also in branches: with 4, rows may be quantised to
    /// bytes, with 0 they are multiplied as floats. Returns true if that changes the model.
    pub fn set_accuracy_level(&mut self, level: u8) -> bool {
        let is_product = |node: &Node| {
            let has_level = node.int("accuracy_level").unwrap_or_default() == i64::from(level);
            node.is("com.microsoft", "MatMulNBits") && node.int("bits").unwrap_or(4) == 4 && !has_level
        };
        self.graph.set(&Attribute::int("accuracy_level", level.into()), &is_product)
    }

    /// The inputs that a caller passes. Weights that are also listed as inputs are not included.
    pub fn inputs(&self) -> Vec<Port> {
        let weights: HashSet<&str> = self.graph.initializers.iter().map(|tensor| tensor.name.as_str()).collect();
        self.graph.inputs.iter().filter(|input| !weights.contains(input.name.as_str())).map(port).collect()
    }

    /// The outputs.
    pub fn outputs(&self) -> Vec<Port> {
        self.graph.outputs.iter().map(port).collect()
    }

    /// Checks that the files with weights exist and are long enough, and returns the number of bytes used of each.
    /// Sources without a folder are not checked. `O(weights)`, plus one check of each file.
    pub fn check_weights(&self, source: &dyn Source) -> Result<Vec<(String, u64)>> {
        let mut files: Vec<(String, u64)> = Vec::new();
        let mut sizes: HashMap<&str, Option<u64>> = HashMap::new();
        for tensor in &self.graph.initializers {
            let Place::External(External { location, offset, length }) = &tensor.place else { continue };
            let wrong = |expected| Error::Weights { file: location.clone(), tensor: tensor.name.clone(), expected };
            let size = match sizes.get(location.as_str()) {
                Some(size) => *size,
                None => {
                    files.push((location.clone(), 0));
                    let size = match source.size_beside(location) {
                        Ok(size) => Some(size),
                        Err(error) if error.kind() == ErrorKind::Unsupported => None,
                        Err(error) => return Err(wrong(format!("a file that can be read ({error})"))),
                    };
                    *sizes.entry(location).or_insert(size)
                }
            };
            let end = offset + length;
            if size.is_some_and(|size| size < end) {
                return Err(wrong(format!("at least {end} bytes, not {}", size.unwrap_or(0))));
            }
            let used = files.iter_mut().find(|file| file.0 == *location).map(|file| &mut file.1);
            used.into_iter().for_each(|used| *used = end.max(*used));
        }
        Ok(files)
    }

    /// Bytes of each weight, at places spread over it, and all of them if there are few. Models that were trained apart differ
    /// there. Weights of a source without a folder that are in other files are left out. `O(weights)` reads.
    pub fn samples(&self, source: &dyn Source) -> Result<Vec<u8>> {
        let mut samples = Vec::new();
        sample(&self.graph, source, &mut samples)?;
        Ok(samples)
    }

    /// The version of a domain's operators.
    pub(crate) fn opset(&self, domain: &str) -> Option<i64> {
        self.opsets.iter().find(|opset| opset.0 == domain).map(|opset| opset.1)
    }

    /// The same model with an empty graph, and without kvtide's operators.
    pub(crate) fn clone_without_graph(&self) -> Self {
        let mut opsets = self.opsets.clone();
        opsets.retain(|opset| opset.0 != "kvtide");
        Self { graph: Graph::default(), opsets, imported: self.imported, others: self.others.clone() }
    }

    pub(crate) fn import(&mut self, domain: &str, version: i64) {
        if self.opset(domain).is_none() {
            self.opsets.push((domain.into(), version));
        }
    }

    /// The model as segments: own bytes and ranges of the source. Weights are not read.
    pub fn segments(&self, source: &dyn Source, weights: Weights<'_>) -> Result<Segments> {
        let mut to = Segments::default();
        let mut others = self.others.clone();
        others.sort_by_key(|&(number, _)| number);
        let place = |number: u32| others.iter().position(|other| other.0 > number).unwrap_or(others.len());
        others[..place(7)].iter().for_each(|other| to.span(other.1));
        to.message(7, &self.graph.write(weights));
        others[place(7)..place(8)].iter().for_each(|other| to.span(other.1));
        for (domain, version) in &self.opsets[self.imported..] {
            let mut opset = Segments::default();
            opset.text(1, domain.as_bytes());
            opset.int(2, *version);
            to.message(8, &opset);
        }
        others[place(8)..].iter().for_each(|other| to.span(other.1));
        to.gathered(source)
    }

    /// The model as bytes, including weights unless they are external.
    pub fn to_bytes(&self, source: &dyn Source, weights: Weights<'_>) -> Result<Vec<u8>> {
        self.segments(source, weights)?.to_bytes(source)
    }
}

/// The number of places of a weight that are sampled, and the number of bytes there.
const SAMPLES: u64 = 4;
const SAMPLE_BYTES: u64 = 256;

fn sample(graph: &Graph, source: &dyn Source, to: &mut Vec<u8>) -> Result<()> {
    for tensor in &graph.initializers {
        let (file, offset, length) = match &tensor.place {
            Place::Source(span) => (None, span.offset, span.length),
            Place::External(External { location, offset, length }) => (Some(location), *offset, *length),
            Place::Inline => continue,
        };
        let each = length.min(SAMPLE_BYTES);
        for place in 0..length.div_ceil(each.max(1)).min(SAMPLES) {
            let at = offset + (length - each) * place / (SAMPLES - 1);
            let start = to.len();
            to.resize(start + each as usize, 0);
            let read = match file {
                None => source.read_at(at, &mut to[start..]),
                Some(file) => source.read_beside(file, at, &mut to[start..]),
            };
            match read {
                Err(error) if error.kind() == ErrorKind::Unsupported => to.truncate(start),
                Err(error) => return Err(Error::Read { offset: at, length: each, reason: error.to_string() }),
                Ok(()) => (),
            }
        }
    }
    graph.nodes.iter().flat_map(|node| node.graphs()).try_for_each(|graph| sample(graph, source, to))
}

fn read_opset(reader: &mut Reader<'_>, span: Span) -> Result<(String, i64)> {
    let (mut domain, mut version) = (String::new(), 0);
    reader.keep(size_of::<(String, i64)>() as u64, span.offset)?;
    let mut at = span.offset;
    while let Some(field) = reader.field(&mut at, span.end(), "OperatorSetIdProto")? {
        match field.number {
            1 => domain = reader.text(&field)?,
            2 => version = field.int()?,
            _ => (),
        }
    }
    if domain == "ai.onnx" {
        domain.clear();
    }
    Ok((domain, version))
}
