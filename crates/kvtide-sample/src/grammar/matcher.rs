//! Follows one text through a grammar.
//!
//! A matcher is a function of the tokens so far; its position is a cache. [`Matcher::masks`] moves it to any text that it
//! is asked about: back to the common part, and on from there. So a draft needs no undo of its own, and a mask that was
//! computed ahead of time is simply there.
//!
//! ```text
//! masks([a b], [c d])   at a b c d, with the masks behind b, c and d
//! masks([a b e], [])    back to a b, on to a b e
//! ```

use std::sync::Arc;

use llguidance::TokenParser;
use llguidance::api::StopReason;

use crate::error::{Error, Result};

use super::compiled::{CompiledGrammar, guarded};
use super::mask::AllowedTokens;

/// The state of one text in a grammar.
pub struct Matcher {
    grammar: Arc<CompiledGrammar>,
    /// Made with the first call that needs it.
    parser: Option<TokenParser>,
    /// The tokens up to the parser's position.
    tokens: Vec<u32>,
    /// Masks of positions in `tokens`, ascending.
    masks: Vec<(usize, Arc<AllowedTokens>)>,
    /// The error after which the parser cannot go on.
    failure: Option<Error>,
}

impl Matcher {
    /// Returns a matcher at the start of a text.
    #[must_use]
    pub fn new(grammar: Arc<CompiledGrammar>) -> Self {
        Matcher { grammar, parser: None, tokens: Vec::new(), masks: Vec::new(), failure: None }
    }

    /// The tokens so far.
    #[must_use]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The tokens that may come next. Computed once for a position.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidGrammar`] if no token continues the text and it is not complete, or if the grammar needs more work
    /// than the limits allow.
    pub fn mask(&mut self) -> Result<Arc<AllowedTokens>> {
        let position = self.tokens.len();
        if let Some(mask) = self.known(position) {
            return Ok(mask);
        }
        let size = self.grammar.size();
        let mask = self.with(|parser| {
            if parser.stopped() {
                return Ok(AllowedTokens::end(size));
            }
            let bits = parser.compute_mask().map_err(|error| match parser.stop_reason() {
                StopReason::NoExtensionBias => "no token of the vocabulary continues the text".to_owned(),
                _ => format!("{error:#}"),
            });
            Ok::<_, String>(AllowedTokens::of(bits?.as_slice(), size))
        })?;
        let mask = Arc::new(mask);
        self.masks.push((position, Arc::clone(&mask)));
        Ok(mask)
    }

    /// Adds a token. Returns false, and changes nothing, if the grammar does not allow it.
    pub fn advance(&mut self, token: u32) -> Result<bool> {
        let is_allowed = match self.known(self.tokens.len()) {
            Some(mask) => mask.allows(token),
            None if token >= self.grammar.size() => false,
            None => self.with(|parser| {
                if parser.stopped() { Ok(false) } else { parser.validate_tokens_raw(&[token]).map(|count| count == 1) }
            })?,
        };
        if is_allowed {
            self.with(|parser| parser.consume_token(token).and_then(|_| parser.check_stop()))?;
            self.tokens.push(token);
        }
        Ok(is_allowed)
    }

    /// Removes the last `count` tokens.
    pub fn rollback(&mut self, count: usize) -> Result<()> {
        let Some(length) = self.tokens.len().checked_sub(count) else {
            return Err(Error::argument("count", count as f64, format!("at most {} tokens", self.tokens.len())));
        };
        if count > 0 {
            self.with(|parser| parser.rollback(count))?;
            self.tokens.truncate(length);
            self.masks.retain(|&(position, _)| position <= length);
        }
        Ok(())
    }

    /// Returns a copy for another text that goes on from here.
    pub fn fork(&mut self) -> Result<Self> {
        let parser = self.with(|parser| Ok::<_, String>(parser.deep_clone()))?;
        Ok(Matcher {
            grammar: Arc::clone(&self.grammar),
            parser: Some(parser),
            tokens: self.tokens.clone(),
            masks: self.masks.clone(),
            failure: None,
        })
    }

    /// True if the text may end here.
    pub fn may_end(&mut self) -> Result<bool> {
        Ok(self.mask()?.may_end())
    }

    /// True if nothing may follow any more. It costs less than a mask, which also knows when no token of the vocabulary
    /// fits.
    pub fn is_over(&mut self) -> Result<bool> {
        match self.known(self.tokens.len()) {
            Some(mask) => Ok(mask.is_over()),
            None => self.with(|parser| Ok::<_, String>(parser.stopped())),
        }
    }

    /// Moves to a text. Returns false, behind its longest part that the grammar allows, if it does not allow all of it.
    pub fn seek(&mut self, text: &[u32]) -> Result<bool> {
        let common = self.tokens.iter().zip(text).take_while(|(own, token)| own == token).count();
        self.rollback(self.tokens.len() - common)?;
        for &token in &text[common..] {
            if !self.advance(token)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The masks behind a text and behind each of the tokens that were drafted for it; [`None`] behind a drafted token that
    /// is not allowed. If they were computed before, nothing moves.
    pub fn masks(&mut self, text: &[u32], drafted: &[u32]) -> Result<Vec<Option<Arc<AllowedTokens>>>> {
        if let Some(found) = self.ready(text, drafted) {
            return Ok(found);
        }
        self.masks.retain(|&(position, _)| position >= text.len());
        if !self.seek(text)? {
            let reason = format!("token {} does not continue the text", text[self.tokens.len()]);
            return Err(Error::grammar(Some(self.place()), reason));
        }
        let mut found = vec![Some(self.mask()?)];
        for &token in drafted {
            let is_allowed = found.last().is_some_and(|mask| mask.as_ref().is_some_and(|mask| mask.allows(token)));
            if !is_allowed || !self.advance(token)? {
                break;
            }
            found.push(Some(self.mask()?));
        }
        found.resize(drafted.len() + 1, None);
        Ok(found)
    }

    /// The result of [`Self::masks`], if it was computed before.
    #[must_use]
    pub fn ready(&self, text: &[u32], drafted: &[u32]) -> Option<Vec<Option<Arc<AllowedTokens>>>> {
        if !self.tokens.starts_with(text) {
            return None;
        }
        let mut found = vec![Some(self.known(text.len())?)];
        for (place, &token) in drafted.iter().enumerate() {
            if !found[place].as_ref().is_some_and(|mask| mask.allows(token)) {
                break;
            }
            let position = text.len() + place;
            if self.tokens.get(position) != Some(&token) {
                return None;
            }
            found.push(Some(self.known(position + 1)?));
        }
        found.resize(drafted.len() + 1, None);
        Some(found)
    }

    /// The mask of a position, if it was computed.
    fn known(&self, position: usize) -> Option<Arc<AllowedTokens>> {
        let found = self.masks.iter().rev().find(|&&(other, _)| other == position);
        found.map(|(_, mask)| Arc::clone(mask))
    }

    fn place(&self) -> String {
        format!("token {}", self.tokens.len())
    }

    /// Runs a call of the parser. An error of it is final: the parser's state is not known any more.
    fn with<R, E: std::fmt::Display>(&mut self, work: impl FnOnce(&mut TokenParser) -> Result<R, E>) -> Result<R> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let parser = match self.parser.take() {
            Some(parser) => Ok(parser),
            None => self.grammar.take(),
        };
        let outcome = parser.and_then(|mut parser| {
            let outcome = guarded(|| work(&mut parser));
            self.parser = Some(parser);
            outcome
        });
        outcome.map_err(|reason| {
            let failure = Error::grammar(Some(self.place()), reason);
            self.failure = Some(failure.clone());
            failure
        })
    }
}

impl Drop for Matcher {
    fn drop(&mut self) {
        if let (Some(parser), None) = (self.parser.take(), &self.failure) {
            self.grammar.give_back(parser);
        }
    }
}
