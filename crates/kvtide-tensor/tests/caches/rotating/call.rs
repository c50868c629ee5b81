//! The setup and the calls of a random test of a rotating cache.

use kvtide_tensor::RotatingCacheOptions;

use crate::sources::Form;
use crate::tokens::Rows;

/// A call. Numbers that choose among what is there are taken modulo how much there is.
#[derive(Clone, Debug)]
pub enum Op {
    Append(u32, [Form; 2]),
    /// The cache's own view, or a part of it.
    AppendOwn(u32, u32),
    SetLen(u64),
    Reset,
    /// Keeps the present view and a part of it.
    Look(u32, u32),
    Forget(u32),
    Snapshot,
    DropSnapshot(u32),
    Restore(u32),
    /// Restores into a cache that had so many tokens of its own, with another slack.
    RestoreElsewhere(u32, u32, u32, End),
    /// Goes on in a new cache that is made from a snapshot and so many accepted tokens.
    Revive(u32, u32, Form, End),
    Accepted(u32, u64, u64, u64),
}

/// The fate of a cache that another one takes over from.
#[derive(Clone, Copy, Debug)]
pub enum End {
    Drop,
    Close,
}

#[derive(Clone, Debug)]
pub struct Setup {
    pub rows: Rows,
    pub window: u32,
    pub sinks: u32,
    pub slack: Option<u32>,
    pub capacity: Option<u32>,
    pub limit: Option<u64>,
}

impl Setup {
    pub fn options(&self) -> RotatingCacheOptions {
        RotatingCacheOptions {
            dim: self.rows.axis,
            max_seq_len: self.window,
            capacity_seq_len: self.capacity,
            sinks: self.sinks,
            slack: self.slack,
            memory_limit_bytes: self.limit,
            ..Default::default()
        }
    }
}
