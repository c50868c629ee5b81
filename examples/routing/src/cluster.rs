//! Combines the trace, the caches and the routing.

use kvtide_router::{Policy, Result, Tier, WorkerId, WorkerIndex};

use crate::trace::{Trace, TraceOptions};
use crate::worker_cache::WorkerCache;

/// The policy that chooses a worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    /// The workers in turn.
    RoundRobin,
    /// The worker that will be idle first.
    LeastLoaded,
    /// By the index: the longest prefix, whatever the load. Ties go to the worker that will be idle first.
    LongestPrefix,
    /// By the index: the least work. A worker's queue counts as much as the tokens to compute, times a weight.
    Cost {
        /// The weight; 1 finishes the prompt as early as possible.
        load_weight: f64,
    },
}

/// The parameters of a simulation.
#[derive(Clone, Debug, PartialEq)]
pub struct SimulatorOptions {
    /// The requests.
    pub trace: TraceOptions,
    /// The number of workers.
    pub workers: usize,
    /// The capacity of a worker's cache, in blocks.
    pub blocks: usize,
    /// Prompt tokens that a worker computes per second.
    pub prefill_rate: f64,
}

impl Default for SimulatorOptions {
    fn default() -> Self {
        SimulatorOptions { trace: TraceOptions::default(), workers: 64, blocks: 16_384, prefill_rate: 8000.0 }
    }
}

/// The results of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// The number of requests.
    pub requests: u64,
    /// The tokens of their prompts.
    pub prompt_tokens: u64,
    /// The prompt tokens that the chosen worker had in its cache.
    pub found_tokens: u64,
    /// The average share of the time in which a worker computes.
    pub busy: f64,
    /// The busiest worker's computing time, as a multiple of the average.
    pub imbalance: f64,
    /// The median of the seconds from a request to its first token.
    pub wait_p50: f64,
    /// The 99th percentile of the seconds from a request to its first token.
    pub wait_p99: f64,
    /// The number of different blocks in all caches at the end, by the index; 0 if the policy has no index.
    pub blocks: usize,
}

impl Report {
    /// The share of the prompt tokens that were found.
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
    /// The times at which the workers will be idle, in seconds.
    until: Vec<f64>,
    /// The workers' computing times in seconds, including their queues.
    computed: Vec<f64>,
    index: Option<WorkerIndex>,
    turn: usize,
    block_size: u32,
    prefill_rate: f64,
    /// The block keys of the current prompt.
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
        // Ties go to the next worker in turn.
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
            // At most a tenth of a block, so that idle workers take turns.
            let behind = (worker + self.until.len() - turn) % self.until.len();
            let load = waits + 0.1 * behind as f64 / self.until.len() as f64;
            index.set_load(WorkerId::of_index(worker), load)?;
        }
        Ok(index.choose(&self.keys, policy)?.map_or(turn, |choice| choice.worker.index()))
    }

    /// Returns the number of prompt tokens in a worker's cache. The last token is always computed.
    fn found(&self, worker: usize, tokens: u32) -> u32 {
        let blocks = self.caches[worker].length(&self.keys);
        if let Some(index) = &self.index {
            debug_assert_eq!(index.tiers(&self.keys, WorkerId::of_index(worker)).gpu, blocks);
        }
        (blocks as u32 * self.block_size).min(tokens - 1)
    }

    /// Queues a prompt, and returns the seconds until it is computed.
    fn compute(&mut self, worker: usize, time: f64, tokens: u32) -> f64 {
        let takes = f64::from(tokens) / self.prefill_rate;
        self.until[worker] = self.until[worker].max(time) + takes;
        self.computed[worker] += takes;
        self.until[worker] - time
    }

    fn keep(&mut self, worker: usize) -> Result<()> {
        self.evicted.clear();
        // A worker publishes only the blocks after those that it had.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn report(routing: Routing) -> Report {
        let trace = TraceOptions { requests: 5000, rate: 20.0, system_prompts: 50, ..TraceOptions::default() };
        let options = SimulatorOptions { trace, workers: 8, blocks: 4096, ..SimulatorOptions::default() };
        simulate(&options, routing).unwrap()
    }

    #[test]
    fn the_same_options_give_the_same_report() {
        for routing in
            [Routing::RoundRobin, Routing::LeastLoaded, Routing::LongestPrefix, Routing::Cost { load_weight: 1.0 }]
        {
            assert_eq!(report(routing), report(routing));
        }
    }

    #[test]
    fn prefixes_are_worth_something_and_load_keeps_the_balance() {
        let [spread, prefix, cost] =
            [Routing::RoundRobin, Routing::LongestPrefix, Routing::Cost { load_weight: 1.0 }].map(report);
        assert_eq!((spread.requests, spread.prompt_tokens), (cost.requests, cost.prompt_tokens));
        assert!(cost.hit_rate() > spread.hit_rate() + 0.1, "{cost:?} {spread:?}");
        assert!(cost.imbalance < prefix.imbalance, "{cost:?} {prefix:?}");
        assert!(cost.wait_p99 < spread.wait_p99, "{cost:?} {spread:?}");
        // At most the capacity of all caches.
        assert!(cost.blocks > 0 && cost.blocks <= 8 * 4096);
    }
}
