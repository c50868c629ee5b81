//! Where the memory of a run comes from.
//!
//! An allocator that sometimes asks the system and sometimes reuses what was freed makes a lane slow or fast by what the lane
//! before it happened to leave behind: the first touch of a page costs as much as copying several. So each workload runs in a
//! process of its own, with glibc's allocator told to do always the one or always the other. Other allocators are left as
//! they are.

use serde::{Deserialize, Serialize};

/// What large allocations get.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Memory {
    /// Pages that the system gives at the first touch: what the first cache of a process pays, whoever made it.
    New,
    /// Pages that were touched before: what a process pays that has run for a while. Kindest to those who copy.
    Reused,
}

impl Memory {
    /// What tells the allocator of a process so, in its environment.
    pub fn environment(self) -> (&'static str, &'static str) {
        let tunables = match self {
            Memory::New => "glibc.malloc.mmap_threshold=131072",
            Memory::Reused => "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=68719476736",
        };
        ("GLIBC_TUNABLES", tunables)
    }

    /// In words, for titles.
    pub fn words(self) -> &'static str {
        match self {
            Memory::New => "new memory",
            Memory::Reused => "reused memory",
        }
    }
}
