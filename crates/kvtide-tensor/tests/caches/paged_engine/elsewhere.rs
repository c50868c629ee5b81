//! Steps that another thread computes while the trace continues.
//!
//! A thread that has the run writes a layer and attends to it; the following calls of the trace are made meanwhile. A call
//! that touches pages fails with `BUSY` and changes nothing: then the run ends, its attention results are compared with
//! those of the cache, and the call is made again.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::{Rc, Weak};
use std::thread::JoinHandle;

use kvtide_tensor::attention::{AttendOptions, Attended};
use kvtide_tensor::runtime::{Kernels, with_kernels};
use kvtide_tensor::{DType, Error, HostTensor, PagedKvCache, PagedStep, StepRun};

use super::content::Content;
use super::tensors::{Fed, code};

/// A step as the oracle has it.
pub type SharedStep = Rc<RefCell<PagedStep>>;

/// The attention result of a layer.
type Bits = Vec<u32>;

/// A step whose run is out.
pub struct Lent {
    step: Weak<RefCell<PagedStep>>,
    run: Option<StepRun>,
    working: Option<JoinHandle<(StepRun, Option<Bits>, u32)>>,
    /// The attention result of each layer that it has written.
    seen: BTreeMap<u32, Option<Bits>>,
    pub hidden: Hidden,
}

/// Tokens that another thread has written and that do not count yet: they never do if the step was stale when its run ended.
#[derive(Default)]
pub struct Hidden {
    sequences: Vec<u64>,
    layers: BTreeSet<u32>,
}

impl Hidden {
    pub fn has_layer(&self, layer: u32) -> bool {
        self.layers.contains(&layer)
    }

    pub fn has(&self, sequence: u64, layer: u32) -> bool {
        self.sequences.contains(&sequence) && self.has_layer(layer)
    }
}

impl Lent {
    pub fn new(step: &SharedStep, run: StepRun) -> Self {
        let hidden = Hidden { sequences: step.borrow().sequences().to_vec(), layers: BTreeSet::new() };
        Lent { step: Rc::downgrade(step), run: Some(run), working: None, seen: BTreeMap::new(), hidden }
    }

    /// Writes a layer and attends to it, on a thread of its own.
    pub fn write(&mut self, layer: u32, fed: Fed, kernels: Kernels, is_known: bool) {
        self.rest();
        let mut run = self.run.take().expect("a run that rests");
        self.working = Some(std::thread::spawn(move || {
            with_kernels(kernels, || {
                run.write_layer(layer, fed.host(0), fed.host(1)).expect("a layer of the step");
                let tokens = run.tokens();
                let seen = attended(&fed.content, tokens, |q, options| run.attend_layer(layer, q, options));
                (run, seen, layer)
            })
            .expect("a form of this machine")
        }));
        self.seen.insert(layer, None);
        if !is_known {
            self.hidden.layers.insert(layer);
        }
    }

    /// The sequences of its step.
    pub fn sequences(&self) -> &[u64] {
        &self.hidden.sequences
    }

    fn rest(&mut self) {
        if let Some(working) = self.working.take() {
            let (run, seen, layer) = working.join().expect("no panic in the run");
            self.run = Some(run);
            self.seen.insert(layer, seen);
        }
    }

    /// Takes the run back. What the cache gives for its layers is what the run has given. Answers what never counts.
    pub fn home(mut self, cache: &mut PagedKvCache, content: &Content) -> Hidden {
        self.rest();
        let run = self.run.take().expect("a run that rests");
        // Where the step was dropped, so is its run.
        let Some(step) = self.step.upgrade() else { return Hidden::default() };
        let mut step = step.borrow_mut();
        let expected = code(cache.check_step(&step));
        assert_eq!(code(cache.end_run(&mut step, run)), expected);
        for (layer, seen) in self.seen.into_iter().filter(|_| expected.is_ok()) {
            let here = attended(content, step.tokens(), |q, options| cache.attend_layer(&step, layer, q, options));
            assert_eq!(here, seen, "layer {layer} of the step");
        }
        if expected.is_ok() { Hidden::default() } else { self.hidden }
    }
}

/// The attention results of all tokens' queries, if K and V are numbers.
fn attended(
    content: &Content,
    tokens: u32,
    attend: impl FnOnce(HostTensor<'_>, &AttendOptions<'_>) -> Result<Attended, Error>,
) -> Option<Bits> {
    if !content.plain || tokens == 0 {
        return None;
    }
    let (heads, dim) = (2 * content.heads, content.dims[0]);
    let number = |at: usize| ((at * 37 % 64) as f32 / 32. - 1.) / content.magnitude;
    let bytes: Vec<u8> = (0..tokens as usize * heads * dim).flat_map(|at| number(at).to_ne_bytes()).collect();
    let q = HostTensor::new("q", &bytes, DType::F32, &[tokens as usize, heads, dim]).expect("as many bytes");
    let Attended { out, lse } = attend(q, &AttendOptions::default()).expect("queries of the step");
    Some(out.to_f32().expect("an output").into_iter().chain(lse).map(f32::to_bits).collect())
}
