//! The rules of `lib/onnx/checkpoints.ts`, in Rust: `cases.json` holds the two against each other.

/// The positions of a prompt that matter.
pub struct Placing<'a> {
    pub block_size: u32,
    /// Tokens of the prompt.
    pub length: u32,
    /// Tokens that the sequence starts from.
    pub found: u32,
    /// Tokens that a prompt before this one had as well.
    pub seen: u32,
    /// The end of the part that tenants share.
    pub salt_from: Option<u32>,
    /// The positions that the caller names.
    pub named: &'a [u32],
    /// The most tokens between two checkpoints of a long prompt.
    pub interval: u32,
}

/// The most tokens between two checkpoints of a prompt, in a pool of `slots`.
pub fn interval_of(length: u32, slots: u32, block_size: u32) -> u32 {
    let share = length.div_ceil(8).max(512);
    share.max(length.div_ceil((slots / 2).max(1))).div_ceil(block_size) * block_size
}

/// The positions at which steps have to end, ascending.
pub fn checkpoints_of(placing: &Placing<'_>) -> Vec<u32> {
    let Placing { block_size: size, length, found, seen, salt_from, named, interval } = *placing;
    let last = length.saturating_sub(1) / size;
    let given = [length, seen].into_iter().chain(salt_from).chain(named.iter().copied());
    let mut ends: Vec<u32> = given.map(|position| (position / size).min(last)).collect();
    ends.retain(|&end| end * size > found);
    ends.sort_unstable();
    ends.dedup();
    let (mut all, mut before) = (Vec::new(), found / size);
    for end in ends {
        let parts = (end - before).div_ceil(interval / size);
        all.extend((1..=parts).map(|part| before + (end - before) * part / parts));
        before = end;
    }
    all.into_iter().map(|block| block * size).collect()
}
