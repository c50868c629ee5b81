//! Layouts of every pair of formats: no overlaps, everything in bounds, and sections at aligned offsets.

use kvtide_core::paged::{ALIGNMENT, HeadPlace, KeyOrValue, PageFormat, PageLayout, PageShape};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use crate::support;

fn shape() -> impl Strategy<Value = PageShape> {
    let format = || prop::sample::select(PageFormat::ALL);
    (1..20u32, 1..4u32, 1..4u32, 1..70u32, 0..70u32, format(), format(), any::<bool>()).prop_map(
        |(block_size, num_layers, num_kv_heads, head_dim, other_dim, key_format, other_format, alike)| PageShape {
            block_size,
            num_layers,
            num_kv_heads,
            head_dim,
            value_head_dim: if alike { head_dim } else { other_dim },
            key_format,
            value_format: if alike { key_format } else { other_format },
        },
    )
}

/// Bytes of one head's scales, from the contract's words.
fn scale_bytes(shape: PageShape, part: KeyOrValue) -> usize {
    let (format, dim) = match part {
        KeyOrValue::Key => (shape.key_format, shape.head_dim),
        KeyOrValue::Value => (shape.value_format, shape.value_head_dim),
    };
    let halves = match (format, part) {
        _ if dim == 0 => 0,
        (PageFormat::Q8, _) => shape.block_size,
        (PageFormat::Q4, KeyOrValue::Key) => 2 * dim,
        (PageFormat::Q4, KeyOrValue::Value) => 2 * shape.block_size,
        _ => 0,
    };
    2 * halves as usize
}

/// Every piece of a slab of two blocks, as first byte and bytes: a row of codes, or the scales of a head.
fn pieces(layout: &PageLayout) -> Vec<(usize, usize)> {
    let PageShape { block_size, num_layers, num_kv_heads, .. } = layout.shape();
    let mut pieces = Vec::new();
    for (block, layer) in (0..2).flat_map(|block| (0..num_layers).map(move |layer| (block, layer))) {
        for (part, head) in
            KeyOrValue::BOTH.into_iter().flat_map(|part| (0..num_kv_heads).map(move |head| (part, head)))
        {
            let HeadPlace { codes, row_bytes, scales } = layout.head_place(block, layer, part, head);
            for slot in 0..block_size {
                assert_eq!(layout.row_offset(block, layer, part, head, slot), codes + slot as usize * row_bytes);
                pieces.push((codes + slot as usize * row_bytes, row_bytes));
            }
            if let Some(scales) = scales {
                pieces.push((scales, layout.section(part).scale_bytes));
            }
        }
    }
    pieces
}

fn nothing_overlaps(shape: PageShape) -> Result<(), TestCaseError> {
    let layout = PageLayout::new(shape)?;
    let mut pieces = pieces(&layout);
    pieces.sort_unstable();
    let mut end = 0;
    for &(first, bytes) in pieces.iter().filter(|piece| piece.1 > 0) {
        prop_assert!(first >= end, "byte {first} lies in the piece before it");
        end = first + bytes;
    }
    prop_assert!(end <= layout.slab_bytes(2)?);
    let exact = pieces.iter().map(|piece| piece.1).sum::<usize>();
    let gaps = layout.slab_bytes(2)? - exact;
    let most = if layout.uniform().is_some() { 0 } else { 2 * shape.num_layers as usize * 4 * (ALIGNMENT - 1) };
    prop_assert!(gaps <= most, "{gaps} bytes of gaps");
    Ok(())
}

fn sections_start_where_they_should(shape: PageShape) -> Result<(), TestCaseError> {
    let layout = PageLayout::new(shape)?;
    for part in KeyOrValue::BOTH {
        let section = layout.section(part);
        prop_assert_eq!(section.scale_bytes, scale_bytes(shape, part));
        prop_assert_eq!(Some(section.row_bytes), section.format.row_bytes(section.head_dim));
        let place = layout.head_place(1, shape.num_layers - 1, part, 0);
        prop_assert_eq!(place.scales.is_some(), section.scale_bytes > 0);
        if layout.uniform().is_none() {
            prop_assert_eq!((place.codes % ALIGNMENT, place.scales.unwrap_or(0) % ALIGNMENT), (0, 0));
        }
    }
    prop_assert_eq!(layout.is_low_bit(), shape.key_format.is_low_bit() || shape.value_format.is_low_bit());
    prop_assert_eq!(layout.slab_shape(2).iter().product::<usize>(), layout.slab_elements(2)?);
    Ok(())
}

#[test]
fn rows_and_scales_lie_apart_and_inside() {
    support::run("layout", 2_000, shape(), nothing_overlaps);
}

#[test]
fn sections_and_scales_are_aligned() {
    support::run("sections", 2_000, shape(), sections_start_where_they_should);
}

#[test]
fn a_page_of_low_bit_rows_is_as_small_as_it_should_be() {
    let bytes = |key_format, value_format| {
        let shape = PageShape {
            block_size: 16,
            num_layers: 1,
            num_kv_heads: 8,
            head_dim: 128,
            value_head_dim: 128,
            key_format,
            value_format,
        };
        PageLayout::new(shape).unwrap().bytes_per_token()
    };
    use PageFormat::{F8E4M3, F32, Q4, Q8};
    assert_eq!(bytes(F32, F32), 8192.);
    assert_eq!(bytes(F8E4M3, F8E4M3), 2048.);
    assert_eq!(bytes(Q8, Q8), 2048. + 2. * 8. * 2.);
    assert_eq!(bytes(Q4, Q4), 1024. + 8. * 4. + 8. * 128. * 4. / 16.);
}

#[test]
fn formats_have_names() {
    for &format in PageFormat::ALL {
        assert_eq!(format.name().parse(), Ok(format));
    }
    assert_eq!("q5".parse::<PageFormat>(), Err("f32, f16, bf16, u8, f8e4m3, q8, q4".to_owned()));
}
