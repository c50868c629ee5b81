//! The kernels that this machine can run.

use kvtide_tensor::runtime::{Kernels, with_kernels};
use proptest::prelude::*;

use crate::outcome::Done;

/// Any of them.
pub fn any_kernels() -> impl Strategy<Value = Kernels> {
    prop::sample::select(Kernels::supported().collect::<Vec<_>>())
}

/// Runs `body` with this one.
pub fn under(kernels: Kernels, body: impl FnOnce() -> Done) -> Done {
    with_kernels(kernels, body)?
}
