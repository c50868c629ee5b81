//! How error texts say numbers.

/// A number of things: `1 token`, `2 tokens`.
#[must_use]
pub fn counted(count: u64, what: &str) -> String {
    let ending = if count == 1 { "" } else { "s" };
    format!("{count} {what}{ending}")
}

/// The same with its verb: `1 block is`, `2 blocks are`; without a name `1 is`.
#[must_use]
pub fn there_are(count: u64, what: &str) -> String {
    let verb = if count == 1 { "is" } else { "are" };
    if what.is_empty() { format!("{count} {verb}") } else { format!("{} {verb}", counted(count, what)) }
}
