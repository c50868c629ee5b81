//! The paged engine on tensors: random traces of all its calls, compared with sequences that are stored separately.
//!
//! Calls and reference are those of the planner's tests: a value stands for one token in one layer. Values of known tokens
//! follow from the tokens before them and from the tenant, so a prefix that is hit must show exactly those values, and a
//! prefix shown to another tenant is detected. `content.rs` defines the value of a tensor, and `tensors.rs` compares reads
//! with it.

mod attending;
#[path = "../../../../kvtide-core/tests/paged_world/calls.rs"]
mod calls;
mod content;
mod elsewhere;
mod hazards;
#[path = "../../../../kvtide-core/tests/paged_world/model.rs"]
mod model;
#[path = "../../attention/oracle.rs"]
mod oracle;
#[path = "../../../../kvtide-core/tests/support/policies.rs"]
mod policies;
mod tensors;
#[path = "../../../../kvtide-core/tests/paged_world/world/mod.rs"]
mod world;

use calls::{Call, Shape};
use content::Content;
use kvtide_core::paged::PageFormat;
use kvtide_tensor::DType;
use kvtide_tensor::runtime::Kernels;
use policies::Policy;
use proptest::prelude::*;
use tensors::TensorCache;
use world::World;

use crate::any_kernels::{any_kernels, under};
use crate::outcome::Done;
use crate::support;

type Trace = (Kernels, (Shape, Content), Vec<Call>);

/// Many small calls, whatever the form.
fn traces() -> impl Strategy<Value = Trace> {
    let shaped = calls::shape().prop_flat_map(|shape| (Just(shape), content::content(shape.low_bit)));
    (any_kernels(), shaped, prop::collection::vec(calls::call(), 0..40))
}

/// Few sequences that are drafted on, cut, filled in steps and forked: what seldom meets in the others.
fn dense_traces() -> impl Strategy<Value = Trace> {
    let of = || 0..2usize;
    let tokens = || prop::collection::vec(0..2u32, 1..7);
    let call = prop_oneof![
        2 => of().prop_map(Call::Begin),
        4 => (of(), tokens(), prop::collection::vec(0..4u32, 7))
            .prop_map(|(of, tokens, parents)| Call::DraftAppend(of, tokens, Some(parents))),
        3 => (of(), prop::collection::vec(any::<bool>(), 14)).prop_map(|(of, path)| Call::CommitPath(of, path)),
        1 => (of(), 0..4u32).prop_map(|(of, tokens)| Call::Commit(of, tokens)),
        1 => (of(), 0..2usize).prop_map(|(of, depth)| Call::Undo(of, depth)),
        2 => of().prop_map(Call::Fork),
        1 => of().prop_map(Call::Snapshot),
        1 => (of(), 0..16u32).prop_map(|(of, tokens)| Call::Identify(of, tokens)),
        1 => (of(), of()).prop_map(|(of, at)| Call::Restore(of, at)),
        1 => of().prop_map(Call::Drop),
        3 => (of(), 0..12u32).prop_map(|(of, length)| Call::Truncate(of, length)),
        3 => (of(), tokens()).prop_map(|(of, tokens)| Call::Append(vec![(of, tokens)], true)),
        3 => (of(), tokens()).prop_map(|(of, tokens)| Call::OpenStep(vec![(of, tokens)], true)),
        6 => (0..3u32).prop_map(Call::WriteLayer),
        3 => prop::bool::weighted(0.8).prop_map(Call::EndStep),
    ];
    let shaped = calls::shape().prop_flat_map(|shape| {
        let shape = Shape { capacity: shape.capacity.max(24), ..shape };
        (Just(shape), content::content(shape.low_bit))
    });
    let calls = prop::collection::vec(call, 8..40).prop_map(|mut calls| {
        calls.insert(0, Call::Create(0));
        calls
    });
    (any_kernels(), shaped, calls)
}

fn cache_follows_the_model((kernels, (shape, content), calls): Trace) -> Done {
    under(kernels, || {
        let mut world = World::new(shape, TensorCache::new(&shape, content)?);
        for call in &calls {
            world.call(call)?;
            world.check()?;
        }
        world.end()
    })
}

fn steps_elsewhere_follow_the_model((kernels, (shape, content), calls): Trace) -> Done {
    under(kernels, || {
        // Where nothing but numbers is in them, what is attended to elsewhere is compared as well.
        let content = if calls.len().is_multiple_of(2) { content.plain() } else { content };
        let mut world = World::new(shape, TensorCache::new(&shape, content)?.elsewhere(kernels));
        for call in &calls {
            world.call(call)?;
            world.check()?;
        }
        world.end()
    })
}

fn attention_follows_the_model((kernels, (shape, content), calls): Trace) -> Done {
    under(kernels, || {
        let mut world = World::new(shape, TensorCache::new(&shape, content.plain())?);
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
    support::run("paged_engine attention, drafts", 1_000, dense_traces(), attention_follows_the_model);
}

/// The cut page keeps rows that were rounded, and a step quantises them once more with others.
#[test]
fn attention_to_a_page_that_a_step_quantises_again() {
    let calls = [
        Call::Create(0),
        Call::Append(vec![(0, vec![0, 1, 1, 0, 1])], true),
        Call::Truncate(0, 2),
        Call::OpenStep(vec![(0, vec![0, 1, 1, 1, 0])], true),
        Call::WriteLayer(0),
        Call::EndStep(true),
    ];
    let shape = Shape { capacity: 4, block_size: 4, layers: 1, low_bit: true, window: None, policy: Policy::Default };
    for (kernels, dtype) in Kernels::supported().flat_map(|kernels| [(kernels, DType::BF16), (kernels, DType::F32)]) {
        let formats = [Some(PageFormat::Q4); 2];
        for (dims, rotated) in [([6, 3], [true, false]), ([6, 4], [true; 2])] {
            let content = Content { heads: 2, dims, dtype, formats, rotated, plain: true, magnitude: 1. };
            attention_follows_the_model((kernels, (shape, content), calls.to_vec())).expect("the model's attention");
        }
    }
}

#[test]
fn drafts_steps_and_cuts_of_few_sequences_against_sequences_apart() {
    support::run("paged_engine drafts", 4_000, dense_traces(), cache_follows_the_model);
}

#[test]
fn steps_that_are_computed_elsewhere_while_a_trace_goes_on() {
    support::run("paged_engine elsewhere", 2_000, traces(), steps_elsewhere_follow_the_model);
    support::run("paged_engine elsewhere, drafts", 2_000, dense_traces(), steps_elsewhere_follow_the_model);
}

#[test]
fn random_traces_against_sequences_apart() {
    support::run("paged_engine", 4_000, traces(), cache_follows_the_model);
}
