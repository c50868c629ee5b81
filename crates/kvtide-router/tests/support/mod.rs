//! Property tests that name their seed: `KVTIDE_SEED` repeats a run, `KVTIDE_CASES` makes it longer or shorter.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::env;
use std::fmt::Debug;
use std::time::{SystemTime, UNIX_EPOCH};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

pub fn run<S: Strategy>(name: &str, cases: u32, strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>)
where
    S::Value: Debug,
{
    let seed = seed();
    let cases = number("KVTIDE_CASES").map_or(cases, |cases| cases.try_into().expect("KVTIDE_CASES fits in 32 bits"));
    println!("seed {seed}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
    match runner.run(&strategy, test) {
        Ok(()) => {}
        Err(TestError::Fail(why, value)) => {
            panic!("{name}: {why}\nsmallest input: {value:#?}\nrepeat with KVTIDE_SEED={seed} KVTIDE_CASES={cases}")
        }
        Err(TestError::Abort(why)) => panic!("{name}: given up, {why}; seed {seed}"),
    }
}

pub fn seed() -> u64 {
    let time = || SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_nanos() as u64;
    number("KVTIDE_SEED").unwrap_or_else(time)
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, expected a whole number")))
}

/// Numbers that follow from a seed: SplitMix64.
pub struct Numbers(pub u64);

impl Numbers {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

pub fn mix(number: u64) -> u64 {
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}
