//! If a process is killed during a save, the path has the old file or the new one. `KVTIDE_KILLS` sets the number of kills.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use std::{env, fs, thread};

use kvtide_files::{CacheFile, LoadOptions, Source, Watch, save_cache, sweep};

use crate::world::{Form, KEY, Random, append, forms, found};

/// The variable with the path at which a child process saves, again and again.
const PLACE: &str = "KVTIDE_TEST_SAVES";

fn folder(name: &str) -> PathBuf {
    let folder = env::temp_dir().join(format!("kvtide-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

fn form() -> Form {
    Form { blocks: 256, ..forms().swap_remove(0).1 }
}

/// Saves a cache whose tokens are those of a generation.
fn save_generation(path: &Path, generation: u32) {
    let mut cache = form().cache();
    let sequence = cache.create_sequence().unwrap();
    let tokens: Vec<u32> = (0..800).map(|at| at + generation * 1000).collect();
    append(&mut cache, sequence, &tokens, true).unwrap();
    save_cache(&mut cache, path, &Watch::default()).unwrap();
}

/// Returns the generation of a file, after checking that it is complete.
fn generation(path: &Path) -> u32 {
    let options = LoadOptions { prefix_key: Some(KEY), ..LoadOptions::default() };
    let file = CacheFile::open(Source::file(path).unwrap()).unwrap();
    let mut cache = file.load(options, &Watch::default()).unwrap();
    let whole = |generation: &u32| {
        let tokens: Vec<u32> = (0..801).map(|at| at + generation * 1000).collect();
        found(&mut cache, &tokens, b"") == 800
    };
    (0..100_000).find(whole).expect("one generation, all of it")
}

/// The child process; as a test of its own it does nothing.
#[test]
fn saves_until_it_is_killed() {
    let Some(path) = env::var_os(PLACE) else { return };
    (1..u32::MAX).for_each(|generation| save_generation(Path::new(&path), generation));
}

#[test]
fn a_process_that_is_killed_leaves_the_old_file_or_the_new_one() {
    let folder = folder("kill");
    let path = folder.join("cache.kv");
    let mut random = Random(1);
    save_generation(&path, 0);
    let kills: u32 = env::var("KVTIDE_KILLS").map_or(300, |text| text.parse().expect("a whole number"));
    let (mut news, mut temporaries, mut rounds) = (0, 0, 0);
    // On a busy machine, a child lives longer before it saves.
    while rounds < kills || news == 0 || temporaries == 0 {
        assert!(rounds < kills * 10, "points on both sides of a save: {news}, {temporaries}");
        rounds += 1;
        let before = fs::metadata(&path).unwrap().modified().unwrap();
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["crash::saves_until_it_is_killed", "--exact", "--nocapture"])
            .env(PLACE, &path)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_micros(u64::from(random.below(40_000 * (1 + rounds / (kills / 3).max(1))))));
        child.kill().unwrap();
        child.wait().unwrap();
        generation(&path);
        news += u32::from(fs::metadata(&path).unwrap().modified().unwrap() != before);
        let left = fs::read_dir(&folder).unwrap().count() - 1;
        temporaries += u32::from(left > 0);
        for file in fs::read_dir(&folder).unwrap().flatten().filter(|file| file.path() != path) {
            fs::remove_file(file.path()).unwrap();
        }
    }
    println!("{news} of {rounds} had saved once, {temporaries} died in the middle");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn temporary_files_that_were_left_behind_are_swept() {
    let sweeps: [fn(&Path); 2] = [sweep, |path| save_generation(path, 1)];
    for sweep in sweeps {
        let folder = folder("sweep");
        let path = folder.join("cache.kv");
        let names = [
            "cache.kv.0123456789abcdef.tmp",
            "cache.kv.fedcba9876543210.tmp",
            "cache.kv.notes.tmp",
            "cache.kv.cafe.tmp",
            "other.kv.0123456789abcdef.tmp",
        ];
        for name in names {
            fs::write(folder.join(name), b"left behind").unwrap();
        }
        let old = SystemTime::now() - Duration::from_secs(2 * 60 * 60);
        for name in names.iter().filter(|name| **name != names[1]) {
            fs::File::options().write(true).open(folder.join(name)).unwrap().set_modified(old).unwrap();
        }
        sweep(&path);
        let left: Vec<bool> = names.iter().map(|name| folder.join(name).exists()).collect();
        assert_eq!(left, [false, true, true, true, true], "only old ones of this file");
        fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn a_save_that_fails_leaves_the_old_file_and_nothing_else() {
    let folder = folder("fail");
    let path = folder.join("cache.kv");
    save_generation(&path, 7);
    let mut cache = form().cache();
    let stop = std::sync::Arc::new(true.into());
    let sequence = cache.create_sequence().unwrap();
    append(&mut cache, sequence, &[1; 40], true).unwrap();
    let error = save_cache(&mut cache, &path, &Watch::until(stop)).unwrap_err();
    assert_eq!(error.code(), kvtide_core::Code::Aborted);
    assert_eq!((generation(&path), fs::read_dir(&folder).unwrap().count()), (7, 1));
    let error = save_cache(&mut cache, &folder.join("none").join("cache.kv"), &Watch::default()).unwrap_err();
    assert_eq!(error.code(), kvtide_core::Code::IoError);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
    fs::remove_dir_all(folder).unwrap();
}
