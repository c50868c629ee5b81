//! Memory that calls reuse.

use crate::cut::Candidate;

/// Memory that calls reuse: at most a copy of a row, and 16 bytes for each token that may be drawn, of two models and once more.
#[derive(Debug, Default)]
pub struct Workspace {
    pub(crate) row: Vec<f32>,
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) spare: Vec<Candidate>,
    pub(crate) drafts: Vec<Candidate>,
    pub(crate) sums: Vec<u64>,
}
