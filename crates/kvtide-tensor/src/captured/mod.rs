//! Captured steps: a decode step of a fixed batch, recorded once as a graph of its device and replayed, one token of each
//! sequence at a time, with nothing of the host in between.
//!
//! ```text
//! step = cache.capture_step(options, |step| {         slots for all steps to come are taken ahead
//!     for layer in 0..layers {
//!         ...                                          the model's own operations: candle's, on the same stream
//!         step.write(layer, &k, &v)?;                  into the slot that follows, by the device's lengths and tables
//!         step.attend(layer, &q, &options, &out)?;     over what every sequence holds by then
//!     }
//!     Ok(())                                           after it, the device's lengths move on
//! })?                                                  it has run once as it is: the first token is there
//! cache.replay_step(&mut step)?                        every further token
//! cache.commit_captured(&mut step, ids)?               waits for the device; the host's lengths move on, what is left is given back
//! ```
//!
//! For the cache it is one step of as many tokens as may come. Until the commit its sequences refuse other changes, and a step that
//! is dropped leaves no trace. A replay that fails changes nothing that counts either: the slots that it writes are nobody's yet.
//! The commit shortens the step to what was replayed.
//!
//! What the closure reads and writes lives as long as the step, because the graph knows its addresses. Results that are read after
//! a replay go to tensors that were made before: what the closure makes belongs to the graph.
//!
//! A replay costs the host O(sequences); the commit O(blocks and tokens).

mod memory;
mod recorder;
mod step;
mod tensors;

pub use recorder::StepRecorder;
pub use step::{CaptureOptions, CapturedStep};
