//! Matchers: the masks of one generation's grammar, computed beside the model's steps.
//!
//! ```text
//! draw   mask -> token -> over?  and at once, in the background, the mask behind that token
//! step   computes the token's logits meanwhile
//! draw   finds its mask
//! ```
//!
//! A matcher is a function of the text, so work ahead of time can be wrong but not harmful: a mask for another text is
//! computed again. A draw that comes before the background has begun computes the mask itself. So a draw waits only for a
//! mask that is being computed, and masks of several generations are computed on several threads.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};

use kvtide_core::Error;
use kvtide_sample::grammar::{AllowedTokens, CompiledGrammar, Matcher};
use napi::{Env, Result};
use napi_derive::napi;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::border::argument::{ArrayArg, count};
use crate::border::handle::{Handle, catch, guard, locked};
use crate::border::refusal::Outcome;

/// The stack of a thread that computes masks.
const STACK: usize = 1 << 24;

/// The masks behind a text and behind each drafted token.
pub(crate) type Masks = Vec<Option<Arc<AllowedTokens>>>;

/// The threads that compute masks, as many as kvtide uses; [`None`] if they cannot be started. They stay until the process
/// ends.
fn pool() -> Option<&'static ThreadPool> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let made = POOL.get_or_init(|| {
        let threads = kvtide_tensor::runtime::threads().unwrap_or(1);
        let builder = ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK);
        // All work catches its panics itself.
        builder.thread_name(|_| "kvtide-grammar".to_owned()).panic_handler(|_| ()).build().ok()
    });
    made.as_ref()
}

/// A matcher that draws and the background share.
pub(crate) struct SharedMatcher {
    matcher: Mutex<Matcher>,
    /// The tokens that end the text.
    ends: Vec<u32>,
    /// Counts requests: work for an earlier one than the last is skipped.
    requests: AtomicU64,
    /// The number of background tasks that have not ended.
    running: AtomicUsize,
}

impl SharedMatcher {
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Starts to compute masks in the background.
    pub fn foresee(self: &Arc<Self>, text: Arc<Vec<u32>>, drafted: Vec<u32>) {
        let Some(pool) = pool() else { return };
        let request = self.requests.fetch_add(1, Ordering::AcqRel) + 1;
        self.running.fetch_add(1, Ordering::AcqRel);
        let shared = Arc::clone(self);
        pool.spawn(move || {
            // An error stays in the matcher, and the draw gets it. A panic leaves the matcher unusable.
            let _ = catch(|| {
                locked(&shared.matcher, |matcher| {
                    if shared.requests.load(Ordering::Acquire) == request {
                        let _ = matcher.masks(&text, &drafted);
                    }
                    Ok(())
                })
            });
            shared.running.fetch_sub(1, Ordering::AcqRel);
        });
    }

    /// True if the masks were computed and nothing else uses the matcher.
    pub fn is_ready(&self, text: &[u32], drafted: &[u32]) -> bool {
        if self.running.load(Ordering::Acquire) > 0 {
            return false;
        }
        match self.matcher.try_lock() {
            Ok(matcher) => matcher.ready(text, drafted).is_some(),
            Err(TryLockError::Poisoned(_) | TryLockError::WouldBlock) => false,
        }
    }

    /// The masks behind a text and its drafted tokens. Waits for the background if that computes one.
    pub fn masks(&self, text: &[u32], drafted: &[u32]) -> Outcome<Masks> {
        self.requests.fetch_add(1, Ordering::AcqRel);
        locked(&self.matcher, |matcher| Ok(matcher.masks(text, drafted)?))
    }

    /// Moves to a text. Returns true if nothing may follow it.
    pub fn is_over(&self, text: &[u32]) -> Outcome<bool> {
        self.requests.fetch_add(1, Ordering::AcqRel);
        locked(&self.matcher, |matcher| {
            if !matcher.seek(text)? {
                return Err(Error::argument(
                    "tokens",
                    "tokens that the grammar does not allow",
                    "a text of the grammar",
                )
                .into());
            }
            Ok(matcher.is_over()?)
        })
    }
}

/// The matcher of one generation, and the tokens that it has generated.
#[napi]
pub struct NativeMatcher {
    shared: RefCell<Handle<Arc<SharedMatcher>>>,
    grammar: Arc<CompiledGrammar>,
    text: RefCell<Arc<Vec<u32>>>,
}

impl NativeMatcher {
    pub(crate) fn new(grammar: &Arc<CompiledGrammar>, ends: &[u32]) -> Self {
        NativeMatcher::of(grammar, ends, Arc::default())
    }

    fn of(grammar: &Arc<CompiledGrammar>, ends: &[u32], text: Arc<Vec<u32>>) -> Self {
        let shared = Arc::new(SharedMatcher {
            matcher: Mutex::new(Matcher::new(Arc::clone(grammar))),
            ends: ends.to_vec(),
            requests: AtomicU64::new(0),
            running: AtomicUsize::new(0),
        });
        shared.foresee(Arc::clone(&text), Vec::new());
        let shared = RefCell::new(Handle::new("Sampler", shared));
        NativeMatcher { shared, grammar: Arc::clone(grammar), text: RefCell::new(text) }
    }

    /// The matcher, and the text so far.
    pub(crate) fn get(&self) -> Outcome<(Arc<SharedMatcher>, Arc<Vec<u32>>)> {
        Ok((Arc::clone(self.shared.borrow().get()?), self.text()))
    }

    fn text(&self) -> Arc<Vec<u32>> {
        Arc::clone(&self.text.borrow())
    }
}

#[napi]
impl NativeMatcher {
    /// Adds generated tokens.
    #[napi(catch_unwind)]
    pub fn push(&self, tokens: &[u32]) {
        Arc::make_mut(&mut self.text.borrow_mut()).extend_from_slice(tokens);
    }

    /// Keeps the first `length` generated tokens.
    #[napi]
    pub fn truncate(&self, env: &Env, length: f64) -> Result<()> {
        guard(env, || {
            Arc::make_mut(&mut self.text.borrow_mut()).truncate(count("length", length)? as usize);
            Ok(())
        })
    }

    /// Replaces the generated tokens, and starts to compute the mask behind them.
    #[napi]
    pub fn set(&self, env: &Env, tokens: &[u32]) -> Result<()> {
        guard(env, || {
            *self.text.borrow_mut() = Arc::new(tokens.to_vec());
            let (shared, text) = self.get()?;
            shared.foresee(text, Vec::new());
            Ok(())
        })
    }

    /// Starts to compute the masks behind the text and behind each of these drafted tokens.
    #[napi]
    pub fn foresee(&self, env: &Env, drafted: &[u32]) -> Result<()> {
        guard(env, || {
            let (shared, text) = self.get()?;
            shared.foresee(text, drafted.to_vec());
            Ok(())
        })
    }

    /// True if nothing may follow the text. Waits for a mask that is being computed.
    #[napi]
    pub fn is_over(&self, env: &Env) -> Result<bool> {
        guard(env, || {
            let (shared, text) = self.get()?;
            shared.is_over(&text)
        })
    }

    /// Sets the logits of all tokens that may not follow the text to -Infinity. Waits for the mask.
    #[napi]
    pub fn apply(&self, env: &Env, logits: ArrayArg) -> Result<()> {
        guard(env, || {
            let memory = logits.memory("logits")?;
            let refused = |_| Error::argument("logits", "another array", "a Float32Array");
            let row: &mut [f32] = bytemuck::try_cast_slice_mut(memory.bytes_mut()).map_err(refused)?;
            let (shared, text) = self.get()?;
            let masks = shared.masks(&text, &[])?;
            let Some(Some(mask)) = masks.first() else { return Ok(()) };
            let words = mask.fitted(row.len() as u32, shared.ends());
            for (logits, &word) in row.chunks_mut(32).zip(&words) {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
            Ok(())
        })
    }

    /// A matcher for another sequence with the same text.
    #[napi]
    pub fn fork(&self, env: &Env) -> Result<NativeMatcher> {
        guard(env, || {
            let (shared, text) = self.get()?;
            Ok(NativeMatcher::of(&self.grammar, shared.ends(), text))
        })
    }

    /// Leaves the parser to the next matcher of the grammar, once no task uses it.
    #[napi]
    pub fn dispose(&self, env: &Env) {
        self.shared.borrow_mut().dispose(env, |_| ());
    }
}
