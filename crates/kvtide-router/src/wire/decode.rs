//! Decodes batches in all forms that publishers use: batches and events as arrays or maps, hashes as numbers or bytes.
//! Unknown fields and events are skipped. Anything that is not a batch is an error. O(bytes), and memory in proportion.

use super::event::{Batch, BlockHash, Event, ExtraKeys, RemovedBlocks, StoredBlocks};
use super::reader::Reader;
use crate::error::{Error, Result};

/// Decodes a batch. Bytes after it are ignored.
pub fn decode(bytes: &[u8]) -> Result<Batch> {
    let mut reader = Reader::new(bytes);
    if reader.is_array() {
        return batch_of_array(&mut reader);
    }
    let (mut batch, mut has_events) = (Batch::default(), false);
    for _ in 0..reader.map("batch")? {
        match reader.text("field of a batch")? {
            "ts" => batch.time = reader.real("ts")?,
            "events" => {
                (batch.events, has_events) = (events(&mut reader)?, true);
            }
            "data_parallel_rank" | "dp_rank" => batch.rank = rank(&mut reader)?,
            _ => {
                reader.skip("field of a batch")?;
            }
        }
    }
    if has_events { Ok(batch) } else { Err(Error::corrupt("batch", "without events", "events")) }
}

fn batch_of_array(reader: &mut Reader<'_>) -> Result<Batch> {
    let length = reader.array("batch")?;
    if length < 2 {
        return Err(Error::corrupt("batch", length, "a time and events"));
    }
    let time = reader.real("ts")?;
    let events = events(reader)?;
    let rank = if length > 2 { rank(reader)? } else { None };
    Ok(Batch { time, events, rank })
}

fn rank(reader: &mut Reader<'_>) -> Result<Option<u32>> {
    reader.optional("data_parallel_rank", |reader| reader.small("data_parallel_rank"))
}

fn events(reader: &mut Reader<'_>) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    for _ in 0..reader.array("events")? {
        let event = if reader.is_array() { event_of_array(reader)? } else { event_of_map(reader)? };
        events.extend(event);
    }
    Ok(events)
}

/// The fields of an event, in the order of its array form.
const STORED: [&str; 11] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
];
const REMOVED: [&str; 4] = ["block_hashes", "medium", "group_idx", "kv_cache_spec_kind"];

fn event_of_array(reader: &mut Reader<'_>) -> Result<Option<Event>> {
    let length = reader.array("event")?;
    if length == 0 {
        return Err(Error::corrupt("event", "empty", "a type"));
    }
    let kind = reader.text("type")?;
    let names: &[&str] = match kind {
        "BlockStored" => &STORED,
        "BlockRemoved" => &REMOVED,
        _ => &[],
    };
    let mut fields = Fields::default();
    for place in 0..length - 1 {
        fields.read(names.get(place).copied().unwrap_or_default(), reader)?;
    }
    fields.event(kind)
}

fn event_of_map(reader: &mut Reader<'_>) -> Result<Option<Event>> {
    let (mut kind, mut fields) = (None, Fields::default());
    for _ in 0..reader.map("event")? {
        match reader.text("field of an event")? {
            "type" => kind = Some(reader.text("type")?),
            name => fields.read(name, reader)?,
        }
    }
    fields.event(kind.ok_or_else(|| Error::corrupt("event", "without a type", "a type"))?)
}

/// The fields of any event; `None` if missing.
#[derive(Default)]
struct Fields {
    hashes: Option<Vec<BlockHash>>,
    tokens: Option<Vec<u32>>,
    block_size: Option<u32>,
    /// All other fields.
    stored: StoredBlocks,
}

impl Fields {
    fn read(&mut self, name: &str, reader: &mut Reader<'_>) -> Result<()> {
        let stored = &mut self.stored;
        match name {
            "block_hashes" => self.hashes = Some(reader.list("block_hashes", hash)?),
            "parent_block_hash" => stored.parent = reader.optional("parent_block_hash", hash)?,
            "token_ids" => self.tokens = Some(reader.list("token_ids", |reader| reader.small("token_ids"))?),
            "block_size" => self.block_size = Some(reader.small("block_size")?),
            "lora_id" => stored.lora_id = reader.optional("lora_id", |reader| reader.bits("lora_id"))?,
            "medium" => stored.medium = text("medium", reader)?,
            "lora_name" => stored.lora_name = text("lora_name", reader)?,
            "cache_salt" => stored.cache_salt = text("cache_salt", reader)?,
            "extra_keys" => {
                let bytes = reader.optional("extra_keys", |reader| reader.skip("extra_keys"))?;
                stored.extra_keys = bytes.map(|bytes| ExtraKeys(bytes.to_vec()));
            }
            "group_idx" => stored.group = reader.optional("group_idx", |reader| reader.small("group_idx"))?,
            "kv_cache_spec_kind" => stored.spec_kind = text("kv_cache_spec_kind", reader)?,
            "kv_cache_spec_sliding_window" => {
                stored.sliding_window = reader.optional("sliding window", |reader| reader.small("sliding window"))?;
            }
            _ => {
                reader.skip("field of an event")?;
            }
        }
        Ok(())
    }

    /// The event; `None` if its type is unknown.
    fn event(self, kind: &str) -> Result<Option<Event>> {
        let missing = |field| Error::corrupt(field, "missing", "given");
        let Fields { hashes, tokens, block_size, stored } = self;
        let hashes = hashes.ok_or_else(|| missing("block_hashes"));
        Ok(match kind {
            "BlockStored" => Some(Event::Stored(StoredBlocks {
                hashes: hashes?,
                tokens: tokens.ok_or_else(|| missing("token_ids"))?,
                block_size: block_size.ok_or_else(|| missing("block_size"))?,
                ..stored
            })),
            "BlockRemoved" => {
                let StoredBlocks { medium, group, spec_kind, .. } = stored;
                Some(Event::Removed(RemovedBlocks { hashes: hashes?, medium, group, spec_kind }))
            }
            "AllBlocksCleared" => Some(Event::Cleared),
            _ => None,
        })
    }
}

fn text(what: &'static str, reader: &mut Reader<'_>) -> Result<Option<String>> {
    reader.optional(what, |reader| reader.text(what).map(str::to_owned))
}

fn hash(reader: &mut Reader<'_>) -> Result<BlockHash> {
    use rmp::Marker::{Bin8, Bin16, Bin32};
    match reader.peek("hash")? {
        Bin8 | Bin16 | Bin32 => Ok(BlockHash::Bytes(reader.binary("hash")?.into())),
        _ => reader.bits("hash").map(BlockHash::Number),
    }
}
