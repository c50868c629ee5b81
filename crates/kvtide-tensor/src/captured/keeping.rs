//! The tensors that a captured step reads and writes, kept as long as its graph.
//!
//! A tensor that the closure makes anew in each run is the graph's own on a device: its memory is taken and given back by the
//! graph, and must not outlive the capture. It is told from those that were there before by its storage, which differs between
//! the two runs: those of the first are kept until the second is over. O(1) a tensor.

use candle_core::Tensor;

use crate::device::edit::identity;

/// What is kept.
#[derive(Debug, Default)]
pub(super) struct Kept {
    first: Vec<Tensor>,
    all: Vec<Tensor>,
    /// In the second run, the place of the next one among those of the first.
    place: Option<usize>,
}

impl Kept {
    /// Notes a tensor of a launch.
    pub fn add(&mut self, tensor: &Tensor) {
        let Some(place) = &mut self.place else { return self.first.push(tensor.clone()) };
        let is_same = self.first.get(*place).is_some_and(|known| identity(known) == identity(tensor));
        *place += 1;
        if is_same || tensor.device().is_cpu() {
            self.all.push(tensor.clone());
        }
    }

    /// The second run begins, or is over.
    pub fn next_run(&mut self) {
        self.place = Some(0);
    }

    /// Those that stay.
    pub fn settled(mut self) -> Self {
        self.first = Vec::new();
        self
    }
}
