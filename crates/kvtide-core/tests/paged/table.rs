//! The plain block table.

use kvtide_core::Error;
use kvtide_core::paged::{BlockHandle, BlockTable};

const A: u64 = 3;
const B: u64 = 5 + (7 << 32);

#[test]
fn an_empty_shape_is_refused() {
    assert_eq!(BlockTable::new(0, 4).unwrap_err(), Error::argument("numLayers", 0, "at least 1"));
    assert_eq!(BlockTable::new(2, 0).unwrap_err(), Error::argument("blockSize", 0, "at least 1"));
}

#[test]
fn a_layer_out_of_range_is_refused() {
    let mut table = BlockTable::new(2, 4).unwrap();
    let refusal = Error::argument("layer", 2, "below 2");
    assert_eq!(table.append_block(2, BlockHandle::from_raw(A)), Err(refusal.clone()));
    assert_eq!(table.get_block(2, 0), Err(refusal.clone()));
    assert_eq!(table.num_blocks(2), Err(refusal.clone()));
    assert_eq!(table.token_capacity(2), Err(refusal));
}

#[test]
fn layers_have_lists_of_their_own() {
    let mut table = BlockTable::new(2, 4).unwrap();
    table.append_block(1, BlockHandle::from_raw(A)).unwrap();
    table.append_block(1, BlockHandle::from_raw(B)).unwrap();
    assert_eq!([0, 1].map(|layer| table.num_blocks(layer)), [Ok(0), Ok(2)]);
    assert_eq!([0, 1].map(|layer| table.token_capacity(layer)), [Ok(0), Ok(8)]);
    assert_eq!(table.get_block(1, 0), Ok(Some(BlockHandle::from_raw(A))));
    assert_eq!(table.get_block(1, 1), Ok(Some(BlockHandle::from_raw(B))));
    assert_eq!(table.get_block(1, 2), Ok(None));
    assert_eq!(table.get_block(0, 0), Ok(None));
    assert_eq!(table.get_block(1, u32::MAX), Ok(None));
}

#[test]
fn the_largest_numbers_are_no_trouble() {
    let most = i32::MAX as u32;
    let mut table = BlockTable::new(most, most).unwrap();
    table.append_block(most - 1, BlockHandle::from_raw(A)).unwrap();
    table.append_block(most - 1, BlockHandle::from_raw(B)).unwrap();
    table.append_block(most - 1, BlockHandle::from_raw(A)).unwrap();
    assert_eq!(table.token_capacity(most - 1), Ok(3 * u64::from(most)));
}
