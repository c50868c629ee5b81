//! Compares the predicted number of blocks for appends with actual appends.

use kvtide_core::Error;
use kvtide_core::paged::{
    Append, Growth, GrowthRequest, Identity, PagedPlanner, Shortage, Window, Writer, shortage_in_groups,
};

const SIZE: u32 = 4;

/// Numbers that a seed gives.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// A number below `limit`.
    fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % u64::from(limit.max(1))) as u32
    }
}

/// One group, and the ids of its sequences' tokens.
struct World {
    planner: PagedPlanner,
    sequences: Vec<(u64, Vec<u32>)>,
    step: u32,
}

impl World {
    fn new(random: &mut Random, window: Option<Window>) -> Self {
        let planner = PagedPlanner::new(4 + random.below(20), SIZE, 1).unwrap();
        let planner = match window {
            Some(window) => planner.sliding(window),
            None => planner,
        };
        World { planner, sequences: Vec::new(), step: 1 + random.below(9) }
    }

    fn shortage(&self, growing: &[Growth], prompt: Option<&[u32]>, watermark: Option<u32>) -> Option<Shortage> {
        let identity = Identity::default();
        let prompt = prompt.map(|tokens| (tokens, &identity));
        shortage_in_groups(&[&self.planner], GrowthRequest { growing, prompt, step: self.step, watermark }).unwrap()
    }

    /// Appends to several sequences at once, or says what was lacking.
    fn append(&mut self, growing: &[Growth]) -> Result<(), Error> {
        let sequences: Vec<u64> = growing.iter().map(|growth| growth.sequence).collect();
        let mut offsets = vec![0];
        growing.iter().for_each(|growth| offsets.push(offsets[offsets.len() - 1] + growth.tokens));
        let append = Append { sequences: &sequences, offsets: Some(&offsets), parents: None, writer: Writer::Direct };
        let (copies, mut plan) = self.planner.plan_write(self.planner.check_append(&append)?)?;
        self.planner.commit_copies_before(&copies, &mut plan)?;
        let mut ids = Vec::new();
        for growth in growing {
            let (_, known) = self.sequences.iter_mut().find(|(id, _)| *id == growth.sequence).unwrap();
            // Prompts begin alike.
            let more = (known.len() as u32..).map(|place| place / 3 % 2).take(growth.tokens as usize);
            let more: Vec<u32> = more.collect();
            known.extend(&more);
            ids.extend(more);
        }
        self.planner.commit(&plan, Some(&ids))?;
        self.planner.check_invariants(&[]).unwrap();
        Ok(())
    }

    fn change(&mut self, random: &mut Random) {
        let at = random.below(self.sequences.len().max(1) as u32) as usize;
        match (random.below(6), self.sequences.get(at).cloned()) {
            (0, _) | (_, None) => self.sequences.push((self.planner.create_sequence().unwrap(), Vec::new())),
            (1, Some((id, tokens))) => self.sequences.push((self.planner.fork(id).unwrap(), tokens)),
            (2, Some((id, _))) => {
                self.planner.drop_sequence(id).unwrap();
                self.sequences.remove(at);
            }
            (3, Some((id, tokens))) => {
                let length = random.below(tokens.len() as u32 + 1);
                if self.planner.truncate(id, length).is_ok() {
                    self.sequences[at].1.truncate(length as usize);
                }
            }
            (_, Some((id, _))) => {
                let _ = self.append(&[Growth { sequence: id, tokens: 1 + random.below(9) }]);
            }
        }
    }

    /// Takes a cached prefix over, as a sequence does that goes on from it.
    fn resume(&mut self, at: usize, prompt: &[u32]) {
        let (id, length) = (self.sequences[at].0, self.sequences[at].1.len() as u32);
        let found = self.planner.find(prompt, &Identity::default(), false).unwrap();
        if found.length() > length {
            self.planner.restore(id, &found).unwrap();
            self.sequences[at].1 = prompt[..found.length() as usize].to_vec();
        }
        self.planner.release(found);
    }
}

fn growing(world: &World, random: &mut Random) -> Vec<Growth> {
    let tokens = |random: &mut Random| random.below(20);
    let mut of: Vec<Growth> =
        world.sequences.iter().map(|&(sequence, _)| Growth { sequence, tokens: tokens(random) }).collect();
    of.retain(|_| random.below(3) > 0);
    of
}

#[test]
fn without_a_window_growth_is_refused_exactly_where_appends_are() {
    let (mut refused, mut taken) = (0, 0);
    for seed in 0..4_000 {
        let random = &mut Random::new(seed);
        let mut world = World::new(random, None);
        for _ in 0..random.below(40) {
            world.change(random);
        }
        let of = growing(&world, random);
        let said = world.shortage(&of, None, Some(0));
        assert_eq!(said, world.shortage(&of, None, None), "seed {seed}");
        match world.append(&of) {
            Ok(()) => {
                taken += 1;
                assert_eq!(said, None, "seed {seed}");
            }
            Err(Error::OutOfBlocks { needed, free, holders }) => {
                refused += 1;
                let holders = holders.expect("a planner knows them");
                assert_eq!(said, Some(Shortage { group: 0, needed, free, holders }), "seed {seed}");
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert!(refused > 400 && taken > 400, "{refused} refused, {taken} taken");
}

#[test]
fn with_a_prefix_growth_is_refused_exactly_where_its_append_is() {
    let (mut refused, mut resumed) = (0, 0);
    for seed in 0..6_000 {
        let random = &mut Random::new(seed);
        let mut world = World::new(random, None);
        for _ in 0..random.below(40) {
            world.change(random);
        }
        if world.sequences.is_empty() {
            continue;
        }
        let at = random.below(world.sequences.len() as u32) as usize;
        let (id, length) = (world.sequences[at].0, world.sequences[at].1.len() as u32);
        let prompt: Vec<u32> = (0..length + 1 + random.below(24)).map(|place| place / 3 % 2).collect();
        let tokens = prompt.len() as u32 - length;
        let said = world.shortage(&[Growth { sequence: id, tokens }], Some(&prompt), None);
        world.resume(at, &prompt);
        let rest = prompt.len() as u32 - world.sequences[at].1.len() as u32;
        resumed += u32::from(rest < tokens);
        match world.append(&[Growth { sequence: id, tokens: rest }]) {
            Ok(()) => assert_eq!(said, None, "seed {seed}"),
            Err(Error::OutOfBlocks { .. }) => {
                refused += 1;
                assert!(said.is_some(), "seed {seed}");
            }
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert!(refused > 200 && resumed > 200, "{refused} refused, {resumed} resumed");
}

#[test]
fn with_a_window_the_most_suffices_and_less_than_the_least_does_not() {
    let (mut sure, mut vain) = (0, 0);
    for seed in 0..6_000 {
        let random = &mut Random::new(seed);
        let window = Window::new(1 + random.below(24), random.below(3) * random.below(5)).unwrap();
        let mut world = World::new(random, Some(window));
        for _ in 0..random.below(30) {
            world.change(random);
        }
        let of = growing(&world, random);
        let is_sure = world.shortage(&of, None, Some(0)).is_none();
        let is_vain = of.len() == 1 && world.shortage(&of, None, None).is_some();
        assert!(!(is_sure && is_vain), "seed {seed}");
        let (mut left, mut done) = (of.clone(), Ok(()));
        while left.iter().any(|growth| growth.tokens > 0) && done.is_ok() {
            let step = if is_vain { 1 } else { world.step };
            let now = |growth: &Growth| Growth { tokens: growth.tokens.min(1 + random.below(step)), ..*growth };
            let now: Vec<Growth> = left.iter().map(now).filter(|growth| growth.tokens > 0).collect();
            done = world.append(&now);
            for growth in &mut left {
                growth.tokens -= now.iter().find(|of| of.sequence == growth.sequence).map_or(0, |of| of.tokens);
            }
        }
        sure += u32::from(is_sure && !of.is_empty());
        vain += u32::from(is_vain);
        assert!(!is_sure || done.is_ok(), "seed {seed}: {done:?}");
        assert!(!is_vain || matches!(done, Err(Error::OutOfBlocks { .. })), "seed {seed}");
    }
    assert!(sure > 400 && vain > 30, "{sure} sure, {vain} in vain");
}
