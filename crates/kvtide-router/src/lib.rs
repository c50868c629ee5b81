//! Which worker has the longest prefix of a prompt.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
