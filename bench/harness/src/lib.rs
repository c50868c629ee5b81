//! Rounds of what is measured, and the time of what counts in them.
//!
//! ```text
//! rounds      a round of one lane, a round of the next, again and again
//! stopwatch   the time of a part of a round, less what the thread waited for a processor
//! ```
//!
//! Nothing is decided here: every round of every lane goes out, and bench/report makes medians, ratios and targets of them.

mod rounds;
mod stopwatch;

pub use rounds::{Amount, Lane, Measured, Result, Role, Took, measure};
pub use stopwatch::Stopwatch;
