//! Small vocabularies, their grammars, and random numbers.

use std::sync::Arc;

use kvtide_sample::grammar::{CompiledGrammar, Grammar, Matcher, Token, Vocabulary};

pub fn text(token: &str) -> Token {
    Token::Text(token.as_bytes().to_vec())
}

/// A vocabulary of these texts and one special token behind them.
pub fn vocabulary(texts: &[&str]) -> Vocabulary {
    let tokens: Vec<Token> = texts.iter().map(|one| text(one)).chain([Token::Special("<end>".to_owned())]).collect();
    Vocabulary::new(&tokens).expect("a vocabulary")
}

/// All bytes, and longer tokens that cut JSON in unusual places.
pub fn bytes_and_words() -> Vocabulary {
    let words = [
        "{\"", "\"}", "\":", "\": ", "\",\"", ", ", "},{", "[{", "}]", "]}", "true", "false", "null", "tr", "12",
        "0.5", "-1", "name", "age", "id", "tags", "red", "green", "\\u00", "\\n", "é", "日本", "the ", "abc", "  ",
        "\n  ", "1e",
    ];
    let bytes = (0..=255).map(|byte| Token::Text(vec![byte]));
    let tokens: Vec<Token> = bytes.chain(words.iter().map(|word| text(word))).collect();
    Vocabulary::new(&tokens).expect("a vocabulary")
}

pub fn regex(vocabulary: &Vocabulary, pattern: &str) -> Arc<CompiledGrammar> {
    Arc::new(vocabulary.compile(&Grammar::Regex(pattern.to_owned())).expect("a regular expression"))
}

pub fn lark(vocabulary: &Vocabulary, text: &str) -> Arc<CompiledGrammar> {
    Arc::new(vocabulary.compile(&Grammar::Lark(text.to_owned())).expect("a Lark grammar"))
}

pub fn json(vocabulary: &Vocabulary, schema: &str) -> Arc<CompiledGrammar> {
    Arc::new(vocabulary.compile(&Grammar::Json(schema.to_owned())).expect("a schema"))
}

/// The tokens that may come next, in the order of their ids.
pub fn allowed(vocabulary: &Vocabulary, matcher: &mut Matcher) -> Vec<u32> {
    let mask = matcher.mask().expect("a mask");
    (0..vocabulary.size()).filter(|&id| mask.allows(id)).collect()
}

/// Random numbers from a seed (SplitMix64). `KVTIDE_SEED` adds to all seeds.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        let more = std::env::var("KVTIDE_SEED").ok().and_then(|text| text.parse().ok());
        Random(seed.wrapping_add(more.unwrap_or(0)))
    }

    /// A number below `count`.
    pub fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % count
    }
}
