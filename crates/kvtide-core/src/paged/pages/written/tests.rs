//! Marks of single slots and of runs, and a comparison with a plain set at random.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// 3 layers of 30 slots: the last layer is in two words.
fn marks() -> WrittenMarks {
    WrittenMarks::new(1 << 31, 3, 30).unwrap()
}

fn all() -> impl Iterator<Item = (u32, u32, u32)> {
    (0..4).flat_map(|block| (0..3).flat_map(move |layer| (0..30).map(move |slot| (block, layer, slot))))
}

#[test]
fn one_mark_is_one_slot() {
    for marked in all() {
        let mut marks = marks();
        marks.reserve(marked.0, 1).unwrap();
        marks.set(marked.0, marked.1, marked.2..marked.2 + 1);
        for (block, layer, slot) in all() {
            assert_eq!(marks.get(block, layer, slot), (block, layer, slot) == marked);
        }
    }
}

#[test]
fn a_run_of_slots_is_that_run() {
    for (start, end) in (0..=30).flat_map(|start| (start..=30).map(move |end| (start, end))) {
        let mut marks = marks();
        marks.reserve(1, 1).unwrap();
        marks.set(1, 2, start..end);
        for (block, layer, slot) in all() {
            assert_eq!(marks.get(block, layer, slot), (block, layer) == (1, 2) && (start..end).contains(&slot));
        }
        assert!(marks.has_all(1, 2, start..end) && !marks.has_any(1, 2, end..30) && !marks.has_any(1, 2, 0..start));
        assert_eq!(marks.has_all(1, 2, 0..30), (start, end) == (0, 30));
        assert_eq!(marks.has_any(1, 2, 0..30), start < end);
        assert!(!marks.has_any(1, 1, 0..30) && !marks.has_any(3, 2, 0..30) && !marks.has_all(3, 2, 0..1));
    }
}

#[test]
fn clearing_a_block_leaves_the_others() {
    let mut marks = marks();
    marks.reserve(3, 4).unwrap();
    all().for_each(|(block, layer, slot)| marks.set(block, layer, slot..slot + 1));
    marks.clear_block(2);
    assert!(all().all(|(block, layer, slot)| marks.get(block, layer, slot) == (block != 2)));
    assert_eq!([0, 1, 2, 3].map(|block| marks.is_clear(block)), [false, false, true, false]);
}

#[test]
fn a_full_block_and_one_that_was_never_reserved_have_no_part() {
    let mut marks = marks();
    marks.clear_block(1_000_000_000);
    assert!(marks.is_clear(1_000_000_000) && !marks.get(1_000_000_000, 0, 0));
    assert_eq!(marks.blocks.capacity(), 0);
    marks.reserve(1, 1).unwrap();
    (0..3).for_each(|layer| marks.set(1, layer, 0..30));
    assert!(marks.is_whole(1) && marks.free_masks == [0]);
    marks.unset(1, 1, 7..9);
    assert!(!marks.is_whole(1) && marks.free_masks.is_empty());
    assert!(marks.has_all(1, 1, 0..7) && !marks.has_any(1, 1, 7..9) && marks.has_all(1, 2, 0..30));
}

#[test]
fn more_marks_than_memory_are_refused() {
    let most = i32::MAX as u32;
    assert_eq!(WrittenMarks::new(most, most, most).unwrap_err(), out_of_memory(most));
    let mut marks = WrittenMarks::new(100, most, most).unwrap();
    assert_eq!(marks.reserve(9, 1), Err(out_of_memory(10)));
    assert!(!marks.get(99, most - 1, most - 1) && marks.is_clear(99));
}

#[derive(Clone, Debug)]
enum Change {
    Set(u32, u32, Range<u32>),
    Unset(u32, u32, Range<u32>),
    Clear(u32),
    Fill(u32),
}

fn change() -> impl Strategy<Value = Change> {
    let page = || (0..4u32, 0..3u32);
    let run = || (0..=30u32, 0..=30u32).prop_map(|(one, other)| one.min(other)..one.max(other));
    prop_oneof![
        6 => (page(), run()).prop_map(|((block, layer), slots)| Change::Set(block, layer, slots)),
        3 => page().prop_map(|(block, layer)| Change::Set(block, layer, 0..30)),
        3 => (page(), run()).prop_map(|((block, layer), slots)| Change::Unset(block, layer, slots)),
        1 => (0..4u32).prop_map(Change::Clear),
        1 => (0..4u32).prop_map(Change::Fill),
    ]
}

proptest! {
    #[test]
    fn marks_are_a_set_of_slots(changes in prop::collection::vec(change(), 0..60)) {
        let (mut marks, mut set) = (marks(), HashSet::new());
        for change in changes {
            marks.reserve(3, 1).unwrap();
            match change {
                Change::Set(block, layer, slots) => {
                    marks.set(block, layer, slots.clone());
                    set.extend(slots.map(|slot| (block, layer, slot)));
                }
                Change::Unset(block, layer, slots) => {
                    marks.unset(block, layer, slots.clone());
                    set.retain(|&(b, l, slot)| (b, l) != (block, layer) || !slots.contains(&slot));
                }
                Change::Clear(block) => {
                    marks.clear_block(block);
                    set.retain(|&(b, ..)| b != block);
                }
                Change::Fill(block) => {
                    marks.fill_block(block);
                    set.extend(all().filter(|&(b, ..)| b == block));
                }
            }
            marks.check().unwrap();
            for (block, layer, slot) in all() {
                assert_eq!(marks.get(block, layer, slot), set.contains(&(block, layer, slot)));
            }
            for block in 0..4 {
                let count = set.iter().filter(|&&(b, ..)| b == block).count();
                assert_eq!((marks.is_clear(block), marks.is_whole(block)), (count == 0, count == 90));
            }
        }
    }
}

/// A set of pages consists of marks with one slot per page.
#[test]
fn a_page_is_one_bit() {
    let mut set = WrittenMarks::new(9, 70, 1).unwrap();
    set.fill_block(3);
    assert!(!set.get(3, 0, 0), "there is no room for it");
    set.reserve(4, 0).unwrap();
    set.fill_block(3);
    set.reserve(3, 1).unwrap();
    set.unset(3, 65, 0..1);
    set.unset(8, 0, 0..1);
    for (block, layer) in (0..9).flat_map(|block| (0..70).map(move |layer| (block, layer))) {
        assert_eq!(set.get(block, layer, 0), block == 3 && layer != 65, "{block} {layer}");
    }
}
