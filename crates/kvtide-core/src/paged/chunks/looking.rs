//! Looking at tables: a look-up is O(height), a walk O(entries), a check O(chunks).

use super::{CHUNK, Chunk, Chunks, Counts, NONE, Table, slot, span};

static CLEARED: [u32; CHUNK] = [NONE; CHUNK];

impl Chunks {
    /// The block at a place, unless it was cleared or is outside.
    pub fn get(&self, table: &Table, place: u32) -> Option<u32> {
        self.leaf(table, place)?.first().copied().filter(|&block| block != NONE)
    }

    /// The entries from a place on that lie side by side, up to the table's end; [`None`] outside. Cleared ones are there.
    pub fn leaf(&self, table: &Table, place: u32) -> Option<&[u32]> {
        if place >= table.len {
            return None;
        }
        let mut chunk = table.root;
        for level in (1..=table.height).rev() {
            chunk = self.chunks.get(chunk as usize)?.entries[slot(place, level)];
        }
        let first = slot(place, 0);
        let count = (table.len - place).min((CHUNK - first) as u32) as usize;
        Some(self.chunks.get(chunk as usize).map_or(&CLEARED[..count], |chunk| &chunk.entries[first..first + count]))
    }

    /// The blocks from a place on; [`None`] for those that were cleared.
    pub fn iter(&self, table: &Table, place: u32) -> impl Iterator<Item = Option<u32>> {
        let mut place = place;
        std::iter::from_fn(move || {
            let leaf = self.leaf(table, place)?;
            place += leaf.len() as u32;
            Some(leaf)
        })
        .flatten()
        .map(|&block| (block != NONE).then_some(block))
    }

    /// Whether another table leads to this place by the same chunk.
    pub fn is_shared(&self, table: &Table, place: u32) -> bool {
        let mut chunk = table.root;
        for level in (0..=table.height).rev() {
            let Some(at) = self.chunks.get(chunk as usize) else { return false };
            if at.holders > 1 {
                return true;
            }
            chunk = at.entries[slot(place, level)];
        }
        false
    }

    /// Tells the blocks before a place what was released behind them, last ones first. O(blocks), or nothing where there is
    /// nothing to tell.
    pub fn hand_on(&self, table: &Table, end: u32, counts: &mut impl Counts) {
        self.hand_on_in(table.root, table.height, 0, end, counts);
    }

    /// The same below a chunk whose first place is `first`.
    pub(super) fn hand_on_in(&self, index: u32, height: u32, first: u32, end: u32, counts: &mut impl Counts) {
        if index == NONE || !counts.hands_on() {
            return;
        }
        let entries = &self.chunks[index as usize].entries;
        for (at, &entry) in entries.iter().enumerate().rev().filter(|(_, entry)| **entry != NONE) {
            let start = first + span(at, height);
            match height {
                _ if start >= end => {}
                0 => counts.hand_on(entry),
                _ => self.hand_on_in(entry, height - 1, start, end, counts),
            }
        }
    }

    /// Bytes taken.
    pub fn bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>() + self.free.capacity() * size_of::<u32>()
    }

    /// Chunks in use.
    #[cfg(test)]
    pub fn in_use(&self) -> usize {
        self.chunks.len() - self.free.len()
    }

    /// Notes the blocks that tables lead to, once for each chunk that holds them, and says what is wrong with the chunks.
    pub fn check(&self, tables: &[&Table], mut note: impl FnMut(u32)) -> Result<(), String> {
        let mut holders = vec![0; self.chunks.len()];
        let mut open: Vec<(u32, u32)> =
            tables.iter().filter(|table| table.root != NONE).map(|table| (table.root, table.height)).collect();
        while let Some((index, height)) = open.pop() {
            let chunk = self.chunks.get(index as usize).ok_or_else(|| format!("chunk {index} is not there"))?;
            holders[index as usize] += 1;
            if holders[index as usize] > 1 {
                continue;
            }
            for &entry in chunk.entries.iter().filter(|&&entry| entry != NONE) {
                if height == 0 { note(entry) } else { open.push((entry, height - 1)) }
            }
        }
        for &index in &self.free {
            holders[index as usize] += self.chunks[index as usize].holders + 1;
            if holders[index as usize] != 1 {
                return Err(format!("chunk {index} is free and held"));
            }
            holders[index as usize] = 0;
        }
        match holders.iter().zip(&self.chunks).position(|(&found, chunk)| found != chunk.holders) {
            Some(index) => {
                Err(format!("chunk {index} counts {} holders, has {}", self.chunks[index].holders, holders[index]))
            }
            None => Ok(()),
        }
    }
}
