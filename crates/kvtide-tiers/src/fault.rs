//! Faults of a store, described in words of this crate alone. Messages of a server or a client library may contain a
//! password, so only their short codes are passed on.

use std::fmt;

/// The reason why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The kind of fault.
    pub kind: FaultKind,
    /// A short description without secrets.
    pub about: String,
}

/// The kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// There is no connection, the connection broke, or no node has the keys.
    Unreachable,
    /// No answer arrived in time.
    TimedOut,
    /// The store refused, and will until its configuration changes: a wrong password, no permission, no such bucket.
    Refused,
    /// The answer makes no sense, or is longer than was asked for.
    Garbage,
    /// The store is full. Reads still work.
    Full,
    /// A value is longer than the store accepts. Other values still work.
    TooLarge,
    /// The store may not be written to. Reads still work.
    ReadOnly,
}

impl FaultKind {
    /// All kinds.
    pub const ALL: [FaultKind; 7] = [
        FaultKind::Unreachable,
        FaultKind::TimedOut,
        FaultKind::Refused,
        FaultKind::Garbage,
        FaultKind::Full,
        FaultKind::TooLarge,
        FaultKind::ReadOnly,
    ];

    /// Returns the public name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FaultKind::Unreachable => "unreachable",
            FaultKind::TimedOut => "timedOut",
            FaultKind::Refused => "refused",
            FaultKind::Garbage => "garbage",
            FaultKind::Full => "full",
            FaultKind::TooLarge => "tooLarge",
            FaultKind::ReadOnly => "readOnly",
        }
    }

    /// True if a retry cannot succeed until the store is changed.
    #[must_use]
    pub fn is_permanent(self) -> bool {
        self == FaultKind::Refused
    }

    /// True if the store as a whole is at fault: it answers nothing, or nothing usable.
    #[must_use]
    pub fn is_of_store(self) -> bool {
        matches!(self, FaultKind::Unreachable | FaultKind::TimedOut | FaultKind::Refused | FaultKind::Garbage)
    }

    /// True if a retry may succeed a moment later.
    #[must_use]
    pub fn is_passing(self) -> bool {
        self.is_of_store() && !self.is_permanent()
    }
}

impl Fault {
    /// Creates a fault; `about` must contain no secrets.
    pub fn new(kind: FaultKind, about: impl Into<String>) -> Self {
        Fault { kind, about: about.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.about)
    }
}
