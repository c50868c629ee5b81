//! What a capture needs beside its launches: memory that stays where it is, so that nothing is taken or copied while it is under way.
//!
//! ```text
//! first run     lists that launches hand along are copied to the device and kept; memory for the length of a call is taken
//! capture       the same lists are found by what is in them, the same memory in the same order
//! replays       read and write it: the graph keeps it
//! ```
//!
//! O(lists) to find one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::allocation::Allocation;
#[cfg(feature = "emulate")]
use crate::emulated;
use crate::error::{Error, Result};
#[cfg(feature = "emulate")]
use crate::kernel::{Grid, Kernel};

/// A capture, or the run before it.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    is_capturing: bool,
    lists: Vec<(Box<[u8]>, Allocation, u64)>,
    free: Vec<Allocation>,
}

/// The launches of a graph.
#[cfg(feature = "captured-steps")]
pub(crate) enum Launches {
    #[cfg(feature = "cuda")]
    Gpu(crate::gpu::Captured),
    #[cfg(feature = "emulate")]
    Emulated(Vec<Enqueued>),
}

/// What the CPU does in a GPU's stead when it replays.
#[cfg(feature = "emulate")]
pub(crate) enum Enqueued {
    /// A launch: its arguments by value.
    Launch(&'static Kernel, Grid, Vec<u128>),
    /// Work of the caller's.
    Work(Box<dyn Fn() + Send>),
}

impl Recording {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on what is asked for has to be there.
    #[cfg(feature = "captured-steps")]
    pub fn begin(&self) {
        self.state().is_capturing = true;
    }

    /// Memory of at least so many bytes, which is to be given back: what is free, or what `take` gives.
    pub fn memory(&self, bytes: usize, take: impl FnOnce() -> Result<Allocation>) -> Result<Allocation> {
        let mut state = self.state();
        // The smallest that fits: with a large workspace for small sums, the capture would lack a workspace where the first run had one.
        let fits = state.free.iter().enumerate().filter(|(_, memory)| memory.bytes() >= bytes);
        let found = fits.min_by_key(|(_, memory)| memory.bytes()).map(|(index, _)| index);
        match found {
            Some(index) => Ok(state.free.remove(index)),
            None if state.is_capturing => Err(differs("it needs more memory")),
            None => take(),
        }
    }

    /// Memory that is no longer used.
    pub fn take_back(&self, memory: Allocation) {
        self.state().free.push(memory);
    }

    /// Where a list lies on the device: where it was put before, or where `put` puts it.
    pub fn list(&self, bytes: &[u8], put: impl FnOnce() -> Result<Allocation>) -> Result<u64> {
        let mut state = self.state();
        if let Some((.., address)) = state.lists.iter().find(|(known, ..)| **known == *bytes) {
            return Ok(*address);
        }
        if state.is_capturing {
            return Err(differs("it hands other numbers along"));
        }
        let mut memory = put()?;
        let address = memory.span().address();
        state.lists.push((bytes.into(), memory, address));
        Ok(address)
    }
}

#[cfg(feature = "emulate")]
impl Enqueued {
    /// A launch with its arguments as they are now.
    pub fn launch(kernel: &'static Kernel, grid: Grid, args: &[u8]) -> Self {
        let mut words = vec![0; args.len().div_ceil(size_of::<u128>())];
        bytemuck::cast_slice_mut(&mut words)[..args.len()].copy_from_slice(args);
        Enqueued::Launch(kernel, grid, words)
    }

    /// Does it.
    pub fn run(&self) -> Result<()> {
        match self {
            Enqueued::Launch(kernel, grid, args) => emulated::run(kernel, *grid, bytemuck::cast_slice(args)),
            Enqueued::Work(work) => {
                work();
                Ok(())
            }
        }
    }
}

#[cfg(feature = "emulate")]
impl std::fmt::Debug for Enqueued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Enqueued::Launch(kernel, grid, _) => write!(f, "{} {grid:?}", kernel.name),
            Enqueued::Work(_) => f.write_str("work"),
        }
    }
}

fn differs(how: &str) -> Error {
    Error::capture(format!("{how} than the run before it"))
}

#[cfg(all(test, feature = "emulate", feature = "captured-steps"))]
mod tests {
    use super::*;

    /// Takes and gives back as said: nothing gives everything back, in the order in which it was taken.
    fn calls(recording: &Recording, of: &[Option<usize>]) -> Result<()> {
        let mut held = Vec::new();
        for call in of {
            match call {
                Some(bytes) => held.push(recording.memory(*bytes, || Allocation::on_host(*bytes))?),
                None => held.drain(..).for_each(|memory| recording.take_back(memory)),
            }
        }
        held.into_iter().for_each(|memory| recording.take_back(memory));
        Ok(())
    }

    #[test]
    fn a_capture_finds_the_memory_of_the_run_before_it() {
        let orders: [&[Option<usize>]; 4] = [
            &[Some(1000), Some(10), None, Some(10), Some(1000)],
            &[Some(10), Some(1000), None, Some(1000), Some(10)],
            &[Some(1000), None, Some(10), Some(1000)],
            &[Some(500), Some(1000), Some(10), None, Some(10), Some(400), Some(1000)],
        ];
        for order in orders {
            let recording = Recording::default();
            calls(&recording, order).unwrap();
            recording.begin();
            calls(&recording, order).unwrap_or_else(|error| panic!("{order:?}: {error}"));
        }
        let recording = Recording::default();
        recording.begin();
        assert!(calls(&recording, &[Some(1)]).unwrap_err().to_string().contains("more memory"));
    }

    proptest::proptest! {
        #[test]
        fn whatever_is_taken_and_given_back(order in proptest::collection::vec(proptest::option::weighted(0.7, 0..40usize), 0..60)) {
            let recording = Recording::default();
            calls(&recording, &order).unwrap();
            recording.begin();
            proptest::prop_assert!(calls(&recording, &order).is_ok());
        }
    }
}
