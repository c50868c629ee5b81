//! What a model's layers need of a cache: which of them keep everything, which a window, and which lie side by side.
//!
//! ```text
//! config.json ── config/ ──> layers of each family's rule ──┐
//! layers written down by hand ──────────────────────────────┴─> ModelDescription ──> groups, places
//! ```
//!
//! A description is plain numbers, checked once when it is made: what contradicts itself never becomes one. Making one is
//! O(layers), everything that is asked of it O(1).

mod config;
mod description;
mod layer;

pub use description::{LAYERS_MAX, LayerGroup, LayerPlace, ModelDescription};
pub use layer::{AttentionDescription, LayerDescription, LayerKind};
