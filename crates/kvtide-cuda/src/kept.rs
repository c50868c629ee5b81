//! Numbers that several calls hand along, one after the other: a device gets them once, for as long as they stay the same.
//!
//! The block tables of a step are such numbers: all layers have the same, and at long contexts they are most of what a call uploads.
//! O(numbers) to compare, and to write where they differ.

use std::sync::{Mutex, PoisonError};

use crate::attend::Words;
use crate::error::Result;
use crate::memory::DeviceMemory;
use crate::stream::Stream;

/// Numbers that fit beside a call's arguments at any time: these are handed along.
const FEW: usize = 128;

/// What was handed along last.
#[derive(Debug, Default)]
pub struct KeptWords {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    words: Vec<u32>,
    memory: Option<DeviceMemory>,
    writes: u64,
}

impl KeptWords {
    /// Calls `work` with these numbers where a launch on this stream reads them. It is the stream of all calls.
    pub fn with<T, E: From<crate::Error>>(
        &self,
        stream: &Stream,
        words: &[u32],
        work: impl FnOnce(Words<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        // What a graph repeats has to keep what it reads.
        if words.len() <= FEW || stream.is_recorded() {
            return work(Words::Host(words));
        }
        let kept = &mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.memory.is_none() || kept.words != words {
            kept.write(stream, words)?;
        }
        let memory = kept.memory.as_mut().expect("memory that was written");
        work(Words::Device(memory.span()))
    }

    /// How often numbers were written to the device.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).writes
    }
}

impl Kept {
    fn write(&mut self, stream: &Stream, words: &[u32]) -> Result<()> {
        // Launches that read the old ones were enqueued before: memory is given back behind them.
        self.memory = None;
        let mut memory = stream.memory(size_of_val(words))?;
        stream.upload(bytemuck::cast_slice(words), memory.span())?;
        self.words.clear();
        self.words.extend_from_slice(words);
        self.memory = Some(memory);
        self.writes += 1;
        Ok(())
    }
}
