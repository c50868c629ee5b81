//! What a call answered, in the words of the tests.

use kvtide_core::Code;
use kvtide_tensor::Error;
use proptest::test_runner::TestCaseError;

/// A check of a random sequence of calls.
pub type Done = Result<(), TestCaseError>;

/// The code of a refusal; nothing to say of what was done.
pub fn code<T>(done: Result<T, Error>) -> Result<(), Code> {
    done.map(|_| ()).map_err(|error| error.code())
}

/// What `done` answered; nothing when memory or blocks ran out, which a cache with a limit may say.
pub fn unless_out_of_memory<T>(limit: Option<u64>, done: Result<T, Error>) -> Result<Option<T>, TestCaseError> {
    match done {
        Err(error) if limit.is_some() && matches!(error.code(), Code::OutOfMemory | Code::OutOfBlocks) => Ok(None),
        done => Ok(Some(done?)),
    }
}
