//! Compares masks with naive oracles, walks through them, and checks positions, tokenizers, limits and places of errors.

mod json;
mod languages;
mod positions;
mod refusals;
#[path = "../../../kvtide-core/tests/support/skipped.rs"]
mod skip;
mod tokenizers;
mod validator;
mod words;
