//! Follows the tokens of a step through a rewritten graph, node by node.

use std::collections::HashMap;
use std::rc::Rc;

use super::reach::{Axis, Reach, Tokens};
use super::set::Set;
use super::step::{Cause, Step};
use crate::error::{Error, RefusalKind, Result};
use crate::eval::{Evaluation, Known, Sizes, axis};
use crate::find::Lookup;
use crate::proto::{Dim, ElementType, Graph, Node, Tensor, ValueInfo};

/// Two steps of one row each. Their sizes are prime, so that a size that is no number of tokens cannot hide one.
const STEPS: [Sizes; 2] = [Sizes { batch: 1, past: 3, new: 7 }, Sizes { batch: 1, past: 6, new: 5 }];

/// The most numbers that are kept at once, for both steps together.
const NUMBERS_MAX: usize = 1 << 24;

/// Operators that take one of several sizes.
const VIEWS: [&str; 8] = ["Gather", "Slice", "Split", "Squeeze", "Unsqueeze", "Reshape", "Identity", "Cast"];

/// The inputs of a step.
pub(crate) struct Inputs<'a> {
    pub positions: &'a str,
    /// The rows that go through the head.
    pub rows: &'a str,
}

/// The tensors of a graph, as far as its nodes have been followed.
pub(super) struct Walk<'a> {
    pub lookup: &'a Lookup<'a>,
    pub sets: Vec<Set>,
    graph: &'a Graph,
    sources: [Rc<Evaluation>; 2],
    values: [HashMap<String, Known>; 2],
    reaches: HashMap<&'a str, Reach<'a>>,
    /// The nodes that still read each tensor: its numbers are dropped behind the last one.
    readers: HashMap<&'a str, usize>,
    /// The numbers that are kept.
    kept: usize,
}

/// Fails if an element of a rewritten graph's outputs depends on more than one token of a step, or on the place of a
/// token in it. `graph` is sorted. `O(nodes)`.
pub(crate) fn check_apart(lookup: &Lookup<'_>, graph: &Graph, inputs: &Inputs<'_>, has_states: bool) -> Result<()> {
    let counts = STEPS.map(|sizes| sizes.new);
    let of_step = Set { parent: 0, places: counts.map(|count| (0..count).collect()) };
    let mut readers = HashMap::new();
    for name in graph.nodes.iter().flat_map(Node::reads) {
        *readers.entry(name).or_insert(0) += 1;
    }
    let mut walk = Walk {
        readers,
        kept: 0,
        lookup,
        graph,
        sets: vec![of_step, Set::sample(0, counts)],
        sources: [lookup.at(STEPS[0])?, lookup.at(STEPS[1])?],
        values: Default::default(),
        reaches: HashMap::new(),
    };
    let new = |tensor: &&Tensor| walk.sources[0].get(&tensor.name).element.is_none();
    let added: Vec<Tensor> = graph.initializers.iter().filter(new).cloned().collect();
    walk.constants(&added)?;
    let weights: std::collections::HashSet<&str> =
        graph.initializers.iter().map(|tensor| tensor.name.as_str()).collect();
    for input in graph.inputs.iter().filter(|input| !weights.contains(input.name.as_str())) {
        walk.bind(input, inputs);
    }
    for node in &graph.nodes {
        walk.visit(node)?;
        walk.release(node);
    }
    graph.outputs.iter().try_for_each(|output| walk.check(output, has_states))
}

impl<'a> Walk<'a> {
    /// Fails if an output depends on a whole step, or does not have its tokens on an axis of their own.
    fn check(&self, output: &ValueInfo, has_states: bool) -> Result<()> {
        match self.reaches.get(output.name.as_str()) {
            Some(Reach::Step(step)) => Err(step.error(has_states)),
            Some(reach @ Reach::Apart(axes)) if output.name == "logits" => match reach.tokens() {
                Some((at, tokens)) if !tokens.is_pure() || at + 1 == axes.len() => {
                    let reason = "its tokens are not on an axis of their own";
                    Err(Error::unrecognised(RefusalKind::Output, &output.name, "output", reason))
                }
                _ => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn bind(&mut self, input: &'a ValueInfo, inputs: &Inputs<'_>) {
        let rows = [0, 1].map(|at| {
            let places = &self.sets[1].places[at];
            Known::list(ElementType::I64, places.iter().map(|&place| place as f64).collect())
        });
        let declared = [0, 1].map(|at| self.declared(input, at));
        let positions =
            STEPS.map(|sizes| Known::filled(input.element, vec![1, sizes.new], |place| (sizes.past + place) as f64));
        let is_known = self.sources.iter().all(|source| source.dims(&input.name).is_some());
        let sources = self.sources.each_ref().map(|source| source.get(&input.name).clone());
        let (values, set) = match input.name.as_str() {
            name if name == inputs.rows => (rows, 1),
            _ if is_known => (sources, 0),
            name if name == inputs.positions => (positions, 0),
            _ => (declared, 0),
        };
        let Some(rank) = values[0].dims.as_ref().map(Vec::len) else {
            let axes = vec![Axis::Same, Axis::Tokens(Tokens::of(set))];
            return self.set(&input.name, values, Reach::Apart(axes));
        };
        // Positions may have a row for time, height and width each.
        let at = if input.name == inputs.positions { rank.saturating_sub(1) } else { 1 };
        let mut axes = vec![Axis::Index; rank];
        let at = if set == 1 { 0 } else { at };
        axes.iter_mut().skip(at).take(1).for_each(|axis| *axis = Axis::Tokens(Tokens::of(set)));
        self.set(&input.name, values, Reach::Apart(axes));
    }

    /// The dimensions that a tensor declares, by the names of those of the tokens.
    fn declared(&self, value: &ValueInfo, at: usize) -> Known {
        let tokens = self.graph.input(&self.lookup.roles.tokens).and_then(|tokens| tokens.dims.as_ref());
        let own = |place: usize| tokens.and_then(|dims| dims.get(place));
        let size = |dim: &Dim| match dim {
            Dim::Size(size) => usize::try_from(*size).ok(),
            Dim::Name(_) if Some(dim) == own(1) => Some(STEPS[at].new),
            Dim::Name(_) if Some(dim) == own(0) => Some(1),
            _ => None,
        };
        let dims = value.dims.as_ref().and_then(|dims| dims.iter().map(size).collect());
        Known { element: value.element, dims, ..Known::default() }
    }

    /// Adds weights that the source does not have.
    pub fn constants(&mut self, tensors: &[Tensor]) -> Result<()> {
        for tensor in tensors {
            let value = self.lookup.constants.tensor(tensor)?;
            self.keep(&tensor.name, [value.clone(), value]);
        }
        Ok(())
    }

    pub fn call(&self, node: &'a Node) -> Call<'_, 'a> {
        Call { walk: self, node }
    }

    /// Follows one node.
    pub fn visit(&mut self, node: &'a Node) -> Result<()> {
        if self.choose(node)? {
            return Ok(());
        }
        if node.is("", "NonZero") && self.route(node) {
            return Ok(());
        }
        let values = [self.evaluate(node, 0)?, self.evaluate(node, 1)?];
        for (name, (one, other)) in node.outputs.iter().zip(values[0].iter().zip(&values[1])) {
            self.keep(name, [one.clone(), other.clone()]);
        }
        let reach = self.call(node).reaches();
        let is_dynamic = node.is("", "DynamicQuantizeLinear");
        for (place, name) in node.outputs.iter().enumerate().filter(|(_, name)| !name.is_empty()) {
            // One scale for all rows: docs/models.md describes the exception.
            let is_scale = is_dynamic && place > 0 && !matches!(reach, Reach::Step(_));
            let reach = if is_scale { Reach::Apart(Vec::new()) } else { reach.clone() };
            let values = [0, 1].map(|at: usize| self.values[at].get(name).cloned().unwrap_or_default());
            self.set(name, values, self.call(node).settled(name, reach));
        }
        Ok(())
    }

    /// The properties of the outputs of a node in one evaluation.
    fn evaluate(&mut self, node: &Node, at: usize) -> Result<Vec<Known>> {
        if let Some(dims) = attended(node, STEPS[at]) {
            return Ok(vec![Known::sized(None, dims)]);
        }
        let mut given = std::mem::take(&mut self.values[at]);
        if node.domain != "kvtide" {
            given = self.sources[at].rerun(&[node], &self.lookup.constants, given)?;
        }
        let output = |name: &String| {
            let value = given.get(name).cloned().unwrap_or_default();
            if value.dims.is_some() {
                return value;
            }
            let source = self.sources[at].get(name);
            let declared = self.graph.values.iter().find(|declared| declared.name == *name);
            match source.dims.is_some() {
                true => source.clone(),
                false => declared.map_or(value, |declared| self.declared(declared, at)),
            }
        };
        let outputs = node.outputs.iter().map(output).collect();
        node.outputs.iter().for_each(|name| drop(given.remove(name)));
        self.values[at] = given;
        Ok(outputs)
    }

    pub fn set(&mut self, name: &'a str, values: [Known; 2], reach: Reach<'a>) {
        self.keep(name, values);
        self.reaches.insert(name, reach);
    }

    /// Keeps the properties of a tensor, and its numbers if there is room.
    fn keep(&mut self, name: &str, mut values: [Known; 2]) {
        let count = |value: &Known| value.data.as_ref().map_or(0, |data| data.len());
        let before = self.values.iter().filter_map(|values| values.get(name)).map(count).sum::<usize>();
        let new = values.iter().map(count).sum::<usize>();
        self.kept = self.kept.saturating_sub(before);
        if self.kept.saturating_add(new) > NUMBERS_MAX {
            values.iter_mut().for_each(|value| value.data = None);
        } else {
            self.kept += new;
        }
        for (all, value) in self.values.iter_mut().zip(values) {
            all.insert(name.to_owned(), value);
        }
    }

    /// Drops the numbers that no later node reads.
    fn release(&mut self, node: &Node) {
        for name in node.reads() {
            let Some(left) = self.readers.get_mut(name) else { continue };
            *left = left.saturating_sub(1);
            if *left > 0 {
                continue;
            }
            let values = self.values.each_ref().map(|values| values.get(name).cloned());
            if let [Some(one), Some(other)] = values {
                self.keep(name, [one, other].map(|value| Known { data: None, ..value }));
            }
        }
    }

    /// Follows the places of elements that are not 0: if each of these belongs to a token, they are a set of tokens.
    fn route(&mut self, node: &'a Node) -> bool {
        let (name, output) = (node.input(0).unwrap_or_default(), node.output(0));
        let call = self.call(node);
        let (Some((at, tokens)), Some([one, other]), Some(output)) =
            (call.reach(name).tokens(), call.dims(name), output)
        else {
            return false;
        };
        if !tokens.is_pure() {
            return false;
        }
        let set = Set::sample(tokens.set, self.sets[tokens.set].counts());
        let value = |dims: &[usize], places: &[usize]| {
            let column = |row: usize, place: usize| match row == at {
                true => places[place] as f64,
                false => (place % dims[row].max(1)) as f64,
            };
            let count = places.len();
            Known::filled(Some(ElementType::I64), vec![dims.len(), count], |index| column(index / count, index % count))
        };
        let values = [value(one, &set.places[0]), value(other, &set.places[1])];
        self.sets.push(set);
        let routed = Axis::Tokens(Tokens::of(self.sets.len() - 1));
        self.set(output, values, Reach::Apart(vec![Axis::Index, routed]));
        true
    }
}

/// The dimensions of the output of kvtide's attention.
fn attended(node: &Node, sizes: Sizes) -> Option<Vec<usize>> {
    let size = |name: &str| usize::try_from(node.int(name)?).ok();
    let (heads, dim) = (size("num_heads")?, size("value_dim")?);
    Some(match node.int("heads_first").filter(|_| node.is("kvtide", "Attention"))? {
        1 => vec![1, heads, sizes.new, dim],
        _ => vec![1, sizes.new, heads.checked_mul(dim)?],
    })
}

/// A node, and the tensors that it reads.
pub(super) struct Call<'w, 'a> {
    pub walk: &'w Walk<'a>,
    pub node: &'a Node,
}

impl<'w, 'a> Call<'w, 'a> {
    /// The name of an input; empty if it is left out.
    pub fn input(&self, at: usize) -> &'a str {
        self.node.input(at).unwrap_or_default()
    }

    pub fn inputs(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.node.inputs.iter().map(String::as_str).filter(|name| !name.is_empty())
    }

    pub fn output(&self) -> &'a str {
        self.node.output(0).unwrap_or_default()
    }

    /// True if an attribute or an input is there.
    pub fn has(&self, name: &str, at: usize) -> bool {
        self.node.attribute(name).is_some() || !self.input(at).is_empty()
    }

    /// The reach of a tensor; weights have no tokens.
    pub fn reach(&self, name: &str) -> Reach<'a> {
        match self.walk.reaches.get(name) {
            Some(reach) => reach.clone(),
            None => self.settled(name, Reach::Fixed),
        }
    }

    pub fn known(&self, name: &str) -> [&'w Known; 2] {
        let walk = self.walk;
        [0, 1].map(|at: usize| walk.values[at].get(name).unwrap_or_else(|| walk.sources[at].get(name)))
    }

    pub fn dims(&self, name: &str) -> Option<[&'w [usize]; 2]> {
        let [one, other] = self.known(name);
        let (one, other) = (one.dims.as_deref()?, other.dims.as_deref()?);
        (one.len() == other.len()).then_some([one, other])
    }

    pub fn rank(&self, name: &str) -> Option<usize> {
        Some(self.dims(name)?[0].len())
    }

    /// Axes whose sizes follow from the number of tokens.
    pub fn varies(&self, name: &str) -> Vec<bool> {
        let dims = self.dims(name);
        dims.map_or_else(Vec::new, |[one, other]| one.iter().zip(other).map(|(one, other)| one != other).collect())
    }

    /// The integers of a short list, if they are known.
    pub fn ints(&self, name: &str) -> Option<[Vec<i64>; 2]> {
        let [one, other] = self.known(name);
        Some([one.ints()?, other.ints()?])
    }

    /// True if a tensor has the same known numbers in both evaluations.
    pub fn has_equal_numbers(&self, name: &str) -> bool {
        let [one, other] = self.known(name);
        one.data.is_some() && one.dims == other.dims && one.data == other.data
    }

    /// An axis, counted from the front.
    pub fn axis(&self, at: i64, rank: usize) -> Option<usize> {
        axis(at, rank)
    }

    pub fn step(&self, cause: Cause) -> Reach<'a> {
        Reach::Step(Step::new(cause, self.node))
    }

    /// The reach of an output that has the elements of one input.
    pub fn carried(&self, reach: Reach<'a>) -> Reach<'a> {
        match reach {
            Reach::Step(step) => Reach::Step(step.behind(self.node, false)),
            reach => reach,
        }
    }

    /// The reach of an output if dimensions are not known.
    pub fn without_sizes(&self, has_tokens: bool) -> Reach<'a> {
        if has_tokens { self.step(Cause::Sizes(self.input(0).into())) } else { Reach::Fixed }
    }

    /// A tensor with these axes, if no element depends on two tokens.
    pub fn alone(&self, axes: Vec<Axis>) -> Reach<'a> {
        let count = axes.iter().filter(|axis| matches!(axis, Axis::Tokens(_))).count();
        if count > 1 { self.step(Cause::Mixed) } else { Reach::Apart(axes) }
    }

    /// A reach that agrees with the dimensions of a tensor.
    fn settled(&self, name: &str, reach: Reach<'a>) -> Reach<'a> {
        let Some([one, other]) = self.dims(name) else {
            return match reach {
                Reach::Apart(_) if reach.is_fixed() => Reach::Fixed,
                Reach::Apart(_) => self.step(Cause::Sizes(name.into())),
                reach => reach,
            };
        };
        let is_one = |at: usize| one[at] == 1 && other[at] == 1;
        match reach {
            Reach::Fixed => {
                Reach::Apart((0..one.len()).map(|at| if is_one(at) { Axis::Same } else { Axis::Index }).collect())
            }
            Reach::Apart(axes) if axes.len() == one.len() => {
                let fits = |(at, axis): (usize, &Axis)| match axis {
                    Axis::Tokens(tokens) => {
                        let counts = self.walk.sets[tokens.set].counts();
                        [one[at], other[at]] == counts.map(|count| tokens.outer * count * tokens.inner)
                    }
                    _ => true,
                };
                if !axes.iter().enumerate().all(fits) {
                    return self.step(Cause::Mixed);
                }
                let kind = |(at, axis)| if is_one(at) { Axis::Same } else { axis };
                self.alone(axes.into_iter().enumerate().map(kind).collect())
            }
            Reach::Apart(_) if reach.is_fixed() => Reach::Fixed,
            Reach::Apart(_) => self.step(Cause::Sizes(name.into())),
            // One of several sizes may be the same for all numbers of tokens.
            Reach::Step(step) if step.is_plain_size() && VIEWS.contains(&self.node.operator.as_str()) => {
                match self.has_equal_numbers(name) {
                    true => self.settled(name, Reach::Fixed),
                    false => Reach::Step(step),
                }
            }
            reach => reach,
        }
    }
}
