//! A folder after the power failed. Entries are never flushed, because they can be computed again: each may be there,
//! missing, torn, zeroed, or still under its temporary name, whatever was acknowledged. None of that shows, and the next
//! worker replaces what is damaged.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvtide_tiers::{Folder, Policy};

use crate::tiers::{attach, bring, compute, later, lower, prompt, temporary};
use crate::world::{Form, Random, forms, found, seed, shown};

fn files(place: &Path) -> Vec<PathBuf> {
    let inside = |folder: &Path| fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    inside(place).into_iter().flat_map(|path| if path.is_dir() { inside(&path) } else { vec![path] }).collect()
}

/// Leaves of a folder what may be left after the power failed. Returns the number of files that changed.
fn lose_power(place: &Path, random: &mut Random) -> usize {
    let mut changed = 0;
    for file in files(place) {
        let mut bytes = fs::read(&file).unwrap();
        let at = random.below(bytes.len().max(1) as u32) as usize;
        match random.below(8) {
            0 => fs::remove_file(&file).unwrap(),
            1 => fs::write(&file, &bytes[..at]).unwrap(),
            2 => {
                bytes[at..].fill(0);
                fs::write(&file, &bytes).unwrap();
            }
            3 => {
                bytes.fill(0);
                fs::write(&file, &bytes).unwrap();
            }
            4 if !file.ends_with("usage") => {
                let name = file.file_name().unwrap().to_str().unwrap();
                fs::rename(&file, file.with_file_name(format!(".{name}.1-1.tmp"))).unwrap();
            }
            _ => continue,
        }
        changed += 1;
    }
    changed
}

/// Lets a worker with an empty cache restore and compute prompts. Returns the number of damaged entries, and of prompts
/// that were restored completely.
fn work(form: &Form, place: &Path, prompts: &[Vec<u32>]) -> [u64; 2] {
    let folder = Folder::open(place, u64::MAX).unwrap();
    assert_eq!(folder.counted_bytes(), folder.usage().bytes);
    let mut cache = form.cache();
    let tiers = attach(&mut cache, None, vec![lower(Arc::new(folder), Policy::Commit)]);
    let mut whole = 0;
    for tokens in prompts {
        bring(&tiers, &mut cache, tokens);
        let blocks = (tokens.len() as u32 - 1) / form.block_size;
        whole += u64::from(found(&mut cache, tokens, b"") == blocks * form.block_size);
        let (sequence, _) = compute(&mut cache, tokens);
        let mut apart = form.cache();
        let (computed, _) = compute(&mut apart, tokens);
        assert_eq!(shown(&mut cache, sequence), shown(&mut apart, computed));
        cache.check_invariants().unwrap();
        cache.drop_sequence(sequence).unwrap();
    }
    assert!(tiers.flush(later()));
    [tiers.stats()[0].1.damaged, whole]
}

#[test]
fn after_the_power_failed_a_folder_costs_what_is_missing() {
    let begin = seed();
    println!("seed {begin}");
    let rounds = std::env::var("KVTIDE_CASES")
        .map_or(10, |text| text.parse::<u64>().expect("a whole number").div_ceil(50).max(10));
    let mut damaged = 0;
    for round in 0..rounds {
        let mut random = Random(begin.wrapping_add(round));
        let form = Form { blocks: 400, ..forms().swap_remove(round as usize % 14).1 };
        let place = temporary(&format!("power-{round}"));
        let prompts: Vec<Vec<u32>> = (0..12).map(|_| prompt(&mut random)).collect();
        work(&form, &place, &prompts);
        let changed = lose_power(&place, &mut random);
        let [found, _] = work(&form, &place, &prompts);
        assert!(found <= changed as u64, "{found} damaged entries of {changed}");
        damaged += found;
        // A worker reads no entries that its prefix does not need, so the next workers may find more of the damaged ones.
        let left = (0..10).map(|_| work(&form, &place, &prompts)).find(|found| *found == [0, 12]);
        assert!(left.is_some(), "round {round}: damaged entries stay");
        fs::remove_dir_all(place).unwrap();
    }
    assert!(damaged > 0);
}
