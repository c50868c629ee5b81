//! Returns no lanes, for builds without ggml.

use kvtide_bench::{Lane, Result};

use super::layers::Layers;

pub fn lanes(_: &Layers) -> Result<Vec<Lane<'static>>> {
    Ok(Vec::new())
}

pub fn low_bit_lanes(_: &Layers, _: usize) -> Result<Vec<Lane<'static>>> {
    Ok(Vec::new())
}
