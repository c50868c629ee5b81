//! The results of calls, in the vocabulary of the tests.

use kvtide_core::Code;
use kvtide_tensor::Error;
use proptest::test_runner::TestCaseError;

/// A check of a random sequence of calls.
pub type Done = Result<(), TestCaseError>;

/// The code of a refusal; nothing to say of what was done.
pub fn code<T>(done: Result<T, Error>) -> Result<(), Code> {
    done.map(|_| ()).map_err(|error| error.code())
}

/// The result of `done`; `None` if memory or blocks ran out, which is allowed for a cache with a limit.
pub fn unless_out_of_memory<T>(limit: Option<u64>, done: Result<T, Error>) -> Result<Option<T>, TestCaseError> {
    match done {
        Err(error) if limit.is_some() && matches!(error.code(), Code::OutOfMemory | Code::OutOfBlocks) => Ok(None),
        done => Ok(Some(done?)),
    }
}
