//! Compares masks with naive oracles, walks through them, and checks positions, tokenizers, limits and places of errors.

mod json;
mod languages;
mod positions;
mod refusals;
mod tokenizers;
mod validator;
mod words;
