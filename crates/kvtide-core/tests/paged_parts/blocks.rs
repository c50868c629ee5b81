//! Compares reference counts and the order of eviction with a list that is sorted again for every block taken.

use kvtide_core::paged::PRIORITY_DEFAULT;
use kvtide_core::paged::parts::{BlockState, Blocks, RankChain, Release};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::policies::{Policy, policy};
use super::ranks::{NEVER, Step, at, join, ranks, step_of};
use super::{Done, support};

#[derive(Clone, Debug)]
enum Call {
    Take,
    Retain(u32),
    /// Blocks from a tail to a head, whether their content is kept, and where in its sequence the head lies.
    Release(Vec<u32>, bool, u32),
    Priority(u32, u8, Option<u64>),
    Advance(u64),
    Forget(u32),
}

fn call() -> impl Strategy<Value = Call> {
    let block = || 0..7u32;
    let depth = prop_oneof![2 => 0..4u32, 1 => 253..258u32, 1 => Just(u32::MAX - 3)];
    let priority = (block(), 48..52u8, prop::option::of(0..30u64));
    prop_oneof![
        6 => Just(Call::Take),
        2 => block().prop_map(Call::Retain),
        5 => (prop::collection::vec(block(), 1..4), prop::bool::weighted(0.8), depth)
            .prop_map(|(blocks, cached, depth)| Call::Release(blocks, cached, depth)),
        3 => priority.prop_map(|(block, priority, until)| Call::Priority(block, priority, until)),
        2 => (0..4u64).prop_map(Call::Advance),
        1 => block().prop_map(Call::Forget),
    ]
}

#[derive(Clone, Debug)]
struct Held {
    count: u32,
    /// Its own priority.
    own: Step,
    inherited: Step,
}

const NEW: Held = Held { count: 1, own: (PRIORITY_DEFAULT, PRIORITY_DEFAULT, NEVER), inherited: (0, 0, NEVER) };

/// The state of each block, in its simplest form.
struct Model {
    policy: Policy,
    capacity: u32,
    touched: u32,
    free: Vec<u32>,
    held: Vec<(u32, Held)>,
    /// In the order of release, with the rank.
    cached: Vec<(u32, Held, Step)>,
    now: u64,
}

impl Model {
    fn taken_next(&self) -> Option<(u32, bool)> {
        let first = self.free.first().copied().or((self.touched < self.capacity).then_some(self.touched));
        // The first of those with the lowest rank.
        let evicted = self.cached.iter().min_by_key(|cached| cached.2.0).map(|cached| (cached.0, true));
        first.map(|block| (block, false)).or(evicted)
    }

    fn held(&mut self, block: u32) -> Option<&mut Held> {
        self.held.iter_mut().find(|held| held.0 == block).map(|held| &mut held.1)
    }

    fn take(&mut self) {
        let Some((block, _)) = self.taken_next() else { return };
        self.free.retain(|&free| free != block);
        self.cached.retain(|cached| cached.0 != block);
        self.touched = self.touched.max(block + 1);
        self.held.push((block, NEW));
    }

    fn uncache(&mut self, block: u32) -> Option<Held> {
        let place = self.cached.iter().position(|cached| cached.0 == block)?;
        Some(self.cached.remove(place).1)
    }

    fn release(&mut self, block: u32, keep: bool, depth: u32, chain: &mut Step) {
        let now = self.now;
        let held = self.held(block).unwrap();
        held.count -= 1;
        if held.count == 0 && !keep {
            self.held.retain(|held| held.0 != block);
            self.free.push(block);
            return;
        }
        held.inherited = join(at(held.inherited, now), at(*chain, now));
        if held.count == 0 {
            held.own = at(held.own, now);
            let held = held.clone();
            *chain = join(ranks(self.policy, held.own, Some(depth)), held.inherited);
            let rank = *chain;
            self.held.retain(|held| held.0 != block);
            self.cached.push((block, held, rank));
        }
    }

    fn advance(&mut self, by: u64) {
        self.now += by;
        // Each stays where it was released.
        self.cached.iter_mut().for_each(|cached| cached.2 = at(cached.2, self.now));
    }
}

fn change(blocks: &mut Blocks, model: &mut Model, call: Call) -> Done {
    let in_use = |block| matches!(blocks.set(block), BlockState::Active | BlockState::Cached);
    match call {
        Call::Take => {
            let announced = blocks.upcoming().next();
            blocks.reserve(1).map_err(|error| TestCaseError::fail(error.to_string()))?;
            let taken = blocks.take();
            prop_assert_eq!(taken, announced);
            prop_assert_eq!(taken.map(|taken| (taken.block, taken.evicted)), model.taken_next());
            model.take();
        }
        Call::Retain(block) if in_use(block) => {
            blocks.retain(block);
            match model.uncache(block) {
                Some(held) => model.held.push((block, Held { count: 1, ..held })),
                None => model.held(block).unwrap().count += 1,
            }
        }
        Call::Release(tail_first, cached, head) => {
            let (mut chain, mut step) = (RankChain::default(), (0, 0, NEVER));
            for (depth, block) in (head..).take(tail_first.len()).collect::<Vec<_>>().into_iter().rev().zip(tail_first)
            {
                if blocks.set(block) == BlockState::Active {
                    blocks.release(block, Release { cached, depth }, &mut chain);
                    model.release(block, cached, depth, &mut step);
                }
            }
        }
        Call::Priority(block, priority, until) => {
            let known = in_use(block);
            let given = blocks.set_priority(block, priority, until);
            prop_assert_eq!(given.is_ok(), known);
            let own = at(step_of(priority, until), model.now);
            if let Some(held) = model.uncache(block) {
                let rank = ranks(model.policy, own, None);
                model.cached.push((block, Held { own, inherited: NEW.inherited, ..held }, rank));
            } else if let Some(held) = model.held(block) {
                (held.own, held.inherited) = (own, NEW.inherited);
            }
        }
        Call::Advance(by) => {
            model.advance(by);
            blocks.advance(model.now);
        }
        Call::Forget(block) if blocks.is_cached(block) => {
            blocks.forget(block);
            model.uncache(block);
            model.free.push(block);
        }
        Call::Retain(_) | Call::Forget(_) => {}
    }
    Ok(())
}

fn blocks_follow_the_model((capacity, policy, last_turn, calls): (u32, Policy, u32, Vec<Call>)) -> Done {
    let blocks = Blocks::new(capacity).unwrap().with_last_turn(last_turn);
    let mut blocks = match policy.make() {
        Some(policy) => blocks.with_policy(policy),
        None => blocks,
    };
    let (free, held, cached) = (Vec::new(), Vec::new(), Vec::new());
    let mut model = Model { policy, capacity, touched: 0, free, held, cached, now: 0 };
    for call in calls {
        change(&mut blocks, &mut model, call)?;
        blocks.check_invariants().map_err(TestCaseError::fail)?;
        let counts = (blocks.active_count(), blocks.cached_count(), blocks.free_count());
        let free = model.free.len() as u32 + capacity - model.touched;
        prop_assert_eq!(counts, (model.held.len() as u32, model.cached.len() as u32, free));
        prop_assert_eq!(blocks.available() as usize, blocks.upcoming().count());
        for (block, held) in &model.held {
            prop_assert_eq!(blocks.count(*block), held.count);
            prop_assert_eq!(blocks.priority(*block), at(held.own, model.now).0);
        }
        let mut order = model.cached.clone();
        order.sort_by_key(|cached| cached.2.0);
        let order: Vec<_> = order.into_iter().map(|cached| cached.0).collect();
        let evicted: Vec<_> = blocks.upcoming().filter(|next| next.evicted).map(|next| next.block).collect();
        prop_assert_eq!(evicted, order);
    }
    Ok(())
}

#[test]
fn random_calls_against_a_list() {
    // Turns are counted anew every now and then; of so many blocks as there are, all may have begun one.
    let last_turn = prop_oneof![Just(u32::MAX), 8..12u32];
    let calls = (0..7u32, policy(), last_turn, prop::collection::vec(call(), 0..40));
    support::run("blocks", 20_000, calls, blocks_follow_the_model);
}
