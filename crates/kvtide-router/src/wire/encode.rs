//! Encodes batches: an array whose events are maps, without optional fields that are not set. O(bytes).

use super::event::{Batch, BlockHash, Event, ExtraKeys, RemovedBlocks, StoredBlocks};
use super::writer::Writer;

/// Encodes a batch.
#[must_use]
pub fn encode(batch: &Batch) -> Vec<u8> {
    let mut out = Writer::new();
    out.array(3);
    out.float(batch.time);
    out.array(batch.events.len());
    for event in &batch.events {
        match event {
            Event::Stored(stored) => write_stored(&mut out, stored),
            Event::Removed(removed) => write_removed(&mut out, removed),
            Event::Cleared => {
                out.map(1);
                write_kind(&mut out, "AllBlocksCleared");
            }
        }
    }
    match batch.rank {
        Some(rank) => out.uint(rank.into()),
        None => out.nil(),
    }
    out.into_vec()
}

fn write_stored(out: &mut Writer, stored: &StoredBlocks) {
    let StoredBlocks { hashes, parent, tokens, block_size, .. } = stored;
    let texts = [
        ("medium", &stored.medium),
        ("lora_name", &stored.lora_name),
        ("cache_salt", &stored.cache_salt),
        ("kv_cache_spec_kind", &stored.spec_kind),
    ];
    let numbers = [
        ("lora_id", stored.lora_id),
        ("group_idx", stored.group.map(u64::from)),
        ("kv_cache_spec_sliding_window", stored.sliding_window.map(u64::from)),
    ];
    let optional = texts.iter().filter(|(_, text)| text.is_some()).count()
        + numbers.iter().filter(|(_, number)| number.is_some()).count()
        + usize::from(stored.extra_keys.is_some());
    out.map(5 + optional);
    write_kind(out, "BlockStored");
    write_hashes(out, hashes);
    out.text("parent_block_hash");
    match parent {
        Some(parent) => write_hash(out, parent),
        None => out.nil(),
    }
    out.text("token_ids");
    out.array(tokens.len());
    tokens.iter().for_each(|&token| out.uint(token.into()));
    out.text("block_size");
    out.uint((*block_size).into());
    texts.into_iter().for_each(|(name, text)| write_optional_text(out, name, text.as_deref()));
    numbers.into_iter().for_each(|(name, number)| write_optional_uint(out, name, number));
    if let Some(ExtraKeys(bytes)) = &stored.extra_keys {
        out.text("extra_keys");
        out.encoded(bytes);
    }
}

fn write_removed(out: &mut Writer, removed: &RemovedBlocks) {
    let RemovedBlocks { hashes, medium, group, spec_kind } = removed;
    let optional = [medium.is_some(), group.is_some(), spec_kind.is_some()];
    out.map(2 + optional.iter().filter(|is_there| **is_there).count());
    write_kind(out, "BlockRemoved");
    write_hashes(out, hashes);
    write_optional_text(out, "medium", medium.as_deref());
    write_optional_uint(out, "group_idx", group.map(u64::from));
    write_optional_text(out, "kv_cache_spec_kind", spec_kind.as_deref());
}

fn write_kind(out: &mut Writer, name: &str) {
    out.text("type");
    out.text(name);
}

fn write_hashes(out: &mut Writer, hashes: &[BlockHash]) {
    out.text("block_hashes");
    out.array(hashes.len());
    hashes.iter().for_each(|hash| write_hash(out, hash));
}

fn write_hash(out: &mut Writer, hash: &BlockHash) {
    match hash {
        BlockHash::Number(number) => out.uint(*number),
        BlockHash::Bytes(bytes) => out.bytes(bytes),
    }
}

fn write_optional_text(out: &mut Writer, name: &str, text: Option<&str>) {
    if let Some(text) = text {
        out.text(name);
        out.text(text);
    }
}

fn write_optional_uint(out: &mut Writer, name: &str, number: Option<u64>) {
    if let Some(number) = number {
        out.text(name);
        out.uint(number);
    }
}
