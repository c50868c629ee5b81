//! What workers tell: blocks that can be found, and that can no longer be.

/// Events that were published together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// When, in seconds since 1970.
    pub time: f64,
    /// What happened, in order.
    pub events: Vec<Event>,
    /// Which of the workers that serve one model together; `data_parallel_rank` on the wire.
    pub rank: Option<u32>,
}

/// What happened to blocks.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Blocks that follow each other can be found.
    Stored(StoredBlocks),
    /// Blocks cannot be found any more.
    Removed(RemovedBlocks),
    /// No block can be found any more.
    Cleared,
}

/// Blocks that can be found now. What is optional is left out on the wire where there is none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoredBlocks {
    /// Their names, in order: each is behind the one before it.
    pub hashes: Vec<BlockHash>,
    /// The name of the block before them; none at the beginning of a prompt.
    pub parent: Option<BlockHash>,
    /// The tokens of all of them. Who hashes for itself, as Dynamo's indexer does, needs them.
    pub tokens: Vec<u32>,
    /// Tokens of a block.
    pub block_size: u32,
    /// The number of an adapter, from older publishers.
    pub lora_id: Option<u64>,
    /// The kind of memory: `GPU`, `CPU`, `DISK`; none is `GPU`.
    pub medium: Option<String>,
    /// The name of an adapter.
    pub lora_name: Option<String>,
    /// What separates those who must not find one another's blocks. It is published in clear: not the secret itself.
    pub cache_salt: Option<String>,
    /// What blocks depend on beside their tokens, an entry for each.
    pub extra_keys: Option<ExtraKeys>,
    /// The number of the group of layers.
    pub group: Option<u32>,
    /// What kind of attention the group has.
    pub spec_kind: Option<String>,
    /// How far its window reaches.
    pub sliding_window: Option<u32>,
}

/// Blocks that cannot be found any more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemovedBlocks {
    /// Their names, in no order.
    pub hashes: Vec<BlockHash>,
    /// The kind of memory that they were in.
    pub medium: Option<String>,
    /// The number of the group of layers.
    pub group: Option<u32>,
    /// What kind of attention the group has.
    pub spec_kind: Option<String>,
}

/// The name of a block, as its publisher writes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BlockHash {
    /// 64 bits. Dynamo's indexer takes no other form.
    Number(u64),
    /// Any number of bytes.
    Bytes(Box<[u8]>),
}

impl BlockHash {
    /// What an index knows the block by: the number, or the first eight bytes, little-endian.
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

/// What blocks depend on beside their tokens: msgpack as it came, of any form; it is passed on and not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExtraKeys(pub(super) Vec<u8>);

impl ExtraKeys {
    /// For each block its keys, or none.
    #[must_use]
    pub fn of_texts(blocks: &[Option<Vec<String>>]) -> Self {
        super::encode::extra_keys(blocks)
    }

    /// The msgpack.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}
