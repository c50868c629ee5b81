//! The vocabulary of a tokenizer: the bytes of each token, and a trie of them for the parser.
//!
//! The trie has one more id, behind the last token: that of the end. So a mask of the parser tells in one bit whether the
//! text may end, and the ids that end a text can differ between matchers.
//!
//! Left out of the trie: tokens without bytes, those longer than [`TOKEN_BYTES_MAX`], and those with the byte 0xFF, which
//! no UTF-8 text has and with which the trie marks special tokens.

use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};

use crate::error::{Error, Result};
use crate::options::VOCABULARY_MAX;

use super::compiled::guarded;
use super::tokenizer_json::tokens_of;

/// The longest token in the trie, whose nodes count their parents in ten bits.
const TOKEN_BYTES_MAX: usize = 1000;
/// The maximum number of states of a grammar's lexer, one to two kilobytes each.
pub(crate) const LEXER_STATES_MAX: usize = 50_000;

/// A token of a vocabulary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// The bytes that it adds to a text; possibly a part of a character.
    Text(Vec<u8>),
    /// A token that adds nothing to a text: the start of a turn, padding. Only a grammar that names it allows it.
    Special(String),
    /// An id without a token. It is never allowed.
    Unused,
}

/// The tokens of a tokenizer.
pub struct Vocabulary {
    /// The bytes of all tokens, concatenated.
    bytes: Vec<u8>,
    /// The end of each token's bytes, and true for a special token.
    ends: Vec<(u32, bool)>,
    pub(super) factory: ParserFactory,
}

impl Vocabulary {
    /// Returns the vocabulary with these tokens, in the order of their ids. O(bytes of all tokens).
    pub fn new(tokens: &[Token]) -> Result<Self> {
        if tokens.is_empty() || tokens.len() > VOCABULARY_MAX as usize {
            let expected = format!("1 to {VOCABULARY_MAX} tokens");
            return Err(Error::argument("tokens", tokens.len() as f64, expected));
        }
        let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(tokens.len()));
        for token in tokens {
            bytes.extend_from_slice(match token {
                Token::Text(bytes) => bytes,
                Token::Special(name) => name.as_bytes(),
                Token::Unused => &[],
            });
            let end = u32::try_from(bytes.len()).map_err(|_| Error::argument("tokens", u32::MAX, "4 GiB of bytes"))?;
            ends.push((end, matches!(token, Token::Special(_))));
        }
        let factory = guarded(|| {
            let slices = SlicedBiasComputer::general_slices();
            let made = ParserFactory::new(&trie_of(tokens), InferenceCapabilities::default(), &slices);
            made.map(|mut factory| {
                factory.quiet();
                factory.limits_mut().verbose_errors = false;
                factory.limits_mut().max_lexer_states = LEXER_STATES_MAX;
                factory
            })
        });
        let factory = factory.map_err(|reason| Error::InvalidTokenizer { reason })?;
        Ok(Vocabulary { bytes, ends, factory })
    }

    /// Reads the content of a `tokenizer.json`: byte-level BPE, BPE with spaces and bytes as tokens of their own, Unigram,
    /// WordPiece, and added tokens. If the model has more logits than the tokenizer has tokens, `size` is their number: the
    /// ids behind the last token are never allowed.
    pub fn from_tokenizer_json(json: &[u8], size: Option<u32>) -> Result<Self> {
        let mut tokens = tokens_of(json)?;
        let size = (size.unwrap_or(0).min(VOCABULARY_MAX) as usize).max(tokens.len());
        tokens.resize(size, Token::Unused);
        Vocabulary::new(&tokens)
    }

    /// The number of ids.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.ends.len() as u32
    }

    /// The bytes that a token adds to a text, or the name of a special token. Empty for an id without a token.
    #[must_use]
    pub fn bytes(&self, id: u32) -> &[u8] {
        let place = id as usize;
        let Some(&(end, _)) = self.ends.get(place) else { return &[] };
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before].0);
        &self.bytes[start as usize..end as usize]
    }

    /// True for a special token.
    #[must_use]
    pub fn is_special(&self, id: u32) -> bool {
        self.ends.get(id as usize).is_some_and(|&(_, is_special)| is_special)
    }
}

fn trie_of(tokens: &[Token]) -> TokEnv {
    let marked = |name: &[u8]| [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat();
    let mut words: Vec<Vec<u8>> = tokens
        .iter()
        .map(|token| match token {
            Token::Text(bytes) if bytes.len() <= TOKEN_BYTES_MAX && !bytes.contains(&0xff) => bytes.clone(),
            Token::Special(name) if name.len() < TOKEN_BYTES_MAX => marked(name.as_bytes()),
            _ => Vec::new(),
        })
        .collect();
    let end = words.len() as u32;
    words.push(marked(b"end"));
    Arc::new(ApproximateTokEnv::new(TokTrie::from(&TokRxInfo::new(end + 1, end), &words)))
}
