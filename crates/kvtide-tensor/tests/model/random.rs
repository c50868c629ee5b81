//! Random calls on random layers.

use kvtide_core::model::{LayerDescription, LayerKind, ModelDescription};
use kvtide_tensor::runtime::{Kernels, with_kernels};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::subject::Blocks;
use crate::support;
use crate::world::World;

/// A call. A `usize` picks one of the sequences or snapshots there are.
#[derive(Clone, Debug)]
pub enum Call {
    Create,
    Drop(usize),
    Fork(usize),
    Truncate(usize, u32),
    Snapshot(usize),
    Restore(usize, usize),
    Release(usize),
    /// Keeps what a layer shows.
    Keep(usize, u32),
    /// Lets go of something that is kept.
    LetGo(usize),
    /// With room for so many tokens.
    Begin(usize, Option<u32>),
    /// A step of so many tokens, a tree of nodes that follow one so far back, how many layers are written, and its end.
    Step(usize, u32, Option<Vec<u32>>, usize, End),
    Commit(usize, Option<u64>),
    /// At each step one of the children.
    Path(usize, Vec<u32>),
    Rollback(usize, usize),
}

/// The end of a step.
#[derive(Clone, Copy, Debug)]
pub enum End {
    Commit,
    Undo,
    Drop,
    /// Its sequence is dropped, and the step is kept.
    Outlive,
}

/// Layers of up to three sizes, some of which read others, on up to two devices.
fn model() -> impl Strategy<Value = ModelDescription> {
    let layer = (0..3usize, 0..4u32, 1..9u32, 0..4u32, prop_oneof![3 => Just(0u32), 1 => Just(1)]);
    prop::collection::vec(layer, 1..6).prop_map(|layers| {
        let mut made: Vec<LayerDescription> = Vec::new();
        let mut devices = Vec::new();
        for (size, kind, window, sinks, device) in layers {
            let sizes = [(1, 2), (2, 3), (1, 5)];
            let of = LayerDescription::full(sizes[size].0, sizes[size].1);
            let same = |other: &LayerDescription| {
                !matches!(other.kind, LayerKind::SharedWith(_)) && other.head_dim == of.head_dim
            };
            let kind = match (kind, made.iter().rposition(same)) {
                (0 | 1, _) => LayerKind::Full,
                (2, _) | (_, None) => LayerKind::Sliding { window, sinks },
                (_, Some(shown)) => LayerKind::SharedWith(shown as u32),
            };
            devices.push(if let LayerKind::SharedWith(shown) = kind { devices[shown as usize] } else { device });
            made.push(of.with_kind(kind));
        }
        let model = ModelDescription::new(made).expect("layers that fit");
        model.split(&devices).expect("a device for each")
    })
}

fn kind() -> impl Strategy<Value = Blocks> {
    (1..6u32, 0..40u32).prop_map(|(size, blocks)| Blocks(size, blocks))
}

fn call() -> impl Strategy<Value = Call> {
    let of = || 0..3usize;
    let tree = prop::option::weighted(0.3, prop::collection::vec(0..4u32, 8));
    let end = prop_oneof![6 => Just(End::Commit), 1 => Just(End::Undo), 1 => Just(End::Drop), 1 => Just(End::Outlive)];
    let tokens = prop_oneof![3 => 0..3u32, 1 => 3..9u32];
    let layers = prop_oneof![6 => Just(9usize), 1 => 0..4usize];
    prop_oneof![
        2 => Just(Call::Create),
        1 => of().prop_map(Call::Drop),
        2 => of().prop_map(Call::Fork),
        2 => (of(), 0..20u32).prop_map(|(of, length)| Call::Truncate(of, length)),
        2 => of().prop_map(Call::Snapshot),
        2 => (of(), of()).prop_map(|(of, snapshot)| Call::Restore(of, snapshot)),
        1 => of().prop_map(Call::Release),
        1 => (of(), 0..6u32).prop_map(|(of, layer)| Call::Keep(of, layer)),
        1 => of().prop_map(Call::LetGo),
        3 => (of(), prop::option::weighted(0.3, 0..12u32)).prop_map(|(of, room)| Call::Begin(of, room)),
        12 => (of(), tokens, tree, layers, end)
            .prop_map(|(of, tokens, tree, layers, end)| Call::Step(of, tokens, tree, layers, end)),
        2 => (of(), prop::option::of(0..6u64)).prop_map(|(of, tokens)| Call::Commit(of, tokens)),
        2 => (of(), prop::collection::vec(any::<u32>(), 0..5)).prop_map(|(of, path)| Call::Path(of, path)),
        1 => (of(), 0..3usize).prop_map(|(of, depth)| Call::Rollback(of, depth)),
    ]
}

fn cache_follows_the_model(
    (kernels, model, kind, calls): (Kernels, ModelDescription, Blocks, Vec<Call>),
) -> Result<(), TestCaseError> {
    with_kernels(kernels, || {
        let mut world = World::new(model, kind)?;
        for call in &calls {
            world.call(call)?;
            world.check()?;
        }
        world.end()
    })?
}

#[test]
fn random_calls_against_sequences_apart() {
    let kernels = prop::sample::select(Kernels::supported().collect::<Vec<_>>());
    let calls = (kernels, model(), kind(), prop::collection::vec(call(), 0..30));
    support::run("a model's cache", 3_000, calls, cache_follows_the_model);
}
