//! A loaded cache finds the same prompts as the saved one, with the same content.

use kvtide_core::model::{LayerDescription, ModelDescription, StateDType, StateTensor};
use kvtide_core::paged::{Extra, PageFormat};
use kvtide_files::{CacheFile, LoadOptions, Save, Sink, Source, Watch, save_cache_bytes};
use kvtide_tensor::{DType, PagedKvCache, PagedModelOptions, PoolRoom, PromptOptions};

use crate::world::{Form, Random, append, forms, found, shown};

fn load(bytes: Vec<u8>, options: LoadOptions) -> PagedKvCache {
    CacheFile::open(Source::bytes(bytes)).unwrap().load(options, &Watch::default()).unwrap()
}

/// Prompts with their salts.
type Prompts = Vec<(Vec<u32>, &'static [u8])>;

/// Creates a cache with prompts of two tenants that share prefixes; some sequences stay open, most are dropped.
fn used(form: &Form, seed: u64) -> (PagedKvCache, Prompts) {
    let (mut cache, mut random, mut prompts) = (form.cache(), Random(seed), Vec::new());
    for _ in 0..12 {
        let salt: &[u8] = if random.below(3) == 0 { b"tenant" } else { b"" };
        let shared = 4 * random.below(4);
        let tokens: Vec<u32> =
            (0..shared).map(|at| at + 100).chain((0..random.below(14)).map(|_| random.below(9))).collect();
        let options = PromptOptions { salt, ..PromptOptions::default() };
        let prefix = cache.find_prefix(&tokens, options, false).unwrap();
        let there = prefix.length() as usize;
        let sequence = match there {
            0 => cache.create_sequence_of(options).unwrap(),
            _ => cache.create_sequence_from(prefix).unwrap(),
        };
        append(&mut cache, sequence, &tokens[there..], true).unwrap();
        if random.below(3) > 0 {
            cache.drop_sequence(sequence).unwrap();
        }
        prompts.push(([&tokens[..], &[1]].concat(), salt));
    }
    (cache, prompts)
}

/// Returns the length and the content of each prompt's cached prefix.
fn all_found(cache: &mut PagedKvCache, prompts: &Prompts) -> Vec<(u32, Vec<[Vec<u8>; 2]>)> {
    let mut shows = Vec::new();
    for (tokens, salt) in prompts {
        let options = PromptOptions { salt, ..PromptOptions::default() };
        let prefix = cache.find_prefix(tokens, options, false).unwrap();
        let sequence = cache.create_sequence_from(prefix).unwrap();
        let (length, _, bytes) = shown(cache, sequence);
        cache.drop_sequence(sequence).unwrap();
        shows.push((length, bytes));
    }
    shows
}

#[test]
fn prompts_find_what_they_found() {
    for (name, form) in forms() {
        for seed in 0..20 {
            let (mut cache, prompts) = used(&form, seed);
            let bytes = save_cache_bytes(&mut cache, &Watch::default()).unwrap();
            let mut again = load(bytes.clone(), LoadOptions { prefix_key: form.prefix_key, ..LoadOptions::default() });
            again.check_invariants().unwrap();
            assert_eq!(all_found(&mut again, &prompts), all_found(&mut cache, &prompts), "{name}, {seed}");
            assert!(seed > 0 || all_found(&mut again, &prompts).iter().any(|(length, _)| *length > 0), "{name}");
            // A second save has the same bytes, block for block.
            let twice = save_cache_bytes(&mut again, &Watch::default()).unwrap();
            assert_eq!(twice.len(), bytes.len(), "{name}, {seed}");
        }
    }
}

#[test]
fn a_key_that_nobody_chose_comes_along() {
    let form = Form { prefix_key: None, ..forms().swap_remove(0).1 };
    let (mut cache, prompts) = used(&form, 3);
    let bytes = save_cache_bytes(&mut cache, &Watch::default()).unwrap();
    let mut again = load(bytes, LoadOptions::default());
    assert_eq!(all_found(&mut again, &prompts), all_found(&mut cache, &prompts));
    // And a third one.
    let bytes = save_cache_bytes(&mut again, &Watch::default()).unwrap();
    assert_eq!(all_found(&mut load(bytes, LoadOptions::default()), &prompts), all_found(&mut cache, &prompts));
}

#[test]
fn a_key_that_was_chosen_does_not() {
    let (mut cache, _) = used(&forms().swap_remove(0).1, 3);
    let bytes = save_cache_bytes(&mut cache, &Watch::default()).unwrap();
    let key: String = crate::world::KEY.iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!String::from_utf8_lossy(&bytes).contains(&key));
    let refusal = CacheFile::open(Source::bytes(bytes)).unwrap().load(LoadOptions::default(), &Watch::default());
    assert_eq!(refusal.unwrap_err().details()[0].value, "prefixKey".into());
}

#[test]
fn extras_come_along() {
    let form = forms().swap_remove(0).1;
    let mut cache = form.cache();
    let tokens: Vec<u32> = (0..13).collect();
    let extra = [Extra { start: 2, end: 6, key: b"an image".to_vec() }];
    let with = PromptOptions { extra: &extra, ..PromptOptions::default() };
    let sequence = cache.create_sequence_of(with).unwrap();
    append(&mut cache, sequence, &tokens, true).unwrap();
    let bytes = save_cache_bytes(&mut cache, &Watch::default()).unwrap();
    let mut again = load(bytes, LoadOptions { prefix_key: form.prefix_key, ..LoadOptions::default() });
    assert_eq!(again.find_prefix(&tokens, with, false).unwrap().length(), 12);
    assert_eq!(found(&mut again, &tokens, b""), 0);
    assert_eq!(
        again.explain(&tokens, PromptOptions::default()).unwrap(),
        cache.explain(&tokens, PromptOptions::default()).unwrap()
    );
}

#[test]
fn what_makes_room_during_a_save_is_left_out() {
    for (name, form) in forms() {
        let form = Form { blocks: 12, ..form };
        let mut cache = form.cache();
        let prompts: Vec<Vec<u32>> = (0..3).map(|own| (0..13).map(|at| at + own * 100).collect()).collect();
        for prompt in &prompts {
            let sequence = cache.create_sequence().unwrap();
            append(&mut cache, sequence, &prompt[..12], true).unwrap();
            cache.drop_sequence(sequence).unwrap();
        }
        let mut save = Save::cache(&mut cache).unwrap();
        // The oldest prompt is evicted before its bytes are read.
        let sequence = cache.create_sequence().unwrap();
        append(&mut cache, sequence, &[9; 24], true).unwrap();
        save.write(Sink::memory(), &Watch::default()).unwrap();
        save.leave_out(&cache).unwrap();
        let finished = save.finish().unwrap();
        let mut again = load(finished.1, LoadOptions { prefix_key: form.prefix_key, ..LoadOptions::default() });
        again.check_invariants().unwrap();
        let lengths: Vec<u32> = prompts.iter().map(|prompt| found(&mut again, prompt, b"")).collect();
        let still: Vec<u32> = prompts.iter().map(|prompt| found(&mut cache, prompt, b"")).collect();
        assert_eq!(lengths, still, "{name}");
        let known: Prompts = prompts.iter().map(|prompt| (prompt.clone(), &b""[..])).collect();
        assert_eq!(all_found(&mut again, &known), all_found(&mut cache, &known), "{name}");
    }
}

#[test]
fn with_less_room_the_oldest_stay_away() {
    let form = forms().swap_remove(0).1;
    let mut cache = form.cache();
    let prompts: Vec<Vec<u32>> = (0..4).map(|own| (0..9).map(|at| at + own * 100).collect()).collect();
    for prompt in &prompts {
        let sequence = cache.create_sequence().unwrap();
        append(&mut cache, sequence, &prompt[..8], true).unwrap();
        cache.drop_sequence(sequence).unwrap();
    }
    let bytes = save_cache_bytes(&mut cache, &Watch::default()).unwrap();
    let room = Some(PoolRoom::Blocks(vec![5]));
    let mut again = load(bytes, LoadOptions { room, prefix_key: form.prefix_key, ..LoadOptions::default() });
    let lengths: Vec<u32> = prompts.iter().map(|prompt| found(&mut again, prompt, b"")).collect();
    assert_eq!(lengths, [0, 4, 8, 8]);
    // And blocks are evicted in the same order as in the saved cache.
    let sequence = again.create_sequence().unwrap();
    append(&mut again, sequence, &[1, 2, 3, 4, 5], true).unwrap();
    let lengths: Vec<u32> = prompts.iter().map(|prompt| found(&mut again, prompt, b"")).collect();
    assert_eq!(lengths, [0, 0, 4, 8]);
}

#[test]
fn a_cache_without_attention_keeps_its_form() {
    let tensor = StateTensor { layer: 0, name: "ssm".to_owned(), shape: vec![3], dtype: StateDType::F32 };
    let model = ModelDescription::new(vec![LayerDescription::state()]).unwrap().with_states(vec![tensor]).unwrap();
    for (dtype, key_format, formats) in [
        (DType::F32, None, [PageFormat::F32; 2]),
        (DType::F16, None, [PageFormat::F16; 2]),
        (DType::BF16, Some(PageFormat::Q8), [PageFormat::Q8, PageFormat::BF16]),
    ] {
        let options = PagedModelOptions::new(model.clone(), PoolRoom::Blocks(vec![3]));
        let mut cache = PagedKvCache::of_model(PagedModelOptions { dtype, key_format, ..options }).unwrap();
        let again = load(save_cache_bytes(&mut cache, &Watch::default()).unwrap(), LoadOptions::default());
        assert_eq!((again.dtype(), again.formats()), (dtype, formats));
        assert_eq!(again.model(), cache.model());
    }
}
