//! Saved files: of caches, of sequences, and of caches of one layer.
//!
//! The first byte picks a file, or takes the rest of the input as one. A file is changed in its texts, tensors, lists and
//! pages, and in the text of its header; then its offsets, lengths and checksums are put right, so that the changes are
//! reached.
#![no_main]

use std::sync::OnceLock;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;

#[path = "files/parts.rs"]
mod parts;
#[path = "files/subjects.rs"]
mod subjects;
#[path = "../../crates/kvtide-files/tests/files/world.rs"]
#[allow(dead_code, reason = "the tests of files use the rest")]
mod world;

use subjects::{Kind, Saved};

/// The most changes of one file.
const CHANGES_MAX: usize = 6;

fn saved() -> &'static [Saved] {
    static MADE: OnceLock<Vec<Saved>> = OnceLock::new();
    MADE.get_or_init(subjects::saved)
}

fuzz_target!(|data: &[u8]| {
    let Some((&kind, bytes)) = data.split_first() else { return };
    let place = usize::from(kind) % (saved().len() + 1);
    let Some(of) = saved().get(place) else {
        let kinds = [Kind::Cache, Kind::Sequence, Kind::Growing, Kind::Rotating, Kind::Tentative];
        kinds.into_iter().for_each(|kind| subjects::load_as(kind, &saved()[0], bytes));
        return;
    };
    if let Ok(file) = changed(of, &mut Unstructured::new(bytes)) {
        subjects::load_as(of.kind, of, &file);
    }
});

fn changed(of: &Saved, input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let bits: u8 = input.arbitrary()?;
    let mut parts = of.parts.clone();
    for _ in 0..CHANGES_MAX {
        if input.is_empty() {
            break;
        }
        parts.change(input)?;
    }
    // Without this, changed pages are found by their checksums.
    if bits & 1 == 0 {
        parts.sum_pages();
    }
    let (mut header, mut body) = parts.written();
    if bits & 6 == 6 {
        parts::change_text(&mut header, input)?;
    }
    if bits & 24 == 24 {
        body.truncate(body.len().saturating_sub(input.int_in_range(0..=40)?));
    }
    let mut file = parts.sealed(header, &body);
    if bits & 96 == 96 {
        let at = input.choose_index(file.len())?;
        file[at] ^= input.arbitrary::<u8>()?;
    }
    Ok(file)
}
