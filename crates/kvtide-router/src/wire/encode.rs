//! Encodes batches: an array whose events are maps, without optional fields that are not set. O(bytes).

use rmp::encode::{ByteBuf, write_array_len, write_bin, write_f64, write_map_len, write_nil, write_str, write_uint};

use super::event::{Batch, BlockHash, Event, ExtraKeys, RemovedBlocks, StoredBlocks};

/// Encodes a batch.
#[must_use]
pub fn encode(batch: &Batch) -> Vec<u8> {
    let mut out = Writer(ByteBuf::new());
    out.array(3);
    let Ok(()) = write_f64(&mut out.0, batch.time);
    out.array(batch.events.len());
    for event in &batch.events {
        match event {
            Event::Stored(stored) => out.stored(stored),
            Event::Removed(removed) => out.removed(removed),
            Event::Cleared => {
                out.map(1);
                out.kind("AllBlocksCleared");
            }
        }
    }
    match batch.rank {
        Some(rank) => out.uint(rank.into()),
        None => out.nil(),
    }
    out.0.into_vec()
}

pub(super) fn extra_keys(blocks: &[Option<Vec<String>>]) -> ExtraKeys {
    let mut out = Writer(ByteBuf::new());
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
    ExtraKeys(out.0.into_vec())
}

/// Writes msgpack to memory, which cannot fail.
struct Writer(ByteBuf);

impl Writer {
    fn stored(&mut self, stored: &StoredBlocks) {
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
        self.map(5 + optional);
        self.kind("BlockStored");
        self.hashes(hashes);
        self.text("parent_block_hash");
        match parent {
            Some(parent) => self.hash(parent),
            None => self.nil(),
        }
        self.text("token_ids");
        self.array(tokens.len());
        tokens.iter().for_each(|&token| self.uint(token.into()));
        self.text("block_size");
        self.uint((*block_size).into());
        texts.into_iter().for_each(|(name, text)| self.optional_text(name, text.as_deref()));
        numbers.into_iter().for_each(|(name, number)| self.optional_uint(name, number));
        if let Some(ExtraKeys(bytes)) = &stored.extra_keys {
            self.text("extra_keys");
            self.0.as_mut_vec().extend(bytes);
        }
    }

    fn removed(&mut self, removed: &RemovedBlocks) {
        let RemovedBlocks { hashes, medium, group, spec_kind } = removed;
        let optional = [medium.is_some(), group.is_some(), spec_kind.is_some()];
        self.map(2 + optional.iter().filter(|is_there| **is_there).count());
        self.kind("BlockRemoved");
        self.hashes(hashes);
        self.optional_text("medium", medium.as_deref());
        self.optional_uint("group_idx", group.map(u64::from));
        self.optional_text("kv_cache_spec_kind", spec_kind.as_deref());
    }

    fn kind(&mut self, name: &str) {
        self.text("type");
        self.text(name);
    }

    fn hashes(&mut self, hashes: &[BlockHash]) {
        self.text("block_hashes");
        self.array(hashes.len());
        hashes.iter().for_each(|hash| self.hash(hash));
    }

    fn hash(&mut self, hash: &BlockHash) {
        match hash {
            BlockHash::Number(number) => self.uint(*number),
            BlockHash::Bytes(bytes) => {
                let Ok(()) = write_bin(&mut self.0, bytes);
            }
        }
    }

    fn optional_text(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name);
            self.text(text);
        }
    }

    fn optional_uint(&mut self, name: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.text(name);
            self.uint(number);
        }
    }

    fn array(&mut self, length: usize) {
        let Ok(_) = write_array_len(&mut self.0, length as u32);
    }

    fn map(&mut self, length: usize) {
        let Ok(_) = write_map_len(&mut self.0, length as u32);
    }

    fn text(&mut self, text: &str) {
        let Ok(()) = write_str(&mut self.0, text);
    }

    fn uint(&mut self, number: u64) {
        let Ok(_) = write_uint(&mut self.0, number);
    }

    fn nil(&mut self) {
        let Ok(()) = write_nil(&mut self.0);
    }
}
