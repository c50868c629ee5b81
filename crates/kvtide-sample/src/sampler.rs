//! A sampler: the options, and the tokens that were seen.
//!
//! Drawing changes nothing. The token at a position depends only on the seed, the position, the logits, the options and
//! the tokens before it. It does not depend on the number of draws or on drafts in between. `push` records the token
//! that was chosen.

use crate::cut::{Candidate, candidates, kth, order};
use crate::error::{Error, Result, reserve};
use crate::options::Options;
use crate::random::{Random, Use};
use crate::row::{Mask, Peak, Row, process};
use crate::seen::Seen;
use crate::weight::{BLOCK, ONE, Scale};
use crate::workspace::Workspace;

/// A token that was drawn.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The token's id.
    pub token: u32,
    /// The logarithm of its probability, if requested.
    pub logprob: Option<f64>,
    /// The most probable tokens with their log-probabilities, as many as requested; among equals, the lowest id first.
    pub top: Vec<(u32, f64)>,
}

/// Samples the tokens of one sequence.
///
/// ```
/// use kvtide_sample::{Options, Sampler, Workspace};
///
/// let mut sampler = Sampler::new(Options { temperature: 0.0, repetition_penalty: 2.0, ..Default::default() }, &[1, 2])?;
/// let mut workspace = Workspace::default();
/// let sampled = sampler.sample(&[0.5, 3.0, 2.5, 2.0], None, &mut workspace)?;
/// assert_eq!(sampled.token, 3); // 1 and 2 are in the prompt
/// sampler.push(&[sampled.token]);
/// # Ok::<(), kvtide_sample::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sampler {
    options: Options,
    prompt: u64,
    generated: Vec<u32>,
    seen: Seen,
    what: Use,
}

impl Sampler {
    /// Returns a sampler for the tokens behind `prompt`. O(prompt).
    pub fn new(options: Options, prompt: &[u32]) -> Result<Self> {
        options.check()?;
        let seen = if options.repeats() { Seen::of_prompt(prompt) } else { Seen::default() };
        Ok(Sampler { options, prompt: prompt.len() as u64, generated: Vec::new(), seen, what: Use::Draw })
    }

    /// Returns a copy for a second model that drafts tokens. It uses its own random numbers, so that
    /// [`Sampler::verify`] can verify the drafts.
    #[must_use]
    pub fn drafter(&self) -> Self {
        Sampler { what: Use::Draft, ..self.clone() }
    }

    /// The options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The approximate duration of a draw per logit, in nanoseconds; only the order of magnitude is meaningful. `is_known`
    /// is true for a [`Row`] with its peak.
    #[must_use]
    pub fn cost(&self, is_known: bool) -> f64 {
        let options = &self.options;
        let is_changed = options.counts_generated() || !options.bias.is_empty();
        let weighs_all =
            !options.is_greedy() && options.top_k.is_none() && (options.top_p < 1.0 || options.min_p == 0.0);
        // A draw with cuts reads the row for its candidates, too.
        let pass = if is_known && options.is_greedy() { 0.0 } else { 0.7 };
        pass + f64::from(is_changed) + if weighs_all || options.logprobs.is_some() { 6.0 } else { 0.0 }
    }

    /// Number of tokens in the prompt and behind it: the position of the next token.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.prompt + self.generated.len() as u64
    }

    /// Appends generated tokens.
    pub fn push(&mut self, tokens: &[u32]) {
        self.generated.extend_from_slice(tokens);
        if self.options.counts_generated() {
            tokens.iter().for_each(|&token| self.seen.add(token));
        }
    }

    /// Drops the generated tokens from a position on. The prompt stays.
    pub fn truncate(&mut self, position: u64) -> Result<()> {
        if !(self.prompt..=self.position()).contains(&position) {
            let expected = format!("a position from {} to {}", self.prompt, self.position());
            return Err(Error::argument("position", position as f64, expected));
        }
        let taken = self.generated.split_off((position - self.prompt) as usize);
        if self.options.counts_generated() {
            taken.into_iter().for_each(|token| self.seen.take_back(token));
        }
        Ok(())
    }

    /// Draws the next token; changes nothing. O(vocabulary).
    pub fn sample<'r>(
        &self,
        logits: impl Into<Row<'r>>,
        allowed: Option<Mask<'_>>,
        workspace: &mut Workspace,
    ) -> Result<Sampled> {
        let Workspace { row: room, candidates: found, spare, sums, .. } = workspace;
        let (row, peak) = process(logits.into(), &self.options, &self.seen, allowed, room)?;
        let token = if self.options.is_greedy() {
            peak.token
        } else if self.options.cuts() {
            candidates(row, peak, &self.options, found, spare)?;
            draw(found, &mut self.random(self.what))
        } else {
            self.draw_of_all(row, peak, sums)?
        };
        self.sampled(token, row, peak, spare)
    }

    /// The tokens that could be drawn next, in the order of their ids, with their probabilities. O(vocabulary).
    pub fn probabilities(
        &self,
        logits: &[f32],
        allowed: Option<Mask<'_>>,
        workspace: &mut Workspace,
    ) -> Result<Vec<(u32, f64)>> {
        let Workspace { row: room, candidates: found, spare, .. } = workspace;
        if self.options.is_greedy() {
            let (_, peak) = process(logits.into(), &self.options, &self.seen, allowed, room)?;
            return Ok(vec![(peak.token, 1.0)]);
        }
        self.distribution(logits.into(), allowed, room, found, spare)?;
        let sum: u64 = found.iter().map(|candidate| candidate.weight).sum();
        Ok(found.iter().map(|candidate| (candidate.id, candidate.weight as f64 / sum as f64)).collect())
    }

    pub(crate) fn random(&self, what: Use) -> Random {
        Random::new(self.options.seed, self.position(), what)
    }

    /// The logits that a token is drawn from, and the candidates among them.
    pub(crate) fn distribution<'a>(
        &self,
        row: Row<'a>,
        allowed: Option<Mask<'_>>,
        room: &'a mut Vec<f32>,
        found: &mut Vec<Candidate>,
        spare: &mut Vec<Candidate>,
    ) -> Result<(&'a [f32], Peak)> {
        let (row, peak) = process(row, &self.options, &self.seen, allowed, room)?;
        candidates(row, peak, &self.options, found, spare)?;
        Ok((row, peak))
    }

    /// Draws among all tokens: adds up the sums of blocks, and computes the weights of the chosen block again.
    fn draw_of_all(&self, row: &[f32], peak: Peak, sums: &mut Vec<u64>) -> Result<u32> {
        let scale = Scale::new(peak.logit, self.options.temperature);
        let mut room = [0; BLOCK];
        sums.clear();
        reserve(sums, row.len().div_ceil(BLOCK))?;
        sums.extend(row.chunks(BLOCK).map(|block| scale.block(block, &mut room)));
        let drawn = self.random(self.what).below(sums.iter().sum::<u64>().into()) as u64;
        let (place, rest) = reach(sums.iter().copied(), drawn);
        let block = &row[place * BLOCK..row.len().min((place + 1) * BLOCK)];
        scale.block(block, &mut room);
        let (inside, _) = reach(room.iter().copied(), rest);
        Ok((place * BLOCK + inside) as u32)
    }

    /// Returns a token with its log-probabilities, if requested.
    pub(crate) fn sampled(&self, token: u32, row: &[f32], peak: Peak, spare: &mut Vec<Candidate>) -> Result<Sampled> {
        let Some(top) = self.options.logprobs else { return Ok(Sampled { token, logprob: None, top: Vec::new() }) };
        let sum = Scale::new(peak.logit, 1.0).total(row) as f64 / ONE as f64;
        let of = |logit: f32| f64::from(logit) - f64::from(peak.logit) - sum.ln();
        let mut most = Vec::new();
        let count = row.len().min(top as usize);
        if count > 0 {
            kth(row, count, spare)?;
            spare.truncate(count);
            spare.sort_unstable_by(order);
            let possible = spare.iter().filter(|candidate| candidate.logit > f32::NEG_INFINITY);
            most.extend(possible.map(|candidate| (candidate.id, of(candidate.logit))));
        }
        Ok(Sampled { token, logprob: Some(of(row[token as usize])), top: most })
    }
}

/// Draws a candidate by weight.
fn draw(found: &[Candidate], random: &mut Random) -> u32 {
    let sum: u64 = found.iter().map(|candidate| candidate.weight).sum();
    let drawn = random.below(sum.into()) as u64;
    let (place, _) = reach(found.iter().map(|candidate| candidate.weight), drawn);
    found[place].id
}

/// The place of the weight that covers `drawn`, which is below the sum of all weights, and the offset into it.
fn reach(mut weights: impl Iterator<Item = u64>, drawn: u64) -> (usize, u64) {
    let mut rest = drawn;
    let place = weights.position(|weight| {
        let is_here = rest < weight;
        rest -= if is_here { 0 } else { weight };
        is_here
    });
    (place.expect("a number below the sum of the weights"), rest)
}
