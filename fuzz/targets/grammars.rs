//! Tokenizer files, JSON schemas, regular expressions and Lark grammars.
//!
//! The first byte picks one of them. Panics of the parser are caught by the crate and become errors, so they aren't reported here.
#![no_main]

use std::sync::{Arc, OnceLock};

use kvtide_sample::grammar::{Grammar, Matcher, Token, Vocabulary};
use libfuzzer_sys::fuzz_target;

/// The most bytes of a grammar: the parser's work grows with the square of them.
const GRAMMAR_MAX: usize = 300;

fn vocabulary() -> &'static Vocabulary {
    static MADE: OnceLock<Vocabulary> = OnceLock::new();
    MADE.get_or_init(|| {
        let bytes = (0..=127).map(|byte| Token::Text(vec![byte]));
        let rest = ["true", "\": ", "12", "é"].map(|text| Token::Text(text.as_bytes().to_vec()));
        let tokens: Vec<Token> = bytes.chain(rest).chain([Token::Special("<end>".to_owned()), Token::Unused]).collect();
        Vocabulary::new(&tokens).expect("a vocabulary")
    })
}

fuzz_target!(init: std::panic::set_hook(Box::new(|_| ())), |data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    if kind % 4 == 0 {
        if let Ok(read) = Vocabulary::from_tokenizer_json(bytes, (kind & 4 != 0).then_some(300)) {
            (0..read.size()).for_each(|id| assert!(read.bytes(id).len() <= bytes.len()));
        }
        return;
    }
    let Ok(text) = std::str::from_utf8(&bytes[..bytes.len().min(GRAMMAR_MAX)]) else { return };
    let text = text.to_owned();
    let grammar = match kind % 4 {
        1 => Grammar::Json(text),
        2 => Grammar::Regex(text),
        _ => Grammar::Lark(text),
    };
    let Ok(compiled) = vocabulary().compile(&grammar) else { return };
    let mut matcher = Matcher::new(Arc::new(compiled));
    let mut taken = 0;
    for turn in 0..6u32 {
        let Ok(mask) = matcher.mask() else { return };
        let from = u32::from(kind).wrapping_mul(turn + 1);
        let ids = (0..vocabulary().size()).map(|id| (id + from) % vocabulary().size());
        let Some(id) = ids.into_iter().find(|&id| mask.allows(id)) else { break };
        match matcher.advance(id) {
            Ok(is_taken) => assert!(is_taken, "a token that the mask allows"),
            Err(_) => return,
        }
        taken += 1;
    }
    if matcher.rollback(taken).is_ok() {
        assert!(matcher.tokens().is_empty());
    }
});
