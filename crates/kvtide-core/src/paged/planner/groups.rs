//! Prefixes of models whose layers lie in several groups, a planner each: one group is what [`PagedPlanner`]'s own calls ask.

use super::paged_planner::PagedPlanner;
use crate::error::{Result, reserve};
use crate::paged::index::{Explanation, Group, Identity, PrefixMatch};
use crate::paged::sequence::Held;

/// What is written down of a call.
const WHAT: &str = "blocks of a prompt";

/// The longest prefix of these tokens for which every group has what the next token sees and the last token's block, held, one [`Held`]
/// for each group; nothing is held where it is refused. With `partial` also the start of a block, where no group has a window.
pub fn find_in_groups(
    planners: &mut [&mut PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    partial: bool,
) -> Result<Vec<Held>> {
    let found = {
        let (groups, prompt) = (asked(planners.iter().map(|planner| &**planner))?, identity.prompt(tokens));
        let mut found = PrefixMatch::find(&groups, prompt)?;
        if partial {
            found.add_rest(&groups, prompt);
        }
        found
    };
    let mut held: Vec<Held> = Vec::new();
    for (at, planner) in planners.iter_mut().enumerate() {
        match reserve(&mut held, 1, WHAT).and_then(|()| planner.hold_match(&found, at, identity)) {
            Ok(of_group) => held.push(of_group),
            Err(refusal) => {
                planners.iter_mut().zip(held).for_each(|(planner, held)| planner.release(held));
                return Err(refusal);
            }
        }
    }
    planners.iter_mut().for_each(|planner| planner.count_found(tokens.len(), found.tokens()));
    Ok(held)
}

/// How far a prompt is found in all groups, and why no further.
pub fn explain_in_groups(planners: &[&PagedPlanner], tokens: &[u32], identity: &Identity) -> Result<Explanation> {
    let groups = asked(planners.iter().copied())?;
    Explanation::new(&groups, identity.prompt(tokens), |at, key, place| planners[at].is_drafted(key, place))
}

/// Whether every group has room for what it lacks of a prompt, and for `watermark` blocks beside: of what is found there, blocks
/// that others hold cost nothing, those that nobody holds count, and what a sliding group does not need is no block.
pub fn can_allocate_in_groups(
    planners: &[&PagedPlanner],
    tokens: &[u32],
    identity: &Identity,
    watermark: u32,
) -> Result<bool> {
    let found = PrefixMatch::find(&asked(planners.iter().copied())?, identity.prompt(tokens))?;
    Ok(planners.iter().enumerate().all(|(at, planner)| planner.has_room_for(&found, at, tokens.len(), watermark)))
}

/// The planners as groups that are asked.
fn asked<'a>(planners: impl ExactSizeIterator<Item = &'a PagedPlanner>) -> Result<Vec<Group<'a>>> {
    let mut groups = Vec::new();
    reserve(&mut groups, planners.len(), WHAT)?;
    groups.extend(planners.map(PagedPlanner::group));
    Ok(groups)
}
