//! Captured steps: a decode step of a fixed batch, recorded once as a graph of its device and replayed, one token of each
//! sequence at a time, with nothing of the host in between.
//!
//! ```text
//! step = cache.capture_step(options, |step| {         slots for all steps to come are taken ahead
//!     for layer in 0..layers {
//!         ...                                          the model's own operations: candle's, on the same stream
//!         step.write(layer, &k, &v)?;                  into the slot that follows, by the device's lengths and tables
//!         step.attend(layer, &q, &options, &out)?;     over what every sequence holds by then
//!     }
//!     Ok(())                                           behind it, the device's lengths move on
//! })?                                                  it has run once as it is: the first token is there
//! cache.replay_step(&mut step)?                        every further token
//! cache.commit_captured(&mut step, ids)?               waits for the device; the host's lengths move on, what is left is given back
//! ```
//!
//! Until the commit, sequences are for the host what they were, refuse other changes, and a step that is dropped leaves no trace. A
//! replay that fails changes nothing that counts either: the slots it writes to are nobody's yet.
//!
//! What the closure reads and writes lives as long as the step, whose addresses the graph knows. Results that are read after a
//! replay go to tensors that were made before: what the closure makes belongs to the graph.
//!
//! A replay costs the host O(sequences); the commit O(blocks and tokens).

mod keeping;
mod memory;
mod recorder;

use kvtide_cuda::{Graph, Stream};

use crate::base::error::{Error, Result};
use crate::device::{device_name, keep_uploads};
use crate::paged::{GroupStep, PageGroup, StepTokens, check_rows_of_floats, horizon_offsets};
use crate::sequences::Rules;
use keeping::Kept;
use memory::StepMemory;
pub(crate) use memory::StepNumbers;
pub use recorder::StepRecorder;

/// Which tokens a captured step is for.
#[derive(Clone, Copy, Debug)]
pub struct CaptureOptions<'a> {
    /// The sequences, each once, without open transactions: in each step they get one token each.
    pub sequences: &'a [u64],
    /// How many steps there may be, the first one among them: blocks for all of them are taken.
    pub steps: u32,
}

/// What a step does.
type Work<'a> = Box<dyn FnMut(&mut StepRecorder<'_>) -> Result<()> + 'a>;

/// A step that can be replayed; dropped before it was committed, it is undone at the cache's next call.
#[must_use = "a step that is dropped is undone"]
pub struct CapturedStep<'a> {
    graph: Graph,
    stream: Stream,
    /// What its launches read and write.
    memory: StepMemory,
    _kept: Kept,
    /// Of each group of layers.
    groups: Vec<GroupStep>,
    /// Whose it is.
    pub(crate) cache: u64,
    options: (u32, u32),
    failure: Option<kvtide_cuda::Error>,
    /// Keeps what it has borrowed.
    _work: Work<'a>,
}

impl CapturedStep<'_> {
    /// Steps that were done or enqueued, the first one among them.
    #[must_use]
    pub fn done(&self) -> u32 {
        self.options.0
    }

    /// How many there may be.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.options.1
    }

    /// The sequences.
    #[must_use]
    pub fn sequences(&self) -> &[u64] {
        self.groups[0].sequences()
    }
}

impl std::fmt::Debug for CapturedStep<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapturedStep").field("sequences", &self.sequences()).field("done", &self.options.0).finish()
    }
}

/// Where a layer's rows are, and what the model says of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerAt {
    pub group: usize,
    pub index: u32,
    /// Whether it is written: else it reads another one's.
    pub is_own: bool,
    pub rules: Rules,
}

/// The most sequences of a launch.
const SEQUENCES_MAX: usize = 65_535;

/// Captures a step of all groups.
pub(crate) fn capture<'a>(
    groups: &mut [PageGroup],
    layers: Vec<LayerAt>,
    options: CaptureOptions<'_>,
    work: impl FnMut(&mut StepRecorder<'_>) -> Result<()> + 'a,
) -> Result<CapturedStep<'a>> {
    let stream = check(groups, &options)?;
    groups.iter_mut().try_for_each(|group| group.settle_horizon(options.sequences))?;
    let offsets = horizon_offsets(options.sequences.len(), options.steps)?;
    let tokens = StepTokens { sequences: options.sequences, offsets: Some(&offsets), parents: None };
    let is_one = groups.len() == 1;
    let planned = groups
        .iter_mut()
        .enumerate()
        .map(|(at, group)| group.plan_step(tokens).map_err(|error| if is_one { error } else { error.in_group(at) }));
    let planned = planned.collect::<Result<Vec<_>>>()?;
    let opened = groups.iter_mut().zip(planned).map(|(group, planned)| group.open_step(planned, tokens));
    let mut steps = opened.collect::<Result<Vec<_>>>()?;
    match record(groups, &steps, layers, &options, stream, Box::new(work)) {
        Ok(recorded) => Ok(CapturedStep { groups: steps, ..recorded }),
        Err(error) => {
            // A step that cannot be undone now is undone at the next call.
            groups.iter_mut().zip(&mut steps).for_each(|(group, step)| drop(group.undo_step(step)));
            Err(error)
        }
    }
}

/// The stream of a device with kernels, for sequences that can have such a step.
fn check(groups: &[PageGroup], options: &CaptureOptions<'_>) -> Result<Stream> {
    let count = options.sequences.len();
    if count == 0 || count > SEQUENCES_MAX {
        return Err(Error::argument("sequences.length", count, format!("from 1 to {SEQUENCES_MAX}")));
    }
    if options.steps == 0 {
        return Err(Error::argument("steps", 0u32, "at least 1: the first one runs at once"));
    }
    groups.iter().try_for_each(check_rows_of_floats)?;
    let first = &groups[0].slab;
    let device = first.tensor.device();
    if let Some(other) = groups.iter().map(|group| group.slab.tensor.device()).find(|other| !other.same_device(device))
    {
        let value = format!("layers on {} and on {}", device_name(device), device_name(other));
        return Err(Error::argument("layers", value, "all layers on one device, whose graph it is"));
    }
    first.stream()?.ok_or_else(|| Error::DeviceUnavailable {
        device: device_name(device),
        reason: "steps are captured on CUDA devices alone".to_owned(),
    })
}

fn record<'a>(
    groups: &[PageGroup],
    steps: &[GroupStep],
    layers: Vec<LayerAt>,
    options: &CaptureOptions<'_>,
    stream: Stream,
    mut work: Work<'a>,
) -> Result<CapturedStep<'a>> {
    let memory = StepMemory::new(groups, steps, layers, options)?;
    let _uploads = keep_uploads(groups[0].slab.tensor.device());
    let mut kept = Kept::default();
    let graph = stream.capture(|stream| {
        let mut recorder = StepRecorder::new(stream, &memory, &mut kept);
        work(&mut recorder)?;
        recorder.finish()?;
        kept.next_run();
        Ok::<_, Error>(())
    })?;
    let options = (1, options.steps);
    Ok(CapturedStep {
        graph,
        stream,
        memory,
        _kept: kept.settled(),
        groups: Vec::new(),
        cache: 0,
        options,
        failure: None,
        _work: work,
    })
}

/// Enqueues one step more.
pub(crate) fn replay(groups: &[PageGroup], step: &mut CapturedStep<'_>) -> Result<()> {
    check_step(groups, step)?;
    let (done, steps) = step.options;
    if done == steps {
        let longest = (step.memory.keys_max - steps as usize) as u64;
        return Err(kvtide_core::Error::CacheOverflow {
            seq_len: longest + u64::from(done),
            new_tokens: 1,
            max_seq_len: longest + u64::from(steps),
        }
        .into());
    }
    if let Err(failure) = step.graph.replay() {
        step.failure = Some(failure.clone());
        return Err(failure.into());
    }
    step.options.0 += 1;
    Ok(())
}

/// Makes what was replayed count, in all groups.
pub(crate) fn commit(groups: &mut [PageGroup], step: &mut CapturedStep<'_>, tokens: Option<&[u32]>) -> Result<()> {
    check_step(groups, step)?;
    let done = step.options.0;
    let wanted = done as usize * step.sequences().len();
    if let Some(ids) = tokens
        && ids.len() != wanted
    {
        return Err(Error::argument("tokens.length", ids.len(), format!("{wanted}, one for each token")));
    }
    if let Err(failure) = step.stream.synchronize() {
        step.failure = Some(failure.clone());
        return Err(failure.into());
    }
    for (group, of) in groups.iter_mut().zip(&mut step.groups) {
        group.shorten_horizon(of, done)?;
    }
    groups.iter_mut().zip(&mut step.groups).try_for_each(|(group, of)| group.commit_step(of, tokens))
}

/// Refuses a step that has ended or failed, and one of whose sequences was dropped.
fn check_step(groups: &[PageGroup], step: &CapturedStep<'_>) -> Result<()> {
    for (group, of) in groups.iter().zip(&step.groups) {
        group.check_change()?;
        group.check_step(of)?;
    }
    step.failure.clone().map_or(Ok(()), |failure| Err(failure.into()))
}
