//! Who asks what when. Sessions begin at random; each has turns, and thinks between them. A prompt is a system prompt that many share, what
//! was said so far, and a new question; the answer is part of what was said. Sessions that are under way are kept, and no list of requests.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::random::{Random, Zipf, mix};

/// What a trace is made of. Lengths are means in tokens, drawn from an exponential distribution.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceOptions {
    /// What all is drawn from.
    pub seed: u64,
    /// How many requests there are.
    pub requests: u64,
    /// Requests a second, of all sessions together.
    pub rate: f64,
    /// Tokens of a block.
    pub block_size: u32,
    /// Different system prompts.
    pub system_prompts: usize,
    /// How unevenly they are asked for: the exponent of a Zipf distribution.
    pub zipf: f64,
    /// Tokens of a system prompt.
    pub system_tokens: f64,
    /// Turns of a session.
    pub turns: f64,
    /// Tokens of a question.
    pub question_tokens: f64,
    /// Tokens of an answer.
    pub answer_tokens: f64,
    /// Seconds from one request of a session to the next.
    pub think_time: f64,
    /// The longest prompt; a session that would go over it ends.
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
pub(super) struct Request {
    /// In seconds.
    pub(super) time: f64,
    pub(super) prompt: Prompt,
    /// Tokens that are answered.
    pub(super) answer: u32,
}

/// What was said up to a question.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Prompt {
    session: u64,
    system: u64,
    /// Whole blocks of the system prompt.
    shared: u32,
    /// Tokens.
    pub(super) tokens: u32,
}

impl Prompt {
    /// The keys of the blocks that so many tokens of the conversation fill; takes the place of what was in the list.
    pub(super) fn keys(&self, tokens: u32, block_size: u32, keys: &mut Vec<u64>) {
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

/// Requests in the order of their times.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    options: TraceOptions,
    random: Random,
    systems: Zipf,
    system_tokens: Vec<u32>,
    sessions: BinaryHeap<Reverse<Session>>,
    /// When the next session begins.
    begins: f64,
    begun: u64,
    asked: u64,
}

impl Trace {
    /// A trace from its beginning on.
    pub(super) fn new(options: TraceOptions) -> Self {
        let mut random = Random::new(options.seed);
        let count = options.system_prompts.max(1);
        let system_tokens = (0..count).map(|_| random.count(options.system_tokens).min(options.tokens_max)).collect();
        let systems = Zipf::new(count, options.zipf);
        let sessions = BinaryHeap::new();
        Trace { options, random, systems, system_tokens, sessions, begins: 0.0, begun: 0, asked: 0 }
    }

    pub(super) fn next(&mut self) -> Option<Request> {
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
