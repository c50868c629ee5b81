//! The requests of a simulation. Sessions begin at random; each has several turns, with thinking time between them. A
//! prompt consists of a system prompt that many sessions share, the conversation so far with its answers, and a new
//! question. Requests are generated one at a time from the active sessions; no list of requests is kept.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::random::{Random, Zipf, mix};

/// The parameters of a trace. Lengths are means in tokens, drawn from an exponential distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOptions {
    /// The seed of all random numbers.
    pub seed: u64,
    /// The number of requests.
    pub requests: u64,
    /// Requests per second, of all sessions together.
    pub rate: f64,
    /// Tokens per block.
    pub block_size: u32,
    /// The number of different system prompts.
    pub system_prompts: usize,
    /// The skew of their popularity: the exponent of a Zipf distribution.
    pub zipf: f64,
    /// Tokens of a system prompt.
    pub system_tokens: f64,
    /// The mean number of turns of a session.
    pub turns: f64,
    /// Tokens of a question.
    pub question_tokens: f64,
    /// Tokens of an answer.
    pub answer_tokens: f64,
    /// The mean number of seconds between two requests of a session.
    pub think_time: f64,
    /// The most tokens of a prompt; a session that would exceed it ends.
    pub tokens_max: u32,
}

impl Default for TraceOptions {
    fn default() -> Self {
        TraceOptions {
            seed: 1,
            requests: 100_000,
            rate: 160.0,
            block_size: 16,
            system_prompts: 1000,
            zipf: 1.0,
            system_tokens: 1500.0,
            turns: 5.0,
            question_tokens: 150.0,
            answer_tokens: 300.0,
            think_time: 30.0,
            tokens_max: 32_768,
        }
    }
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request {
    /// The time of the request, in seconds.
    pub time: f64,
    pub prompt: Prompt,
    /// The number of tokens in the answer.
    pub answer: u32,
}

/// A conversation up to a question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prompt {
    session: u64,
    system: u64,
    /// The number of full blocks of the system prompt.
    shared: u32,
    /// The number of tokens.
    pub tokens: u32,
}

impl Prompt {
    /// Replaces the content of `keys` with the keys of the full blocks in the first `tokens` tokens of the conversation.
    pub fn keys(&self, tokens: u32, block_size: u32, keys: &mut Vec<u64>) {
        let key = |block: u32| {
            let of = if block < self.shared { self.system } else { self.session };
            mix(of ^ u64::from(block))
        };
        keys.clear();
        keys.extend((0..tokens / block_size).map(key));
    }
}

#[derive(Clone, Copy, Debug)]
struct Session {
    time: f64,
    prompt: Prompt,
    turns: u32,
}

impl PartialEq for Session {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Session {}

impl PartialOrd for Session {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Session {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.time.total_cmp(&other.time).then(self.prompt.session.cmp(&other.prompt.session))
    }
}

/// Generates requests in order of time.
#[derive(Clone, Debug)]
pub struct Trace {
    options: TraceOptions,
    random: Random,
    systems: Zipf,
    system_tokens: Vec<u32>,
    sessions: BinaryHeap<Reverse<Session>>,
    /// The time at which the next session begins.
    begins: f64,
    begun: u64,
    asked: u64,
}

impl Trace {
    /// Returns a trace at its beginning.
    pub fn new(options: TraceOptions) -> Self {
        let mut random = Random::new(options.seed);
        let count = options.system_prompts.max(1);
        let system_tokens = (0..count).map(|_| random.count(options.system_tokens).min(options.tokens_max)).collect();
        let systems = Zipf::new(count, options.zipf);
        let sessions = BinaryHeap::new();
        Trace { options, random, systems, system_tokens, sessions, begins: 0.0, begun: 0, asked: 0 }
    }

    pub fn next(&mut self) -> Option<Request> {
        if self.asked == self.options.requests {
            return None;
        }
        self.asked += 1;
        while self.sessions.peek().is_none_or(|Reverse(session)| session.time >= self.begins) {
            self.begin();
        }
        let Reverse(session) = self.sessions.pop()?;
        let Session { time, prompt, turns } = session;
        let answer = self.random.count(self.options.answer_tokens);
        let tokens =
            (prompt.tokens.saturating_add(answer)).saturating_add(self.random.count(self.options.question_tokens));
        if turns > 1 && tokens <= self.options.tokens_max {
            let time = time + self.random.exponential(self.options.think_time);
            self.sessions.push(Reverse(Session { time, prompt: Prompt { tokens, ..prompt }, turns: turns - 1 }));
        }
        Some(Request { time, prompt, answer })
    }

    fn begin(&mut self) {
        let Trace { options, random, .. } = self;
        let system = self.systems.draw(random);
        let system_tokens = self.system_tokens[system];
        let tokens = system_tokens.saturating_add(random.count(options.question_tokens)).min(options.tokens_max);
        let prompt = Prompt {
            session: mix(self.begun << 1 | 1),
            system: mix((system as u64 + 1) << 1),
            shared: system_tokens / options.block_size,
            tokens,
        };
        let turns = random.count(options.turns);
        self.sessions.push(Reverse(Session { time: self.begins, prompt, turns }));
        self.begun += 1;
        self.begins += random.exponential(options.turns / options.rate);
    }
}
