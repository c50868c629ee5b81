//! Vocabularies of `tokenizer.json` files of several kinds.

use kvtide_sample::Error;
use kvtide_sample::grammar::{Matcher, Vocabulary};
use serde_json::{Value, json};

use crate::skip::skipped;
use crate::words::{allowed, regex};

fn read(file: &Value) -> Vocabulary {
    Vocabulary::from_tokenizer_json(file.to_string().as_bytes(), None).expect("a vocabulary")
}

fn shown(vocabulary: &Vocabulary) -> Vec<String> {
    (0..vocabulary.size()).map(|id| String::from_utf8_lossy(vocabulary.bytes(id)).into_owned()).collect()
}

#[test]
fn byte_level_characters_are_bytes() {
    let vocabulary = read(&json!({
        "added_tokens": [{"id": 4, "content": "<|end|>", "special": true}, {"id": 6, "content": "a b", "special": false}],
        "pre_tokenizer": {"type": "ByteLevel"},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": {"Ġthe": 0, "Ċ": 1, "Ã": 2, "©": 3, "<|end|>": 4}, "merges": ["Ġ the"]},
    }));
    assert_eq!(shown(&vocabulary)[..2], [" the", "\n"]);
    assert_eq!((vocabulary.bytes(2), vocabulary.bytes(3)), (&[0xc3][..], &[0xa9][..]));
    assert_eq!((vocabulary.is_special(4), vocabulary.bytes(4)), (true, &b"<|end|>"[..]));
    // An id without a token, and a text that has a character of no byte.
    assert_eq!((vocabulary.bytes(5), vocabulary.bytes(6)), (&b""[..], &b"a b"[..]));
    let mut matcher = Matcher::new(regex(&vocabulary, "é"));
    assert_eq!(allowed(&vocabulary, &mut matcher), [2]);
    assert_eq!(matcher.seek(&[2, 3]), Ok(true));
    assert_eq!(matcher.is_over(), Ok(true));
}

#[test]
fn spaces_and_bytes_of_their_own() {
    let vocabulary = read(&json!({
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 5, "content": "▁▁", "special": false}],
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        ]},
        "model": {"type": "BPE", "byte_fallback": true, "vocab": {"<unk>": 0, "<0x0A>": 1, "▁the": 2, "\n": 3, "<0xZZ>": 4}},
    }));
    assert_eq!(shown(&vocabulary), ["<unk>", "\n", " the", "\n", "<0xZZ>", "  "]);
    // Two ids with the same bytes are both allowed.
    assert_eq!(allowed(&vocabulary, &mut Matcher::new(regex(&vocabulary, "\n"))), [1, 3]);
}

#[test]
fn unigram_word_piece_and_suffixes() {
    let unigram = read(&json!({
        "decoder": {"type": "Metaspace", "replacement": "▁"},
        "model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["▁a", -1.5], ["b", -2]], "unk_id": 0},
    }));
    assert_eq!(shown(&unigram), ["<unk>", " a", "b"]);
    let pieces = read(&json!({
        "decoder": {"type": "WordPiece", "prefix": "##"},
        "model": {"type": "WordPiece", "vocab": {"play": 0, "##ing": 1}, "continuing_subword_prefix": "##"},
    }));
    assert_eq!(shown(&pieces), [" play", "ing"]);
    let suffixed = read(&json!({
        "decoder": {"type": "BPEDecoder", "suffix": "</w>"},
        "model": {"vocab": {"play": 0, "ing</w>": 1}, "merges": []},
    }));
    assert_eq!(shown(&suffixed), ["play", "ing "]);
}

#[test]
fn ids_behind_the_last_token_are_never_allowed() {
    let file = json!({"model": {"vocab": {"a": 0, "b": 1}}}).to_string();
    let vocabulary = Vocabulary::from_tokenizer_json(file.as_bytes(), Some(40)).expect("a vocabulary");
    assert_eq!(vocabulary.size(), 40);
    assert_eq!(allowed(&vocabulary, &mut Matcher::new(regex(&vocabulary, "[ab]*"))), [0, 1]);
    // A smaller size changes nothing.
    assert_eq!(Vocabulary::from_tokenizer_json(file.as_bytes(), Some(1)).expect("a vocabulary").size(), 2);
}

#[test]
fn other_files_are_refused() {
    for file in
        ["", "{}", "[]", r#"{"model": {}}"#, r#"{"model": {"vocab": {}}}"#, r#"{"model": {"vocab": {"a": -1}}}"#]
    {
        let refused = Vocabulary::from_tokenizer_json(file.as_bytes(), None).err();
        assert!(matches!(refused, Some(Error::InvalidTokenizer { .. })), "{file}: {refused:?}");
    }
    let large = r#"{"model": {"vocab": {"a": 4000000000}}}"#;
    assert!(matches!(Vocabulary::from_tokenizer_json(large.as_bytes(), None), Err(Error::InvalidTokenizer { .. })));
}

/// The tokenizers of real models: folders with a `tokenizer.json`, separated by colons.
#[test]
fn real_tokenizers_write_and_read_every_byte_that_they_can() {
    let Ok(folders) = std::env::var("KVTIDE_TOKENIZERS") else {
        skipped("KVTIDE_TOKENIZERS names no folder");
        return;
    };
    for folder in folders.split(':') {
        let file = std::fs::read(format!("{folder}/tokenizer.json")).expect("a tokenizer.json");
        let vocabulary = Vocabulary::from_tokenizer_json(&file, None).expect("a vocabulary");
        let with =
            |bytes: &[u8]| (0..vocabulary.size()).any(|id| !vocabulary.is_special(id) && vocabulary.bytes(id) == bytes);
        let missing: Vec<u8> = (0x20..0x7f).filter(|&byte| !with(&[byte])).collect();
        assert!(missing.is_empty(), "{folder}: {missing:?}");
        assert!(with(b" the") && with(b"\n"), "{folder}");
    }
}
