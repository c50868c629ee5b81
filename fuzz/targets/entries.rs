//! Entries of tiers: their keys, their bytes and their envelope.
//!
//! The first byte picks one of: any bytes as an entry, the same with a right checksum, an entry of drawn content with
//! some bytes changed and a right checksum, any bytes in an envelope, the same with a right seal, a value that is closed
//! and opened, any text as a key.
#![no_main]

use kvtide_core::paged::{BlockKey, BlockName};
use kvtide_tiers::{Entry, Envelope, Expected, StoreKey, Unfit, decode, encode};
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use twox_hash::XxHash3_64;

const FORM: [u8; 32] = [7; 32];
const GROUP: u16 = 3;

/// The most bytes of a value that is opened.
const VALUE_MAX: usize = 3000;

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    match kind % 7 {
        0 => read(bytes),
        1 => read(&summed(bytes.to_vec())),
        2 => _ = changed(&mut Unstructured::new(bytes)),
        3 => open(bytes, false),
        4 => open(bytes, true),
        5 => _ = closed(&mut Unstructured::new(bytes)),
        _ => parse(bytes),
    }
});

/// Adds the checksum.
fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.extend(XxHash3_64::oneshot(&bytes).to_le_bytes());
    bytes
}

/// Decodes any bytes as an entry whose key is at its place in them.
fn read(bytes: &[u8]) {
    let key = BlockKey(bytes.get(8..40).and_then(|key| key.try_into().ok()).unwrap_or([1; 32]));
    let number = |at: usize| bytes.get(at).map_or(0, |byte| usize::from(*byte % 9));
    let expected = Expected { key: &key, group: GROUP, form: &FORM, block_size: number(108), page_bytes: number(116) };
    let _ = decoded(bytes, &expected);
}

/// Decodes bytes. An entry is encoded as the same bytes.
fn decoded(bytes: &[u8], expected: &Expected<'_>) -> std::result::Result<(BlockKey, Vec<u32>, Vec<u8>), Unfit> {
    let found = decode(bytes, expected)?;
    assert!(bytes.len() <= expected.bytes_max(), "an entry is longer than the longest one");
    let name = BlockName { key: *expected.key, parent: found.parent, tokens: &found.tokens, extras: &found.extras };
    assert!(name.holds(), "the key of another block");
    let page = &bytes[found.page..][..expected.page_bytes];
    let again = encode(&Entry { name, group: expected.group, form: expected.form, page });
    assert!(again.as_deref() == Some(bytes), "an entry is encoded as other bytes");
    Ok((found.parent, found.tokens, found.extras))
}

/// Decodes an entry with a right key, of which some bytes are changed before the sum is made.
fn changed(input: &mut Unstructured<'_>) -> Result<()> {
    let parent = match input.arbitrary()? {
        true => BlockKey(input.arbitrary()?),
        false => BlockKey(input.arbitrary()?).tag(),
    };
    let tokens = (0..input.int_in_range(0..=8)?).map(|_| input.arbitrary()).collect::<Result<Vec<u32>>>()?;
    let extras = drawn(input, 40)?;
    let page = drawn(input, 64)?;
    let key = key_of(&parent, &tokens, &extras);
    let name = BlockName { key, parent, tokens: &tokens, extras: &extras };
    let bytes = encode(&Entry { name, group: GROUP, form: &FORM, page: &page }).expect("a short entry");
    let (block_size, page_bytes) = (tokens.len(), page.len());
    let expected = Expected { key: &key, group: GROUP, form: &FORM, block_size, page_bytes };
    assert_eq!(decoded(&bytes, &expected), Ok((parent, tokens.clone(), extras.clone())));
    let mut body = bytes[..bytes.len() - 8].to_vec();
    for _ in 0..input.int_in_range(1..=3)? {
        let at = input.choose_index(body.len())?;
        body[at] ^= input.arbitrary::<u8>()?;
    }
    match input.int_in_range(0..=9)? {
        0 => body.truncate(input.choose_index(body.len())?),
        1 => body.extend(drawn(input, 16)?),
        _ => {}
    }
    let found = decoded(&summed(body), &expected);
    // Only the page, and a parent of which the tag alone is known, are in no key.
    if let Ok((found, its_tokens, its_extras)) = found
        && !found.is_tag()
    {
        assert_eq!((found, its_tokens, its_extras), (parent, tokens, extras), "an entry of another block");
    }
    Ok(())
}

/// The key of a block behind its parent, as its definition says.
fn key_of(parent: &BlockKey, tokens: &[u32], extras: &[u8]) -> BlockKey {
    let mut hasher = blake3::Hasher::new_keyed(&parent.0);
    tokens.iter().for_each(|token| _ = hasher.update(&token.to_le_bytes()));
    BlockKey(*hasher.update(extras).finalize().as_bytes())
}

fn drawn(input: &mut Unstructured<'_>, most: usize) -> Result<Vec<u8>> {
    let count = input.int_in_range(0..=most)?;
    Ok(input.bytes(count.min(input.len()))?.to_vec())
}

fn envelope(bits: u8) -> Envelope {
    let secret = (bits & 4 != 0).then_some([5; 32]);
    Envelope::new(secret, [None, Some(1), Some(2), Some(4)][usize::from(bits & 3)]).expect("an envelope")
}

/// Opens bytes in an envelope; with `seal`, they get a right seal first.
fn open(bytes: &[u8], seal: bool) {
    let Some((&bits, content)) = bytes.split_first() else { return };
    let (envelope, key) = (envelope(bits), "key");
    let stored = match seal && bits & 4 != 0 {
        true => self::envelope(4).close(key, content.to_vec()).expect("memory"),
        false => content.to_vec(),
    };
    let Some(value) = envelope.open(key, &stored, VALUE_MAX) else { return };
    assert!(value.len() <= VALUE_MAX, "{} bytes are opened", value.len());
    let again = envelope.close(key, value.to_vec()).expect("memory");
    assert!(envelope.open(key, &again, value.len()).as_deref() == Some(&value[..]), "another value is opened");
}

/// Closes a value and opens it, whole and with a byte changed.
fn closed(input: &mut Unstructured<'_>) -> Result<()> {
    let bits = input.arbitrary::<u8>()?;
    let (envelope, key) = (envelope(bits), "key");
    let [place, change] = [input.arbitrary::<u16>()?, input.int_in_range(1..=255)?];
    // Values that repeat themselves are those that get smaller.
    let (times, piece) = (input.int_in_range(1..=9)?, input.bytes(input.len())?);
    let value = piece[..piece.len().min(VALUE_MAX / 9)].repeat(times);
    let stored = envelope.close(key, value.clone()).expect("memory");
    assert!(stored.len() <= envelope.bytes_max(value.len()), "{} bytes of {}", stored.len(), value.len());
    assert!(envelope.open(key, &stored, value.len()).as_deref() == Some(&value[..]), "another value is opened");
    if let Some(less) = value.len().checked_sub(1) {
        assert!(envelope.open(key, &stored, less).is_none(), "a value that is too long is opened");
    }
    let is_sealed = bits & 4 != 0;
    assert!(!is_sealed || envelope.open("yek", &stored, value.len()).is_none(), "a value of another key is opened");
    let mut damaged = stored;
    if damaged.is_empty() {
        return Ok(());
    }
    let at = usize::from(place) % damaged.len();
    damaged[at] ^= change as u8;
    let opened = envelope.open(key, &damaged, VALUE_MAX);
    assert!(!is_sealed || opened.is_none(), "a changed value is opened");
    assert!(opened.is_none_or(|value| value.len() <= VALUE_MAX), "a changed value is too long");
    Ok(())
}

/// A text is the key that it shows, or none.
fn parse(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // Digits that a fuzzer would hardly find.
    let whole = [&"0123456789abcdef".repeat(4), text].concat();
    for text in [text, &whole] {
        let Some(key) = StoreKey::parse(text) else { continue };
        assert_eq!(key.to_string(), text, "a key has several names");
    }
}
