//! One key, several forms: entries in a store serve only caches of their own form, and do not harm the others.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;

use kvtide_core::model::LayerKind;
use kvtide_core::paged::PageFormat;
use kvtide_tensor::{PagedKvCache, PromptOptions};
use kvtide_tiers::{Folder, Policy, Store, StoreKey, Tiers};

use crate::tiers::{Toy, attach, bring, compute, later, lower, prompt, small, temporary};
use crate::world::{Form, Random, forms, found, full, shown};

/// Returns forms whose prompts have the same keys, or might: they differ in windows, sinks, the layers of their groups,
/// and more.
fn alike() -> Vec<Form> {
    let form = forms().swap_remove(0).1;
    let sliding = |window, sinks| full().with_kind(LayerKind::Sliding { window, sinks });
    let layers = |layers: Vec<_>| Form { layers, ..form.clone() };
    let shared = |with| full().with_kind(LayerKind::SharedWith(with));
    vec![
        form.clone(),
        layers(vec![sliding(6, 0); 2]),
        layers(vec![sliding(7, 0); 2]),
        layers(vec![sliding(6, 2); 2]),
        layers(vec![sliding(6, 0), full()]),
        layers(vec![full(), sliding(6, 0)]),
        layers(vec![full(), sliding(6, 0), shared(0)]),
        Form { block_size: 8, ..form.clone() },
        Form { formats: [PageFormat::F16; 2], ..form.clone() },
        Form { formats: [PageFormat::Q8; 2], ..form },
    ]
}

/// Stores a group's entry under the key of another group: of the same size, with the right checksum.
#[test]
fn a_block_of_one_group_is_none_of_another() {
    let sliding = full().with_kind(LayerKind::Sliding { window: 64, sinks: 0 });
    let form = Form { layers: vec![sliding, full()], ..forms().swap_remove(0).1 };
    let (toy, tokens) = (Arc::new(Toy::default()), (0..33).collect::<Vec<u32>>());
    let mut cache = form.cache();
    let tiers = attach(&mut cache, None, vec![lower(toy.clone(), Policy::Commit)]);
    compute(&mut cache, &tokens);
    assert!(tiers.flush(later()));
    let swap = || {
        let mut entries = toy.entries.lock().unwrap();
        let other = |key: &StoreKey| StoreKey { group: 1 - key.group, ..*key };
        *entries = entries.iter().map(|(key, bytes)| (other(key), bytes.clone())).collect();
    };
    swap();
    let mut other = form.cache();
    let below = attach(&mut other, None, vec![lower(toy.clone(), Policy::Commit)]);
    assert_eq!((bring(&below, &mut other, &tokens), found(&mut other, &tokens, b"")), (vec![0, 0], 0));
    assert_eq!((below.stats()[0].1.damaged, toy.removed.lock().unwrap().len()), (16, 16));
    swap();
    assert_eq!(bring(&below, &mut other, &tokens), [0, 16]);
    assert_eq!(found(&mut other, &tokens, b""), 32);
}

/// Runs random prompts in caches of all forms at once, over one store. Each cache finds everything that was computed in
/// its form, and no entry is damaged.
fn beside_each_other(store: &Arc<dyn Store>, seed: u64) {
    struct Worker {
        form: Form,
        cache: PagedKvCache,
        tiers: Tiers,
        /// The content that was computed in its form, by any worker.
        all: PagedKvCache,
    }
    let mut random = Random(seed);
    let mut workers: Vec<Worker> = alike()
        .into_iter()
        .map(|form| {
            let mut cache = small(&form, 24).cache();
            let tiers = attach(&mut cache, None, vec![lower(store.clone(), Policy::Commit)]);
            let all = small(&form, 4096).cache();
            Worker { form, cache, tiers, all }
        })
        .collect();
    let mut came = 0;
    for turn in 0..80 {
        let tokens = prompt(&mut random);
        let at = random.below(workers.len() as u32) as usize;
        let Worker { form, cache, tiers, all } = &mut workers[at];
        if random.below(4) == 0 {
            // Another worker of the form, with an empty pool.
            *cache = small(form, 24).cache();
            *tiers = attach(cache, None, vec![lower(store.clone(), Policy::Commit)]);
        }
        came += bring(tiers, cache, &tokens).iter().sum::<u32>();
        let (sequence, length) = compute(cache, &tokens);
        let there = found(all, &tokens, b"");
        let (whole, _) = compute(all, &tokens);
        assert_eq!(length, there, "seed {seed}, turn {turn}, form {at}: {tokens:?}");
        assert_eq!(shown(cache, sequence), shown(all, whole), "seed {seed}, turn {turn}, form {at}");
        cache.drop_sequence(sequence).unwrap();
        cache.check_invariants().unwrap();
        assert!(tiers.flush(later()));
        assert_eq!(tiers.stats()[0].1.damaged, 0, "seed {seed}, turn {turn}, form {at}");
    }
    assert!(came > 0);
}

#[test]
fn all_forms_lie_beside_each_other_in_a_store() {
    for seed in 0..8 {
        let toy = Arc::new(Toy::default());
        beside_each_other(&(toy.clone() as Arc<dyn Store>), seed);
        assert!(toy.removed.lock().unwrap().is_empty());
        let forms: HashSet<_> = toy.entries.lock().unwrap().keys().map(|key| key.form).collect();
        assert!(forms.len() > 5);
    }
}

#[test]
fn all_forms_lie_beside_each_other_in_a_folder() {
    let place = temporary("forms");
    let folder: Arc<dyn Store> = Arc::new(Folder::open(&place, u64::MAX).unwrap());
    beside_each_other(&folder, 1);
    fs::remove_dir_all(place).unwrap();
}

#[test]
fn a_window_alone_keeps_forms_apart_under_the_same_names() {
    let forms = alike();
    let names = |form: &Form| form.cache().keys(&(0..16).collect::<Vec<u32>>(), PromptOptions::default()).unwrap();
    assert_eq!(names(&forms[0]), names(&forms[1]), "the names are those of both");
    let toy = Arc::new(Toy::default());
    for form in &forms[..2] {
        let mut cache = form.cache();
        let tiers = attach(&mut cache, None, vec![lower(toy.clone(), Policy::Commit)]);
        compute(&mut cache, &(0..17).collect::<Vec<u32>>());
        assert!(tiers.flush(later()));
    }
    assert_eq!(toy.entries.lock().unwrap().len(), 8);
}
