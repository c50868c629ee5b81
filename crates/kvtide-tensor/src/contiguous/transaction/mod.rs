//! Transactions: tokens that leave no trace in a cache unless they are committed.
//!
//! ```text
//! let mut draft = cache.begin(..)?      the cache's tokens | draft
//! draft.append(&k, &v, None)?           the cache's tokens | a b c
//! draft.commit(Some(2))?                the cache's tokens, a b
//! ```
//!
//! [`KvTransaction`] is what every kind has, with one meaning. [`Transactional`] is the cache's side of it, by number: for whoever
//! cannot hold a borrow of the cache, such as a language binding. [`Transaction`] is the guard over it that Rust users hold: it
//! rolls back when it is dropped.
//!
//! What always holds: while a transaction is open all else that would change the cache is refused with `TRANSACTION_OPEN`, and
//! reads go on, of what an append of the drafted tokens would have left there. A refused call leaves the transaction open, and
//! as it was. Beginning, committing and rolling back are O(1), but for O(tree) and the rows of a path; an append is O(new
//! tokens) amortised.

mod contiguous;
mod kv_transaction;
mod transactional;

pub(crate) use contiguous::Drafting;
pub use kv_transaction::KvTransaction;
pub use transactional::{Transaction, Transactional};

/// How a transaction is opened.
#[derive(Clone, Copy, Debug, Default)]
pub struct BeginOptions {
    /// Takes room for so many tokens at once, so that no append up to them has to, or is refused as an append of so many would
    /// be; more may be drafted. A cache that has had no tokens and knows no shape takes it with the first. None: room is made as
    /// it is needed.
    pub max_tokens: Option<u32>,
}
