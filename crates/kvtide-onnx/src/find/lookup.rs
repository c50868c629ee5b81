//! A graph with the maker and the readers of each tensor, and its evaluations for several sizes.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use crate::error::{Error, RefusalKind, Result};
use crate::eval::{Constants, Evaluation, Known, Roles, Sizes, is_pair};
use crate::proto::{ElementType, Graph, Model, Node, ValueInfo};
use crate::source::Source;

/// Two choices of sizes in which no two numbers coincide.
pub(crate) const SIZES: [Sizes; 2] = [Sizes { batch: 2, past: 3, new: 5 }, Sizes { batch: 3, past: 5, new: 2 }];

/// A past that is long enough to reveal limits in a graph.
pub(crate) const LONG: Sizes = Sizes { batch: 1, past: (1 << 16) - 1, new: 1 };

pub(crate) struct Lookup<'a> {
    pub model: &'a Model,
    pub constants: Constants<'a>,
    pub roles: Roles,
    pub makers: HashMap<&'a str, usize>,
    pub readers: HashMap<&'a str, Vec<usize>>,
    evaluations: RefCell<Vec<Rc<Evaluation>>>,
}

/// The error of a valid node that is not recognised.
pub(crate) fn unrecognised(node: &Node, reason: impl Into<String>) -> Error {
    Error::unrecognised(RefusalKind::Form, node.called(), node.full_operator(), reason)
}

impl<'a> Lookup<'a> {
    /// `embedded` are the inputs of floats that a step gives for each token.
    pub fn new(model: &'a Model, source: &'a dyn Source, embedded: &[String]) -> Result<Self> {
        let Some(roles) = Roles::of(&model.graph, embedded) else {
            let reason = "it has no input of token ids, [batch, tokens]";
            return Err(Error::unrecognised(RefusalKind::Input, "inputs", "graph", reason));
        };
        let (mut makers, mut readers) = (HashMap::new(), HashMap::<_, Vec<_>>::new());
        for (index, node) in model.graph.nodes.iter().enumerate() {
            makers.extend(node.outputs.iter().filter(|name| !name.is_empty()).map(|name| (name.as_str(), index)));
            for name in node.reads() {
                readers.entry(name).or_default().push(index);
            }
        }
        Ok(Self { model, constants: Constants::new(source), roles, makers, readers, evaluations: RefCell::default() })
    }

    pub fn graph(&self) -> &'a Graph {
        &self.model.graph
    }

    pub fn node(&self, index: usize) -> &'a Node {
        &self.model.graph.nodes[index]
    }

    /// The node that computes a tensor.
    pub fn maker(&self, name: &str) -> Option<&'a Node> {
        self.makers.get(name).map(|&index| self.node(index))
    }

    /// A past of floats, or a static cache.
    pub fn past(&self, name: &str) -> Option<&'a ValueInfo> {
        let input = self.graph().input(name).filter(|input| input.element.is_some_and(ElementType::is_float))?;
        (self.roles.is_past(input) && !is_pair(input) || self.roles.is_cache(name)).then_some(input)
    }

    /// A past of floats or of codes.
    pub fn stored(&self, name: &str) -> Option<&'a ValueInfo> {
        self.graph().input(name).filter(|input| self.roles.is_past(input) && !is_pair(input))
    }

    /// The tensor before a Cast, or the tensor itself: a graph of half floats may take its pasts as 32-bit floats.
    pub fn uncast(&self, name: &'a str) -> &'a str {
        let cast = self.maker(name).filter(|maker| maker.is("", "Cast"));
        cast.and_then(|maker| maker.input(0)).unwrap_or(name)
    }

    /// The graph's output with the numbers of a tensor: that tensor, or a Cast of it.
    pub fn returned(&self, name: &str) -> Option<String> {
        let outputs = &self.graph().outputs;
        let is_output = |name: &str| outputs.iter().any(|output| output.name == name);
        let readers = self.readers.get(name).into_iter().flatten().map(|&index| self.node(index));
        let casts = readers.filter(|node| node.is("", "Cast")).filter_map(|node| node.output(0));
        std::iter::once(name).chain(casts).find(|&name| is_output(name)).map(str::to_owned)
    }

    /// A past of keys and values in one tensor.
    pub fn pair(&self, name: &str) -> Option<&'a ValueInfo> {
        self.graph().input(name).filter(|input| is_pair(input))
    }

    /// The evaluation for these sizes; each choice is evaluated once.
    pub fn at(&self, sizes: Sizes) -> Result<Rc<Evaluation>> {
        if let Some(evaluation) = self.evaluations.borrow().iter().find(|evaluation| evaluation.sizes == sizes) {
            return Ok(evaluation.clone());
        }
        let evaluation = Rc::new(Evaluation::run(self.model, &self.constants, &self.roles, sizes)?);
        self.evaluations.borrow_mut().push(evaluation.clone());
        Ok(evaluation)
    }

    /// True if a tensor is another one, `[batch, heads, rows, columns]`, whose first two axes are merged.
    pub fn is_merged(&self, name: &str, apart: &str) -> Result<bool> {
        let evaluation = self.at(SIZES[0])?;
        Ok(match (evaluation.dims(name), evaluation.dims(apart)) {
            (Some(&[all, rows, columns]), Some([batch, heads, apart @ ..])) => {
                Some(all) == batch.checked_mul(*heads) && apart == [rows, columns]
            }
            _ => false,
        })
    }

    /// True if a tensor is another one, `[batch, tokens, heads, columns]`, with a row for each token and head.
    pub fn is_rows(&self, name: &str, apart: &str) -> Result<bool> {
        let evaluation = self.at(SIZES[0])?;
        Ok(match (evaluation.dims(name), evaluation.dims(apart)) {
            (Some(&[batch, rows, columns]), Some(&[all, tokens, heads, width])) => {
                Some(rows) == tokens.checked_mul(heads) && [batch, columns] == [all, width]
            }
            _ => false,
        })
    }

    /// The number of a one-element tensor, if it is the same for all sizes, [`LONG`] included if it is known for that.
    pub fn scalar(&self, name: &str) -> Result<Option<f64>> {
        let [one, other] = [self.at(SIZES[0])?.scalar(name), self.at(SIZES[1])?.scalar(name)];
        let Some(one) = one.filter(|_| one == other) else { return Ok(None) };
        // A weight is the same for all sizes; the long evaluation costs more than the others.
        if self.maker(name).is_none_or(|maker| maker.is("", "Constant")) {
            return Ok(Some(one));
        }
        let long = self.at(LONG)?.scalar(name);
        Ok(Some(one).filter(|one| long.is_none_or(|long| long == *one)))
    }

    /// The numbers of a weight with few elements.
    pub fn numbers(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let evaluation = self.at(SIZES[0])?;
        let Known { data, .. } = evaluation.get(name);
        Ok(data.as_ref().map(|data| data.iter().map(|&number| number as f32).collect()))
    }
}
