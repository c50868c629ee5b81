//! Draws the tokens of many rows, at once or on a thread of Node's pool.
//!
//! Method calls collect the rows to draw from; then they are drawn, once. The collection shares logits and samplers as
//! they are at that moment, so that they can be used meanwhile. In the background, sequences are distributed over
//! threads. An error in one row does not fail the others: it is part of the result.
//!
//! A grammar's mask is that of its matcher. The drawn tokens are matched at once: so the result says whether the text is
//! complete, and the next mask is computed while the model computes the next step.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;

use kvtide_core::Error;
use kvtide_sample::{Drafts, Row, Sampled, Sampler, Workspace};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result, Task};
use napi_derive::napi;

use crate::border::argument::count;
use crate::border::handle::{catch, guard};
use crate::border::refusal::{AnsweredRefusal, Outcome};
use crate::sampling::logits::{Logits, NativeLogits};
use crate::sampling::matcher::{Masks, NativeMatcher, SharedMatcher};
use crate::sampling::sampler::NativeSampler;

/// The estimated cost of matching a token, in nanoseconds.
const MATCHED: f64 = 3e4;
/// The estimated cost of a mask: more than what is drawn on the main thread.
const MASKED: f64 = 4e5;

/// One sequence to draw for: the row of its next token, followed by one row per drafted token.
struct Wanted {
    logits: Arc<Logits>,
    row: u32,
    sampler: Arc<Sampler>,
    drafted: Vec<u32>,
    /// The rows from which a second model drew the drafted tokens; empty if the tokens were given.
    drafts: Vec<(Arc<Logits>, u32)>,
    masks: Vec<Option<Vec<u32>>>,
    grammar: Option<Constraint>,
}

/// The grammar of a sequence, and the tokens that were generated in it.
struct Constraint {
    matcher: Arc<SharedMatcher>,
    text: Arc<Vec<u32>>,
}

/// The tokens of one sequence: the accepted drafted tokens and one more. Or the error.
#[napi(object, object_from_js = false)]
pub struct NativeDrawn {
    pub tokens: Vec<u32>,
    /// The log-probability of each token, if requested.
    pub logprobs: Option<Vec<f64>>,
    /// For each token, ids and log-probabilities of the most probable tokens, alternating.
    pub top: Option<Vec<Vec<f64>>>,
    /// True if the grammar allows nothing behind the tokens.
    pub is_over: bool,
    #[napi(ts_type = "Error | undefined")]
    pub error: Option<AnsweredRefusal>,
}

/// The tokens that were drawn, and true if the grammar allows nothing behind them.
pub struct Tokens {
    sampled: Vec<Sampled>,
    is_over: bool,
}

type Drawn = Vec<Outcome<Tokens>>;

impl Constraint {
    /// True if the text is complete and no token of the vocabulary ends it.
    fn is_over(&self, masks: &Masks, vocabulary: u32) -> bool {
        let is_end = |&end: &u32| end < vocabulary;
        masks[0].as_ref().is_some_and(|mask| mask.is_over()) && !self.matcher.ends().iter().any(is_end)
    }

    /// The masks of all rows: tokens that both the grammar and `allowed` allow.
    fn both(&self, masks: Masks, allowed: &[Option<Vec<u32>>], vocabulary: u32) -> Vec<Option<Vec<u32>>> {
        let with = |(place, mask): (usize, Option<Arc<_>>)| {
            let mask: Arc<kvtide_sample::grammar::AllowedTokens> = mask?;
            let mut words = mask.fitted(vocabulary, self.matcher.ends());
            if let Some(Some(allowed)) = allowed.get(place) {
                words.iter_mut().zip(allowed).for_each(|(word, allowed)| *word &= allowed);
            }
            Some(words)
        };
        masks.into_iter().enumerate().map(with).collect()
    }

    /// Matches drawn tokens, and starts to compute the mask behind them. Returns true if nothing may follow.
    fn accept(&self, sampled: &[Sampled]) -> Outcome<bool> {
        let tokens = sampled.iter().map(|one| one.token);
        if tokens.clone().any(|token| self.matcher.ends().contains(&token)) {
            return Ok(false);
        }
        let text: Vec<u32> = self.text.iter().copied().chain(tokens).collect();
        let is_over = self.matcher.is_over(&text)?;
        if !is_over {
            self.matcher.foresee(Arc::new(text), Vec::new());
        }
        Ok(is_over)
    }
}

impl Wanted {
    fn draw(&self, workspace: &mut Workspace) -> Outcome<Tokens> {
        let Some(grammar) = &self.grammar else {
            return Ok(Tokens { sampled: self.draw_of(&self.masks, workspace)?, is_over: false });
        };
        let vocabulary = self.logits.vocab();
        let masks = grammar.matcher.masks(&grammar.text, &self.drafted)?;
        if grammar.is_over(&masks, vocabulary) {
            return Ok(Tokens { sampled: Vec::new(), is_over: true });
        }
        let sampled = self.draw_of(&grammar.both(masks, &self.masks, vocabulary), workspace)?;
        let is_over = grammar.accept(&sampled)?;
        Ok(Tokens { sampled, is_over })
    }

    fn draw_of(&self, masks: &[Option<Vec<u32>>], workspace: &mut Workspace) -> Outcome<Vec<Sampled>> {
        let rows = self.row..=self.row + self.drafted.len() as u32;
        let rows = rows.map(|row| self.logits.known_row(row)).collect::<Outcome<Vec<Row<'_>>>>()?;
        let drafts = self.drafts.iter().map(|(logits, row)| logits.row(*row)).collect::<Outcome<Vec<_>>>()?;
        let drafts = if drafts.is_empty() { Drafts::Tokens } else { Drafts::Logits(&drafts) };
        let masks: Vec<Option<&[u32]>> = masks.iter().map(Option::as_deref).collect();
        Ok(self.sampler.verify(&rows, &self.drafted, drafts, &masks, workspace).map_err(|error| match error {
            kvtide_sample::Error::NotFinite { row, .. } => error.of_row(row + self.row as usize),
            other => other,
        })?)
    }

    /// The estimated cost, in nanoseconds.
    fn cost(&self) -> f64 {
        let rows = 1 + self.drafted.len() + self.drafts.len();
        let is_masked = self.grammar.is_some() || !self.masks.is_empty();
        let each = self.sampler.cost(self.logits.has_peaks()) + f64::from(is_masked);
        let grammar = self.grammar.as_ref().map_or(0.0, |grammar| {
            if grammar.matcher.is_ready(&grammar.text, &self.drafted) { MATCHED } else { MASKED * rows as f64 }
        });
        each * rows as f64 * f64::from(self.logits.vocab()) + grammar
    }
}

fn draw(wanted: &[Wanted]) -> Drawn {
    let mut workspace = Workspace::default();
    wanted.iter().map(|one| catch(|| one.draw(&mut workspace)).unwrap_or_else(Err)).collect()
}

/// Like `draw`, on several threads if the work is large enough to pay for starting them. Each sequence is drawn by
/// itself, so the tokens do not depend on the number of threads.
fn draw_shared(wanted: &[Wanted]) -> Drawn {
    /// Nanoseconds of work that justify one thread.
    const SHARE: f64 = 5e5;
    let most = (wanted.iter().map(Wanted::cost).sum::<f64>() / SHARE) as usize;
    let threads = kvtide_tensor::runtime::threads().unwrap_or(1).min(most).min(wanted.len()).max(1);
    let mut parts = wanted.chunks(wanted.len().div_ceil(threads).max(1));
    let own = parts.next().unwrap_or(&[]);
    thread::scope(|scope| {
        // If a thread cannot be started, its share is drawn on this thread.
        let start = |part| (thread::Builder::new().spawn_scoped(scope, move || draw(part)), part);
        let others: Vec<_> = parts.map(start).collect();
        let mut drawn = draw(own);
        for (thread, part) in others {
            let joined = thread.ok().and_then(|thread| thread.join().ok());
            drawn.extend(joined.unwrap_or_else(|| draw(part)));
        }
        drawn
    })
}

fn answer(drawn: Drawn) -> Vec<NativeDrawn> {
    let each = drawn.into_iter().map(|drawn| match drawn {
        Err(refusal) => {
            let error = Some(AnsweredRefusal(refusal));
            NativeDrawn { tokens: vec![], logprobs: None, top: None, is_over: false, error }
        }
        Ok(Tokens { sampled, is_over }) => {
            let flat = |one: &Sampled| one.top.iter().flat_map(|&(id, logprob)| [id.into(), logprob]).collect();
            let logprobs: Option<Vec<f64>> = sampled.iter().map(|one| one.logprob).collect();
            let top = logprobs.is_some().then(|| sampled.iter().map(flat).collect());
            let tokens = sampled.iter().map(|one| one.token).collect();
            NativeDrawn { tokens, logprobs, top, is_over, error: None }
        }
    });
    each.collect()
}

#[napi]
pub struct NativeDraw {
    wanted: RefCell<Vec<Wanted>>,
}

#[napi]
impl NativeDraw {
    #[napi(catch_unwind, constructor)]
    pub fn new() -> Self {
        NativeDraw { wanted: RefCell::new(Vec::new()) }
    }

    /// Adds a sequence: row `row` is that of its next token, followed by one row per drafted token.
    #[napi]
    pub fn add(
        &self,
        env: &Env,
        sampler: &NativeSampler,
        logits: &NativeLogits,
        row: f64,
        drafted: Option<&[u32]>,
    ) -> Result<()> {
        guard(env, || {
            let (sampler, logits, row) = (sampler.get()?, logits.get()?, count("row", row)?);
            let drafted = drafted.unwrap_or(&[]).to_vec();
            logits.row(row.saturating_add(u32::try_from(drafted.len()).unwrap_or(u32::MAX)))?;
            let (drafts, masks) = (Vec::new(), Vec::new());
            let wanted = Wanted { logits, row, sampler, drafted, drafts, masks, grammar: None };
            self.wanted.borrow_mut().push(wanted);
            Ok(())
        })
    }

    /// Adds the row from which a second model drew the next drafted token of the last sequence.
    #[napi]
    pub fn draft(&self, env: &Env, logits: &NativeLogits, row: f64) -> Result<()> {
        guard(env, || {
            let (logits, row) = (logits.get()?, count("row", row)?);
            logits.row(row)?;
            self.last(|last| last.drafts.push((logits, row)))
        })
    }

    /// Sets the allowed tokens of the next row of the last sequence: one bit per token; without a mask all are allowed.
    #[napi]
    pub fn allow(&self, env: &Env, mask: Option<&[u32]>) -> Result<()> {
        guard(env, || self.last(|last| last.masks.push(mask.map(<[u32]>::to_vec))))
    }

    /// Constrains the last sequence by a grammar.
    #[napi]
    pub fn constrain(&self, env: &Env, matcher: &NativeMatcher) -> Result<()> {
        guard(env, || {
            let (matcher, text) = matcher.get()?;
            self.last(|last| last.grammar = Some(Constraint { matcher, text }))
        })
    }

    /// The estimated cost, in nanoseconds.
    #[napi(catch_unwind)]
    pub fn cost(&self) -> f64 {
        self.wanted.borrow().iter().map(Wanted::cost).sum()
    }

    /// Draws at once. A second call returns an empty list.
    #[napi]
    pub fn run(&self, env: &Env) -> Result<Vec<NativeDrawn>> {
        guard(env, || Ok(answer(draw(&self.wanted.take()))))
    }

    /// Draws in the background.
    #[napi(ts_return_type = "Promise<Array<NativeDrawn>>")]
    pub fn start(&self, env: &Env) -> Result<AsyncTask<DrawTask>> {
        guard(env, || Ok(AsyncTask::new(DrawTask { wanted: self.wanted.take() })))
    }
}

impl NativeDraw {
    fn last(&self, change: impl FnOnce(&mut Wanted)) -> Outcome<()> {
        let mut wanted = self.wanted.borrow_mut();
        let last = wanted.last_mut().ok_or_else(|| Error::argument("this", "no sequence", "add() before this call"))?;
        change(last);
        Ok(())
    }
}

/// Draws in the background.
pub struct DrawTask {
    wanted: Vec<Wanted>,
}

impl Task for DrawTask {
    type Output = Drawn;
    type JsValue = Vec<NativeDrawn>;

    fn compute(&mut self) -> Result<Self::Output> {
        Ok(draw_shared(&self.wanted))
    }

    fn resolve(&mut self, env: Env, drawn: Self::Output) -> Result<Self::JsValue> {
        self.wanted.clear();
        guard(&env, || Ok(answer(drawn)))
    }
}
