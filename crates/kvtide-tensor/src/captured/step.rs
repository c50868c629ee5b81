//! A captured step, from its capture to its commit.

use kvtide_cuda::{Graph, Stream};

use super::memory::StepMemory;
use super::recorder::StepRecorder;
use super::tensors::GraphTensors;
use crate::base::error::{Error, Result};
use crate::device::form::Form;
use crate::device::{device_name, keep_uploads};
use crate::paged::{PageGroup, StepTokens, check_ids};
use crate::sequences::{PagedKvCache, PagedStep};

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
    _tensors: GraphTensors,
    /// Of all tokens that there may be.
    step: PagedStep,
    done: u32,
    steps: u32,
    failure: Option<kvtide_cuda::Error>,
    /// Keeps what it has borrowed.
    _work: Work<'a>,
}

impl CapturedStep<'_> {
    /// Steps that were done or enqueued, the first one among them.
    #[must_use]
    pub fn done(&self) -> u32 {
        self.done
    }

    /// How many there may be.
    #[must_use]
    pub fn steps(&self) -> u32 {
        self.steps
    }

    /// The sequences.
    #[must_use]
    pub fn sequences(&self) -> &[u64] {
        self.step.sequences()
    }

    /// Refuses a step of another cache, one that has ended or failed, and one of whose sequences was dropped.
    fn check(&self, cache: &PagedKvCache) -> Result<()> {
        cache.check_of(&self.step)?;
        cache.check_pages()?;
        cache.check_step(&self.step)?;
        self.failure.clone().map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// Remembers a failure of the device.
    fn noted(&mut self, outcome: kvtide_cuda::Result<()>) -> Result<()> {
        self.failure = outcome.as_ref().err().cloned();
        Ok(outcome?)
    }
}

impl std::fmt::Debug for CapturedStep<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CapturedStep").field("sequences", &self.sequences()).field("done", &self.done).finish()
    }
}

impl PagedKvCache {
    /// Captures a decode step of some sequences: `work` runs once as it is, which gives each of them its first token, and once more
    /// to be recorded. It says the same both times.
    ///
    /// While it is recorded, other threads that use the device through this library wait, and `work` must not wait for them; who uses it
    /// otherwise holds a [`pass`](crate::pass). A tensor that was there before must not be dropped in the second run.
    ///
    /// Refused with `DEVICE_UNAVAILABLE` where the device has no graphs, and with `INVALID_ARGUMENT` for low-bit pages.
    pub fn capture_step<'a>(
        &mut self,
        options: CaptureOptions<'_>,
        work: impl FnMut(&mut StepRecorder<'_>) -> Result<()> + 'a,
    ) -> Result<CapturedStep<'a>> {
        let stream = check(self.groups(), &options)?;
        let CaptureOptions { sequences, steps } = options;
        sequences.iter().try_for_each(|&sequence| self.check_idle(sequence))?;
        for layer in self.own_layers().collect::<Vec<_>>() {
            // Zeroes what their pages hold of others.
            self.pages(layer, sequences)?;
        }
        let offsets = offsets(sequences.len(), steps)?;
        let mut step = self.begin_step(StepTokens { sequences, offsets: Some(&offsets), parents: None })?;
        let mut work: Work<'a> = Box::new(work);
        match record(self, &step, steps, &stream, &mut work) {
            Ok((graph, memory, _tensors)) => {
                Ok(CapturedStep { graph, stream, memory, _tensors, step, done: 1, steps, failure: None, _work: work })
            }
            Err(refusal) => {
                // A step that cannot be undone now is undone at the next call.
                drop(self.undo_step(&mut step));
                Err(refusal)
            }
        }
    }

    /// Enqueues one step more: a token of each sequence. Refused with `CACHE_OVERFLOW` when all steps that there may be were done,
    /// and with `STALE_STEP` when one of its sequences was dropped.
    pub fn replay_step(&mut self, step: &mut CapturedStep<'_>) -> Result<()> {
        step.check(self)?;
        if step.done == step.steps {
            let max_seq_len = step.memory.keys_max as u64;
            return Err(kvtide_core::Error::CacheOverflow { seq_len: max_seq_len, new_tokens: 1, max_seq_len }.into());
        }
        let replayed = step.graph.replay();
        step.noted(replayed)?;
        step.done += 1;
        Ok(())
    }

    /// Ends a captured step, once the device has done all of it: its tokens count. `tokens` are their ids, where they are known, those
    /// of each sequence one behind the other.
    pub fn commit_captured(&mut self, step: &mut CapturedStep<'_>, tokens: Option<&[u32]>) -> Result<()> {
        step.check(self)?;
        check_ids(tokens, step.done * step.sequences().len() as u32)?;
        let waited = step.stream.synchronize();
        step.noted(waited)?;
        self.shorten_step(&mut step.step, step.done)?;
        self.commit_step(&mut step.step, tokens)
    }
}

/// The most sequences of a launch.
const SEQUENCES_MAX: usize = 65_535;

/// The stream of a device with kernels, for sequences that can have such a step.
fn check(groups: &[PageGroup], options: &CaptureOptions<'_>) -> Result<Stream> {
    let count = options.sequences.len();
    if count == 0 || count > SEQUENCES_MAX {
        return Err(Error::argument("sequences.length", count, format!("from 1 to {SEQUENCES_MAX}")));
    }
    if options.steps == 0 {
        return Err(Error::argument("steps", 0u32, "at least 1: the first one runs at once"));
    }
    for group in groups {
        let shape = group.shape().pages.shape();
        for (argument, format) in [("keyFormat", shape.key_format), ("valueFormat", shape.value_format)] {
            let own = group.shape().dtype.page_format();
            if format != own {
                let expected = format!("{own}, as dtype: a captured step neither quantises nor converts");
                return Err(Error::argument(argument, format.name(), expected));
            }
        }
    }
    let device = groups[0].slab().tensor.device();
    let devices = groups.iter().map(|group| group.slab().tensor.device());
    if let Some(other) = devices.into_iter().find(|other| !other.same_device(device)) {
        let value = format!("layers on {} and on {}", device_name(device), device_name(other));
        return Err(Error::argument("layers", value, "all layers on one device, whose graph it is"));
    }
    match Form::of(device)? {
        Form::Launched(stream) => Ok(stream),
        Form::Bytes(_) | Form::Portable => Err(Error::DeviceUnavailable {
            device: device_name(device),
            reason: "steps are captured on CUDA devices alone".to_owned(),
        }),
    }
}

/// Where the tokens of each sequence begin.
fn offsets(sequences: usize, steps: u32) -> Result<Vec<u32>> {
    if u64::from(steps) * sequences as u64 >= 1 << 31 {
        return Err(Error::argument("steps", steps, "fewer than 2^31 tokens of all sequences"));
    }
    Ok((0..=sequences as u32).map(|at| at * steps).collect())
}

fn record(
    cache: &PagedKvCache,
    step: &PagedStep,
    steps: u32,
    stream: &Stream,
    work: &mut Work<'_>,
) -> Result<(Graph, StepMemory, GraphTensors)> {
    let memory = StepMemory::new(cache, step, steps)?;
    let _uploads = keep_uploads(cache.groups()[0].slab().tensor.device());
    let mut tensors = GraphTensors::default();
    let graph = stream.capture(|stream| {
        let mut recorder = StepRecorder::new(stream, &memory, &mut tensors);
        work(&mut recorder)?;
        recorder.finish()?;
        tensors.begin_second_run();
        Ok::<_, Error>(())
    })?;
    tensors.settle();
    Ok((graph, memory, tensors))
}
