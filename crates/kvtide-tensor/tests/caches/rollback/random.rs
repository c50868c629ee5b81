//! Random calls on `RollbackCache` against a list that knows when each position was last written.

use kvtide_tensor::DType;
use kvtide_tensor::runtime::Kernels;
use proptest::prelude::*;

use crate::any_kernels::{any_kernels, under};
use crate::outcome::Done;
use crate::rollback::pair::{Op, Pair};
use crate::sequences::sequence;
use crate::sources::Form;
use crate::support;
use crate::tokens::Rows;

fn cache_follows_the_list((kernels, rows, limit, ops): (Kernels, Rows, Option<u64>, Vec<Op>)) -> Done {
    let limit = limit.map(|tokens| tokens * 2 * rows.token_bytes());
    under(kernels, || {
        let mut pair = Pair::new(rows, limit)?;
        for op in &ops {
            pair.call(op)?;
            pair.check()?;
        }
        pair.check_at_the_end()
    })
}

fn op() -> impl Strategy<Value = Op> {
    let form = || prop::sample::select(&Form::ALL[..]);
    let forms = || [form(), form()];
    let which = || any::<u32>();
    let back = prop_oneof![6 => 1..4u32, 1 => 0..12u32];
    prop_oneof![
        3 => (0..5u32, forms()).prop_map(|(tokens, forms)| Op::Append(tokens, forms)),
        4 => (prop::collection::vec(back, 0..7), forms()).prop_map(|(back, forms)| Op::AppendTree(back, forms)),
        1 => (which(), which()).prop_map(|(start, len)| Op::AppendOwn(start, len)),
        3 => (0..16u64).prop_map(Op::Commit),
        3 => Just(Op::Mark),
        3 => which().prop_map(Op::Rollback),
        1 => Just(Op::RollbackForeign),
        4 => prop::collection::vec(which(), 0..6).prop_map(Op::Accept),
        1 => prop::collection::vec(0..6u32, 0..4).prop_map(Op::AcceptAny),
        2 => (which(), which()).prop_map(|(start, len)| Op::Look(start, len)),
        1 => which().prop_map(Op::Forget),
    ]
}

#[test]
fn random_calls_against_a_list() {
    let dtypes = prop::sample::select(&[DType::F32, DType::F16, DType::BF16][..]);
    let rows = (1..3usize, 1..3usize, 1..4usize, dtypes)
        .prop_map(|(batch, heads, dim, dtype)| Rows::new(&[batch, heads, 1, dim], 2, dtype));
    let limit = prop_oneof![3 => Just(None), 1 => (4..60u64).prop_map(Some)];
    let calls = (any_kernels(), rows, limit, sequence(op()));
    support::run("RollbackCache", 20_000, calls, cache_follows_the_list);
}
