//! A conversation that is saved in one process continues in another, token for token.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use decoder::{Decoder, Sequences, greedy};
use kvtide_files::{CacheFile, LoadOptions, Source, Watch, load_sequence, save_cache, save_sequence};
use kvtide_tensor::{PagedKvCache, PagedModelOptions, PoolRoom, PromptOptions};
use serde_json::Value;

/// The environment variable with the folder in which the first process saves.
const FOLDER: &str = "KVTIDE_TEST_CONVERSATION";

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../__test__/fixtures/llama")
}

/// A prompt of the references, or the tokens that follow it.
fn tokens(of: &str, name: &str) -> Vec<u32> {
    let text = fs::read_to_string(fixtures().join("references.json")).unwrap();
    let references: Value = serde_json::from_str(&text).unwrap();
    references[of][name].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn decoder() -> Decoder {
    Decoder::read(&fixtures().join("hf")).unwrap()
}

fn cache_of(decoder: &Decoder) -> PagedKvCache {
    let model = decoder.config().model.clone();
    PagedKvCache::of_model(PagedModelOptions::new(model, PoolRoom::Blocks(vec![32]))).unwrap()
}

/// Computes tokens after those of a sequence, sets their ids, and returns the 64 tokens that follow.
fn answer(decoder: &Decoder, cache: &mut PagedKvCache, sequence: u64, rest: &[u32]) -> Vec<u32> {
    let mut rows = Sequences::new(cache, &[sequence]);
    let hidden = decoder.forward(rest, &mut rows).unwrap();
    let logits = decoder.last_logits(&hidden).unwrap();
    greedy(decoder, &mut rows, logits, 64).unwrap().tokens.swap_remove(0)
}

/// The first process: not a test by itself.
#[test]
fn saves() {
    let Some(folder) = env::var_os(FOLDER).map(PathBuf::from) else { return };
    let (decoder, prompt) = (decoder(), tokens("prompts", "p100"));
    let mut cache = cache_of(&decoder);
    let sequence = cache.create_sequence().unwrap();
    decoder.forward(&prompt, &mut Sequences::new(&mut cache, &[sequence])).unwrap();
    cache.identify(sequence, &prompt).unwrap();
    cache.truncate(sequence, 60).unwrap();
    save_sequence(&mut cache, sequence, &folder.join("chat.kv"), &Watch::default()).unwrap();
    save_cache(&mut cache, &folder.join("all.kv"), &Watch::default()).unwrap();
}

#[test]
fn a_conversation_goes_on_in_another_process() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conversation");
    fs::create_dir_all(&folder).unwrap();
    let mut first = Command::new(env::current_exe().unwrap());
    let ended = first.args(["saves", "--exact"]).env(FOLDER, &folder).output().unwrap();
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let (decoder, prompt, wanted) = (decoder(), tokens("prompts", "branch60"), tokens("greedy", "branch60"));

    let mut cache = cache_of(&decoder);
    let options = PromptOptions::default();
    let source = Source::file(&folder.join("chat.kv")).unwrap();
    let sequence = load_sequence(&mut cache, source, options, &Watch::default()).unwrap();
    assert_eq!(answer(&decoder, &mut cache, sequence, &prompt[60..]), wanted);

    let file = CacheFile::open(Source::file(&folder.join("all.kv")).unwrap()).unwrap();
    let mut cache = file.load(LoadOptions::default(), &Watch::default()).unwrap();
    let prefix = cache.find_prefix(&prompt, options, false).unwrap();
    assert_eq!(prefix.length(), 48);
    let sequence = cache.create_sequence_from(prefix).unwrap();
    assert_eq!(answer(&decoder, &mut cache, sequence, &prompt[48..]), wanted);
}
