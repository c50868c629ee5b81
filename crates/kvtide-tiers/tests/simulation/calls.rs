//! The calls of a trace.

use proptest::prelude::*;

use crate::rows::FORMS;

/// The shape of the workers.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// The index of a form of `rows::form`.
    pub form: usize,
    /// The blocks of each group.
    pub blocks: u32,
    /// The limit of the memory tier in bytes, if there is one.
    pub memory: Option<u64>,
    /// The policy of the store: commit, second use, eviction.
    pub policy: u8,
    /// Entries are compressed; sealed.
    pub envelope: (bool, bool),
    /// The hexadecimal digits of a key that the store knows, if it does not know all: 1 or 2, so that keys collide.
    pub digits: Option<u8>,
}

/// The fate of a call that a job has sent to the store.
#[derive(Clone, Copy, Debug)]
pub enum Fate {
    Answers,
    /// The call fails; true if the store had carried it out before.
    Fails(bool),
    /// The deadline passes; the answer arrives later, or never.
    Late,
    Abandoned,
}

/// A call. A `usize` picks one of the sequences, snapshots or jobs there are; tokens are drawn from very few, so that
/// prompts have much in common.
#[derive(Clone, Debug)]
pub enum Call {
    /// The other worker makes the next calls.
    Other,
    Prompt(Vec<u32>, u8, bool),
    Append(usize, Vec<u32>, bool),
    Fork(usize),
    Drop(usize),
    Truncate(usize, u32),
    Snapshot(usize),
    Restore(usize, usize),
    /// Tokens that are tried, and the number of them that is kept.
    Draft(usize, Vec<u32>, u32),
    /// Saves a sequence, and loads it into the other worker's cache.
    Move(usize),
    Forget,
    HandDown(usize),
    /// Begins to restore a prompt.
    Ask(Vec<u32>, u8),
    /// Begins to write queued blocks; to probe the store.
    Write,
    Probe,
    BeginSave,
    BeginLoad,
    /// Advances a job by one step.
    Step(usize, Fate),
    /// Advances a job until it ends.
    Finish(usize),
    /// A late answer arrives.
    Arrive(usize),
    /// A job is dropped.
    GiveUp(usize),
    /// The store is down, or up again.
    Down(bool),
    /// Something happens to an entry of the store.
    Damage(u8, u32),
    /// A later call of the disk fails.
    DiskFails(u8),
    /// The budget of the tiers has this much room.
    Budget(u32),
    Advance(u32),
    /// The worker is killed and starts again.
    Kill,
    /// The power fails, possibly during a save, at this call of the disk.
    PowerLoss(Option<u8>, u32),
}

pub fn shape() -> impl Strategy<Value = Shape> {
    let memory = prop_oneof![2 => Just(None), 3 => (1000..9000u64).prop_map(Some), 2 => Just(Some(u64::MAX))];
    let policy = prop_oneof![3 => Just(0u8), 1 => Just(1u8), 1 => Just(2u8)];
    let digits = prop_oneof![6 => Just(None), 1 => Just(Some(1u8)), 1 => Just(Some(2u8))];
    let parts = (0..FORMS, 8..16u32, memory, policy, any::<(bool, bool)>(), digits);
    parts.prop_map(|(form, blocks, memory, policy, envelope, digits)| Shape {
        form,
        blocks,
        memory,
        policy,
        envelope,
        digits,
    })
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        6 => Just(Fate::Answers),
        1 => any::<bool>().prop_map(Fate::Fails),
        1 => Just(Fate::Late),
        1 => Just(Fate::Abandoned),
    ]
}

pub fn call() -> impl Strategy<Value = Call> {
    let of = || 0..4usize;
    let tokens = || prop_oneof![1 => prop::collection::vec(0..2u32, 1..4), 3 => prop::collection::vec(0..2u32, 4..16)];
    let in_worker = prop_oneof![
        20 => (tokens(), 0..2u8, any::<bool>()).prop_map(|(tokens, salt, partial)| Call::Prompt(tokens, salt, partial)),
        4 => (of(), tokens(), prop::bool::weighted(0.8)).prop_map(|(of, tokens, known)| Call::Append(of, tokens, known)),
        2 => of().prop_map(Call::Fork),
        10 => of().prop_map(Call::Drop),
        2 => (of(), 0..16u32).prop_map(|(of, length)| Call::Truncate(of, length)),
        1 => of().prop_map(Call::Snapshot),
        1 => (of(), of()).prop_map(|(of, snapshot)| Call::Restore(of, snapshot)),
        2 => (of(), tokens(), 0..16u32).prop_map(|(of, tokens, kept)| Call::Draft(of, tokens, kept)),
        1 => of().prop_map(Call::Move),
        1 => Just(Call::Forget),
        8 => prop_oneof![1 => Just(1usize), 3 => Just(usize::MAX)].prop_map(Call::HandDown),
    ];
    let jobs = prop_oneof![
        10 => (tokens(), 0..2u8).prop_map(|(tokens, salt)| Call::Ask(tokens, salt)),
        8 => Just(Call::Write),
        1 => Just(Call::Probe),
        4 => Just(Call::BeginSave),
        5 => Just(Call::BeginLoad),
        14 => (of(), fate()).prop_map(|(of, fate)| Call::Step(of, fate)),
        24 => of().prop_map(Call::Finish),
        2 => of().prop_map(Call::Arrive),
        1 => of().prop_map(Call::GiveUp),
    ];
    let faults = prop_oneof![
        2 => any::<bool>().prop_map(Call::Down),
        12 => (prop_oneof![1 => 0..7u8, 1 => Just(2u8)], any::<u32>()).prop_map(|(kind, at)| Call::Damage(kind, at)),
        2 => (0..25u8).prop_map(Call::DiskFails),
        1 => (0..4000u32).prop_map(Call::Budget),
        2 => (0..8000u32).prop_map(Call::Advance),
        1 => Just(Call::Kill),
        1 => (prop::option::of(0..25u8), any::<u32>()).prop_map(|(at, seed)| Call::PowerLoss(at, seed)),
    ];
    prop_oneof![20 => in_worker, 16 => jobs, 6 => faults, 1 => Just(Call::Other)]
}
