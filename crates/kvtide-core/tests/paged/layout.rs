//! Compares the offsets of rows with the index of a row-major tensor.

use kvtide_core::paged::{KeyOrValue, PageFormat, PageLayout, PageShape};
use kvtide_core::{Code, Error};

const SHAPE: PageShape = PageShape {
    block_size: 3,
    num_layers: 2,
    num_kv_heads: 4,
    head_dim: 5,
    value_head_dim: 5,
    key_format: PageFormat::F16,
    value_format: PageFormat::F16,
};

fn refusal(shape: PageShape) -> Error {
    PageLayout::new(shape).unwrap_err()
}

#[test]
fn a_zero_is_refused_by_name() {
    for (name, shape) in [
        ("blockSize", PageShape { block_size: 0, ..SHAPE }),
        ("numLayers", PageShape { num_layers: 0, ..SHAPE }),
        ("numKvHeads", PageShape { num_kv_heads: 0, ..SHAPE }),
        ("headDim", PageShape { head_dim: 0, ..SHAPE }),
    ] {
        assert_eq!(refusal(shape), Error::argument(name, 0, "at least 1"));
    }
}

#[test]
fn a_number_over_the_bound_is_refused() {
    for shape in [PageShape { head_dim: 1 << 31, ..SHAPE }, PageShape { value_head_dim: 1 << 31, ..SHAPE }] {
        assert_eq!(refusal(shape).code(), Code::InvalidArgument);
    }
}

#[test]
fn a_block_that_memory_cannot_address_is_refused() {
    let most = i32::MAX as u32;
    let shape = PageShape { block_size: most, num_layers: most, num_kv_heads: most, head_dim: most, ..SHAPE };
    assert_eq!(refusal(shape), Error::OutOfMemory { count: 1, what: "blocks" });
    let just_over = PageShape { block_size: 1 << 30, num_layers: 1 << 30, num_kv_heads: 4, ..SHAPE };
    assert_eq!(refusal(just_over).code(), Code::OutOfMemory);
}

#[test]
fn a_slab_that_memory_cannot_address_is_refused() {
    let shape = PageShape { block_size: 1 << 20, num_layers: 1 << 10, num_kv_heads: 1 << 10, ..SHAPE };
    let layout = PageLayout::new(shape).unwrap();
    let refusal = Error::OutOfMemory { count: i32::MAX as u64, what: "blocks" };
    assert_eq!(layout.slab_bytes(i32::MAX as u32), Err(refusal.clone()));
    assert_eq!(layout.slab_elements(i32::MAX as u32), Err(refusal));
    assert!(layout.slab_bytes(1).is_ok());
}

#[test]
fn sizes_are_products() {
    let layout = PageLayout::new(SHAPE).unwrap();
    assert_eq!(layout.section(KeyOrValue::Value).row_bytes, 5 * 2);
    assert_eq!(layout.page_bytes(), 2 * 4 * 3 * 5 * 2);
    assert_eq!(layout.block_bytes(), 2 * 2 * 4 * 3 * 5 * 2);
    assert_eq!(layout.slab_elements(7), Ok(7 * 2 * 2 * 4 * 3 * 5));
    assert_eq!(layout.slab_bytes(7), Ok(7 * 2 * 2 * 4 * 3 * 5 * 2));
    assert_eq!(layout.slab_bytes(0), Ok(0));
    assert_eq!(layout.shape(), SHAPE);
}

#[test]
fn rows_follow_each_other_as_in_a_row_major_tensor() {
    let layout = PageLayout::new(SHAPE).unwrap();
    let mut expected = 0;
    for block in 0..3 {
        for layer in 0..2 {
            for part in KeyOrValue::BOTH {
                for head in 0..4 {
                    for slot in 0..3 {
                        assert_eq!(layout.row_offset(block, layer, part, head, slot), expected);
                        expected += layout.section(part).row_bytes;
                    }
                }
            }
        }
    }
    assert_eq!(layout.slab_bytes(3), Ok(expected));
}

#[test]
#[should_panic(expected = "slot 3 of 3")]
fn a_slot_of_the_next_head_is_no_slot() {
    let _ = PageLayout::new(SHAPE).unwrap().row_offset(0, 0, KeyOrValue::Key, 0, 3);
}
