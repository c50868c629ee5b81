// Planted faults of stores below a cache: the gate, and answers of Redis.
import { tested } from './checks.mjs'

const GATE = 'crates/kvtide-tiers/src/gate.rs'

const naive = tested('gate', 'it_does_what_the_naive_one_does')

export const stores = [
  {
    name: 'gate-event',
    fault: 'each probe that fails is told as another end of a store',
    file: GATE,
    from: 'self.backoff.saturating_mul(2).min(backoff_max) };\n                self.close(now);\n',
    to: 'self.backoff.saturating_mul(2).min(backoff_max) };\n                self.close(now);\n                self.tell(Event::Unavailable(fault));\n',
    check: naive,
  },
  {
    name: 'gate-row',
    fault: 'operations that fail together count as failures in a row',
    file: GATE,
    from: 'if open.epoch == self.epoch {',
    to: 'if open.epoch <= self.epoch {',
    check: naive,
  },
  {
    name: 'gate-probe',
    fault: 'an answer to an operation from before the probe opens a store again',
    file: GATE,
    from: 'State::Probing if open.is_probe => {\n                health.state',
    to: 'State::Probing => {\n                health.state',
    check: naive,
  },
  {
    name: 'gate-bytes',
    fault: 'more bytes are in flight than may be',
    file: GATE,
    from: '            || self.health.bytes_in_flight > self.options.bytes_max - bytes\n',
    to: '',
    check: naive,
  },
  {
    name: 'redis-answer',
    fault: 'an answer of Redis of another type is a value that does not exist',
    file: 'crates/kvtide-tiers/src/redis/replies.rs',
    from: 'None => return Err(Fault::new(FaultKind::Garbage, "an answer of another type")),',
    to: 'None => Ok(T::default()),',
    check: tested('redis', 'proxied::answers_that_are_somebody_elses'),
  },
  {
    name: 'redis-bound',
    fault: 'an answer of Redis is read without a bound',
    file: 'crates/kvtide-tiers/src/redis/metered.rs',
    from: 'if bytes > 0 && !self.allowance.spend(bytes) {',
    to: 'if bytes > 0 && !self.allowance.spend(bytes) && before > bytes as usize {',
    check: tested('redis', 'proxied::an_answer_without_an_end'),
  },
  {
    name: 'object-length',
    fault: 'memory is taken for the length that an object store claims',
    file: 'crates/kvtide-tiers/src/objects/mod.rs',
    from: '.filter(|length| *length <= bytes_max)',
    to: '',
    check: tested('objects', 'what_a_server_says_of_a_length_is_looked_at_before_the_body'),
  },
  {
    name: 'object-refusal',
    fault: 'the reason of a refusal is read without a bound',
    file: 'crates/kvtide-tiers/src/objects/bounded.rs',
    from: 'may_be_value && answer.status().is_success()',
    to: 'may_be_value || answer.status().is_success()',
    check: tested('objects', 'a_refusal_without_an_end_is_not_read_until_the_deadline'),
  },
]
