//! Attention against a naive one in 64-bit floats, under each form of the kernels that the machine has.

mod caches;
mod case;
mod hazards;
mod merged;
mod numbers;
mod oracle;
mod pages;
mod random;
mod refusals;
mod sliding;
mod windows;

#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
