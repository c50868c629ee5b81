//! Attention against a naive one in 64-bit floats, under each form of the kernels that the machine has.

mod case;
mod merged;
mod numbers;
mod oracle;
mod random;

#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
