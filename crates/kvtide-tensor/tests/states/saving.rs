//! Sequences and prefixes with states that are saved and loaded, and offloaded.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use kvtide_core::paged::{BlockKey, BlockName};
use kvtide_tensor::pages::{Below, Descent, SavedGroup};
use kvtide_tensor::{PromptOptions, Result};

use crate::world::{World, hybrid, mamba};

fn ids(first: u32, count: u32) -> Vec<u32> {
    (first..first + count).collect()
}

#[test]
fn a_saved_sequence_is_loaded_with_its_states() {
    for (model, length) in [(hybrid(), 8), (hybrid(), 11), (mamba(), 11), (hybrid(), 0)] {
        let mut world = World::new(model, 40);
        let one = world.create();
        world.step(&[(one, &ids(0, length))]).unwrap();
        let saved = world.cache.saved_sequence(one).unwrap();
        let contents: Vec<_> = saved.iter().map(|of| &of.content).collect();
        let new = world.cache.new_blocks_of(&contents).unwrap();
        for (of, pages) in saved.iter().zip(&new.pages) {
            for row in 0..of.pages.rows() {
                let mut bytes = vec![0; of.pages.row_bytes()];
                of.pages.read(row, &mut bytes).unwrap();
                pages.write(row, &bytes).unwrap();
            }
        }
        let parts = saved.into_iter().map(|SavedGroup { content, rows, staged, .. }| SavedGroup {
            content,
            rows,
            staged,
            pages: (),
        });
        let parts: Vec<_> = parts.collect();
        let loaded = world.cache.settle_sequence(&new, &parts, PromptOptions::default()).unwrap();
        world.tokens.insert(loaded, ids(0, length));
        drop(new);
        world.check();
        world.step(&[(loaded, &ids(60, 6)), (one, &ids(70, 1))]).unwrap();
        world.check();
    }
}

type Taken = HashMap<(usize, BlockKey), Vec<u8>>;

#[derive(Debug, Default)]
struct Shelf(Mutex<Taken>);

impl Below for Shelf {
    fn wants(&self, group: usize, key: &BlockKey, _: Descent) -> bool {
        !self.0.lock().unwrap().contains_key(&(group, *key))
    }

    fn take(&self, group: usize, name: &BlockName<'_>, _: Descent, copy: &mut dyn FnMut(&mut Vec<u8>) -> Result<()>) {
        let mut bytes = Vec::new();
        copy(&mut bytes).unwrap();
        self.0.lock().unwrap().insert((group, name.key), bytes);
    }

    fn forget(&self) {
        self.0.lock().unwrap().clear();
    }
}

#[test]
fn checkpoints_are_offloaded_and_restored() {
    for model in [hybrid(), mamba()] {
        let shelf = Arc::new(Shelf::default());
        let mut world = World::new(model, 8);
        world.cache.set_below(shelf.clone()).unwrap();
        let one = world.create();
        for first in [0, 8, 16] {
            world.step(&[(one, &ids(first, 8))]).unwrap();
            while world.cache.hand_down(usize::MAX) {}
        }
        world.drop(one);
        // Everything of the first prompt is evicted, though each of its checkpoints saves more tokens.
        for round in 1..5 {
            let other = world.create();
            for first in (0..8).map(|step| 500 * round + step * 4) {
                world.step(&[(other, &ids(first, 4))]).unwrap();
            }
            world.drop(other);
        }
        let prompt = ids(0, 30);
        assert_eq!(world.cache.find_prefix(&prompt, PromptOptions::default(), false).unwrap().length(), 0);

        let blocks = world.cache.prompt_blocks(&prompt, PromptOptions::default()).unwrap();
        let since = world.cache.forgotten();
        let taken = shelf.0.lock().unwrap().clone();
        let there = |group: usize, name: &BlockName<'_>| taken.contains_key(&(group, name.key));
        let returning = world.cache.begin_return(&blocks, since, there).unwrap();
        for group in 0..blocks.groups() {
            for (row, &place) in returning.places(group).iter().enumerate() {
                let name = returning.blocks().name(place);
                returning.write(group, row, &taken[&(group, name.key)]).unwrap();
            }
        }
        assert!(world.cache.end_return(&returning).unwrap() > 0);
        drop(returning);
        let found = world.find(&prompt);
        assert_eq!(world.tokens[&found].len(), 24);
        world.check();
        world.step(&[(found, &ids(24, 3))]).unwrap();
        world.check();
    }
}
