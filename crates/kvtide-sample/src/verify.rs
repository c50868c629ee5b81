//! Verifies drafted tokens with the model's own logits.
//!
//! ```text
//! tokens     the draft is given (prompt lookup)    draw as if there were no draft, and continue while the draft has the same token
//! logits     a second model has drawn the draft    keep a token with probability min(1, p / q); else draw from the excess of p over q
//! ```
//!
//! Both are exact. Drafts of prompt lookup change nothing: the same seed gives the same tokens with and without them.
//! Drafts of a second model give the same distribution: kept and redrawn tokens together have the distribution p.
//! Weights are integers, so nothing is rounded: with weights `p` of `P` and `q` of `Q`, a draft stays if a number drawn
//! below `q P` is below `p Q`. At temperature 0 both are the same, and give the same tokens as without a draft.

use std::borrow::Cow;
use std::cmp::Ordering;

use crate::cut::Candidate;
use crate::error::{Error, Result};
use crate::random::{Random, Use};
use crate::row::{Mask, Row};
use crate::sampler::{Sampled, Sampler};
use crate::workspace::Workspace;

/// The source of drafted tokens.
#[derive(Clone, Copy, Debug)]
pub enum Drafts<'a> {
    /// Any source whose drafts do not depend on chance.
    Tokens,
    /// A second model: a [`Sampler::drafter`] has drawn the tokens from these logits, one row for each token.
    Logits(&'a [&'a [f32]]),
}

impl Sampler {
    /// Verifies drafted tokens: `rows` has the model's logits for each of them, and one more row. Returns the drafted
    /// tokens that stay, and one more token behind them; changes nothing. `allowed` has a mask for each row, or is
    /// empty. Rows behind the first rejected token are not read. O(vocabulary) for each token.
    pub fn verify<'r, R: Copy + Into<Row<'r>>>(
        &self,
        rows: &[R],
        drafted: &[u32],
        drafts: Drafts<'_>,
        allowed: &[Option<Mask<'_>>],
        workspace: &mut Workspace,
    ) -> Result<Vec<Sampled>> {
        let wrong = |argument, value: usize, wanted: usize, of: &str| {
            Err(Error::argument(argument, value as f64, format!("{wanted} {of}")))
        };
        if rows.len() != drafted.len() + 1 {
            return wrong("rows", rows.len(), drafted.len() + 1, "rows: one for each drafted token, and one more");
        }
        if !allowed.is_empty() && allowed.len() != rows.len() {
            return wrong("allowed", allowed.len(), rows.len(), "masks: one for each row");
        }
        if let Drafts::Logits(logits) = drafts
            && logits.len() != drafted.len()
        {
            return wrong("drafts", logits.len(), drafted.len(), "rows: one for each drafted token");
        }
        // A copy is made once a drafted token stays.
        let mut ahead = Cow::Borrowed(self);
        let mut found: Vec<Sampled> = Vec::with_capacity(rows.len());
        for (place, &row) in rows.iter().enumerate() {
            let mask = allowed.get(place).copied().flatten();
            let draft = drafted.get(place).copied();
            let sampled = match (draft, drafts) {
                (Some(draft), Drafts::Logits(logits)) if !ahead.options().is_greedy() => {
                    ahead.judge(draft, row.into(), logits[place], mask, workspace)
                }
                _ => ahead.sample(row, mask, workspace),
            };
            let sampled = sampled.map_err(|error| error.of_row(place))?;
            let token = sampled.token;
            found.push(sampled);
            if draft != Some(token) {
                break;
            }
            ahead.to_mut().push(&[token]);
        }
        Ok(found)
    }

    /// Keeps a token that was drawn from `logits`, or draws another one.
    fn judge(
        &self,
        draft: u32,
        row: Row<'_>,
        logits: &[f32],
        mask: Option<Mask<'_>>,
        workspace: &mut Workspace,
    ) -> Result<Sampled> {
        let Workspace { row: room, candidates: own, spare, drafts, .. } = workspace;
        self.distribution(logits.into(), mask, room, drafts, spare).map_err(|error| match error {
            Error::NotFinite { .. } => Error::argument("drafts", f64::NAN, "logits that are numbers"),
            other => other,
        })?;
        let (row, peak) = self.distribution(row, mask, room, own, spare)?;
        let (p, q) = (weight_of(own, draft), weight_of(drafts, draft));
        if q == 0 {
            let expected = "a token that these logits and options give";
            return Err(Error::argument("drafted", draft, expected));
        }
        let (all_p, all_q) = (sum(own), sum(drafts));
        let mut random = self.random(Use::Verify);
        let stays = random.below(q * all_p) < p * all_q;
        let token = if stays { draft } else { rest(own, drafts, &mut random) };
        self.sampled(token, row, peak, spare)
    }
}

fn weight_of(found: &[Candidate], token: u32) -> u128 {
    let place = found.binary_search_by_key(&token, |candidate| candidate.id);
    place.map_or(0, |place| found[place].weight.into())
}

fn sum(found: &[Candidate]) -> u128 {
    found.iter().map(|candidate| u128::from(candidate.weight)).sum()
}

/// Draws a token from the excess of `own` over `drafts`, both in the order of their ids.
fn rest(own: &[Candidate], drafts: &[Candidate], random: &mut Random) -> u32 {
    let (all_p, all_q) = (sum(own), sum(drafts));
    let more = || {
        let mut others = drafts.iter().peekable();
        own.iter().map(move |candidate| {
            while others.next_if(|other| other.id.cmp(&candidate.id) == Ordering::Less).is_some() {}
            let same = others.next_if(|other| other.id == candidate.id);
            let q = same.map_or(0, |other| u128::from(other.weight));
            (u128::from(candidate.weight) * all_q).saturating_sub(q * all_p)
        })
    };
    let mut left = random.below(more().sum());
    let place = more().position(|weight| {
        let is_here = left < weight;
        left -= if is_here { 0 } else { weight };
        is_here
    });
    own[place.expect("a number below the sum")].id
}
