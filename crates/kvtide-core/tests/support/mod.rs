//! Property tests that print their seed.
//!
//! `KVTIDE_SEED` repeats a run, `KVTIDE_CASES` changes its length. Without them the seed is the time, and the number of
//! cases is set by the test.

use std::env;
use std::time::{SystemTime, UNIX_EPOCH};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Runs `test` on `cases` values of `strategy`. On a failure it panics with the smallest value found that still fails,
/// and with the seed.
pub fn run<S: Strategy>(name: &str, cases: u32, strategy: S, test: impl Fn(S::Value) -> Result<(), TestCaseError>) {
    let seed = number("KVTIDE_SEED").unwrap_or_else(seed_of_the_time);
    let cases = number("KVTIDE_CASES").map_or(cases, |cases| cases.try_into().expect("KVTIDE_CASES fits in 32 bits"));
    println!("seed {seed}");
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, rng(seed));
    match runner.run(&strategy, test) {
        Ok(()) => {}
        Err(TestError::Fail(why, value)) => {
            let literal = literal(&value);
            panic!(
                "{name}: {why}\nsmallest input: {value:#?}\nthe same to paste: {literal}\n\
                 repeat with KVTIDE_SEED={seed} KVTIDE_CASES={cases}"
            )
        }
        Err(TestError::Abort(why)) => panic!("{name}: given up, {why}; seed {seed}"),
    }
}

/// A value of numbers, tuples, enums and lists as it is written in a test.
fn literal(value: &impl std::fmt::Debug) -> String {
    format!("{value:?}").replace('[', "vec![")
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, expected a whole number")))
}

fn seed_of_the_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_nanos() as u64
}

fn rng(seed: u64) -> TestRng {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    TestRng::from_seed(RngAlgorithm::ChaCha, &bytes)
}
