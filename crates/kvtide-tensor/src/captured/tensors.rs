//! The tensors that a captured step reads and writes, kept as long as its graph.
//!
//! A tensor that the closure makes anew in each run is the graph's own on a device: the graph takes and gives back its memory, which
//! must not outlive the capture. Such a tensor has another storage in each of the two runs; those of the first run are kept until
//! the second is over, so that none gets the same storage again. O(1) a tensor.

use candle_core::Tensor;

use crate::device::edit::identity;
use crate::device::memory::DeviceTensor;

/// The tensors of a graph.
#[derive(Debug, Default)]
pub(super) struct GraphTensors {
    first_run: Vec<DeviceTensor>,
    kept: Vec<DeviceTensor>,
    /// In the second run, how many tensors were noted.
    noted: Option<usize>,
}

impl GraphTensors {
    /// Notes a tensor of a launch.
    pub fn add(&mut self, tensor: &Tensor) {
        let Some(noted) = &mut self.noted else { return self.first_run.push(DeviceTensor::new(tensor.clone())) };
        let is_same = self.first_run.get(*noted).is_some_and(|known| identity(known) == identity(tensor));
        *noted += 1;
        if is_same || tensor.device().is_cpu() {
            self.kept.push(DeviceTensor::new(tensor.clone()));
        }
    }

    /// The first run is over.
    pub fn begin_second_run(&mut self) {
        self.noted = Some(0);
    }

    /// Both runs are over: lets go of tensors that are not kept.
    pub fn settle(&mut self) {
        self.first_run = Vec::new();
    }
}
