//! Tests that the block tables of a step are uploaded to a device once, whatever the number of layers.

use kvtide_core::paged::PageFormat;

use super::call::options::AttendOptions;
use super::{KvRows, attend};
use crate::base::dtype::DType;
use crate::device::form::{Kernels, with_kernels};
use crate::paged::{PageGroup, PagedKvCacheOptions, StepTokens};
use crate::tensor::host::HostTensor;
use crate::tensor::source::Source;

const LAYERS: u32 = 4;
const DIM: usize = 32;

fn rows<'a>(bytes: &'a [u8], shape: &[usize]) -> Source<'a> {
    HostTensor::new("rows", bytes, DType::F16, shape).unwrap().into()
}

/// Runs steps of one token over two sequences of this many tokens in pages of two; returns how often tables were written in
/// each step.
fn writes(format: Option<PageFormat>, tokens: usize, steps: usize) -> Vec<u64> {
    let mut cache = PageGroup::new(PagedKvCacheOptions {
        capacity: 1024,
        block_size: 2,
        num_layers: LAYERS,
        head_dim: DIM as u32,
        dtype: DType::F16,
        key_format: format,
        value_format: format,
        ..Default::default()
    })
    .unwrap();
    let zeros = vec![0; tokens.max(2) * DIM * 2];
    let sequences = [(); 2].map(|()| cache.create_sequence(Default::default()).unwrap());
    for sequence in sequences {
        for layer in 0..LAYERS {
            let prompt = || rows(&zeros[..tokens * DIM * 2], &[1, tokens, DIM]);
            cache.write_tokens(sequence, layer, 0, [prompt(), prompt()]).unwrap();
        }
    }
    let step = |_| {
        let before = cache.tables.writes();
        let tokens = StepTokens { sequences: &sequences, ..Default::default() };
        let planned = cache.plan_step(tokens).unwrap();
        let mut step = cache.open_step(planned, tokens).unwrap();
        for layer in 0..LAYERS {
            let two = |shape: &[usize]| rows(&zeros[..2 * DIM * 2], shape);
            let tokens = || two(&[1, 2, DIM]);
            cache.write_layer(&mut step, layer, [tokens(), tokens()]).unwrap();
            let pages = cache.step_pages(&step, layer).unwrap();
            attend(two(&[2, 1, DIM]), KvRows::Pages(&pages), &AttendOptions::default()).unwrap();
        }
        cache.commit_step(&mut step, None).unwrap();
        cache.tables.writes() - before
    };
    (0..steps).map(step).collect()
}

#[test]
fn a_step_writes_its_tables_once_for_all_layers_and_only_when_they_have_changed() {
    with_kernels(Kernels::Emulated, || {
        for format in [None, Some(PageFormat::Q8)] {
            // Pages of two: every second token takes another block.
            assert_eq!(writes(format, 200, 4), [1, 0, 1, 0], "{format:?}");
            // Short tables are passed with the call.
            assert_eq!(writes(format, 20, 2), [0, 0], "{format:?}");
        }
    })
    .unwrap();
}
