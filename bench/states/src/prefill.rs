//! A prompt of one sequence.

use kvtide_bench::{Amount, Lane, Role};
use kvtide_tensor::states::{LinearAttention, Rows, Ssm, StepState, StepTimes, linear_attention, ssm};

use crate::{GATED_DELTA, SSM, Sizes, numbers, peak};

/// The tokens of the prompt.
const TOKENS: usize = 2048;

/// The tokens of a chunk.
const CHUNK: usize = 64;

pub struct Prompt {
    pub name: &'static str,
    sizes: Sizes,
    delta: bool,
}

impl Prompt {
    pub fn gated_delta() -> Self {
        Prompt { name: "gated delta 32 x 128 x 128", sizes: GATED_DELTA, delta: true }
    }

    pub fn ssm() -> Self {
        Prompt { name: "ssm 48 x 64 x 128", sizes: SSM, delta: false }
    }

    /// The multiply-adds of the chunked form: products with the state, and with triangles of scores.
    fn products(&self) -> f64 {
        let Sizes { k_heads, v_heads, k_dim, v_dim } = self.sizes;
        let with_diagonal = CHUNK * (CHUNK + 1) / 2;
        let triangles = with_diagonal + if self.delta { CHUNK * (CHUNK - 1) / 2 } else { 0 };
        let of_head = (if self.delta { 3 } else { 2 }) * CHUNK * k_dim * v_dim + triangles * v_dim;
        ((TOKENS / CHUNK) * (v_heads * of_head + k_heads * triangles * k_dim)) as f64
    }

    pub fn lanes(self, threads: usize) -> Vec<Lane<'static>> {
        let products = self.products();
        let amount = Amount { bytes: 0.0, flops: 2.0 * products };
        let limit = Lane::timed(Role::Limit, "multiply-adds in registers", 1, move |stopwatch| {
            stopwatch.time_on(threads, || peak::run(products, threads));
            Ok(())
        });
        let Sizes { k_heads, v_heads, k_dim, v_dim } = self.sizes;
        let [q, k, v, gates] = [k_heads * k_dim, k_heads * k_dim, v_heads * v_dim, v_heads];
        let [q, k, v, gates] = [q, k, v, gates].map(|width| (numbers(TOKENS * width), width));
        let positive: Vec<f32> = gates.0.iter().map(|gate| (gate + 1.0) / 2.0).collect();
        let decays: Vec<f32> = positive.iter().map(|gate| -gate / 2.0).collect();
        let (mut state, mut out) = (vec![0.0; self.sizes.state()], vec![0.0; TOKENS * v_heads * v_dim]);
        let ours = Lane::timed(Role::Ours, "in chunks", 1, move |stopwatch| {
            let states = &mut [StepState::new(None, &mut state)];
            stopwatch.time_on(threads, || {
                if self.delta {
                    let call = LinearAttention {
                        query: Rows::new(&q.0, q.1),
                        key: Rows::new(&k.0, k.1),
                        value: Rows::new(&v.0, v.1),
                        decay: Some(Rows::new(&decays, v_heads)),
                        beta: Some(Rows::new(&positive, v_heads)),
                        q_heads: k_heads,
                        k_heads,
                        v_heads,
                        scale: None,
                        l2_norm: Some(1e-6),
                    };
                    linear_attention(&call, &[0, TOKENS], states, &mut out)
                } else {
                    let dt = Rows::new(&gates.0, v_heads);
                    let call = Ssm {
                        x: Rows::new(&v.0, v.1),
                        b: Rows::new(&k.0, k.1),
                        c: Rows::new(&q.0, q.1),
                        times: StepTimes { dt, bias: None, softplus: true, limits: None },
                        a: &vec![-0.5; v_heads],
                        d: Some(&vec![0.1; v_heads]),
                        heads: v_heads,
                        groups: k_heads,
                    };
                    ssm(&call, &[0, TOKENS], states, &mut out)
                }
            })?;
            Ok(())
        });
        vec![limit.of(amount), ours.of(amount)]
    }
}
