//! A worker that is killed during saves, tier writes and evictions, and one after it that goes on: nothing is corrupt,
//! nothing acknowledged is lost, and no temporary file stays.
//!
//! ```text
//! parent   starts a worker in a folder, kills it at a random time, checks the folder, and starts the next one
//! worker   restores prompts, computes them, offloads their blocks, saves its cache; says on its output what is done
//! ```
//!
//! `KVTIDE_KILLS` sets the number of kills.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use std::{env, fs, thread};

use kvtide_files::{CacheFile, LoadOptions, Source, Watch, save_cache, sweep};
use kvtide_tensor::PagedKvCache;
use kvtide_tiers::{Folder, Policy};

use crate::tiers::{attach, bring, compute, later, lower, memory, small, temporary};
use crate::world::{Form, KEY, Random, append, forms, found, seed, shown};

/// The variables of a worker: its folder, the limit of its tier, and the number of its next save.
const PLACE: &str = "KVTIDE_TEST_WORKER";
const LIMIT: &str = "KVTIDE_TEST_LIMIT";
const NEXT: &str = "KVTIDE_TEST_NEXT";

/// The prompts that workers compute, and the number of blocks of each.
const PROMPTS: u32 = 40;
const BLOCKS: usize = 6;

fn form() -> Form {
    small(&forms().swap_remove(7).1, 48)
}

/// Returns a prompt; some begin alike.
fn prompt(number: u32) -> Vec<u32> {
    (0..25).map(|at| if at < 8 { number % 5 * 100 + at } else { number * 1000 + at }).collect()
}

/// Returns the prompt that marks a save.
fn mark(save: u32) -> Vec<u32> {
    (0..5).map(|at| 1_000_000 + save * 10 + at).collect()
}

/// The worker's process; as a test of its own it does nothing.
#[test]
fn works_until_it_is_killed() {
    let Some(place) = env::var_os(PLACE).map(PathBuf::from) else { return };
    let number = |name| env::var(name).unwrap().parse::<u64>().unwrap();
    let (limit, mut next) = (number(LIMIT), number(NEXT) as u32);
    let mut cache = load(&place).unwrap_or_else(|| form().cache());
    let folder = Folder::open(&place.join("entries"), limit).unwrap();
    let tiers = attach(&mut cache, memory(20_000), vec![lower(Arc::new(folder), Policy::Commit)]);
    let mut random = Random(std::process::id().into());
    say("ready");
    loop {
        let number = random.below(PROMPTS);
        check(&mut cache, |cache| drop(bring(&tiers, cache, &prompt(number))), &prompt(number));
        assert!(tiers.flush(later()));
        say(&format!("stored {number}"));
        if random.below(4) == 0 {
            let (sequence, _) = compute(&mut cache, &mark(next));
            cache.drop_sequence(sequence).unwrap();
            save_cache(&mut cache, &place.join("cache.kv"), &Watch::default()).unwrap();
            say(&format!("saved {next}"));
            next += 1;
        }
        assert_eq!(tiers.stats()[1].1.damaged, 0, "an entry is damaged");
    }
}

/// Says what is done: once this returns, the parent reads it even if the worker is killed.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\nworker: {what}\n").as_bytes()).and_then(|()| out.flush()).unwrap();
}

/// Restores a prompt and computes the rest of it; its content must be that of a cache that computes everything.
fn check(cache: &mut PagedKvCache, restore: impl FnOnce(&mut PagedKvCache), tokens: &[u32]) {
    restore(cache);
    let (sequence, _) = compute(cache, tokens);
    let mut apart = form().cache();
    let whole = apart.create_sequence().unwrap();
    append(&mut apart, whole, tokens, true).unwrap();
    assert_eq!(shown(cache, sequence), shown(&mut apart, whole), "{tokens:?}");
    cache.drop_sequence(sequence).unwrap();
    cache.check_invariants().unwrap();
}

fn load(place: &Path) -> Option<PagedKvCache> {
    let path = place.join("cache.kv");
    let options = LoadOptions { prefix_key: Some(KEY), ..LoadOptions::default() };
    let load = || CacheFile::open(Source::file(&path)?)?.load(options, &Watch::default());
    path.exists().then(|| load().unwrap_or_else(|error| panic!("the saved cache is broken: {error}")))
}

/// A folder in which one worker after the other works, and what those have acknowledged.
struct Site {
    place: PathBuf,
    limit: u64,
    /// The number of saves.
    saved: u32,
    /// The prompts whose blocks are stored.
    stored: BTreeSet<u32>,
    acknowledged: u32,
    /// Kills during a save, a tier write, and an eviction.
    midway: [u32; 3],
}

impl Site {
    fn new(name: &str, limit: u64) -> Self {
        let place = temporary(name);
        fs::create_dir_all(&place).unwrap();
        Site { place, limit, saved: 0, stored: BTreeSet::new(), acknowledged: 0, midway: [0; 3] }
    }

    fn worker(&self) -> Child {
        Command::new(env::current_exe().unwrap())
            .args(["crash::works_until_it_is_killed", "--exact", "--nocapture"])
            .env(PLACE, &self.place)
            .env(LIMIT, self.limit.to_string())
            .env(NEXT, (self.saved + 1).to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap()
    }

    /// Starts a worker, kills it this long after it is ready, and reads what it has acknowledged.
    fn kill(&mut self, after: Duration) {
        let mut worker = self.worker();
        let mut lines = BufReader::new(worker.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line == "worker: ready"), "the worker ended by itself");
        thread::sleep(after);
        worker.kill().unwrap();
        let status = worker.wait().unwrap();
        // A process that Windows ends has an exit code: 1. A test that failed has 101.
        let is_killed = status.code().is_none_or(|code| cfg!(windows) && code == 1);
        assert!(is_killed, "the worker ended by itself: {status}");
        for line in lines {
            match line.strip_prefix("worker: ").and_then(|said| said.split_once(' ')) {
                Some(("saved", number)) => self.saved = number.parse().unwrap(),
                Some(("stored", number)) => _ = self.stored.insert(number.parse().unwrap()),
                _ => {
                    assert!(!line.starts_with("worker: "), "{line}");
                    continue;
                }
            }
            self.acknowledged += 1;
        }
    }

    /// Removes everything, so that workers write again.
    fn clear(&mut self) {
        fs::remove_dir_all(&self.place).unwrap();
        fs::create_dir_all(&self.place).unwrap();
        self.saved = 0;
        self.stored.clear();
    }

    /// Checks what the killed worker left behind.
    fn check(&mut self, random: &mut Random) {
        let entries = self.place.join("entries");
        self.midway[0] += u32::from(self.check_save());
        self.midway[1] += u32::from(check_entries(&entries, true) > 0);
        let counted = fs::read(entries.join("usage")).unwrap_or_default();
        // Nine tenths of the limit are left after an eviction; the old count is above.
        let bytes = Folder::open_untidied(&entries, self.limit).unwrap().usage().bytes;
        let count = counted.first_chunk().map(|count| u64::from_le_bytes(*count));
        self.midway[2] += u32::from(count.is_some_and(|count| count > bytes));
        let folder = Folder::open(&entries, self.limit).unwrap();
        assert_eq!(check_entries(&entries, false), 0, "temporary files are left");
        let usage = folder.usage();
        assert!(usage.bytes <= self.limit, "{usage:?}");
        assert_eq!(folder.counted_bytes(), usage.bytes);
        // A new process finds the blocks that were acknowledged.
        let mut cache = form().cache();
        let tiers = attach(&mut cache, None, vec![lower(Arc::new(folder), Policy::Commit)]);
        for _ in 0..4 {
            let number = random.below(PROMPTS);
            let tokens = prompt(number);
            check(&mut cache, |cache| drop(bring(&tiers, cache, &tokens)), &tokens);
            if self.limit == u64::MAX && self.stored.contains(&number) {
                bring(&tiers, &mut cache, &tokens);
                assert_eq!(found(&mut cache, &tokens, b"") as usize, BLOCKS * 4, "prompt {number} is lost");
            }
        }
        assert!(tiers.flush(later()));
        assert_eq!(tiers.stats()[0].1.damaged, 0, "an entry is damaged");
    }

    /// Checks the saved cache. Returns true if the worker died during a save.
    fn check_save(&mut self) -> bool {
        let path = self.place.join("cache.kv");
        let left = |folder: &Path| {
            let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
            files.filter(|file| file.extension().is_some_and(|extension| extension == "tmp")).collect::<Vec<_>>()
        };
        let temporaries = left(&self.place);
        temporaries.iter().for_each(|file| age(file));
        sweep(&path);
        assert!(left(&self.place).is_empty(), "temporary files are left");
        let Some(mut cache) = load(&self.place) else {
            assert_eq!(self.saved, 0, "an acknowledged save is lost");
            return !temporaries.is_empty();
        };
        cache.check_invariants().unwrap();
        // The save in progress at the kill may be complete.
        let saves = [self.saved + 1, self.saved];
        let newest = saves.into_iter().find(|save| found(&mut cache, &mark(*save), b"") == 4);
        let newest = newest.unwrap_or_else(|| panic!("save {} was acknowledged, and is lost", self.saved));
        self.saved = newest;
        for number in 0..PROMPTS {
            if found(&mut cache, &prompt(number), b"") > 0 {
                check(&mut cache, |_| {}, &prompt(number));
            }
        }
        !temporaries.is_empty()
    }
}

fn age(file: &Path) {
    let old = SystemTime::now() - Duration::from_secs(2 * 60 * 60);
    fs::File::options().write(true).open(file).unwrap().set_modified(old).unwrap();
}

/// Checks that every entry has the right checksum. Returns the number of temporary files, after making them old.
fn check_entries(entries: &Path, makes_old: bool) -> usize {
    let mut temporaries = 0;
    for shard in fs::read_dir(entries).unwrap().flatten().filter(|shard| shard.path().is_dir()) {
        for file in fs::read_dir(shard.path()).unwrap().flatten() {
            if file.file_name().to_str().unwrap().starts_with('.') {
                temporaries += 1;
                if makes_old {
                    age(&file.path());
                }
                continue;
            }
            let bytes = fs::read(file.path()).unwrap();
            let (body, sum) = bytes.split_last_chunk::<8>().expect("an entry");
            assert_eq!(twox_hash::XxHash3_64::oneshot(body).to_le_bytes(), *sum, "{:?} is torn", file.path());
        }
    }
    temporaries
}

#[test]
fn a_worker_that_is_killed_at_any_time_loses_nothing_that_it_acknowledged() {
    let kills: u32 = env::var("KVTIDE_KILLS").map_or(300, |text| text.parse().expect("a whole number"));
    let mut random = Random(seed());
    println!("seed {}", random.0);
    // A hundred entries are fewer than the prompts have.
    let each = form().cache().block_bytes()[0] as u64 + 400;
    let mut sites = [Site::new("killed", u64::MAX), Site::new("killed-limited", 100 * each)];
    let mut killed = 0;
    // On a busy machine, a worker gets less done before it is killed.
    let never = |[free, limited]: [&Site; 2]| {
        [free, limited].iter().any(|site| site.midway[..2].contains(&0)) || limited.midway[2] == 0
    };
    while killed < kills || never(sites.each_ref()) {
        assert!(
            killed < kills * 10,
            "no kill during a save, a write or an eviction: {:?}",
            sites.map(|site| site.midway)
        );
        let site = &mut sites[killed as usize % 2];
        site.kill(Duration::from_micros(u64::from(random.below(15_000 * (1 + killed / kills.max(1))))));
        site.check(&mut random);
        if site.limit == u64::MAX && random.below(3) == 0 {
            site.clear();
        }
        killed += 1;
    }
    for site in sites {
        let [saves, writes, evictions] = site.midway;
        println!("{} acknowledged; killed in {saves} saves, {writes} writes, {evictions} evictions", site.acknowledged);
        assert!(site.acknowledged > 0);
        fs::remove_dir_all(site.place).unwrap();
    }
}
