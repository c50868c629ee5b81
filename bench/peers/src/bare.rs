//! The same moves in plain memory, in the caches' layout but without a cache: the limit of their speed.
//!
//! There are no shape checks, no views and no errors. K and V are `[HEADS, slots, HEAD_DIM]` each.

use bytemuck::Zeroable;

use crate::large::zeros;
use crate::tokens::{HEAD_DIM, HEADS, TOKEN, Tokens};

pub struct BareRows<T> {
    slots: usize,
    parts: [Vec<T>; 2],
}

impl<T: Copy + Zeroable> BareRows<T> {
    pub fn new(slots: usize) -> Self {
        BareRows { slots, parts: [zeros(slots * TOKEN), zeros(slots * TOKEN)] }
    }

    pub fn write(&mut self, slot: usize, tokens: &Tokens<T>) {
        let row = tokens.count * HEAD_DIM;
        for (part, source) in self.parts.iter_mut().zip([&tokens.k, &tokens.v]) {
            for head in 0..HEADS {
                let at = (head * self.slots + slot) * HEAD_DIM;
                part[at..at + row].copy_from_slice(&source[head * row..][..row]);
            }
        }
    }

    pub fn move_to_front(&mut self, from: usize, count: usize) {
        for part in &mut self.parts {
            for head in part.chunks_exact_mut(self.slots * HEAD_DIM) {
                head.copy_within(from * HEAD_DIM..(from + count) * HEAD_DIM, 0);
            }
        }
    }

    pub fn copy_from(&mut self, other: &Self, count: usize) {
        for (target, source) in self.parts.iter_mut().zip(&other.parts) {
            let heads = target.chunks_exact_mut(self.slots * HEAD_DIM).zip(source.chunks_exact(other.slots * HEAD_DIM));
            for (target, source) in heads {
                target[..count * HEAD_DIM].copy_from_slice(&source[..count * HEAD_DIM]);
            }
        }
    }

    /// Returns the K of some slots, in the order of a tensor.
    #[cfg(test)]
    pub fn keys(&self, from: usize, count: usize) -> Vec<T> {
        let heads = self.parts[0].chunks_exact(self.slots * HEAD_DIM);
        heads.flat_map(|head| head[from * HEAD_DIM..][..count * HEAD_DIM].to_vec()).collect()
    }
}

/// A window that moves through the free slots behind it, and to the front when they are used up.
pub struct BareWindow<T> {
    pub rows: BareRows<T>,
    window: usize,
    start: usize,
    end: usize,
}

impl<T: Copy + Zeroable> BareWindow<T> {
    pub fn new(window: usize, slack: usize) -> Self {
        BareWindow { rows: BareRows::new(window + slack), window, start: 0, end: 0 }
    }

    /// Appends tokens and returns the slots of all retained and all new tokens; for one token, those of the window
    /// alone.
    pub fn append(&mut self, tokens: &Tokens<T>) -> std::ops::Range<usize> {
        if tokens.count == 1 && self.end - self.start == self.window {
            self.start += 1;
        }
        if self.end + tokens.count > self.rows.slots {
            self.rows.move_to_front(self.start, self.end - self.start);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.rows.write(self.end, tokens);
        self.end += tokens.count;
        let shown = self.start..self.end;
        self.start = self.start.max(self.end.saturating_sub(self.window));
        shown
    }
}

/// Rows that double when they are full.
pub struct BareGrowing<T> {
    pub rows: BareRows<T>,
    len: usize,
}

impl<T: Copy + Zeroable> BareGrowing<T> {
    pub fn new(slots: usize) -> Self {
        BareGrowing { rows: BareRows::new(slots), len: 0 }
    }

    pub fn append(&mut self, tokens: &Tokens<T>) {
        if self.len + tokens.count > self.rows.slots {
            let mut larger = BareRows::new((2 * self.rows.slots).max(self.len + tokens.count));
            larger.copy_from(&self.rows, self.len);
            self.rows = larger;
        }
        self.rows.write(self.len, tokens);
        self.len += tokens.count;
    }

    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

#[cfg(test)]
mod tests {
    use kvtide_tensor::{KvCache, KvCacheOptions, RotatingCacheOptions, RotatingKvCache};

    use super::*;

    #[test]
    fn a_bare_window_shows_what_the_cache_shows() {
        let options = RotatingCacheOptions { max_seq_len: 8, slack: Some(3), ..Default::default() };
        let mut cache = RotatingKvCache::new(options).unwrap();
        let mut bare = BareWindow::<f32>::new(8, 3);
        for (seed, count) in [5, 3, 1, 1, 1, 1, 1, 2, 1, 3, 1, 1].into_iter().enumerate() {
            let tokens = Tokens::new(count, seed).unwrap();
            let shown = bare.append(&tokens);
            let seen = cache.append(&tokens.k_tensor, &tokens.v_tensor).unwrap();
            assert_eq!(seen.k.to_f32().unwrap(), bare.rows.keys(shown.start, shown.len()), "append {seed}");
        }
    }

    #[test]
    fn bare_rows_grow_as_the_cache_does() {
        let options = KvCacheOptions {
            num_kv_heads: HEADS as u32,
            head_dim: HEAD_DIM as u32,
            initial_capacity: 2,
            ..Default::default()
        };
        let mut cache = KvCache::new(options).unwrap();
        let mut bare = BareGrowing::<f32>::new(2);
        for seed in 0..9 {
            let tokens = Tokens::new(1, seed).unwrap();
            bare.append(&tokens);
            let seen = cache.update(&tokens.k_tensor, &tokens.v_tensor).unwrap();
            assert_eq!(seen.k.to_f32().unwrap(), bare.rows.keys(0, seed + 1));
        }
        bare.truncate(1);
        bare.append(&Tokens::new(1, 1).unwrap());
        assert_eq!(bare.rows.keys(0, 2), cache.get_kv().unwrap().k.narrow(2, 0, 2).unwrap().to_f32().unwrap());
    }
}
