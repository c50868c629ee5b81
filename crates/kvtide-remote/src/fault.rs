//! What can go wrong with a store that others run, in words of this crate alone: what a server or a client library says may name a
//! password, so none of it is passed on but short codes.

use std::fmt;

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What sort of fault it is.
    pub kind: FaultKind,
    /// What is known about it: a few words without secrets.
    pub about: String,
}

/// Sorts of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// No connection, or it broke, or nobody who has the keys is there.
    Unreachable,
    /// No answer in time.
    TimedOut,
    /// It will not get better by itself: a wrong password, no permission, no such bucket.
    Refused,
    /// An answer that makes no sense, or more of it than was asked for.
    Garbage,
    /// There is no room for more. Reads are not concerned.
    Full,
    /// A value is longer than the store takes. Others are not concerned.
    TooLarge,
    /// Nothing may be written here. Reads are not concerned.
    ReadOnly,
}

impl FaultKind {
    /// Every one there is.
    pub const ALL: [FaultKind; 7] = [
        FaultKind::Unreachable,
        FaultKind::TimedOut,
        FaultKind::Refused,
        FaultKind::Garbage,
        FaultKind::Full,
        FaultKind::TooLarge,
        FaultKind::ReadOnly,
    ];

    /// Its public name.
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

    /// Whether asking again says nothing new until somebody changes the store.
    #[must_use]
    pub fn is_permanent(self) -> bool {
        self == FaultKind::Refused
    }

    /// Whether the store as a whole is at fault: it answers nothing, or nothing that can be used.
    #[must_use]
    pub fn is_of_store(self) -> bool {
        matches!(self, FaultKind::Unreachable | FaultKind::TimedOut | FaultKind::Refused | FaultKind::Garbage)
    }

    /// Whether the same call may go well a moment later.
    #[must_use]
    pub fn is_passing(self) -> bool {
        self.is_of_store() && !self.is_permanent()
    }
}

impl Fault {
    /// A fault of a sort, and what is known about it: no secrets.
    pub fn new(kind: FaultKind, about: impl Into<String>) -> Self {
        Fault { kind, about: about.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.as_str(), self.about)
    }
}
