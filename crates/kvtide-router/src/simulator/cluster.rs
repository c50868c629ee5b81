//! Brings trace, caches and routing together.

use super::trace::{Trace, TraceOptions};
use super::worker_cache::WorkerCache;
use crate::error::Result;
use crate::index::{Policy, Tier, WorkerId, WorkerIndex};

/// How a worker is chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// One after the other.
    RoundRobin,
    /// The one that is done first.
    LeastLoaded,
    /// By the index: the longest prefix, whatever waits there; of equal ones the one that is done first.
    LongestPrefix,
    /// By the index: the least work, where what waits at a worker counts as much as what is to be computed, times a weight.
    Cost {
        /// The weight; 1 means that the prompt is done as early as can be.
        load_weight: f64,
    },
}

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatorOptions {
    /// Who asks what.
    pub trace: TraceOptions,
    /// How many workers there are.
    pub workers: usize,
    /// Blocks that a worker keeps.
    pub blocks: usize,
    /// Tokens of prompts that a worker computes in a second.
    pub prefill_rate: f64,
}

impl Default for SimulatorOptions {
    fn default() -> Self {
        SimulatorOptions { trace: TraceOptions::default(), workers: 64, blocks: 16_384, prefill_rate: 8000.0 }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// Requests.
    pub requests: u64,
    /// Tokens of their prompts.
    pub prompt_tokens: u64,
    /// Those of them that the chosen worker had.
    pub found_tokens: u64,
    /// Part of the time that the workers computed, on average.
    pub busy: f64,
    /// What the busiest worker computed, in averages of all.
    pub imbalance: f64,
    /// Seconds from asking to the first token: the middle, and what one in a hundred exceeds.
    pub wait_p50: f64,
    /// See `wait_p50`.
    pub wait_p99: f64,
    /// Different blocks in all caches at the end, as the index counts them; 0 where there is none.
    pub blocks: usize,
}

impl Report {
    /// Found tokens of all tokens of prompts.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        self.found_tokens as f64 / self.prompt_tokens.max(1) as f64
    }
}

/// Runs a trace. The same options give the same report.
pub fn simulate(options: &SimulatorOptions, routing: Routing) -> Result<Report> {
    let mut cluster = Cluster::new(options, routing)?;
    let mut trace = Trace::new(options.trace.clone());
    let mut waits = Vec::new();
    let mut report = Report {
        requests: 0,
        prompt_tokens: 0,
        found_tokens: 0,
        busy: 0.0,
        imbalance: 0.0,
        wait_p50: 0.0,
        wait_p99: 0.0,
        blocks: 0,
    };
    let mut end = f64::MIN_POSITIVE;
    while let Some(request) = trace.next() {
        let tokens = request.prompt.tokens;
        request.prompt.keys(tokens, options.trace.block_size, &mut cluster.keys);
        let worker = cluster.choose(request.time)?;
        let found = cluster.found(worker, tokens);
        waits.push(cluster.compute(worker, request.time, tokens - found) as f32);
        request.prompt.keys(tokens.saturating_add(request.answer), options.trace.block_size, &mut cluster.keys);
        cluster.keep(worker)?;
        report.requests += 1;
        report.prompt_tokens += u64::from(tokens);
        report.found_tokens += u64::from(found);
        end = request.time.max(end);
    }
    let all: f64 = cluster.computed.iter().sum();
    let most = cluster.computed.iter().copied().fold(0.0, f64::max);
    let average = all / cluster.computed.len() as f64;
    waits.sort_unstable_by(f32::total_cmp);
    let percentile =
        |part: f64| waits.get((waits.len().saturating_sub(1) as f64 * part) as usize).map_or(0.0, |&wait| wait.into());
    report.busy = average / end;
    report.imbalance = if average > 0.0 { most / average } else { 1.0 };
    (report.wait_p50, report.wait_p99) = (percentile(0.5), percentile(0.99));
    report.blocks = cluster.index.map_or(0, |index| index.usage().blocks);
    Ok(report)
}

struct Cluster {
    routing: Routing,
    caches: Vec<WorkerCache>,
    /// Until when each computes what it was given.
    until: Vec<f64>,
    /// Seconds that each has computed or will have.
    computed: Vec<f64>,
    index: Option<WorkerIndex>,
    turn: usize,
    block_size: u32,
    prefill_rate: f64,
    /// Of the prompt at hand.
    keys: Vec<u64>,
    evicted: Vec<u64>,
}

impl Cluster {
    fn new(options: &SimulatorOptions, routing: Routing) -> Result<Self> {
        let workers = options.workers.max(1);
        let index = match routing {
            Routing::RoundRobin | Routing::LeastLoaded => None,
            Routing::LongestPrefix | Routing::Cost { .. } => {
                let mut index = WorkerIndex::new();
                (0..workers).try_for_each(|_| index.add_worker().map(drop))?;
                Some(index)
            }
        };
        Ok(Cluster {
            routing,
            caches: (0..workers).map(|_| WorkerCache::new(options.blocks)).collect(),
            until: vec![0.0; workers],
            computed: vec![0.0; workers],
            index,
            turn: 0,
            block_size: options.trace.block_size,
            prefill_rate: options.prefill_rate,
            keys: Vec::new(),
            evicted: Vec::new(),
        })
    }

    fn choose(&mut self, time: f64) -> Result<usize> {
        self.turn = (self.turn + 1) % self.caches.len();
        let turn = self.turn;
        // Of workers that are alike the next in turn.
        let waiting = |worker: usize| (self.until[worker] - time).max(0.0);
        let policy = match self.routing {
            Routing::RoundRobin => return Ok(turn),
            Routing::LeastLoaded => {
                let workers = (turn..self.caches.len()).chain(0..turn);
                return Ok(workers.min_by(|&a, &b| waiting(a).total_cmp(&waiting(b))).unwrap_or(0));
            }
            Routing::LongestPrefix => Policy::LongestPrefix,
            Routing::Cost { load_weight } => Policy::Cost { load_weight },
        };
        let Some(index) = &mut self.index else { return Ok(turn) };
        let blocks_a_second = self.prefill_rate / f64::from(self.block_size);
        for worker in 0..self.until.len() {
            let waits = (self.until[worker] - time).max(0.0) * blocks_a_second;
            // A tenth of a block at most, so that those that have nothing to do take turns.
            let behind = (worker + self.until.len() - turn) % self.until.len();
            let load = waits + 0.1 * behind as f64 / self.until.len() as f64;
            index.set_load(WorkerId::of_index(worker), load)?;
        }
        Ok(index.choose(&self.keys, policy)?.map_or(turn, |choice| choice.worker.index()))
    }

    /// The tokens of a prompt that a worker has; the last one is computed in any case.
    fn found(&self, worker: usize, tokens: u32) -> u32 {
        let blocks = self.caches[worker].length(&self.keys);
        if let Some(index) = &self.index {
            debug_assert_eq!(index.tiers(&self.keys, WorkerId::of_index(worker)).gpu, blocks);
        }
        (blocks as u32 * self.block_size).min(tokens - 1)
    }

    /// Seconds until the prompt is computed.
    fn compute(&mut self, worker: usize, time: f64, tokens: u32) -> f64 {
        let takes = f64::from(tokens) / self.prefill_rate;
        self.until[worker] = self.until[worker].max(time) + takes;
        self.computed[worker] += takes;
        self.until[worker] - time
    }

    fn keep(&mut self, worker: usize) -> Result<()> {
        self.evicted.clear();
        // A worker tells what is new, behind what it had.
        let had = self.caches[worker].length(&self.keys);
        let kept = self.caches[worker].put(&self.keys, &mut self.evicted);
        if let Some(index) = &mut self.index {
            let id = WorkerId::of_index(worker);
            index.remove(id, Tier::Gpu, &self.evicted)?;
            let new = &self.keys[had.min(kept)..kept];
            index.store(id, Tier::Gpu, had.checked_sub(1).map(|last| self.keys[last]), new)?;
        }
        Ok(())
    }
}
