//! The layers of a model as a cache needs them: which keep all tokens, which keep a window, and which share block
//! tables.
//!
//! ```text
//! config.json ── config/ ──> layers by the family's rule ───┐
//! layers written down by hand ──────────────────────────────┴─> ModelDescription ──> groups, places
//! ```
//!
//! A description consists of plain numbers, which are checked once, when it is made: contradictory numbers are an
//! error. Making one is O(layers); every query is O(1).

mod config;
mod description;
mod layer;

pub use description::{LAYERS_MAX, LayerGroup, LayerPlace, ModelDescription};
pub use layer::{AttentionDescription, LayerDescription, LayerKind};
