//! Grammars: the tokens that continue a text, so that it stays a text of a JSON schema, a regular expression or a
//! context-free grammar. llguidance parses; the files of this folder know tokenizers, schemas and positions.
//!
//! ```text
//! tokenizer.json -> Vocabulary         the bytes of each token, as a trie: once for each tokenizer
//! Grammar -> CompiledGrammar           Vocabulary::compile: once for each schema
//! Matcher -> mask, advance, rollback   one for each text
//! ```
//!
//! Guarantees:
//!
//! - A mask has exactly the tokens behind which the text can still become a text of the grammar.
//! - The end is allowed exactly where the text is complete. Tokens that end a text are no part of a grammar.
//! - A special token has no bytes: only a Lark grammar that names it allows it.
//! - Sizes are bounded: of a grammar's text, of what it compiles to, and of the work for a mask. What exceeds a bound is
//!   an error of that grammar. No reference is fetched from anywhere.
//! - A panic in the parser is an error of its matcher.
//!
//! Costs: a vocabulary O(bytes of all tokens), a grammar milliseconds, a mask tens of microseconds to a millisecond, and a
//! copy of one bit per token.

mod compiled;
mod location;
mod mask;
mod matcher;
mod pattern;
mod schema;
mod tokenizer_json;
mod vocabulary;

pub use compiled::{CompiledGrammar, Grammar};
pub use mask::AllowedTokens;
pub use matcher::Matcher;
pub use vocabulary::{Token, Vocabulary};
