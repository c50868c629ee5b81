//! The layers of a model as a cache needs them: which keep all tokens, which keep a window, and which share block
//! tables.
//!
//! ```text
//! config.json ── config/ ──> layers by the family's rule ───┐
//! layers written down by hand ──────────────────────────────┴─> ModelDescription ──> groups, places
//! states: tensors of a fixed size for a sequence ─────────────────────┘        └──> the layout of a slot
//! ```
//!
//! A description consists of plain numbers, which are checked once, when it is made: contradictory numbers are an
//! error. Making one is O(layers); every query is O(1).

mod config;
mod description;
mod group;
mod layer;
mod state;

pub use description::{LAYERS_MAX, ModelDescription};
pub use group::{LayerGroup, LayerPlace};
pub use layer::{AttentionDescription, LayerDescription, LayerKind};
pub use state::{STATE_ALIGNMENT, STATE_BYTES_MAX, StateDType, StateLayout, StateTensor};
