//! Reads the bytes of each token from a `tokenizer.json` of Hugging Face.
//!
//! A token's text in the file is not what it decodes to; the file's decoder says how to get there:
//!
//! ```text
//! ByteLevel                 each character stands for a byte (GPT-2's map): "Ġthe" -> " the"
//! Replace, Metaspace        a character stands for a space: "▁the" -> " the"
//! ByteFallback              "<0x0A>" is the byte 10
//! WordPiece                 "##ing" continues a word; another token starts one behind a space
//! BPEDecoder                a suffix stands for a space behind the token
//! ```
//!
//! Merges, scores and normalizers do not matter here and are skipped while reading. O(file).

use std::fmt;
use std::sync::LazyLock;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::options::VOCABULARY_MAX;

use super::vocabulary::Token;

#[derive(Deserialize)]
struct Tokenizer {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    decoder: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    vocab: Vocab,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
    #[serde(default)]
    end_of_word_suffix: Option<String>,
}

/// The texts of a model's tokens with their ids: an object from text to id, or for Unigram a list of texts with scores.
struct Vocab(Vec<(String, u32)>);

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of ids, or a list of texts with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut found = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    found.push(entry);
                }
                Ok(Vocab(found))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vocab, A::Error> {
                let mut found = Vec::new();
                while let Some((text, _)) = list.next_element::<(String, IgnoredAny)>()? {
                    found.push((text, found.len() as u32));
                }
                Ok(Vocab(found))
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// The steps from a token's text to its bytes.
#[derive(Default)]
struct Decoding {
    is_byte_level: bool,
    has_byte_fallback: bool,
    /// Texts and their replacements.
    replaced: Vec<(String, String)>,
    /// The prefix of tokens that continue a word, if other tokens have a space in front.
    continuation: Option<String>,
    /// A prefix that is dropped.
    prefix: Option<String>,
    /// A suffix that stands for a space.
    suffix: Option<String>,
}

impl Decoding {
    fn of(file: &Tokenizer) -> Self {
        let Model { byte_fallback, continuing_subword_prefix: prefix, end_of_word_suffix: suffix, .. } = &file.model;
        let mut decoding = Decoding { has_byte_fallback: *byte_fallback, ..Decoding::default() };
        // Without a decoder, the pre-tokenizer says how a text became tokens.
        let stages = if file.decoder.is_null() { &file.pre_tokenizer } else { &file.decoder };
        decoding.read(stages);
        if decoding.continuation.is_none() {
            let of = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
            decoding.prefix = of(prefix);
            decoding.suffix = decoding.suffix.take().or(of(suffix));
        }
        decoding
    }

    fn read(&mut self, stage: &Value) {
        for list in ["decoders", "pretokenizers"] {
            stage[list].as_array().into_iter().flatten().for_each(|inner| self.read(inner));
        }
        let text = |name: &str, default: &str| stage[name].as_str().unwrap_or(default).to_owned();
        match stage["type"].as_str().unwrap_or("") {
            "ByteLevel" => self.is_byte_level = true,
            "ByteFallback" => self.has_byte_fallback = true,
            "Metaspace" => self.replaced.push((text("replacement", "▁"), " ".to_owned())),
            "Replace" => {
                if let Some(pattern) = stage["pattern"]["String"].as_str().filter(|pattern| !pattern.is_empty()) {
                    self.replaced.push((pattern.to_owned(), text("content", "")));
                }
            }
            "WordPiece" => self.continuation = Some(text("prefix", "##")),
            "BPEDecoder" => self.suffix = Some(text("suffix", "</w>")),
            _ => {}
        }
    }

    fn bytes(&self, text: &str) -> Vec<u8> {
        if self.is_byte_level {
            // As in tokenizers: a text with another character stays as it is.
            return text.chars().map(byte_of).collect::<Option<_>>().unwrap_or_else(|| text.as_bytes().to_vec());
        }
        if let Some(byte) = self.has_byte_fallback.then(|| fallback_byte(text)).flatten() {
            return vec![byte];
        }
        let mut text = match &self.continuation {
            Some(prefix) => text.strip_prefix(prefix.as_str()).map_or_else(|| format!(" {text}"), str::to_owned),
            None => self.unaffixed(text),
        };
        for (from, to) in &self.replaced {
            text = text.replace(from, to);
        }
        text.into_bytes()
    }

    fn unaffixed(&self, text: &str) -> String {
        let text = self.prefix.as_deref().and_then(|prefix| text.strip_prefix(prefix)).unwrap_or(text);
        match self.suffix.as_deref().and_then(|suffix| text.strip_suffix(suffix)) {
            Some(word) => format!("{word} "),
            None => text.to_owned(),
        }
    }
}

/// The bytes that are not printable in Latin-1.
static HIDDEN: LazyLock<Vec<u8>> = LazyLock::new(|| (0..=0xff).filter(|&byte| !is_printable(byte)).collect());

fn is_printable(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

/// The byte that a character stands for in a byte-level vocabulary: itself if it is printable in Latin-1; the others are
/// numbered from U+0100 on.
fn byte_of(character: char) -> Option<u8> {
    match u32::from(character) {
        code @ 0..=0xff => Some(code as u8).filter(|&byte| is_printable(byte)),
        code => HIDDEN.get((code - 0x100) as usize).copied(),
    }
}

/// The byte of a token like `<0x0A>`.
fn fallback_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}

/// Reads the tokens of a `tokenizer.json`, in the order of their ids. O(file).
pub(crate) fn tokens_of(json: &[u8]) -> Result<Vec<Token>> {
    let file: Tokenizer = serde_json::from_slice(json).map_err(|error| Error::InvalidTokenizer {
        // serde's own message would repeat values of the file.
        reason: format!(
            "expected the content of a tokenizer.json: line {}, column {} is not of its form",
            error.line(),
            error.column()
        ),
    })?;
    let decoding = Decoding::of(&file);
    let ids = file.model.vocab.0.iter().map(|&(_, id)| id).chain(file.added_tokens.iter().map(|added| added.id));
    let last = ids.max().ok_or_else(|| Error::InvalidTokenizer { reason: "it has no tokens".to_owned() })?;
    if last >= VOCABULARY_MAX {
        return Err(Error::InvalidTokenizer { reason: format!("id {last}, expected ids below {VOCABULARY_MAX}") });
    }
    let mut tokens = vec![Token::Unused; last as usize + 1];
    for (text, id) in &file.model.vocab.0 {
        tokens[*id as usize] = Token::Text(decoding.bytes(text));
    }
    for Added { id, content, special } in &file.added_tokens {
        let token = if *special { Token::Special(content.clone()) } else { Token::Text(decoding.bytes(content)) };
        tokens[*id as usize] = token;
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::byte_of;

    #[test]
    fn every_byte_has_one_character() {
        let mut bytes: Vec<u8> = (0..0x200).filter_map(char::from_u32).filter_map(byte_of).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=255).collect::<Vec<u8>>());
        assert_eq!((byte_of('Ġ'), byte_of('Ċ'), byte_of('é')), (Some(b' '), Some(b'\n'), Some(0xe9)));
        assert_eq!((byte_of(' '), byte_of('▁')), (None, None));
    }
}
