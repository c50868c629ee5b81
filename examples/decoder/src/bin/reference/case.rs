//! A named case, and its outcome.

use crate::folder::Reference;

/// The reason for a failed case.
pub type Failure = Box<dyn std::error::Error>;

/// The outcome of a case that did not fail.
pub enum Outcome {
    /// The compared numbers, and the largest difference.
    Passed(String),
    /// The missing reference.
    Skipped(String),
}

/// The function of a case.
pub type Run = Box<dyn Fn(&Reference) -> Result<Outcome, Failure>>;

/// A named case.
pub struct Case {
    /// The case's name, with the kind of cache first: `contiguous/whole`.
    pub name: String,
    /// The function that runs the case.
    pub run: Run,
}

impl Case {
    /// Makes a case.
    pub fn new(name: impl Into<String>, run: impl Fn(&Reference) -> Result<Outcome, Failure> + 'static) -> Self {
        Case { name: name.into(), run: Box::new(run) }
    }
}

/// Returns the outcome of a case that cannot run with this folder.
pub fn skipped(why: impl Into<String>) -> Result<Outcome, Failure> {
    Ok(Outcome::Skipped(why.into()))
}
