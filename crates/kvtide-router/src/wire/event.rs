//! Events of workers: blocks that were cached, and blocks that were removed.

use super::writer::Writer;

/// Events that were published together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// The time, in seconds since 1970.
    pub time: f64,
    /// The events, in order.
    pub events: Vec<Event>,
    /// The worker's rank among those that serve one model together; `data_parallel_rank` on the wire.
    pub rank: Option<u32>,
}

/// A change of cached blocks.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Consecutive blocks were cached.
    Stored(StoredBlocks),
    /// Blocks were removed.
    Removed(RemovedBlocks),
    /// All blocks were removed.
    Cleared,
}

/// Blocks that were cached. Optional fields that are `None` are left out on the wire.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredBlocks {
    /// Their hashes, in order: each block follows the one before it.
    pub hashes: Vec<BlockHash>,
    /// The hash of the block before them; `None` at the beginning of a prompt.
    pub parent: Option<BlockHash>,
    /// The token ids of all of them. Readers that compute hashes themselves, such as Dynamo's indexer, need them.
    pub tokens: Vec<u32>,
    /// The number of tokens in a block.
    pub block_size: u32,
    /// The number of an adapter, from older publishers.
    pub lora_id: Option<u64>,
    /// The kind of memory: `GPU`, `CPU` or `DISK`; `None` means `GPU`.
    pub medium: Option<String>,
    /// The name of an adapter.
    pub lora_name: Option<String>,
    /// Keeps apart the blocks of users that must not share them. It is published in clear text, so it must not be the
    /// secret itself.
    pub cache_salt: Option<String>,
    /// The dependencies of blocks besides their tokens, one entry per block.
    pub extra_keys: Option<ExtraKeys>,
    /// The number of the group of layers.
    pub group: Option<u32>,
    /// The kind of attention of the group.
    pub spec_kind: Option<String>,
    /// The window of the group, in tokens.
    pub sliding_window: Option<u32>,
}

/// Blocks that were removed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemovedBlocks {
    /// Their hashes, in no particular order.
    pub hashes: Vec<BlockHash>,
    /// The kind of memory that they were in.
    pub medium: Option<String>,
    /// The number of the group of layers.
    pub group: Option<u32>,
    /// The kind of attention of the group.
    pub spec_kind: Option<String>,
}

/// The hash of a block, in its publisher's form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BlockHash {
    /// 64 bits, the only form that Dynamo's indexer accepts.
    Number(u64),
    /// Any number of bytes.
    Bytes(Box<[u8]>),
}

impl BlockHash {
    /// The key of the block in an index: the number, or the first eight bytes, little-endian.
    #[must_use]
    pub fn key(&self) -> u64 {
        match self {
            BlockHash::Number(number) => *number,
            BlockHash::Bytes(bytes) => {
                let mut first = [0; 8];
                let count = bytes.len().min(8);
                first[..count].copy_from_slice(&bytes[..count]);
                u64::from_le_bytes(first)
            }
        }
    }
}

impl From<u64> for BlockHash {
    fn from(number: u64) -> Self {
        BlockHash::Number(number)
    }
}

/// The dependencies of blocks besides their tokens: msgpack in any form, passed on unread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraKeys(pub(super) Vec<u8>);

impl ExtraKeys {
    /// Encodes the keys of each block; `None` for a block without any.
    #[must_use]
    pub fn of_texts(blocks: &[Option<Vec<String>>]) -> Self {
        let mut out = Writer::new();
        out.array(blocks.len());
        for keys in blocks {
            match keys {
                Some(keys) => {
                    out.array(keys.len());
                    keys.iter().for_each(|key| out.text(key));
                }
                None => out.nil(),
            }
        }
        ExtraKeys(out.into_vec())
    }

    /// The msgpack bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
