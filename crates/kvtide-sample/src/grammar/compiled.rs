//! Grammars and their compiled form: what the parser made of a schema, a regular expression or a Lark grammar for one
//! vocabulary. Compiling takes milliseconds on a thread with a large stack, since the parser's compilers recurse.
//!
//! A parser's lexer becomes faster while it is used: it keeps the states that it has reached. So the parser of a matcher
//! that was dropped serves the next one. A matcher's parser is its own, so that masks of several are computed at once.

use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use llguidance::api::TopLevelGrammar;
use llguidance::{ParserFactory, TokenParser, panic_utils};
use serde::de::IgnoredAny;

use crate::error::{Error, Result};

use super::vocabulary::{LEXER_STATES_MAX, Vocabulary};
use super::{location, pattern, schema};

/// The longest regular expression, also in a schema, and the longest line of a Lark grammar, in bytes. The parser's work
/// for one grows with its square.
pub(super) const PATTERN_MAX: usize = 1 << 13;
/// The longest text of a Lark grammar, in bytes.
const LARK_MAX: usize = 1 << 17;
/// The longest text of a JSON schema, in bytes.
const SCHEMA_MAX: usize = 1 << 20;
/// The stack of the thread that compiles. Memory that it does not touch is not used.
const STACK: usize = 1 << 28;
/// The number of parsers that a grammar keeps for later matchers.
const IDLE_MAX: usize = 32;

/// A language: the texts that may be generated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Grammar {
    /// JSON values that a schema describes, given as its JSON text. `true` is any value.
    Json(String),
    /// Texts that match a regular expression as a whole, in the syntax of the `regex` crate without look-around.
    Regex(String),
    /// A context-free grammar in the syntax of Lark, as far as llguidance reads it.
    Lark(String),
}

/// A grammar for one vocabulary.
pub struct CompiledGrammar {
    parsers: Mutex<Parsers>,
    size: u32,
    is_empty: bool,
}

/// The parser that others are copied from, and those of earlier matchers.
struct Parsers {
    first: TokenParser,
    idle: Vec<TokenParser>,
}

impl Vocabulary {
    /// Compiles a grammar.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidGrammar`] with the place of what is wrong or not supported, if it is known.
    pub fn compile(&self, grammar: &Grammar) -> Result<CompiledGrammar> {
        let thread = thread::Builder::new().name("grammar".to_owned()).stack_size(STACK);
        thread::scope(|scope| {
            let running = thread.spawn_scoped(scope, || self.compile_here(grammar));
            let running = running.map_err(|_| Error::OutOfMemory { bytes: STACK as u64 })?;
            running.join().unwrap_or_else(|_| Err(Error::grammar(None, "the parser failed")))
        })
    }

    fn compile_here(&self, grammar: &Grammar) -> Result<CompiledGrammar> {
        let mut first = match grammar {
            Grammar::Json(text) => {
                within(text.len(), SCHEMA_MAX)?;
                let schema = schema::prepared(text)?;
                let compile = |schema| self.parser(TopLevelGrammar::from_json_schema(schema));
                let compiled = compile(schema.clone());
                compiled.map_err(|reason| location::failing(&schema, reason, &|part| compile(part).err()))?
            }
            Grammar::Regex(text) => {
                within(text.len(), PATTERN_MAX)?;
                let parser = self.parser(pattern::to_grammar(text)?);
                parser.map_err(|reason| Error::grammar(None, reason))?
            }
            Grammar::Lark(text) => {
                let parser = self.parser(TopLevelGrammar::from_lark(lark(text)?));
                parser.map_err(|reason| location::in_lark(&reason))?
            }
        };
        if !first.parser.grammar().lexer_spec().can_rollback() {
            let reason =
                "max_tokens and stop of a rule are not supported: use suffix, or the options of the generation";
            return Err(Error::grammar(None, reason));
        }
        first.start_without_prompt();
        let is_empty = guarded(|| first.check_stop()).map_err(|reason| Error::grammar(None, reason))?;
        Ok(CompiledGrammar { parsers: Mutex::new(Parsers { first, idle: Vec::new() }), size: self.size(), is_empty })
    }

    fn parser(&self, grammar: TopLevelGrammar) -> Result<TokenParser, String> {
        guarded(|| ParserFactory::create_parser(&self.factory, grammar))
    }
}

impl CompiledGrammar {
    /// The number of ids of its vocabulary.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// True if its only text is the empty one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }

    fn parsers(&self) -> MutexGuard<'_, Parsers> {
        self.parsers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A parser at the start of a text.
    pub(super) fn take(&self) -> Result<TokenParser, String> {
        while let Some(mut parser) = self.idle() {
            if guarded(|| parser.reset()).is_ok() && (!parser.stopped() || self.is_empty) {
                return Ok(parser);
            }
        }
        guarded(|| Ok::<_, String>(self.parsers().first.deep_clone()))
    }

    fn idle(&self) -> Option<TokenParser> {
        self.parsers().idle.pop()
    }

    /// Keeps the parser of a matcher that is dropped. Its states count towards a limit, so one with many is not kept.
    pub(super) fn give_back(&self, parser: TokenParser) {
        let states = guarded(|| Ok::<_, String>(parser.parser.lexer_stats().num_states));
        let mut parsers = self.parsers();
        if parsers.idle.len() < IDLE_MAX && states.is_ok_and(|states| states < LEXER_STATES_MAX / 4) {
            parsers.idle.push(parser);
        }
    }
}

/// A Lark grammar with its schemas prepared. A rule that is a schema on one line may be as long as a schema.
fn lark(text: &str) -> Result<String> {
    let mut made = String::with_capacity(text.len());
    let mut own = 0;
    for line in text.lines() {
        let rule = line.split_once("%json ").filter(|(name, _)| name.trim_end().ends_with(':'));
        match rule.filter(|(_, schema)| serde_json::from_str::<IgnoredAny>(schema).is_ok()) {
            Some((name, schema)) => {
                within(schema.len(), SCHEMA_MAX)?;
                let schema = schema::prepared(schema)?;
                own += name.len();
                made.extend([name, "%json ", &schema.to_string(), "\n"]);
            }
            None => {
                within(line.len(), PATTERN_MAX)?;
                own += line.len() + 1;
                made.extend([line, "\n"]);
            }
        }
    }
    within(own, LARK_MAX)?;
    within(text.len(), LARK_MAX + SCHEMA_MAX)?;
    Ok(made)
}

fn within(bytes: usize, most: usize) -> Result<()> {
    if bytes <= most {
        return Ok(());
    }
    Err(Error::grammar(None, format!("a text of {bytes} bytes, expected at most {most}")))
}

/// Runs a call of the parser. Its error or its panic, as one line.
pub(super) fn guarded<R, E: Display>(work: impl FnOnce() -> Result<R, E>) -> Result<R, String> {
    let outcome = panic_utils::catch_unwind(AssertUnwindSafe(|| Ok(work().map_err(|error| format!("{error:#}")))));
    let outcome = outcome.unwrap_or_else(|panic| Err(panic.to_string()));
    outcome.map_err(|reason| reason.lines().next().unwrap_or("the parser failed").trim().to_owned())
}
