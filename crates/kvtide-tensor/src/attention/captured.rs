//! Attention of a captured step: one query of each sequence, over pages, with lengths and tables that the device holds when it is
//! replayed.
//!
//! The grid is that of the longest that sequences can become, so that it is the same in every replay. O(sequences) on the host,
//! once.

use candle_core::Tensor;
use kvtide_core::paged::KeyOrValue;
use kvtide_cuda::{
    Attend, AttendKeys, AttendRules, AttendSequence, AttendSizes, DeviceLengths, PageMemory, Stream, Words, attend,
};

use super::call::asked::Axes;
use super::call::kv_rows::resolve;
use super::call::options::{AttendOptions, check_numbers, rules};
use super::launched::{head_rows, page_memory};
use crate::base::dtype::tensor_dtype;
use crate::base::error::{Error, Result};
use crate::device::edit::{identity, inspect_spans, launch};
use crate::paged::{Slab, StepNumbers, check_device};
use crate::tensor::source::{Resolved, Source};

/// Enqueues attention from `q`, `[sequences, heads, headDim]`, to a layer; the result goes to `out`, of the same shape with the
/// values' head dim.
pub(crate) fn attend_captured(
    stream: &Stream,
    (slab, layer): (&Slab, u32),
    numbers: &StepNumbers<'_>,
    (q, out): (&Tensor, &Tensor),
    options: &AttendOptions<'_>,
) -> Result<()> {
    let source = Source::Tensor(q);
    let queries = check_queries(&source, q, slab, numbers.sequences)?;
    let sizes = sizes(&queries, slab)?;
    check_out(out, q, slab, &sizes)?;
    check_options(options)?;
    check_numbers(options, sizes)?;
    let out_at = out.layout().start_offset() * queries.dtype.bytes();
    let mut sums = stream.memory(4 * numbers.sequences * sizes.query_heads)?;
    let sums = sums.span();
    let sequences: Vec<AttendSequence> = (0..numbers.sequences).map(|at| sequence(at, numbers.row_blocks)).collect();
    let launched = std::cell::Cell::new(false);
    inspect_spans(&[q, slab.storage(), numbers.lengths, numbers.tables], |of| {
        launch(out, &[], |memory, _| {
            let pages = page_memory(slab, layer, Some(of[1]));
            let keys = AttendKeys::Pages {
                slab: pages,
                staging: PageMemory { blocks: 0, ..pages },
                block_size: slab.layout.shape().block_size as usize,
                is_rotated: false,
                tables: Words::Device(of[3]),
                tails: &[],
            };
            let lengths = DeviceLengths { memory: of[2].from(4 * numbers.sequences), keys_max: numbers.keys_max };
            let call = Attend {
                queries: head_rows(&queries, Axes::RAGGED, of[0]),
                sizes,
                rules: AttendRules { is_causal: true, ..rules(options, sizes) },
                keys,
                sequences: &sequences,
                stems: &[],
                lengths: Some(lengths),
                trees: None,
                mask: None,
                positions: None,
                out: memory.from(out_at),
                lse: sums,
            };
            launched.set(attend(stream, &call)?);
            Ok(())
        })
    })?;
    match launched.get() {
        true => Ok(()),
        false => Err(Error::argument("headDim", sizes.dim.max(sizes.value_dim), "at most 512 in a captured step")),
    }
}

fn check_queries<'a>(source: &'a Source<'a>, q: &Tensor, slab: &Slab, sequences: usize) -> Result<Resolved<'a>> {
    check_device(q, "q", slab.tensor.device())?;
    let queries = resolve(source, "q", Axes::RAGGED)?;
    if queries.dims[0] != sequences {
        let expected = format!("[{sequences}, heads, headDim], a query of each sequence");
        return Err(Error::ShapeMismatch { argument: "q", value: queries.dims.to_vec(), expected });
    }
    // What is copied for a call is gone when it is replayed.
    if queries.tensor().is_none_or(|tensor| identity(tensor) != identity(q)) {
        return Err(Error::argument("q", "rows with gaps", "rows whose elements are neighbours"));
    }
    Ok(queries)
}

fn sizes(q: &Resolved<'_>, slab: &Slab) -> Result<AttendSizes> {
    let kv_heads = slab.layout.shape().num_kv_heads as usize;
    let [dim, value_dim] = KeyOrValue::BOTH.map(|part| slab.layout.section(part).head_dim);
    let (query_heads, given) = (q.dims[1], q.dims[2]);
    if query_heads == 0 || !query_heads.is_multiple_of(kv_heads) || given != dim {
        let expected = format!("heads that are a multiple of {kv_heads}, and a head dim of {dim}, as the cache has");
        return Err(Error::ShapeMismatch { argument: "q", value: q.dims.to_vec(), expected });
    }
    Ok(AttendSizes { query_heads, kv_heads, dim, value_dim, is_ragged: true })
}

fn check_out(out: &Tensor, q: &Tensor, slab: &Slab, sizes: &AttendSizes) -> Result<()> {
    check_device(out, "out", slab.tensor.device())?;
    let wanted = [q.dims()[0], sizes.query_heads, sizes.value_dim];
    if out.dims() != wanted {
        let expected = format!("{wanted:?}, as the queries");
        return Err(Error::ShapeMismatch { argument: "out", value: out.dims().to_vec(), expected });
    }
    let [own, expected] = [tensor_dtype("out", out)?, tensor_dtype("q", q)?];
    if own != expected {
        let (value, expected) = (own.to_string(), expected.to_string());
        return Err(Error::DtypeMismatch { argument: "out", value, expected });
    }
    if !out.is_contiguous() {
        return Err(Error::argument("out", "elements with gaps", "elements that lie in order"));
    }
    if identity(out) == identity(q) {
        return Err(Error::argument("out", "the memory of q", "memory of its own"));
    }
    Ok(())
}

/// Refuses what is not known before a replay, and what a device does not do.
fn check_options(options: &AttendOptions<'_>) -> Result<()> {
    let given = [
        ("mask", options.mask.is_some()),
        ("tree", options.tree.is_some()),
        ("treeOffsets", options.tree_offsets.is_some()),
        ("starts", options.starts.is_some()),
        ("positions", options.positions.is_some()),
        ("qOffsets", options.query_offsets.is_some()),
        ("stop", options.stop.is_some()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        Some((argument, _)) => Err(Error::argument(argument, "given", "nothing in a captured step")),
        None => Ok(()),
    }
}

fn sequence(index: usize, row_blocks: usize) -> AttendSequence {
    AttendSequence {
        first_query: index,
        queries: 1,
        first_key: 0,
        table: index * row_blocks,
        // As many as the device says.
        keys: [(0, 0); 2],
        start: i64::MIN,
        tail: None,
        nodes: 0,
        tree: [0; 2],
    }
}
