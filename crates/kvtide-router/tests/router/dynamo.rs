//! Dynamo's indexer follows a kvtide publisher, and finds the same prefixes as the index of this crate.
//!
//! `KVTIDE_DYNAMO_PYTHON` is the folder of a python with `ai-dynamo-runtime`; if it is not set, `python3` is tried.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kvtide_router::{
    Batch, BlockHash, Event, Publisher, PublisherOptions, RemovedBlocks, StoredBlocks, WorkerFeed, WorkerIndex,
    WorkerPrefix,
};
use serde_json::{Value, json};
use tokio::runtime::Handle;

use crate::skip::skipped;
use crate::support::{Numbers, mix, seed};

const BLOCK: usize = 4;
const WORKERS: usize = 3;
const ROUNDS: usize = 12;

struct Indexer {
    child: Child,
    port: u16,
}

impl Drop for Indexer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Indexer {
    /// Starts Dynamo's indexer on a port of this machine, if it is installed.
    fn start() -> Option<Self> {
        let folder = std::env::var_os("KVTIDE_DYNAMO_PYTHON").map(PathBuf::from);
        let python = folder.map_or(PathBuf::from("python3"), |folder| folder.join("python3"));
        let probe = Command::new(&python).args(["-c", "import dynamo.indexer.main"]).stderr(Stdio::null()).status();
        if !probe.is_ok_and(|status| status.success()) {
            skipped("dynamo.indexer is not installed");
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new(python)
            .args(["-m", "dynamo.indexer", "--port", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let indexer = Indexer { child, port };
        let start = Instant::now();
        while indexer.ask("GET", "/health", &Value::Null).is_none_or(|(status, _)| status != 200) {
            assert!(start.elapsed() < Duration::from_secs(60), "the indexer does not answer");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(indexer)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Option<(u16, Value)> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let head = "Host: localhost\r\nConnection: close\r\nContent-Type: application/json";
        write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (head, body) = answer.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, serde_json::from_str(body).unwrap_or(Value::Null)))
    }

    fn register(&self, worker: usize, publisher: &Publisher) {
        let body = json!({
            "instance_id": worker, "endpoint": publisher.endpoint(), "replay_endpoint": publisher.replay_endpoint(),
            "model_name": "m", "block_size": BLOCK,
        });
        let (status, answer) = self.ask("POST", "/register", &body).unwrap();
        assert_eq!(status, 201, "{answer}");
    }

    /// The number of leading blocks that each worker has of a prompt.
    fn query(&self, tokens: &[u32]) -> BTreeMap<usize, usize> {
        let body = json!({ "token_ids": tokens, "model_name": "m" });
        let (status, answer) = self.ask("POST", "/query", &body).unwrap();
        assert_eq!(status, 200, "{answer}");
        let instances = answer["instances"].as_object().unwrap();
        let of = |(worker, about): (&String, &Value)| {
            let tokens = about["longest_matched"].as_u64().unwrap() as usize;
            (worker.parse().unwrap(), tokens / BLOCK)
        };
        instances.iter().map(of).filter(|&(_, blocks): &(usize, usize)| blocks > 0).collect()
    }
}

/// A worker: its publisher, and its cached blocks, the most recent last.
struct Worker {
    publisher: Option<Publisher>,
    feed: WorkerFeed,
    held: Vec<Vec<u32>>,
}

/// The key of a prefix.
fn key(tokens: &[u32]) -> u64 {
    tokens
        .chunks(BLOCK)
        .fold(7, |before, block| block.iter().fold(before, |sum, &token| mix(sum ^ (u64::from(token) + 1))))
}

fn keys(tokens: &[u32]) -> Vec<u64> {
    (1..=tokens.len() / BLOCK).map(|blocks| key(&tokens[..blocks * BLOCK])).collect()
}

impl Worker {
    fn tell(&mut self, index: &mut WorkerIndex, events: Vec<Event>) {
        let batch = Batch { events, ..Batch::default() };
        self.feed.apply(index, &batch).unwrap();
        self.publisher.as_ref().unwrap().publish(batch.events).unwrap();
    }

    /// Computes a prompt: stores the blocks that are missing.
    fn compute(&mut self, tokens: &[u32]) -> Vec<Event> {
        let prefixes: Vec<&[u32]> = (1..=tokens.len() / BLOCK).map(|blocks| &tokens[..blocks * BLOCK]).collect();
        let new: Vec<&[u32]> =
            prefixes.into_iter().filter(|&prefix| !self.held.iter().any(|held| held == prefix)).collect();
        let Some(first) = new.first() else { return Vec::new() };
        // Blocks are evicted from the end of a prompt, so the missing blocks are contiguous.
        let before = first.len() - BLOCK;
        self.held.extend(new.iter().map(|prefix| prefix.to_vec()));
        vec![Event::Stored(StoredBlocks {
            hashes: new.iter().map(|prefix| BlockHash::Number(key(prefix))).collect(),
            parent: (before > 0).then(|| BlockHash::Number(key(&tokens[..before]))),
            tokens: tokens[before..before + new.len() * BLOCK].to_vec(),
            block_size: BLOCK as u32,
            ..StoredBlocks::default()
        })]
    }

    /// Evicts some blocks that no block follows.
    fn evict(&mut self, numbers: &mut Numbers, count: usize) -> Vec<Event> {
        let mut hashes = Vec::new();
        for _ in 0..count {
            let is_leaf =
                |prefix: &Vec<u32>| !self.held.iter().any(|held| held.len() > prefix.len() && held.starts_with(prefix));
            let leaves: Vec<usize> = (0..self.held.len()).filter(|&at| is_leaf(&self.held[at])).collect();
            let Some(&at) = leaves.get(numbers.below(leaves.len().max(1) as u64) as usize) else { break };
            hashes.push(BlockHash::Number(key(&self.held.remove(at))));
        }
        let removed = RemovedBlocks { hashes, ..RemovedBlocks::default() };
        if removed.hashes.is_empty() { Vec::new() } else { vec![Event::Removed(removed)] }
    }

    /// Stops, and restarts on the same endpoints with an empty cache.
    async fn restart(&mut self, index: &mut WorkerIndex) {
        let old = self.publisher.take().unwrap();
        let options = PublisherOptions {
            endpoint: old.endpoint().to_owned(),
            replay_endpoint: old.replay_endpoint().map(str::to_owned),
            first: old.next_number() + 10,
            ..PublisherOptions::default()
        };
        old.close().await;
        while self.publisher.is_none() {
            self.publisher = Publisher::bind(&Handle::current(), options.clone()).await.ok();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        self.held.clear();
        self.tell(index, vec![Event::Cleared]);
    }
}

/// A prompt from a small vocabulary, so that prompts share prefixes.
fn prompt(numbers: &mut Numbers) -> Vec<u32> {
    let blocks = 1 + numbers.below(10);
    let mut branch = 0;
    let mut tokens = Vec::new();
    for block in 0..blocks {
        if block == 0 || numbers.below(4) == 0 {
            branch = numbers.below(3) as u32;
        }
        tokens.extend((0..BLOCK as u32).map(|token| 1 + branch * 1000 + block as u32 * 10 + token));
    }
    tokens
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dynamo_finds_what_the_index_finds() {
    let Some(indexer) = Indexer::start() else { return };
    let seed = seed();
    println!("seed {seed}");
    let mut numbers = Numbers(seed);
    let mut index = WorkerIndex::new();
    let mut workers = Vec::new();
    for at in 0..WORKERS {
        let replay_endpoint = Some("tcp://127.0.0.1:0".to_owned());
        let options = PublisherOptions { replay_endpoint, ..PublisherOptions::default() };
        let publisher = Publisher::bind(&Handle::current(), options).await.unwrap();
        let mut worker =
            Worker { feed: WorkerFeed::new(index.add_worker().unwrap()), publisher: Some(publisher), held: Vec::new() };
        if at == 0 {
            // This worker has published before the indexer listens.
            let events = worker.compute(&prompt(&mut numbers));
            worker.tell(&mut index, events);
        }
        indexer.register(at, worker.publisher.as_ref().unwrap());
        workers.push(worker);
    }
    let mut compared = 0;
    for round in 0..ROUNDS {
        for (at, worker) in workers.iter_mut().enumerate() {
            if round % 4 == 3 && at == round / 4 % WORKERS {
                worker.restart(&mut index).await;
            }
            for _ in 0..1 + numbers.below(6) {
                let mut events = worker.compute(&prompt(&mut numbers));
                let evictions = numbers.below(4) as usize;
                events.extend(worker.evict(&mut numbers, evictions));
                worker.tell(&mut index, events);
            }
            await_worker(&indexer, worker, &mut index, at, round).await;
        }
        for _ in 0..40 {
            let tokens = prompt(&mut numbers);
            let mut lengths = Vec::new();
            index.lengths(&keys(&tokens), &mut lengths);
            let ours = lengths.iter().map(|&WorkerPrefix { worker, blocks }| (worker.index(), blocks)).collect();
            assert_eq!(indexer.query(&tokens), ours, "round {round}, {tokens:?}, seed {seed}");
            compared += 1;
        }
    }
    println!("{compared} prompts compared");
    let by_hash = indexer.ask("POST", "/query_by_hash", &json!({ "block_hashes": [1, 2], "model_name": "m" })).unwrap();
    assert_eq!((by_hash.0, &by_hash.1["instances"]), (200, &json!({})));
}

/// Waits until the indexer has all blocks of a worker: until it finds the block that is published last.
async fn await_worker(indexer: &Indexer, worker: &mut Worker, index: &mut WorkerIndex, at: usize, round: usize) {
    let start = Instant::now();
    let mut marks = 0;
    loop {
        // Several, because a subscriber that reconnects detects a gap only at the next message.
        let tokens: Vec<u32> =
            (0..BLOCK as u32).map(|token| 1_000_000 + (at * 10_000 + round * 500 + marks) as u32 * 8 + token).collect();
        marks += 1;
        let events = worker.compute(&tokens);
        worker.tell(index, events);
        let polled = Instant::now();
        while polled.elapsed() < Duration::from_millis(500) {
            if indexer.query(&tokens).get(&at) == Some(&1) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "the indexer does not follow worker {at}");
    }
}
