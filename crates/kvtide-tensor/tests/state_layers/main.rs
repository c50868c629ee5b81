//! Layers with states, compared with naive implementations in 64-bit floats, token by token.
//!
//! For each layer, random sizes and ragged batches are checked by `batch`: results are within a bound of the oracle's, and
//! have the same bits alone, in a batch, and on any number of threads; a prompt that is cut is within the same bound.

mod attention;
mod batch;
mod channel_ssm;
mod conv;
mod refusals;
mod ssm;

#[path = "../../../kvtide-core/tests/support/mod.rs"]
mod support;
