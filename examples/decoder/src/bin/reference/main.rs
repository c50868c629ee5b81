//! Compares the decoder's results with a reference: every greedy token, every logit, every key and value.
//!
//! ```text
//! reference [folder]           by default KVTIDE_REFERENCE_DIR
//! PASS  contiguous/whole       320 tokens equal, 156736 numbers at most 1.1e-5 off
//! SKIP  contiguous/windows     no layer slides
//! FAIL  ...                    the difference, and its place
//! ```
//!
//! It exits with 1 if a case failed. Sums of 32-bit floats in another order differ by about 1e-5 here; 1e-3 is accepted.

mod agreement;
mod case;
mod cases;
mod folder;

use std::path::PathBuf;
use std::process::ExitCode;

use case::Outcome;
use folder::Reference;

fn main() -> ExitCode {
    let given = std::env::args_os().nth(1).or_else(|| std::env::var_os("KVTIDE_REFERENCE_DIR"));
    let Some(folder) = given.map(PathBuf::from) else {
        eprintln!("no folder: give one, or set KVTIDE_REFERENCE_DIR");
        return ExitCode::FAILURE;
    };
    match Reference::read(&folder) {
        Ok(reference) => check(&reference),
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}

fn check(reference: &Reference) -> ExitCode {
    let cases = cases::all(reference);
    let width = cases.iter().map(|case| case.name.len()).max().unwrap_or(0);
    let mut counts = [0; 3];
    for case in &cases {
        let (count, word, what) = match (case.run)(reference) {
            Ok(Outcome::Passed(what)) => (0, "PASS", what),
            Ok(Outcome::Skipped(why)) => (1, "SKIP", why),
            Err(failure) => (2, "FAIL", failure.to_string()),
        };
        counts[count] += 1;
        println!("{word}  {:width$}  {what}", case.name);
    }
    let [passed, skipped, failed] = counts;
    println!("{}: {passed} passed, {skipped} skipped, {failed} failed", reference.name);
    // A folder without any reference counts as a failure.
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
