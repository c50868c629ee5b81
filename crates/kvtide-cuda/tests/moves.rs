//! Kernels that move bytes, on a GPU or on the CPU that stands in for one, compared with plain loops.
#![cfg(any(feature = "cuda", feature = "emulate"))]

use kvtide_cuda::{
    BoxCopy, BufferRows, Direction, Move, Rows, Section, Strip, Strips, copy_boxes, copy_chains, copy_strips, shift,
    zero_pieces,
};
use place::{Memory, cases, stream};
use proptest::prelude::*;

mod place;

/// Bytes that differ from their neighbours.
fn bytes(count: usize, seed: usize) -> Vec<u8> {
    (0..count).map(|at| (at.wrapping_mul(31).wrapping_add(at / 251).wrapping_add(seed * 101)) as u8).collect()
}

/// The bytes of a row of elements without gaps, for each axis; `gap` more elements between two of the first axis.
fn strides(dims: &[usize], element: usize, gap: usize) -> Vec<usize> {
    let mut strides = vec![element; dims.len()];
    for axis in (0..dims.len().saturating_sub(1)).rev() {
        strides[axis] = strides[axis + 1] * dims[axis + 1] + if axis == 0 { gap * element } else { 0 };
    }
    strides
}

fn swapped(mut list: Vec<usize>, (one, other): (usize, usize)) -> Vec<usize> {
    if !list.is_empty() {
        let rank = list.len();
        list.swap(one % rank, other % rank);
    }
    list
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn boxes_are_copied_element_by_element(
        dims in prop::collection::vec(0..7usize, 0..6),
        element in prop::sample::select(vec![1usize, 2, 4, 16]),
        gap in 0..3usize,
        order in (0..6usize, 0..6usize),
        skews in prop::array::uniform2(prop::sample::select(vec![0usize, 0, 0, 1, 2, 4, 8])),
        count in 1..4usize,
    ) {
        let to = strides(&dims, element, gap);
        // The source's axes lie in another order.
        let from = swapped(strides(&swapped(dims.clone(), order), element, 0), order);
        let reach = |strides: &[usize]| {
            dims.iter().zip(strides).fold(element, |end, (size, stride)| end + size.saturating_sub(1) * stride)
        };
        let (target_bytes, source_bytes) = (reach(&to).next_multiple_of(16), reach(&from).next_multiple_of(16));
        let content = bytes(count * source_bytes, 1);
        let source = Memory::new(&content, skews[0]);
        let mut target = Memory::new(&bytes(count * target_bytes, 2), skews[1]);
        let mut expected = target.bytes();
        for of in 0..count {
            for mut index in 0..dims.iter().product::<usize>() {
                let (mut t, mut s) = (of * target_bytes, of * source_bytes);
                for axis in (0..dims.len()).rev() {
                    t += index % dims[axis] * to[axis];
                    s += index % dims[axis] * from[axis];
                    index /= dims[axis];
                }
                expected[t..t + element].copy_from_slice(&content[s..s + element]);
            }
        }
        let (whole, source) = (target.span_mut(), source.span());
        let boxes: Vec<_> = (0..count).map(|of| BoxCopy {
            target: whole.from(of * target_bytes),
            target_strides: &to,
            source: source.from(of * source_bytes),
            source_strides: &from,
            dims: &dims,
            element,
        }).collect();
        copy_boxes(&stream(), &boxes).unwrap();
        prop_assert_eq!(target.bytes(), expected);
    }

    #[test]
    fn rows_are_moved_as_if_one_after_the_other(
        count in 1..4usize,
        rows in prop::sample::select(vec![1usize, 9, 40, 1500]),
        row in prop::sample::select(vec![1usize, 2, 12, 24, 32, 48]),
        skew in prop::sample::select(vec![0usize, 0, 1, 4, 8]),
        moves in prop::collection::vec((any::<u32>(), any::<u32>(), any::<u32>()), 0..5),
    ) {
        let moves: Vec<Move> = moves.iter().map(|&(source, target, len)| {
            let len = len % (rows as u32 + 1);
            let free = rows as u32 - len + 1;
            Move { source: source % free, target: target % free, rows: len, unused: 0 }
        }).collect();
        let mut buffer = Memory::new(&bytes(count * rows * row, 3), skew);
        let mut expected = buffer.bytes();
        for (stretch, moved) in moves.iter().flat_map(|moved| (0..count).map(move |stretch| (stretch, moved))) {
            let at = |first: u32| (stretch * rows + first as usize) * row;
            expected.copy_within(at(moved.source)..at(moved.source + moved.rows), at(moved.target));
        }
        let stretches = BufferRows { count, rows, row };
        shift(&stream(), buffer.span_mut(), stretches, &moves).unwrap();
        prop_assert_eq!(buffer.bytes(), expected);
    }

    #[test]
    fn rows_go_into_pages_and_back(
        (heads, layers, slots, blocks) in (1..4usize, 1..4usize, 1..6usize, 1..5usize),
        row_bytes in prop::array::uniform2(prop::sample::select(vec![0usize, 2, 6, 16, 64])),
        tokens in 0..20usize,
        first in 0..3usize,
        by_token in any::<bool>(),
    ) {
        let head = row_bytes.map(|row| row * slots);
        let value = (heads * head[0]).next_multiple_of(16);
        let page = (value + heads * head[1]).next_multiple_of(16);
        let tokens = tokens.min(blocks * slots - first.min(blocks * slots));
        let mut pages = Memory::new(&bytes(blocks * layers * page, 4), 0);
        let contents = [0, 1].map(|part| bytes(layers * heads * tokens * row_bytes[part], 5 + part));
        let sources = [0, 1].map(|part: usize| Memory::new(&contents[part], 0));
        let strips: Vec<Strip> = (0..blocks).filter_map(|block| {
            let (start, end) = ((block * slots).max(first), ((block + 1) * slots).min(first + tokens));
            (start < end).then(|| Strip {
                // Blocks in no order.
                page: ((blocks - 1 - block) * layers * page) as u64,
                token: (start - first) as u32,
                slot: (start % slots) as u32,
                tokens: (end - start) as u32,
                layer: 0,
            })
        }).collect();
        let place = |part: usize, layer: usize, head: usize, token: usize| {
            let row = if by_token { (layer * tokens + token) * heads + head } else { (layer * heads + head) * tokens + token };
            row * row_bytes[part]
        };
        let mut expected = pages.bytes();
        for (part, layer, of) in (0..2).flat_map(|part| (0..layers).flat_map(move |layer| (0..heads).map(move |of| (part, layer, of)))) {
            for token in 0..tokens {
                let (block, slot) = ((first + token) / slots, (first + token) % slots);
                let at = ((blocks - 1 - block) * layers + layer) * page + part * value + of * head[part] + slot * row_bytes[part];
                let from = place(part, layer, of, token);
                expected[at..at + row_bytes[part]].copy_from_slice(&contents[part][from..from + row_bytes[part]]);
            }
        }
        let sections = [0, 1].map(|part| Section { offset: part * value, head: head[part], row: row_bytes[part] });
        let (layer_bytes, stream) = (page, stream());
        let rows = |memory, part: usize| {
            let row = row_bytes[part];
            let (token, head) = if by_token { (heads * row, row) } else { (row, tokens * row) };
            Rows { memory, offset: 0, layer: heads * tokens * row, head, token }
        };
        let given = [0, 1].map(|part| rows(sources[part].span(), part));
        let into = pages.span_mut();
        let call = Strips { pages: into, page_bytes: page, sections, rows: given, heads, layers, layer_bytes };
        copy_strips(&stream, Direction::Scatter, &call, &strips).unwrap();
        prop_assert_eq!(pages.bytes(), expected);

        let [mut k, mut v] = [0, 1].map(|part| Memory::new(&bytes(contents[part].len(), 9), 0));
        let taken = [rows(k.span_mut(), 0), rows(v.span_mut(), 1)];
        let out_of = pages.span();
        let call = Strips { pages: out_of, page_bytes: page, sections, rows: taken, heads, layers, layer_bytes };
        copy_strips(&stream, Direction::Gather, &call, &strips).unwrap();
        prop_assert_eq!([k.bytes(), v.bytes()], contents);
    }

    #[test]
    fn chains_carry_on_what_they_wrote(
        units in 1..40usize,
        skew in prop::sample::select(vec![0usize, 1, 2, 8]),
        chains in 1..4usize,
        places in prop::collection::vec((0..6usize, 0..6usize), 1..5),
    ) {
        let moves = places.len();
        let pieces: Vec<_> = (0..chains)
            .flat_map(|chain| places.iter().map(move |&(from, to)| ((chain * 6 + from) * units, (chain * 6 + to) * units)))
            .collect();
        let mut memory = Memory::new(&bytes(chains * 6 * units, 7), skew);
        let mut expected = memory.bytes();
        pieces.iter().for_each(|&(from, to)| expected.copy_within(from..from + units, to));
        let span = memory.span_mut();
        copy_chains(&stream(), (span, span), units, moves, &pieces).unwrap();
        prop_assert_eq!(&memory.bytes(), &expected);
        let starts: Vec<_> = places.iter().map(|place| place.0 * units).collect();
        starts.iter().for_each(|&at| expected[at..at + units].fill(0));
        zero_pieces(&stream(), memory.span_mut(), units, &starts).unwrap();
        prop_assert_eq!(&memory.bytes(), &expected);
    }
}
