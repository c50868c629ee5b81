//! Vocabularies and compiled grammars, for JavaScript. Reading a tokenizer and compiling a grammar are background tasks.
//!
//! ```text
//! NativeVocabulary.open(path) / .of(json) / .ofTokens(..)
//!   .compile(kind, text)         NativeGrammar
//!     .matcher(ends)             NativeMatcher, one for each generation
//! ```

use std::path::Path;
use std::sync::Arc;

use kvtide_core::Error;
use kvtide_sample::grammar::{CompiledGrammar, Grammar, Token, Vocabulary};
use napi::bindgen_prelude::AsyncTask;
use napi::{Env, Result};
use napi_derive::napi;

use crate::border::argument::{ArrayArg, count};
use crate::border::external_array::ExternalArray;
use crate::border::handle::guard;
use crate::border::refusal::Outcome;
use crate::border::task::PoolTask;
use crate::sampling::matcher::NativeMatcher;

/// The tokens of a tokenizer.
#[napi]
pub struct NativeVocabulary {
    vocabulary: Arc<Vocabulary>,
}

fn of_vocabulary(vocabulary: Vocabulary) -> NativeVocabulary {
    NativeVocabulary { vocabulary: Arc::new(vocabulary) }
}

/// The kinds of tokens in `ofTokens`.
const TEXT: u8 = 0;
const SPECIAL: u8 = 1;

#[napi]
impl NativeVocabulary {
    /// Reads a `tokenizer.json` from its path. A vocabulary smaller than `size` is extended by ids without tokens.
    #[napi(ts_return_type = "Promise<NativeVocabulary>")]
    pub fn open(env: &Env, path: String, size: f64) -> Result<AsyncTask<PoolTask<Vocabulary, NativeVocabulary>>> {
        guard(env, || {
            let size = count("size", size)?;
            let read = move || -> Outcome<Vocabulary> {
                let file = Path::new(&path);
                let json = std::fs::read(file).map_err(|reason| kvtide_files::Error::io("read", file, reason))?;
                Ok(Vocabulary::from_tokenizer_json(&json, Some(size))?)
            };
            Ok(PoolTask::of(read, of_vocabulary))
        })
    }

    /// Reads the content of a `tokenizer.json`.
    #[napi(ts_return_type = "Promise<NativeVocabulary>")]
    pub fn of(env: &Env, json: String, size: f64) -> Result<AsyncTask<PoolTask<Vocabulary, NativeVocabulary>>> {
        guard(env, || {
            let size = count("size", size)?;
            let read =
                move || -> Outcome<Vocabulary> { Ok(Vocabulary::from_tokenizer_json(json.as_bytes(), Some(size))?) };
            Ok(PoolTask::of(read, of_vocabulary))
        })
    }

    /// Makes a vocabulary of tokens: their bytes, concatenated, and for each its length and its kind, 0 for text, 1 for a
    /// special token, 2 for an id without a token.
    #[napi]
    pub fn of_tokens(env: &Env, bytes: ArrayArg, lengths: &[u32], kinds: ArrayArg) -> Result<NativeVocabulary> {
        guard(env, || {
            let (mut rest, kinds) = (bytes.memory("tokens")?.bytes(), kinds.memory("tokens")?.bytes());
            let refused =
                || Error::argument("tokens", "lengths of other tokens", "the length and the kind of each token");
            let mut tokens = Vec::with_capacity(lengths.len());
            for (place, &length) in lengths.iter().enumerate() {
                let (own, behind) = rest.split_at_checked(length as usize).ok_or_else(refused)?;
                rest = behind;
                tokens.push(match *kinds.get(place).ok_or_else(refused)? {
                    TEXT => Token::Text(own.to_vec()),
                    SPECIAL => Token::Special(String::from_utf8_lossy(own).into_owned()),
                    _ => Token::Unused,
                });
            }
            Ok(of_vocabulary(Vocabulary::new(&tokens)?))
        })
    }

    #[napi(catch_unwind)]
    pub fn size(&self) -> u32 {
        self.vocabulary.size()
    }

    /// The bytes of a token, or the name of a special one.
    #[napi(ts_return_type = "Uint8Array")]
    pub fn bytes(&self, env: &Env, id: f64) -> Result<ExternalArray> {
        guard(env, || Ok(ExternalArray::bytes(self.vocabulary.bytes(count("id", id)?).to_vec())))
    }

    #[napi]
    pub fn is_special(&self, env: &Env, id: f64) -> Result<bool> {
        guard(env, || Ok(self.vocabulary.is_special(count("id", id)?)))
    }

    /// Compiles a grammar: `json` with the text of a schema, `regex` or `lark`.
    #[napi(ts_return_type = "Promise<NativeGrammar>")]
    pub fn compile(
        &self,
        env: &Env,
        kind: String,
        text: String,
    ) -> Result<AsyncTask<PoolTask<CompiledGrammar, NativeGrammar>>> {
        guard(env, || {
            let grammar = grammar(&kind, text)?;
            let vocabulary = Arc::clone(&self.vocabulary);
            let compile = move || -> Outcome<CompiledGrammar> { Ok(vocabulary.compile(&grammar)?) };
            Ok(PoolTask::of(compile, |compiled| NativeGrammar { grammar: Arc::new(compiled) }))
        })
    }
}

fn grammar(kind: &str, text: String) -> Outcome<Grammar> {
    match kind {
        "json" => Ok(Grammar::Json(text)),
        "regex" => Ok(Grammar::Regex(text)),
        "lark" => Ok(Grammar::Lark(text)),
        _ => Err(Error::argument("grammar", kind, "json, regex or lark").into()),
    }
}

/// A grammar that was compiled for a vocabulary.
#[napi]
pub struct NativeGrammar {
    grammar: Arc<CompiledGrammar>,
}

#[napi]
impl NativeGrammar {
    /// True if its only text is the empty one.
    #[napi(catch_unwind)]
    pub fn is_empty(&self) -> bool {
        self.grammar.is_empty()
    }

    /// Returns a matcher at the start of a text, which the tokens in `ends` may end. Its first mask is computed in the
    /// background.
    #[napi(catch_unwind)]
    pub fn matcher(&self, ends: &[u32]) -> NativeMatcher {
        NativeMatcher::new(&self.grammar, ends)
    }
}
