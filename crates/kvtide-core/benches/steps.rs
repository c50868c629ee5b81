//! What a step of an engine costs in bookkeeping: `cargo bench -p kvtide-core --bench steps`.
//!
//! ```text
//! steady     1,000 sequences of 512 blocks, one token each: plan, open, fill the tables, mark all layers, close
//! parts      the same, each part apart
//! cold       the tables of the same step, all of them written anew
//! ```

use std::time::{Duration, Instant};

use kvtide_core::paged::{Append, PagedPlanner, StepTableRows, StepTables, Writer};

const SEQUENCES: usize = 1000;
const BLOCKS: u32 = 512;
const BLOCK_SIZE: u32 = 16;
const STEPS: u32 = 480;

struct Arrays {
    tables: Vec<i32>,
    others: [Vec<i32>; 4],
}

impl Arrays {
    fn new() -> Self {
        let others = std::array::from_fn(|_| vec![0; SEQUENCES + 1]);
        Arrays { tables: vec![0; SEQUENCES * 2 * BLOCKS as usize], others }
    }

    fn tables(&mut self) -> StepTables<'_> {
        let [slot_mapping, positions, lengths, query_offsets] = &mut self.others;
        StepTables { block_tables: &mut self.tables, slot_mapping, positions, lengths, query_offsets }
    }
}

/// Sequences that took their blocks in turn, as they do in an engine; the order of a step is not that of their making.
fn engine(layers: u32) -> (PagedPlanner, Vec<u64>) {
    let capacity = SEQUENCES as u32 * (BLOCKS + STEPS / BLOCK_SIZE + 2);
    let mut planner = PagedPlanner::new(capacity, BLOCK_SIZE, layers).unwrap();
    let mut sequences: Vec<u64> = (0..SEQUENCES).map(|_| planner.create_sequence().unwrap()).collect();
    for block in 0..BLOCKS {
        for (at, &sequence) in sequences.iter().enumerate() {
            // Not all at the same slot of their last block.
            let tokens = if block == BLOCKS - 1 { at as u32 % BLOCK_SIZE + 1 } else { BLOCK_SIZE };
            let offsets = [0, tokens];
            let append =
                Append { sequences: &[sequence], offsets: Some(&offsets), parents: None, writer: Writer::Direct };
            let plan = planner.plan_append(&append).unwrap();
            planner.commit(&plan, None).unwrap();
        }
    }
    for at in 0..SEQUENCES {
        sequences.swap(at, at * 7919 % SEQUENCES);
    }
    (planner, sequences)
}

const PARTS: [&str; 5] = ["plan", "open", "fill", "mark", "close"];

/// How layers are marked.
#[derive(Clone, Copy, Debug)]
enum Marked {
    Together,
    OneByOne,
}

/// The times of a step's parts.
fn step(
    planner: &mut PagedPlanner,
    sequences: &[u64],
    marked: Marked,
    rows: &mut StepTableRows,
    arrays: &mut Arrays,
) -> [Duration; 5] {
    let mut times = [Duration::ZERO; 5];
    let mut last = Instant::now();
    let mut done = |part: usize| {
        let now = Instant::now();
        times[part] = now - last;
        last = now;
    };
    let append = Append { sequences, offsets: None, parents: None, writer: Writer::Step };
    let plan = planner.plan_append(&append).unwrap();
    done(0);
    planner.open_step(&plan).unwrap();
    done(1);
    rows.fill(planner, &plan, arrays.tables()).unwrap();
    done(2);
    match marked {
        Marked::Together => planner.mark_layers(&plan, 0..planner.num_layers()).unwrap(),
        Marked::OneByOne => (0..planner.num_layers()).for_each(|layer| planner.mark_layer(&plan, layer).unwrap()),
    }
    done(3);
    planner.close_step(&plan, None).unwrap();
    drop(plan);
    done(4);
    times
}

fn median(times: &mut [Duration]) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn main() {
    for (layers, marked) in [(1, Marked::Together), (32, Marked::Together), (32, Marked::OneByOne)] {
        let (mut planner, sequences) = engine(layers);
        let (mut rows, mut arrays) = (StepTableRows::new(2 * BLOCKS).unwrap(), Arrays::new());
        let mut parts: [Vec<Duration>; 5] = Default::default();
        let (mut all, mut cold) = (Vec::new(), Vec::new());
        for at in 0..STEPS {
            if at % 8 == 0 {
                rows.forget();
            }
            let times = step(&mut planner, &sequences, marked, &mut rows, &mut arrays);
            if at % 8 == 0 {
                cold.push(times[2]);
                continue;
            }
            all.push(times.iter().sum());
            parts.iter_mut().zip(times).for_each(|(of, time)| of.push(time));
        }
        println!(
            "{SEQUENCES} sequences of {BLOCKS} blocks, {layers} layers {marked:?}, one token each; microseconds, medians"
        );
        let parts = PARTS.iter().zip(&mut parts).map(|(name, times)| format!("{name} {:.1}", median(times)));
        println!("  steady {:.1}: {}", median(&mut all), parts.collect::<Vec<_>>().join(", "));
        println!("  cold fill {:.1}", median(&mut cold));
    }
}
