//! Attention compared with a naive implementation in 64-bit floats, for all kernels that the machine can run.

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
mod steps;
mod windows;

#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
