//! The rules of `lib/onnx/checkpoints.ts`, in Rust: `cases.json` holds the two against each other.

/// The positions of a prompt that matter.
pub struct Placing<'a> {
    pub block_size: u32,
    /// Tokens of the prompt.
    pub length: u32,
    /// Tokens that the sequence starts from.
    pub found: u32,
    /// Tokens before the deepest checkpoint that the prompt has.
    pub reached: u32,
    /// Tokens that a prompt before this one had as well.
    pub seen: u32,
    /// The end of the part that tenants share.
    pub salt_from: Option<u32>,
    /// The positions that the caller names.
    pub named: &'a [u32],
    /// Number of states that the cache has room for.
    pub slots: u32,
}

/// The positions near the end of a prompt, the last one first: at most `most`.
fn near_end(placing: &Placing<'_>, most: u32) -> Vec<u32> {
    let computed = placing.length - placing.found;
    let mut positions = Vec::new();
    let mut distance = placing.block_size.max(16);
    while computed >= 512 && distance <= computed / 4 && positions.len() < most as usize {
        positions.push(placing.length - distance);
        distance *= 8;
    }
    positions
}

/// The positions at which steps have to end, ascending.
pub fn checkpoints_of(placing: &Placing<'_>) -> Vec<u32> {
    let Placing { block_size: size, length, found, reached, seen, salt_from, named, slots } = *placing;
    let room = (slots / 2).max(1);
    let near = near_end(placing, (room - 1) / 2);
    let most = room - near.len() as u32;
    let interval = length.div_ceil(4).max(1024).max(length.div_ceil(most)).div_ceil(size);
    let last = length.saturating_sub(1) / size;
    let end = (length - reached > 128).then_some(length);
    let given = near.into_iter().chain(end).chain([seen]).chain(salt_from).chain(named.iter().copied());
    let mut ends: Vec<u32> = given.map(|position| (position / size).min(last)).collect();
    ends.retain(|&end| end * size > found);
    ends.sort_unstable();
    ends.dedup();
    let (mut all, mut before) = (Vec::new(), found / size);
    for end in ends {
        let parts = (end - before).div_ceil(interval);
        all.extend((1..=parts).map(|part| before + (end - before) * part / parts));
        before = end;
    }
    all.into_iter().map(|block| block * size).collect()
}
