//! The paged engine on tensors: random traces of everything that it does, against sequences that are kept apart.
//!
//! Calls and model are those that the planner is tested with: a value stands for one token in one layer. Values of known
//! tokens follow from the tokens before and from the tenant, so a prefix that is found must show exactly those, and one that is
//! shown to another tenant is seen. What a value is in a tensor says `content.rs`.

#[path = "../../../../kvtide-core/tests/paged_world/calls.rs"]
mod calls;
mod content;
mod hazards;
#[path = "../../../../kvtide-core/tests/paged_world/model.rs"]
mod model;
#[path = "../../attention/oracle.rs"]
mod oracle;
mod world;

use calls::{Call, Shape};
use content::Content;
use kvtide_tensor::Kernels;
use proptest::prelude::*;
use world::World;

use crate::any_kernels::{any_kernels, under};
use crate::outcome::Done;
use crate::support;

/// What `model.rs` keeps of a token in a layer.
mod memory {
    pub type Value = u32;
}

type Trace = (Kernels, (Shape, Content), Vec<Call>);

/// Many small calls, whatever the form.
fn traces() -> impl Strategy<Value = Trace> {
    let shaped = calls::shape().prop_flat_map(|shape| (Just(shape), content::content(shape.low_bit)));
    (any_kernels(), shaped, prop::collection::vec(calls::call(), 0..40))
}

fn cache_follows_the_model((kernels, (shape, content), calls): Trace) -> Done {
    under(kernels, || {
        let mut world = World::new(shape, content)?;
        for call in &calls {
            world.call(call)?;
            world.check()?;
        }
        world.end()
    })
}

fn attention_follows_the_model((kernels, (shape, content), calls): Trace) -> Done {
    under(kernels, || {
        let mut world = World::new(shape, content.plain())?;
        for (at, call) in calls.iter().enumerate() {
            world.call(call)?;
            world.check_attention(at as u64 * 7 + calls.len() as u64)?;
        }
        world.end()
    })
}

#[test]
fn attention_over_random_traces_against_its_definition() {
    support::run("paged_engine attention", 1_000, traces(), attention_follows_the_model);
}

#[test]
fn random_traces_against_sequences_apart() {
    support::run("paged_engine", 2_500, traces(), cache_follows_the_model);
}
