//! Compares tables with plain lists at random: their content, the counts of blocks, and the blocks that ranks are
//! handed on to.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// Counts, and the blocks that a change has released or handed a rank on to.
#[derive(Default)]
struct Counted(HashMap<u32, u32>, Vec<u32>);

impl HoldCounter for Counted {
    fn begin(&mut self) {}

    fn retain(&mut self, block: u32) {
        *self.0.get_mut(&block).expect("a block in use") += 1;
    }

    fn release(&mut self, block: u32, _place: u32) {
        self.1.push(block);
        let count = self.0.get_mut(&block).expect("a block in use");
        *count -= 1;
        if *count == 0 {
            self.0.remove(&block);
        }
    }

    fn hands_on(&self) -> bool {
        !self.1.is_empty()
    }

    fn hand_on(&mut self, block: u32) {
        self.1.push(block);
    }
}

#[derive(Clone, Debug)]
enum Change {
    Push(u32),
    Lengthen(u32),
    Replace(u32),
    Truncate(u32),
    Clear(u32, u32),
    Fork,
    Release,
}

fn change() -> impl Strategy<Value = (usize, Change)> {
    let place = || 0..5000u32;
    let change = prop_oneof![
        4 => prop_oneof![8 => 1..5u32, 2 => 60..70u32, 1 => 4000..4200u32].prop_map(Change::Push),
        1 => prop_oneof![8 => 0..70u32, 1 => 4000..9000u32].prop_map(Change::Lengthen),
        3 => place().prop_map(Change::Replace),
        2 => place().prop_map(Change::Truncate),
        1 => (place(), place()).prop_map(|(from, to)| Change::Clear(from, to)),
        1 => (0..80u32, 4000..5000u32).prop_map(|(from, to)| Change::Clear(from, to)),
        3 => Just(Change::Fork),
        2 => Just(Change::Release),
    ];
    (any::<usize>(), change)
}

#[derive(Default)]
struct World {
    chunks: Tables<Counted>,
    tables: Vec<(Table, Vec<Option<u32>>)>,
    next: u32,
}

impl World {
    fn block(&mut self) -> u32 {
        self.next += 1;
        self.chunks.counts.0.insert(self.next, 1);
        self.next
    }

    fn carry_out(&mut self, of: usize, change: Change) {
        if self.tables.is_empty() {
            self.tables.push(Default::default());
        }
        let of = of % self.tables.len();
        self.chunks.counts.1.clear();
        match change {
            Change::Push(count) => {
                self.chunks.reserve_chunks(1, count as usize).unwrap();
                for _ in 0..count {
                    let block = self.block();
                    let (table, list) = &mut self.tables[of];
                    self.chunks.push(table, block);
                    list.push(Some(block));
                }
            }
            Change::Lengthen(places) => {
                let (table, list) = &mut self.tables[of];
                let chunks = self.chunks.in_use();
                self.chunks.reserve_chunks(1, 0).unwrap();
                self.chunks.lengthen(table, places);
                list.resize(list.len() + places as usize, None);
                assert!(self.chunks.in_use() <= chunks + 2, "no chunk for places without a block");
            }
            Change::Replace(place) if !self.tables[of].1.is_empty() => {
                let block = self.block();
                let (table, list) = &mut self.tables[of];
                let place = place % list.len() as u32;
                self.chunks.reserve_chunks(1, 0).unwrap();
                self.chunks.replace(table, [(place, block)].into_iter());
                list[place as usize] = Some(block);
            }
            Change::Replace(_) => {}
            Change::Truncate(len) => {
                let (table, list) = &mut self.tables[of];
                let len = len % (list.len() as u32 + 2);
                self.chunks.reserve_chunks(1, 0).unwrap();
                self.chunks.truncate(table, len);
                assert_met(&self.chunks.counts, list);
                list.truncate(len as usize);
            }
            Change::Clear(from, to) => {
                let (table, list) = &mut self.tables[of];
                let len = list.len() as u32 + 1;
                let (from, to) = (from % len, to % len);
                self.chunks.reserve_chunks(1, list.len()).unwrap();
                self.chunks.clear(table, from, to);
                assert_met(&self.chunks.counts, &list[..if from < to { to as usize } else { 0 }]);
                (from..to).for_each(|place| list[place as usize] = None);
            }
            Change::Fork => {
                let (table, list) = &self.tables[of];
                let fork = (self.chunks.fork(table), list.clone());
                self.tables.push(fork);
            }
            Change::Release => {
                let (table, list) = self.tables.swap_remove(of);
                self.chunks.release(table);
                assert_met(&self.chunks.counts, &list);
            }
        }
    }

    fn check(&self) {
        for (table, list) in &self.tables {
            assert_eq!(table.len() as usize, list.len());
            assert!(self.chunks.iter(table, 0).eq(list.iter().copied()));
            for place in [0, 1, 63, 64, list.len() / 2, list.len().saturating_sub(1), list.len()] {
                let found = self.chunks.get(table, place as u32);
                assert_eq!(found, list.get(place).copied().flatten());
            }
        }
        let mut found = HashMap::new();
        let tables: Vec<_> = self.tables.iter().map(|(table, _)| table).collect();
        self.chunks.check_chunks(&tables, |block| *found.entry(block).or_insert(0) += 1).unwrap();
        assert_eq!(found, self.chunks.counts.0);
    }
}

/// From the first released block on, all blocks of a table must be met, last ones first.
fn assert_met(counts: &Counted, list: &[Option<u32>]) {
    let backwards: Vec<u32> = list.iter().rev().copied().flatten().collect();
    assert!(backwards.ends_with(&counts.1), "{:?} of {backwards:?}", counts.1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn tables_are_lists_that_share(changes in prop::collection::vec(change(), 1..40)) {
        let mut world = World::default();
        for (of, change) in changes {
            world.carry_out(of, change);
            world.check();
        }
        while !world.tables.is_empty() {
            world.carry_out(0, Change::Release);
        }
        assert!(world.chunks.counts.0.is_empty());
        assert_eq!(world.chunks.in_use(), 0);
    }
}

#[test]
fn a_block_is_shared_when_something_on_its_path_is() {
    let mut world = World::default();
    world.carry_out(0, Change::Push(70));
    assert!(!world.chunks.is_shared(&world.tables[0].0, 0));
    world.carry_out(0, Change::Fork);
    assert!(world.chunks.is_shared(&world.tables[0].0, 0) && world.chunks.is_shared(&world.tables[1].0, 69));
    world.carry_out(1, Change::Push(1));
    // The second chunk belongs to the fork alone now, and its blocks are counted twice; the first is still shared.
    assert!(world.chunks.is_shared(&world.tables[1].0, 0) && !world.chunks.is_shared(&world.tables[1].0, 69));
    assert_eq!(world.chunks.counts.0[&70], 2);
    assert_eq!(world.chunks.counts.0[&1], 1);
}

#[test]
fn a_fork_costs_nothing_of_its_length() {
    let mut world = World::default();
    world.carry_out(0, Change::Push(4200));
    let before = world.chunks.in_use();
    world.carry_out(0, Change::Fork);
    assert_eq!(world.chunks.in_use(), before);
    world.carry_out(1, Change::Push(1));
    assert_eq!(world.chunks.in_use(), before + 3);
}

/// A change must copy no more chunks than `reserve` allows, even if it clears many places.
#[test]
fn emptying_a_shared_table_copies_no_more_than_two_chunks_a_level() {
    let mut world = World::default();
    let mut table = Table::default();
    world.chunks.reserve_chunks(1, 5000).unwrap();
    for _ in 0..5000 {
        let block = world.block();
        world.chunks.push(&mut table, block);
    }
    let other = world.chunks.fork(&table);
    let before = world.chunks.in_use();
    world.chunks.clear(&mut table, 10, 4990);
    assert!(world.chunks.in_use() <= before + 6, "{} chunks more", world.chunks.in_use() - before);
    let shown: Vec<u32> = (0..5000).filter(|&place| world.chunks.get(&table, place).is_some()).collect();
    assert_eq!(shown, (0..10).chain(4990..5000).collect::<Vec<_>>());
    assert!((0..5000).all(|place| world.chunks.get(&other, place).is_some()));
    [table, other].into_iter().for_each(|table| world.chunks.release(table));
    assert_eq!((world.chunks.in_use(), world.chunks.counts.0.len()), (0, 0));
}
