//! A step that is captured once and replayed, against the same launches one by one: everything that changes from step to step is
//! read from the device's memory.
#![cfg(all(feature = "captured-steps", any(feature = "cuda", feature = "emulate")))]

mod place;

use kvtide_cuda::{
    Attend, AttendKeys, AttendRules, AttendSequence, AttendSizes, DeviceLengths, Error, HeadRows, Insert, PageMemory,
    PageSection, Result, RowFormat, Rows, Section, Stream, Tables, Words, advance, attend, insert,
};
use place::{Memory, stream};
use proptest::prelude::*;

const HEADS: usize = 2;
const DIM: usize = 8;
const SLOTS: usize = 4;
const ROW: usize = 4 * DIM;
const PAGE: usize = 2 * HEADS * SLOTS * ROW;
const ROW_BLOCKS: usize = 160;

/// A cache of one layer in blocks, and what a step is given and gives.
struct World {
    sequences: usize,
    keys_max: usize,
    pages: Memory,
    /// Of each sequence before the step, then with its token.
    lengths: Memory,
    tables: Memory,
    rows: [Memory; 2],
    queries: Memory,
    out: Memory,
    sums: Memory,
}

fn floats(count: usize, seed: usize) -> Vec<u8> {
    (0..count).flat_map(|at| (((at * 37 + seed * 101) % 97) as f32 / 48.0 - 1.0).to_ne_bytes()).collect()
}

impl World {
    fn new(lengths: &[i32], steps: usize) -> Self {
        let sequences = lengths.len();
        let keys_max = lengths.iter().map(|&of| of.max(0) as usize).max().unwrap_or(0) + steps;
        assert!(keys_max <= ROW_BLOCKS * SLOTS);
        let blocks = sequences * ROW_BLOCKS;
        // No two neighbours follow each other.
        let tables: Vec<i32> = (0..blocks).map(|at| (blocks - 1 - at) as i32).collect();
        let all: Vec<i32> = lengths.iter().copied().chain(lengths.iter().map(|of| of + 1)).collect();
        let zeros = |bytes: usize| Memory::new(&vec![0; bytes], 0);
        World {
            sequences,
            keys_max,
            pages: Memory::new(&floats(blocks * PAGE / 4, 1), 0),
            lengths: Memory::new(bytemuck::cast_slice(&all), 0),
            tables: Memory::new(bytemuck::cast_slice(&tables), 0),
            rows: [(); 2].map(|()| zeros(sequences * HEADS * ROW)),
            queries: zeros(sequences * HEADS * ROW),
            out: zeros(sequences * HEADS * ROW),
            sums: zeros(sequences * HEADS * 4),
        }
    }

    /// Puts what step `step` brings where the launches read it.
    fn feed(&mut self, step: usize) {
        let count = self.sequences * HEADS * DIM;
        let stream = stream();
        for (place, memory) in self.rows.iter_mut().chain([&mut self.queries]).enumerate() {
            stream.upload(&floats(count, 3 * step + place), memory.span_mut()).unwrap();
        }
    }

    fn enqueue(&mut self, stream: &Stream) -> Result<()> {
        let half = HEADS * SLOTS * ROW;
        let tables = Tables {
            lengths: self.lengths.span(),
            blocks: self.tables.span(),
            sequences: self.sequences,
            row_blocks: ROW_BLOCKS,
        };
        let section = |part: usize| Section { offset: part * half, head: SLOTS * ROW, row: ROW };
        let rows = |memory| Rows { memory, offset: 0, layer: 0, head: ROW, token: HEADS * ROW };
        let call = Insert {
            pages: self.pages.span_mut(),
            page_bytes: PAGE,
            block_bytes: PAGE,
            block_size: SLOTS,
            sections: [section(0), section(1)],
            rows: [rows(self.rows[0].span()), rows(self.rows[1].span())],
            heads: HEADS,
            first_layer: 0,
            layers: 1,
        };
        insert(stream, &call, &tables)?;
        self.enqueue_attention(stream)?;
        advance(stream, self.lengths.span_mut(), 2 * self.sequences, 1)
    }

    fn enqueue_attention(&mut self, stream: &Stream) -> Result<()> {
        let half = HEADS * SLOTS * ROW;
        let sequences: Vec<AttendSequence> = (0..self.sequences).map(sequence).collect();
        let page_section = |part: usize| PageSection {
            format: RowFormat::F32,
            codes: part * half,
            head: SLOTS * ROW,
            scales: 0,
            scale_head: 0,
        };
        let pages = |blocks: usize| PageMemory {
            memory: self.pages.span(),
            first: 0,
            page: PAGE,
            block: PAGE,
            blocks,
            sections: [page_section(0), page_section(1)],
        };
        let keys = AttendKeys::Pages {
            slab: pages(self.sequences * ROW_BLOCKS),
            staging: pages(0),
            block_size: SLOTS,
            is_rotated: false,
            tables: Words::Device(self.tables.span()),
            tails: &[],
        };
        let count = self.sequences;
        let call = Attend {
            queries: HeadRows {
                memory: self.queries.span(),
                format: RowFormat::F32,
                pieces: [(0, count), (0, 0)],
                batch: 0,
                head: ROW,
                token: HEADS * ROW,
            },
            sizes: AttendSizes { query_heads: HEADS, kv_heads: HEADS, dim: DIM, value_dim: DIM, is_ragged: true },
            rules: AttendRules::causal(0.5),
            keys,
            sequences: &sequences,
            stems: &[],
            lengths: Some(DeviceLengths { memory: self.lengths.span().from(4 * count), keys_max: self.keys_max }),
            trees: None,
            mask: None,
            positions: None,
            out: self.out.span_mut(),
            lse: self.sums.span_mut(),
        };
        assert!(attend(stream, &call)?);
        Ok(())
    }

    fn content(&self) -> [Vec<u8>; 4] {
        [self.pages.bytes(), self.lengths.bytes(), self.out.bytes(), self.sums.bytes()]
    }
}

fn sequence(index: usize) -> AttendSequence {
    AttendSequence {
        first_query: index,
        queries: 1,
        first_key: 0,
        table: index * ROW_BLOCKS,
        keys: [(0, 0); 2],
        start: i64::MIN,
        tail: None,
        nodes: 0,
        tree: [0; 2],
    }
}

fn replays_as_one_by_one(lengths: &[i32], steps: usize) {
    let [mut replayed, mut plain] = [(); 2].map(|()| World::new(lengths, steps));
    for world in [&mut replayed, &mut plain] {
        world.feed(0);
    }
    // The first step runs as it is.
    let graph = stream().capture(|stream| replayed.enqueue(stream)).unwrap();
    plain.enqueue(&stream()).unwrap();
    assert!(replayed.content() == plain.content(), "the run before the capture");
    for step in 1..steps {
        for world in [&mut replayed, &mut plain] {
            world.feed(step);
        }
        graph.replay().unwrap();
        plain.enqueue(&stream()).unwrap();
        assert!(replayed.content() == plain.content(), "step {step}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: place::cases().div_ceil(20), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_replay_reads_what_changes_on_the_device(
        lengths in prop::collection::vec(0..60i32, 1..6),
        steps in 1..12usize,
    ) {
        replays_as_one_by_one(&lengths, steps);
    }
}

/// What is handed along lies in the device's memory then, and keys are cut in shares, which takes memory for the length of a call.
#[test]
fn long_lists_and_memory_of_a_call_stay_with_the_graph() {
    let lengths: Vec<i32> = (0..40).map(|of| of % 9).collect();
    replays_as_one_by_one(&lengths, 4);
    replays_as_one_by_one(&[600, 3], 6);
}

/// What was there before and is dropped while the second run is recorded: a graph cannot give it back.
#[test]
fn memory_from_before_a_capture_is_given_back_behind_it() {
    let mut world = World::new(&[5, 3], 4);
    let mut held = Some(stream().memory(1000).unwrap());
    let mut runs = 0;
    let graph = stream().capture(|stream| {
        runs += 1;
        if runs == 2 {
            held = None;
        }
        world.enqueue(stream)
    });
    assert!(held.is_none());
    graph.unwrap().replay().unwrap();
}

/// Memory of the first run that the second one takes anew, in another order, and gives back in yet another.
#[test]
fn memory_that_the_work_replaces_is_found_again() {
    let mut world = World::new(&[5, 3], 4);
    let graph = stream().capture(|stream| {
        let [small, large] = [10, 100_000].map(|bytes| stream.memory(bytes));
        drop(large?);
        world.enqueue(stream)?;
        drop(small?);
        let again = stream.memory(100_000)?;
        world.enqueue(stream)?;
        drop(again);
        Ok::<_, Error>(())
    });
    graph.unwrap().replay().unwrap();
}

#[test]
fn work_that_hands_other_numbers_along_than_before_is_refused() {
    let lengths: Vec<i32> = (0..40).collect();
    let mut world = World::new(&lengths, 4);
    let mut runs = 0;
    let refused = stream().capture(|stream| {
        runs += 1;
        world.sequences = if runs == 1 { 40 } else { 39 };
        world.enqueue(stream)
    });
    let error = refused.unwrap_err();
    assert!(matches!(error, Error::Launch { .. }), "{error}");
    assert!(error.to_string().contains("other numbers along than the run before"), "{error}");
    // Nothing is captured any more: what is launched runs.
    world.sequences = 40;
    let before = world.lengths.bytes();
    world.enqueue(&stream()).unwrap();
    assert_ne!(world.lengths.bytes(), before);
}
