//! A loaded sequence equals the saved one to the bit, and goes on in the same way.

use kvtide_core::model::LayerKind;
use kvtide_files::{Save, Sink, Source, Watch, load_sequence, save_sequence_bytes};
use kvtide_tensor::{PagedKvCache, PromptOptions};

use crate::world::{Random, append, forms, found, shown};

fn salted(salt: &[u8]) -> PromptOptions<'_> {
    PromptOptions { salt, ..PromptOptions::default() }
}

/// Creates a sequence with a history: appends of several lengths, with and without ids, truncations, forks, and
/// neighbours in the same blocks.
fn grown(cache: &mut PagedKvCache, random: &mut Random, salt: &[u8]) -> (u64, Vec<u32>) {
    let sequence = cache.create_sequence_of(salted(salt)).unwrap();
    let mut tokens: Vec<u32> = Vec::new();
    for _ in 0..random.below(6) {
        let more: Vec<u32> = (0..random.below(9)).map(|_| random.below(50)).collect();
        let are_known = random.below(8) > 0;
        append(cache, sequence, &more, are_known).unwrap();
        tokens.extend(more);
        match random.below(6) {
            0 => {
                let length = random.below(tokens.len() as u32 + 1);
                if cache.truncate(sequence, length).is_ok() {
                    tokens.truncate(length as usize);
                }
            }
            1 => {
                let fork = cache.fork(sequence).unwrap();
                append(cache, fork, &[1, 2, 3], true).unwrap();
                if random.below(2) == 0 {
                    cache.drop_sequence(fork).unwrap();
                }
            }
            2 if random.below(4) == 0 => cache.forget_prefixes().unwrap(),
            _ => {}
        }
    }
    (sequence, tokens)
}

#[test]
fn random_sequences_in_all_forms() {
    for (name, form) in forms() {
        for seed in 0..60 {
            let mut random = Random(seed);
            let salt: &[u8] = if seed % 3 == 0 { b"tenant" } else { b"" };
            let mut cache = form.cache();
            let (sequence, mut tokens) = grown(&mut cache, &mut random, salt);
            let bytes = save_sequence_bytes(&mut cache, sequence, &Watch::default()).unwrap();
            let before = shown(&mut cache, sequence);
            // Loads it into a cache with content, whose memory was used before.
            let mut other = form.cache();
            grown(&mut other, &mut random, b"");
            let gone = other.create_sequence().unwrap();
            append(&mut other, gone, &[7; 40], false).unwrap();
            other.drop_sequence(gone).unwrap();
            let source = Source::bytes(bytes);
            let loaded = load_sequence(&mut other, source, salted(salt), &Watch::default()).unwrap();
            other.check_invariants().unwrap_or_else(|wrong| panic!("{name}, {seed}: {wrong}"));
            assert_eq!(shown(&mut other, loaded), before, "{name}, {seed}");
            for (cache, of) in [(&mut cache, sequence), (&mut other, loaded)] {
                append(cache, of, &[3, 1, 4, 1, 5, 9, 2, 6], true).unwrap();
            }
            tokens.extend([3, 1, 4, 1, 5, 9, 2, 6]);
            assert_eq!(shown(&mut other, loaded), shown(&mut cache, sequence), "{name}, {seed}: and goes on");
            // Prompts find the same blocks, and the sequence can be resumed to the same length.
            let prompt = [&tokens[..], &[8]].concat();
            // If a window slides, the saved cache may still find blocks that left it.
            let [there, here] = [found(&mut cache, &prompt, salt), found(&mut other, &prompt, salt)];
            let slides = form.layers.iter().any(|layer| matches!(layer.kind, LayerKind::Sliding { .. }));
            assert!(here == there || slides && here < there, "{name}, {seed}: found {here} instead of {there}");
            let edited = [&tokens[..tokens.len() / 2], &[77, 78]].concat();
            let resumed = [(&mut cache, sequence), (&mut other, loaded)].map(|(cache, of)| cache.resume(of, &edited));
            let [one, other_one] = resumed.map(|resumed| resumed.unwrap());
            assert_eq!(one, other_one, "{name}, {seed}: resumed");
            assert_eq!(shown(&mut other, loaded), shown(&mut cache, sequence), "{name}, {seed}: resumed");
            other.check_invariants().unwrap();
            other.drop_sequence(loaded).unwrap();
            other.check_invariants().unwrap();
        }
    }
}

#[test]
fn what_was_appended_after_the_save_began_is_not_in_it() {
    for (name, form) in forms() {
        let mut cache = form.cache();
        let sequence = cache.create_sequence().unwrap();
        append(&mut cache, sequence, &[1, 2, 3, 4, 5, 6], true).unwrap();
        let before = shown(&mut cache, sequence);
        let mut save = Save::sequence(&mut cache, sequence, None).unwrap();
        // In the block that is not full, in other blocks, and in those of a later sequence.
        append(&mut cache, sequence, &[7, 8, 9], true).unwrap();
        cache.drop_sequence(sequence).unwrap();
        let next = cache.create_sequence().unwrap();
        append(&mut cache, next, &[5; 100], true).unwrap();
        let written = std::thread::spawn(move || {
            save.write(Sink::memory(), &Watch::default()).unwrap();
            save.finish().unwrap()
        });
        let (len, bytes) = written.join().unwrap();
        assert_eq!(len, bytes.len() as u64);
        let mut other = form.cache();
        let options = PromptOptions::default();
        let loaded = load_sequence(&mut other, Source::bytes(bytes), options, &Watch::default()).unwrap();
        assert_eq!(shown(&mut other, loaded), before, "{name}");
        cache.drop_sequence(next).unwrap();
        cache.check_invariants().unwrap();
        assert_eq!(cache.free_count(), cache.total_count(), "{name}: nothing is held any more");
    }
}

#[test]
fn slots_that_nobody_wrote_leave_as_zeros() {
    // The memory of a block of another sequence; one layer and one slot of it are written.
    let (_, form) = forms().swap_remove(0);
    let mut cache = crate::world::Form { blocks: 1, ..form }.cache();
    let secret = cache.create_sequence().unwrap();
    append(&mut cache, secret, &[1, 2, 3, 4], false).unwrap();
    cache.drop_sequence(secret).unwrap();
    let sequence = cache.create_sequence().unwrap();
    let row = [7f32; 16].map(f32::to_ne_bytes).concat();
    let row = || kvtide_tensor::HostTensor::new("key", &row, kvtide_tensor::DType::F32, &[16]).unwrap();
    cache.write_kv(sequence, 1, 2, row(), row()).unwrap();
    let bytes = save_sequence_bytes(&mut cache, sequence, &Watch::default()).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let page = &bytes[header..][..2 * 2 * 2 * 4 * 8 * 4];
    let floats: Vec<f32> = page.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect();
    assert_eq!(floats.iter().filter(|&&float| float == 7.).count(), 32, "a key and a value of two heads");
    assert_eq!(floats.iter().filter(|&&float| float != 7. && float != 0.).count(), 0, "no other sequence's numbers");
    let mut other = forms().swap_remove(0).1.cache();
    let options = PromptOptions::default();
    let loaded = load_sequence(&mut other, Source::bytes(bytes), options, &Watch::default()).unwrap();
    assert_eq!(shown(&mut other, loaded), shown(&mut cache, sequence));
    assert!(
        other.read_kv(loaded, 0, 2).is_err()
            && other.read_kv(loaded, 1, 2).is_ok()
            && other.read_kv(loaded, 1, 1).is_err()
    );
}
