//! Checks that a rewritten graph computes each token apart: a step has the tokens of several sequences in one row, and
//! each sequence must get what it would get alone.
//!
//! ```text
//! input_ids, position_ids                   an axis of tokens                                       walk.rs
//! embeddings, products, norms, experts      each element depends on one token at most: kept         operators.rs
//! kvtide's attention and states             know the sequences: kept
//! Shape, ReduceMax(position_ids)            a number of the step: kept as a size alone              step.rs
//! Gather(position_ids, -1), CumSum, Conv    depends on several tokens: refused if an output does    step.rs
//! ```
//! Each tensor gets a *reach*: for each of its axes, the tokens that its elements depend on. The axis of tokens is
//! followed by its place in the memory of a tensor, so a `Reshape` can neither hide nor lose it. An operator that is not
//! known is taken to mix the tokens that it reads.
//!
//! Invariants:
//!
//! - An element of a tensor that is `Reach::Apart` depends on one token at most: that of its place on the axis of tokens.
//! - It does not depend on that place: the same token gives the same element elsewhere in a step.
//! - A step's number of tokens may change the sizes of such a tensor, and no element of it.
//!
//! There is one exception, which `docs/models.md` describes: `DynamicQuantizeLinear` computes one scale for all rows.
//!
//! `O(nodes)`, and two evaluations of the graph: a size that differs between them follows from the number of tokens.

mod branches;
mod indexed;
mod join;
mod moved;
mod operators;
mod picked;
mod reach;
mod set;
mod step;
mod summed;
mod walk;

pub(crate) use walk::{Inputs, check_apart};
