//! Replaces a layer with a state by a node of kvtide's, which reads and writes the states of all sequences of a step.

use super::GraphEdit;
use super::attention::DOMAIN;
use crate::error::Result;
use crate::find::{FoundState, SIZES, StateInput};
use crate::proto::{Attribute, Dim, ElementType, Node, ValueInfo};

impl GraphEdit<'_> {
    /// Replaces a layer that was found. `place` is that of its state among those of the graph.
    pub(super) fn keep_state(&mut self, place: usize, found: &FoundState) -> Result<()> {
        let evaluation = self.lookup.at(SIZES[0])?;
        let own = |name: &str| evaluation.get(name).element;
        let first = found.inputs.iter().flatten().next();
        let element = first.and_then(|input| own(&input.name)).unwrap_or(found.state.element);
        let prefix = format!("kvtide/state.{place}");
        let mut inputs: Vec<String> = Vec::new();
        for (at, input) in found.inputs.iter().enumerate() {
            inputs.push(match input {
                Some(input) => self.state_input(input, element, own(&input.name), &format!("{prefix}.{at}")),
                None => String::new(),
            });
        }
        inputs.truncate(inputs.iter().rposition(|name| !name.is_empty()).map_or(0, |last| last + 1));
        let was = own(&found.output).unwrap_or(element);
        let made =
            if found.heads.is_some() || was != element { format!("{prefix}.made") } else { found.output.clone() };
        let names: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut node = Node::new(found.operator, DOMAIN, &prefix, &names, &[&made]);
        node = node.with(Attribute::int("state", place as i64));
        node.attributes.extend(found.attributes.iter().cloned());
        self.add(node);
        let Some([heads, dim]) = found.heads else {
            self.declare(&made, &found.output, element)?;
            if was != element {
                self.cast(&made, &found.output, was);
            }
            return Ok(());
        };
        let [batch, new] = self.token_dims();
        let dims = [batch, new, Dim::Size(u64::from(heads) * u64::from(dim))];
        self.graph.values.push(ValueInfo::new(&made, element, Some(&dims)));
        let same = if was == element { made } else { format!("{prefix}.cast") };
        if was != element {
            self.cast(&format!("{prefix}.made"), &same, was);
        }
        let shape = self.ints(format!("{prefix}.heads"), &[0, 0, heads.into(), dim.into()]);
        self.add(Node::new("Reshape", "", &format!("{prefix}.apart"), &[&same, &shape], &[&found.output]));
        Ok(())
    }

    /// An input in the type of the node, with the elements of a token on one axis.
    fn state_input(
        &mut self,
        input: &StateInput,
        element: ElementType,
        was: Option<ElementType>,
        prefix: &str,
    ) -> String {
        let mut name = input.name.clone();
        if was.is_some_and(|was| was != element) {
            let cast = format!("{prefix}.cast");
            self.cast(&name, &cast, element);
            name = cast;
        }
        if input.is_apart {
            let flat = format!("{prefix}.flat");
            let shape = self.ints(format!("{flat}.shape"), &[0, 0, -1]);
            self.add(Node::new("Reshape", "", &flat, &[&name, &shape], &[&flat]));
            name = flat;
        }
        name
    }
}
