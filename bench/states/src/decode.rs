//! One token for each of many states.

use std::cell::RefCell;
use std::rc::Rc;

use kvtide_bench::{Amount, Lane, Role};
use kvtide_tensor::states::{LinearAttention, Rows, Ssm, StepState, StepTimes, linear_attention, ssm};

use crate::{GATED_DELTA, SSM, Sizes, numbers};

/// The bytes of all states before a step, and again after it.
const BYTES: usize = 384 << 20;

/// The floats of a cache line.
const LINE: usize = 16;

/// Floats from the start of a cache line on, as the slots of a cache have them.
struct Aligned {
    floats: Vec<f32>,
    lead: usize,
}

impl Aligned {
    /// Takes floats of which a line is more than needed.
    fn new(floats: Vec<f32>) -> Self {
        let lead = floats.as_ptr().align_offset(4 * LINE).min(LINE);
        Aligned { floats, lead }
    }

    fn floats(&mut self) -> &mut [f32] {
        &mut self.floats[self.lead..][..BYTES / 4]
    }
}

/// The states before a step and after it, one behind the other.
pub struct States {
    memory: Rc<RefCell<[Aligned; 2]>>,
    inputs: Rc<Vec<f32>>,
}

impl States {
    pub fn new() -> Self {
        let half = || Aligned::new(numbers(BYTES / 4 + LINE));
        States { memory: Rc::new(RefCell::new([half(), half()])), inputs: Rc::new(numbers(1 << 18)) }
    }

    /// The layers, `batch` sequences a call, and copies of their states.
    pub fn lanes(&mut self, batch: usize, threads: usize) -> Vec<Lane<'static>> {
        let layers: [(&str, Sizes, Step); 2] =
            [("gated delta 32 x 128 x 128", GATED_DELTA, gated_delta), ("ssm 48 x 64 x 128", SSM, mamba)];
        let mut lanes = vec![self.copy(GATED_DELTA.state() * batch, threads)];
        for (name, sizes, step) in layers {
            let (memory, inputs) = (self.memory.clone(), self.inputs.clone());
            let offsets: Vec<usize> = (0..=batch).collect();
            let mut out = vec![0.0; batch * sizes.v_heads * sizes.v_dim];
            let floats = sizes.state() * batch;
            let calls = BYTES / 4 / floats;
            let lane = Lane::timed(Role::Ours, name, 1, move |stopwatch| {
                let [sources, targets] = &mut *memory.borrow_mut();
                let (sources, targets) = (sources.floats(), targets.floats());
                stopwatch.time_on(threads, || {
                    let parts = sources.chunks_exact(floats).zip(targets.chunks_exact_mut(floats));
                    parts.for_each(|(source, target)| {
                        let pairs = source.chunks_exact(sizes.state()).zip(target.chunks_exact_mut(sizes.state()));
                        let mut states: Vec<_> =
                            pairs.map(|(source, target)| StepState::new(Some(source), target)).collect();
                        step(&inputs, &offsets, &mut states, &mut out);
                    });
                });
                Ok(())
            });
            lanes.push(lane.of(Amount::moved(calls * floats * 4, calls * floats * 4)));
        }
        lanes
    }

    /// Copies of as many floats at once as a call changes, on as many threads.
    fn copy(&self, floats: usize, threads: usize) -> Lane<'static> {
        let memory = self.memory.clone();
        let lane = Lane::timed(Role::Limit, "memcpy", 1, move |stopwatch| {
            let [sources, targets] = &mut *memory.borrow_mut();
            let (sources, targets) = (sources.floats(), targets.floats());
            let share = sources.len().div_ceil(threads);
            stopwatch.time_on(threads, || {
                std::thread::scope(|scope| {
                    let mut shares = sources.chunks(share).zip(targets.chunks_mut(share));
                    let copy = |(sources, targets): (&[f32], &mut [f32])| {
                        let parts = sources.chunks(floats).zip(targets.chunks_mut(floats));
                        parts.for_each(|(source, target)| target.copy_from_slice(source));
                    };
                    let own = shares.next();
                    shares.for_each(|share| drop(scope.spawn(move || copy(share))));
                    own.into_iter().for_each(copy);
                });
            });
            Ok(())
        });
        lane.of(Amount::moved(BYTES, BYTES))
    }
}

type Step = fn(&[f32], &[usize], &mut [StepState<'_>], &mut [f32]);

fn gated_delta(inputs: &[f32], offsets: &[usize], states: &mut [StepState<'_>], out: &mut [f32]) {
    let Sizes { k_heads, v_heads, k_dim, v_dim } = GATED_DELTA;
    let call = LinearAttention {
        query: Rows::new(inputs, k_heads * k_dim),
        key: Rows::new(&inputs[100..], k_heads * k_dim),
        value: Rows::new(&inputs[200..], v_heads * v_dim),
        decay: Some(Rows::new(&[-0.1; 256], v_heads)),
        beta: Some(Rows::new(&[0.5; 256], v_heads)),
        q_heads: k_heads,
        k_heads,
        v_heads,
        scale: None,
        l2_norm: Some(1e-6),
    };
    linear_attention(&call, offsets, states, out).expect("sizes that fit");
}

fn mamba(inputs: &[f32], offsets: &[usize], states: &mut [StepState<'_>], out: &mut [f32]) {
    let Sizes { k_heads, v_heads, k_dim, v_dim } = SSM;
    let call = Ssm {
        x: Rows::new(inputs, v_heads * v_dim),
        b: Rows::new(&inputs[100..], k_heads * k_dim),
        c: Rows::new(&inputs[200..], k_heads * k_dim),
        times: StepTimes { dt: Rows::new(&inputs[300..], v_heads), bias: None, softplus: true, limits: None },
        a: &[-0.5; 48],
        d: Some(&[0.1; 48]),
        heads: v_heads,
        groups: k_heads,
    };
    ssm(&call, offsets, states, out).expect("sizes that fit");
}
