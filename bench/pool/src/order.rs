//! Orders that prefetchers cannot predict, the same in every run.
//!
//! ```text
//! shuffled(5, 0)   3 0 4 1 2
//! ```
//!
//! O(n).

/// Numbers below `n`, each once; in another order for each `seed`.
pub fn shuffled(n: u32, seed: u64) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..n).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15u64.wrapping_add(seed);
    for at in (1..numbers.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        numbers.swap(at, ((state >> 33) as usize) % (at + 1));
    }
    numbers
}
