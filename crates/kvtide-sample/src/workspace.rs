//! Scratch memory that calls reuse.

use crate::cut::Candidate;

/// Scratch memory that calls reuse: at most a copy of a row, and three lists of 16 bytes for each token that can be
/// drawn.
#[derive(Debug, Default)]
pub struct Workspace {
    pub(crate) row: Vec<f32>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) spare: Vec<Candidate>,
    pub(crate) drafts: Vec<Candidate>,
    pub(crate) sums: Vec<u64>,
}
