//! Sequences of random calls.

use proptest::collection::vec;
use proptest::prelude::*;

/// Up to `KVTIDE_CALLS` calls; without it up to 48. All content is compared after each call, so long sequences are for long runs.
pub fn sequence<Op: Strategy>(op: Op) -> impl Strategy<Value = Vec<Op::Value>> {
    let longest = std::env::var("KVTIDE_CALLS").map_or(48, |text| text.parse::<usize>().expect("a whole number"));
    vec(op, 0..=longest)
}
