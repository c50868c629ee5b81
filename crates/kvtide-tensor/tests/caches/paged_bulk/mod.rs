//! Tokens in bulk, in every format, against a model that keeps every value.

mod calls;
mod large;
mod model;
mod random;
mod steps;
mod values;
