//! The options of attention, their checks against the sizes of a call, and the result.

use std::sync::atomic::AtomicBool;

use kvtide_core::Tree;
use kvtide_cuda::{AttendRules, AttendSizes};

use super::asked::{Asked, CallSequence, Family, Mask};
use super::kv_rows::{KvRows, check_offsets};
use crate::base::dtype::DType;
use crate::base::error::{Error, Result};
use crate::tensor::host::HostTensor;
use crate::tensor::view::View;

/// The options of an attention call. Every field has a default.
#[derive(Clone, Debug)]
pub struct AttendOptions<'a> {
    /// The factor of the products; by default one over the square root of the head dim.
    pub scale: Option<f32>,
    /// True if a query attends only to keys up to its own position.
    pub causal: bool,
    /// The number of positions back that a query attends to, including its own. By default, the window and the sinks of the
    /// cache that is read, if it has one, else all positions. The cache's window applies to its pages, and to its views
    /// along the sequence axis; a separate tensor, such as a copy, has none.
    ///
    /// A query that would attend to a token that such a cache has dropped is refused. With a mask and no tree, drafts that
    /// were given parents use the mask alone.
    pub window: Option<u32>,
    /// The number of positions at the start that this window does not hide.
    pub sinks: u32,
    /// One logit per query head that takes part in the softmax and has no value: finite, or -infinity for a head without
    /// one.
    pub sink_logits: Option<&'a [f32]>,
    /// ALiBi: one slope per query head. `slope * (key position - query position)` is added to the scores.
    pub alibi_slopes: Option<&'a [f32]>,
    /// Caps scores to `softcap * tanh(score / softcap)`.
    pub softcap: Option<f32>,
    /// 32-bit floats that are added to the scores; the shape must broadcast to `[batch, query heads, n, keys]`.
    pub mask: Option<HostTensor<'a>>,
    /// The parents of the nodes of draft trees, which are the queries and the last keys of each sequence: one tree for all
    /// of them, or one for each, one after the other. `-1` follows the last key before the tree. A node attends to itself,
    /// its ancestors and the tokens before the tree; positions follow depth.
    ///
    /// By default, unless there is a mask, pages of a paged cache's sequences use the trees of their open transactions and
    /// steps.
    pub tree: Option<&'a [i32]>,
    /// The index of the first node of each sequence's tree, followed by the number of nodes. With offsets, the nodes are the
    /// last keys and the last queries, and their number may differ from that of the queries: earlier queries form a chain.
    pub tree_offsets: Option<&'a [i32]>,
    /// The first slot that each row of the batch may attend to; earlier slots are padding.
    pub starts: Option<&'a [i32]>,
    /// The position of each query, one list for every sequence or one for all; by default the queries are the last tokens.
    pub positions: Option<&'a [i32]>,
    /// The index of the first query of each sequence in `[tokens, heads, dim]`, followed by the number of queries.
    pub query_offsets: Option<&'a [i32]>,
    /// True if the logarithms of the rows' sums are requested too; a call on a GPU then waits for the GPU.
    pub lse: bool,
    /// The most threads to use; by default [`crate::runtime::threads()`].
    pub threads: Option<usize>,
    /// Ends the call early, with [`Error::Aborted`](crate::Error::Aborted), once it is true.
    pub stop: Option<&'a AtomicBool>,
}

impl Default for AttendOptions<'_> {
    fn default() -> Self {
        AttendOptions {
            scale: None,
            causal: true,
            window: None,
            sinks: 0,
            sink_logits: None,
            alibi_slopes: None,
            softcap: None,
            mask: None,
            tree: None,
            tree_offsets: None,
            starts: None,
            positions: None,
            query_offsets: None,
            lse: true,
            threads: None,
            stop: None,
        }
    }
}

impl<'a> AttendOptions<'a> {
    /// The options with the window and the sinks of the cache that is read, unless they name a window. With a mask and no
    /// tree, the mask alone says which nodes of a draft are visible: a window would go by their slots, which differ from
    /// their positions.
    pub(in crate::attention) fn in_window(&self, kv: &KvRows<'_>) -> AttendOptions<'a> {
        match kv.window() {
            Some(window) if self.window.is_none() && !self.is_masked(kv) => {
                AttendOptions { window: Some(window.tokens()), sinks: window.sinks(), ..self.clone() }
            }
            _ => self.clone(),
        }
    }

    /// True if a mask stands for the trees of the cache that is read.
    fn is_masked(&self, kv: &KvRows<'_>) -> bool {
        self.mask.is_some() && self.tree.is_none() && kv.has_tree()
    }

    /// Fails if slopes are given, but the positions of drafted nodes are not known.
    pub(in crate::attention) fn check_nodes(&self, kv: &KvRows<'_>) -> Result<()> {
        if self.alibi_slopes.is_none() || !self.is_masked(kv) {
            return Ok(());
        }
        let expected =
            "none with a mask over drafts that were given parents, unless `tree` says how deep the nodes are";
        Err(Error::argument("alibiSlopes", "slopes", expected))
    }
}

/// The result of attention.
#[derive(Clone, Debug)]
pub struct Attended {
    /// The output, with the queries' shape (and the values' head dim) and dtype: on the queries' device if that has its own
    /// kernels or is the host, else in host memory.
    pub out: View,
    /// The natural logarithm of each row's sum of exponentials, `[tokens, query heads]`; -infinity for a row that attends to
    /// no key. Empty if it was not requested.
    pub lse: Vec<f32>,
}

/// The most nodes of a draft tree.
const TREE_MAX: usize = 4096;

/// Checks the options against the sizes of a call. `own` are the known trees at the end of each sequence's keys.
pub(in crate::attention) fn check<'a>(
    options: &AttendOptions<'a>,
    sizes: AttendSizes,
    sequences: Vec<CallSequence>,
    own: &[Option<&Tree>],
) -> Result<Asked<'a>> {
    check_numbers(options, sizes)?;
    let strides = mask_strides(options, sizes, &sequences)?;
    Ok(Asked {
        sizes,
        rules: rules(options, sizes),
        trees: trees(options, &sequences, own)?,
        mask: options.mask.as_ref().map(|mask| Mask { bytes: mask.bytes(), strides }),
        positions: positions(options, &sequences)?,
        stop: options.stop,
        sequences,
    })
}

/// The rules of the options.
pub(in crate::attention) fn rules<'a>(options: &AttendOptions<'a>, sizes: AttendSizes) -> AttendRules<'a> {
    AttendRules {
        is_causal: options.causal,
        window: options.window.map(i64::from),
        sinks: options.sinks.into(),
        sink_logits: options.sink_logits,
        alibi_slopes: options.alibi_slopes,
        scale: options.scale.unwrap_or_else(|| 1.0 / (sizes.dim as f32).sqrt()),
        softcap: options.softcap,
    }
}

fn check_numbers(options: &AttendOptions<'_>, sizes: AttendSizes) -> Result<()> {
    let AttendOptions { scale, window, sinks, sink_logits, alibi_slopes, softcap, starts, threads, .. } = options;
    if scale.is_some_and(|scale| !scale.is_finite()) {
        return Err(Error::argument("scale", f64::from(scale.unwrap_or(0.0)), "a finite number"));
    }
    if *window == Some(0) {
        return Err(Error::argument("window", 0u32, "at least 1"));
    }
    if softcap.is_some_and(|cap| !cap.is_finite() || cap <= 0.0) {
        return Err(Error::argument("softcap", f64::from(softcap.unwrap_or(0.0)), "a finite number over 0"));
    }
    if *sinks > 0 && starts.is_some() {
        return Err(Error::argument(
            "sinks",
            *sinks,
            "0 if starts are given, because padding would be in the place of the sinks",
        ));
    }
    if *threads == Some(0) {
        return Err(Error::argument("threads", 0u32, "at least 1"));
    }
    if options.tree_offsets.is_some() && options.tree.is_none() {
        return Err(Error::argument("treeOffsets", "offsets", "none without a tree"));
    }
    let is_logit = |logit: f32| !logit.is_nan() && logit != f32::INFINITY;
    let logits = "finite numbers, or -Infinity for a head without a sink";
    check_per_head("sinkLogits", *sink_logits, sizes.query_heads, is_logit, logits)?;
    check_per_head("alibiSlopes", *alibi_slopes, sizes.query_heads, f32::is_finite, "finite numbers")
}

/// Fails unless there is one number for each query head, and each fits.
fn check_per_head(
    argument: &'static str,
    numbers: Option<&[f32]>,
    heads: usize,
    fits: impl Fn(f32) -> bool,
    expected: &'static str,
) -> Result<()> {
    let Some(numbers) = numbers else { return Ok(()) };
    if numbers.len() != heads {
        let expected = format!("{heads}, one for each query head");
        return Err(Error::ShapeMismatch { argument, value: vec![numbers.len()], expected });
    }
    match numbers.iter().position(|&number| !fits(number)) {
        Some(place) => Err(Error::argument(argument, format!("{} at {place}", numbers[place]), expected)),
        None => Ok(()),
    }
}

fn positions(options: &AttendOptions<'_>, sequences: &[CallSequence]) -> Result<Option<Vec<i64>>> {
    let Some(positions) = options.positions else { return Ok(None) };
    check_per_query(sequences, "positions", positions.len())?;
    if let Some(&wrong) = positions.iter().find(|&&position| position < 0) {
        return Err(Error::argument("positions", wrong, "positions of at least 0"));
    }
    Ok(Some(positions.iter().copied().map(i64::from).collect()))
}

/// Fails unless the list has one entry per query, or one per query of each sequence if all have equally many.
fn check_per_query(sequences: &[CallSequence], argument: &'static str, len: usize) -> Result<()> {
    let each = sequences.first().map_or(0, |of| of.queries);
    let shared = sequences.iter().all(|of| of.queries == each);
    let all: usize = sequences.iter().map(|of| of.queries).sum();
    if len == all || (shared && len == each) {
        return Ok(());
    }
    let expected = format!("{all}, one for each query");
    Err(Error::ShapeMismatch { argument, value: vec![len], expected })
}

/// The trees of the options, or else the known ones; not used if there is a mask.
fn trees(
    options: &AttendOptions<'_>,
    sequences: &[CallSequence],
    own: &[Option<&Tree>],
) -> Result<Vec<Option<Family>>> {
    let Some(parents) = options.tree else {
        let known = own.iter().zip(sequences).map(|(tree, of)| tree.map(|tree| family(tree, of)).transpose());
        let is_asked = options.mask.is_none() && own.iter().any(Option::is_some);
        return if is_asked { known.collect() } else { Ok(Vec::new()) };
    };
    let each = sequences.first().map_or(0, |of| of.queries);
    let all: usize = sequences.iter().map(|of| of.queries).sum();
    if let Some(offsets) = options.tree_offsets {
        if offsets.len() != sequences.len() + 1 {
            let expected = format!("{}, one more than there are sequences", sequences.len() + 1);
            return Err(Error::ShapeMismatch { argument: "treeOffsets", value: vec![offsets.len()], expected });
        }
        check_offsets("treeOffsets", offsets, parents.len())?;
        let part = |ends: &[i32]| &parents[ends[0] as usize..ends[1] as usize];
        let trees = offsets.windows(2).zip(sequences);
        return trees.map(|(ends, of)| family(&Tree::new(part(ends))?, of).map(Some)).collect();
    }
    if parents.len() == each && sequences.iter().all(|of| of.queries == each) {
        let tree = Tree::new(parents)?;
        let families = sequences.iter().take(1).map(|of| family(&tree, of).map(Some)).collect();
        return sequences.iter().try_for_each(|of| check_tree(parents.len(), of)).and(families);
    }
    if parents.len() != all {
        let expected = format!("{all}, one parent for each query, or else treeOffsets");
        return Err(Error::ShapeMismatch { argument: "tree", value: vec![parents.len()], expected });
    }
    let part = |of: &CallSequence| &parents[of.first_query..of.first_query + of.queries];
    sequences.iter().map(|of| family(&Tree::new(part(of))?, of).map(Some)).collect()
}

fn family(tree: &Tree, of: &CallSequence) -> Result<Family> {
    check_tree(tree.len(), of)?;
    Family::new(tree)
}

fn check_tree(nodes: usize, of: &CallSequence) -> Result<()> {
    let most = TREE_MAX.min(of.keys.len());
    if nodes <= most {
        return Ok(());
    }
    let expected = format!("at most {most} nodes, which are the last keys");
    Err(Error::ShapeMismatch { argument: "tree", value: vec![nodes], expected })
}

/// The mask's strides in bytes, 0 for a broadcast axis.
fn mask_strides(options: &AttendOptions<'_>, sizes: AttendSizes, sequences: &[CallSequence]) -> Result<[usize; 4]> {
    let Some(mask) = &options.mask else { return Ok([0; 4]) };
    if mask.dtype() != DType::F32 {
        let (value, expected) = (mask.dtype().to_string(), "f32".to_owned());
        return Err(Error::DtypeMismatch { argument: "mask", value, expected });
    }
    let first = sequences.first().map_or((0, 0), |of| (of.queries, of.keys.len()));
    let alike = sequences.iter().all(|of| (of.queries, of.keys.len()) == first);
    let full = [sequences.len(), sizes.query_heads, first.0, first.1];
    let (dims, strides) = (mask.dims(), mask.byte_strides());
    let missing = 4usize.checked_sub(dims.len());
    let broadcasts = missing
        .is_some_and(|missing| dims.iter().zip(&full[missing..]).all(|(&size, &whole)| size == whole || size == 1));
    let (Some(missing), true, true, None) = (missing, broadcasts, alike, mask.range()) else {
        let expected = match alike {
            true => format!("a shape that broadcasts to {full:?}"),
            false => "no mask for sequences of unequal length".to_owned(),
        };
        return Err(Error::ShapeMismatch { argument: "mask", value: dims.to_vec(), expected });
    };
    let mut out = [0; 4];
    for axis in 0..dims.len() {
        out[missing + axis] = if dims[axis] == 1 { 0 } else { strides[axis] };
    }
    Ok(out)
}
