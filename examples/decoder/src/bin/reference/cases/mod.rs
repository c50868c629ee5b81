//! All cases. A new case is a function in a file of this folder, and one line here.

mod batch;
mod branch;
mod keys_and_values;
mod kind;
mod low_bit;
mod masked;
mod prompts;
mod running;
mod speculative;

use crate::case::Case;
use crate::folder::Reference;

/// Returns the cases in the order in which they run.
pub fn all(reference: &Reference) -> Vec<Case> {
    let mut cases = Vec::new();
    cases.extend(prompts::cases());
    cases.extend(keys_and_values::cases());
    cases.extend(branch::cases());
    cases.extend(masked::cases(reference));
    cases.extend(batch::cases());
    cases.extend(speculative::cases());
    cases.extend(low_bit::cases());
    cases
}
