//! Runs calls in which each device operation fails in turn.

use candle_core::{Device, Tensor};
use kvtide_core::Code;
use kvtide_cuda::Emulation;
use kvtide_tensor::Result;
use kvtide_tensor::runtime::{Kernels, with_kernels};

/// Everything a cache shows.
pub type Shown = Vec<Vec<u8>>;

/// A cache of some kind, how all of it is read, and calls that have to be refused once it is poisoned.
pub struct Subject<C: 'static> {
    pub make: fn() -> C,
    pub read: fn(&mut C) -> Result<Shown>,
    pub check: fn(&C) -> std::result::Result<(), String>,
    pub later: &'static [fn(&mut C) -> Result<()>],
}

/// The state of the cache after each operation of a call has failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub unchanged: usize,
    pub poisoned: usize,
}

/// Runs `body` as a GPU would, with one of its operations failing; true when it came to that.
pub fn failing<T>(after: usize, body: impl FnOnce() -> T) -> (T, bool) {
    let outcome = with_kernels(Kernels::Emulated, || {
        Emulation::fail_after(Some(after as u32));
        let outcome = body();
        (outcome, Emulation::fail_after(None).is_none())
    });
    outcome.unwrap()
}

impl<C> Subject<C> {
    /// Fails each operation of `call` in turn.
    pub fn survives(&self, name: &str, call: impl Fn(&mut C) -> Result<()>) -> Outcome {
        let mut expected = (self.make)();
        with_kernels(Kernels::Emulated, || call(&mut expected))
            .unwrap()
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let expected = (self.read)(&mut expected).unwrap();
        let before = (self.read)(&mut (self.make)()).unwrap();
        let mut outcome = Outcome::default();
        for after in 0.. {
            let mut cache = (self.make)();
            let (answer, has_failed) = failing(after, || call(&mut cache));
            let at = format!("{name}, operation {after}");
            if !has_failed {
                answer.unwrap();
                assert!((self.read)(&mut cache).unwrap() == expected, "{at}: it succeeded");
                break;
            }
            let error = answer.expect_err(&at);
            assert!([Code::Internal, Code::OutOfMemory].contains(&error.code()), "{at}: {error}");
            self.holds(&at, cache, &call, [&before, &expected], &mut outcome);
        }
        assert!(outcome.unchanged + outcome.poisoned > 0, "{name}: it has no operation that can fail");
        outcome
    }

    /// The cache is poisoned and says so, or unchanged and goes on.
    fn holds(
        &self,
        at: &str,
        mut cache: C,
        call: &impl Fn(&mut C) -> Result<()>,
        [before, expected]: [&Shown; 2],
        outcome: &mut Outcome,
    ) {
        match (self.read)(&mut cache) {
            Ok(shown) => {
                assert!(shown == *before, "{at}: it shows something else");
                (self.check)(&cache).unwrap_or_else(|broken| panic!("{at}: {broken}"));
                call(&mut cache).unwrap_or_else(|error| panic!("{at}: it does not go on: {error}"));
                assert!((self.read)(&mut cache).unwrap() == *expected, "{at}: it went on with something else");
                outcome.unchanged += 1;
            }
            Err(error) => {
                assert_eq!(error.code(), Code::Poisoned, "{at}: {error}");
                for (place, later) in self.later.iter().enumerate() {
                    let refused = later(&mut cache).expect_err(at);
                    assert_eq!(refused.code(), Code::Poisoned, "{at}, later call {place}: {refused}");
                }
                outcome.poisoned += 1;
            }
        }
    }
}

/// Rows `[outer, heads, tokens, dim]` that are told apart by `seed`.
pub fn rows(outer: usize, heads: usize, tokens: usize, dim: usize, seed: usize) -> Tensor {
    let count = outer * heads * tokens * dim;
    let values: Vec<f32> = (0..count).map(|at| ((at * 31 + seed * 77) % 89) as f32 / 16.0 - 2.0).collect();
    Tensor::from_vec(values, (outer, heads, tokens, dim), &Device::Cpu).unwrap()
}
