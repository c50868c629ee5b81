//! Random transactions on every kind of cache.

use kvtide_tensor::DType;
use kvtide_tensor::runtime::Kernels;
use proptest::prelude::*;

use super::kind::{Kind, Setup};
use super::run::{Op, Run};
use crate::any_kernels::{any_kernels, under};
use crate::outcome::Done;
use crate::sources::Form;
use crate::support;
use crate::tokens::Rows;

fn follows_the_lists<C: Kind>((kernels, setup, ops): (Kernels, Setup, Vec<Op>)) -> Done {
    under(kernels, || {
        let Some(mut run) = Run::<C>::new(setup)? else { return Ok(()) };
        for op in &ops {
            run.call(op)?;
            run.check()?;
        }
        run.check_at_the_end()
    })
}

fn setup() -> impl Strategy<Value = Setup> {
    let dtypes = prop::sample::select(&[DType::F32, DType::F16, DType::BF16][..]);
    let rows = (1..3usize, 1..3usize, 1..4usize, dtypes)
        .prop_map(|(batch, heads, dim, dtype)| Rows::new(&[batch, heads, 1, dim], 2, dtype));
    let slack = prop_oneof![1 => Just(None), 6 => (0..9u32).prop_map(Some)];
    let limit = prop_oneof![3 => Just(None), 1 => (10..90u64).prop_map(Some)];
    let max = prop_oneof![1 => 1..24u32, 2 => 60..200u32];
    (rows, (1..9u32, 0..4u32, slack), 0..6u32, max, any::<bool>(), limit).prop_map(
        |(rows, (window, sinks, slack), capacity, max, stable, limit)| {
            let limit = limit.map(|tokens| tokens * 2 * rows.token_bytes());
            Setup { rows, window, sinks, slack, capacity, max, stable, limit }
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let form = || prop::sample::select(&Form::ALL[..]);
    let forms = || [form(), form()];
    let which = || any::<u32>();
    let back = prop_oneof![12 => 1..4u32, 1 => 0..12u32];
    let tokens = || prop_oneof![4 => 1..3u32, 2 => 0..7u32, 1 => 0..24u32];
    prop_oneof![
        5 => (tokens(), forms()).prop_map(|(tokens, forms)| Op::Feed(tokens, forms)),
        1 => (0..12u64).prop_map(Op::Cut),
        2 => Just(Op::Snapshot),
        1 => which().prop_map(Op::Restore),
        1 => which().prop_map(Op::Change),
        2 => (which(), which()).prop_map(|(start, len)| Op::Look(start, len)),
        1 => which().prop_map(Op::Forget),
        5 => prop::option::of(0..20u32).prop_map(Op::Begin),
        5 => (tokens(), forms()).prop_map(|(tokens, forms)| Op::Draft(tokens, forms)),
        1 => (which(), which()).prop_map(|(start, len)| Op::DraftOwn(start, len)),
        4 => (prop::collection::vec(back, 0..7), forms()).prop_map(|(back, forms)| Op::Tree(back, forms)),
        3 => prop::option::of(0..6u64).prop_map(Op::Commit),
        3 => prop::collection::vec(which(), 0..5).prop_map(Op::Path),
        1 => prop::collection::vec(0..6u32, 0..4).prop_map(Op::AnyPath),
        2 => which().prop_map(Op::Drop),
    ]
}

pub fn random_transactions<C: Kind>(name: &str) {
    let calls = (any_kernels(), setup(), prop::collection::vec(op(), 0..40));
    support::run(&format!("transactions on {name}"), 10_000, calls, follows_the_lists::<C>);
}
