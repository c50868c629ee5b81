//! Nodes with branches: an `If` gives the outputs of one of two graphs.

use super::join::both;
use super::reach::{Axis, Reach};
use super::step::Cause;
use super::walk::Walk;
use crate::error::Result;
use crate::proto::{AttributeValue, Graph, Node};

/// The branches of an `If`, the one for true first.
fn branches(node: &Node) -> Option<[&Graph; 2]> {
    let branch = |name: &str| match node.attribute(name)? {
        AttributeValue::Graphs(graphs) => graphs.first().filter(|graph| graph.outputs.len() == node.outputs.len()),
        _ => None,
    };
    Some([branch("then_branch")?, branch("else_branch")?])
}

impl<'a> Walk<'a> {
    /// Follows an `If`. Returns false if it is not one of two branches.
    pub fn choose(&mut self, node: &'a Node) -> Result<bool> {
        let Some(graphs) = branches(node).filter(|_| node.is("", "If")) else { return Ok(false) };
        let name = node.input(0).unwrap_or_default();
        let condition = self.call(node).reach(name);
        let numbers =
            self.call(node).known(name).map(|value| value.data.as_ref().and_then(|data| data.first().copied()));
        let chosen = match numbers {
            [Some(one), Some(other)] if one == other && condition.is_fixed() => Some(usize::from(one == 0.)),
            _ => None,
        };
        for (at, graph) in graphs.into_iter().enumerate() {
            if chosen.is_none_or(|chosen| chosen == at) {
                self.constants(&graph.initializers)?;
                graph.nodes.iter().try_for_each(|inner| self.visit(inner))?;
            }
        }
        for (place, output) in node.outputs.iter().enumerate().filter(|(_, output)| !output.is_empty()) {
            let call = self.call(node);
            let names = graphs.map(|graph| graph.outputs[place].name.as_str());
            let from = chosen.unwrap_or(0);
            let values = call.known(names[from]).map(Clone::clone);
            let reach = match &condition {
                Reach::Step(step) => Reach::Step(step.clone().behind(node, true)),
                condition if condition.tokens().is_some() => call.step(Cause::Mixed),
                _ if chosen.is_some() => call.reach(names[from]),
                _ => joined([call.reach(names[0]), call.reach(names[1])], call.step(Cause::Unknown)),
            };
            self.set(output, values, reach);
        }
        Ok(true)
    }
}

/// The reach of one of two tensors.
fn joined<'a>(reaches: [Reach<'a>; 2], otherwise: Reach<'a>) -> Reach<'a> {
    match reaches {
        [Reach::Step(one), Reach::Step(other)] => Reach::Step(one.and(other)),
        [Reach::Step(step), _] | [_, Reach::Step(step)] => Reach::Step(step),
        [Reach::Apart(one), Reach::Apart(other)] if one.len() == other.len() => {
            let axes: Option<Vec<Axis>> = one.iter().zip(&other).map(|(&one, &other)| both(one, other)).collect();
            axes.map_or(otherwise, Reach::Apart)
        }
        [one, other] if one.is_fixed() && other.is_fixed() => Reach::Fixed,
        _ => otherwise,
    }
}
