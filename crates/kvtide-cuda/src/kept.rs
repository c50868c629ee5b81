//! Numbers that several consecutive calls pass to a device: they are uploaded once, as long as they stay the same.
//!
//! The block tables of a step are such numbers: they are the same in all layers, and with long contexts they are most of a
//! call's upload. O(numbers) to compare, and to write if they differ.

use std::sync::{Mutex, PoisonError};

use crate::attend::Words;
use crate::error::Result;
use crate::memory::DeviceMemory;
use crate::stream::Stream;

/// The number of words that always fit in a call's arguments; so few are passed with the call.
const FEW: usize = 128;

/// The words that were last uploaded.
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
    /// Calls `work` with these numbers in memory that a launch on this stream can read. All calls must use the same stream.
    pub fn with<T, E: From<crate::Error>>(
        &self,
        stream: &Stream,
        words: &[u32],
        work: impl FnOnce(Words<'_>) -> std::result::Result<T, E>,
    ) -> std::result::Result<T, E> {
        if words.len() <= FEW {
            return work(Words::Host(words));
        }
        let kept = &mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.memory.is_none() || kept.words != words {
            kept.write(stream, words)?;
        }
        let memory = kept.memory.as_mut().expect("memory that was written");
        work(Words::Device(memory.span()))
    }

    /// The number of uploads.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).writes
    }
}

impl Kept {
    fn write(&mut self, stream: &Stream, words: &[u32]) -> Result<()> {
        // Launches that read the old words were enqueued before, and memory is freed in the stream's order.
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
