//! A named case, and how it ends.

use crate::folder::Reference;

/// Why a case failed.
pub type Failure = Box<dyn std::error::Error>;

/// How a case ends that did not fail.
pub enum Outcome {
    /// What was compared, and how far off it was.
    Passed(String),
    /// What there is no reference for.
    Skipped(String),
}

/// What a case does.
pub type Run = Box<dyn Fn(&Reference) -> Result<Outcome, Failure>>;

/// A case.
pub struct Case {
    /// What it is called, the kind of cache first: `contiguous/whole`.
    pub name: String,
    /// What it does.
    pub run: Run,
}

impl Case {
    /// A case that does this.
    pub fn new(name: impl Into<String>, run: impl Fn(&Reference) -> Result<Outcome, Failure> + 'static) -> Self {
        Case { name: name.into(), run: Box::new(run) }
    }
}

/// A case that cannot be run with this folder.
pub fn skipped(why: impl Into<String>) -> Result<Outcome, Failure> {
    Ok(Outcome::Skipped(why.into()))
}
