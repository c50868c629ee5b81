// The metrics of a server: those of vLLM, by the names that its dashboards and autoscalers know, and kvtide's own. No label depends on a client, so their number
// is bounded, and none contains a key.
import type { PagedKvCache } from 'kvtide'
import type { Usage } from 'kvtide/text'

import type { Line } from '../admission/line.js'
import { Counts, Histogram, type Labels, metric } from './prometheus.js'

/** vLLM's buckets, in seconds. */
const FIRST_TOKEN = [
  0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
]
const BETWEEN_TOKENS = [
  0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80,
]
const WHOLE = [0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680]

/** All reasons for the end of an answer, each of which has a sample from the start on. */
const REASONS = ['stop', 'length', 'tool_calls', 'abort', 'error'] as const

/** The reason for the end of an answer. */
export type Ended = (typeof REASONS)[number]

/** Counts of requests since the server started. */
export class ServerMetrics {
  readonly #labels: Labels
  readonly #firstToken = new Histogram(FIRST_TOKEN)
  readonly #betweenTokens = new Histogram(BETWEEN_TOKENS)
  readonly #whole = new Histogram(WHOLE)
  readonly #queued = new Histogram(WHOLE)
  readonly #ended = new Counts()
  readonly #refused = new Counts()
  readonly #tokens = new Counts()
  #streams = 0

  constructor(model: string) {
    this.#labels = { model_name: model }
  }

  /** Notes the time that a request waited for its places. */
  admitted(seconds: number): void {
    this.#queued.add(seconds)
  }

  /** Notes the time from the arrival of a request to a first token. */
  began(seconds: number): void {
    this.#firstToken.add(seconds)
  }

  /** Notes that tokens came after a time. */
  continued(seconds: number, tokens: number): void {
    if (tokens > 0) this.#betweenTokens.add(seconds / tokens, tokens)
  }

  /** Notes the end of an answer, and its work. */
  finished(reason: Ended, usage: Usage): void {
    this.#ended.add(reason)
    for (const name of [
      'promptTokens',
      'cachedTokens',
      'computedTokens',
      'generatedTokens',
      'draftedTokens',
      'acceptedTokens',
    ] as const)
      this.#tokens.add(name, usage[name])
  }

  /** Notes the end of a request, and its time. */
  answered(seconds: number): void {
    this.#whole.add(seconds)
  }

  /** Notes a refused request. */
  refused(status: number): void {
    this.#refused.add(String(status))
  }

  /** Notes that a stream begins; the result is called at its end. */
  streaming(): () => void {
    this.#streams += 1
    return () => void (this.#streams -= 1)
  }

  /** All metrics in Prometheus' text format. `own` are those of the cache. */
  text(line: Line, cache: PagedKvCache, own: string): string {
    const stats = cache.stats()
    const labels = this.#labels
    const one = (name: string, type: 'gauge' | 'counter', help: string, value: number): string =>
      metric(name, type, help, [[labels, value]])
    const tokens = (name: string): number => this.#tokens.of(name)
    return [
      one('vllm:num_requests_running', 'gauge', 'Answers that are computed', line.running),
      one('vllm:num_requests_waiting', 'gauge', 'Requests that wait', line.waiting),
      one(
        'vllm:kv_cache_usage_perc',
        'gauge',
        'The part of the blocks that sequences hold; 1 is all',
        stats.activeBlocks / Math.max(1, stats.totalBlocks),
      ),
      one(
        'vllm:prefix_cache_queries_total',
        'counter',
        'Prompt tokens that were looked up in the prefix cache',
        tokens('promptTokens'),
      ),
      one('vllm:prefix_cache_hits_total', 'counter', 'Prompt tokens that were cache hits', tokens('cachedTokens')),
      one('vllm:prompt_tokens_total', 'counter', 'Prompt tokens', tokens('promptTokens')),
      one('vllm:generation_tokens_total', 'counter', 'Generated tokens', tokens('generatedTokens')),
      one('vllm:spec_decode_num_draft_tokens_total', 'counter', 'Drafted tokens', tokens('draftedTokens')),
      one(
        'vllm:spec_decode_num_accepted_tokens_total',
        'counter',
        'Drafted tokens that were accepted',
        tokens('acceptedTokens'),
      ),
      metric(
        'vllm:request_success_total',
        'counter',
        'Answers that ended, by reason',
        REASONS.map(reason => [{ ...labels, finished_reason: reason }, this.#ended.of(reason)] as const),
      ),
      this.#firstToken.text('vllm:time_to_first_token_seconds', 'Time to the first token', labels),
      this.#betweenTokens.text('vllm:inter_token_latency_seconds', 'Time between tokens', labels),
      this.#whole.text('vllm:e2e_request_latency_seconds', 'Time of a whole request', labels),
      this.#queued.text('vllm:request_queue_time_seconds', 'Time that requests waited for their turn', labels),
      one('kvtide_serve_streams', 'gauge', 'Open streams', this.#streams),
      one(
        'kvtide_serve_computed_tokens_total',
        'counter',
        'Tokens that were computed, of prompts and answers',
        tokens('computedTokens'),
      ),
      metric(
        'kvtide_serve_refused_total',
        'counter',
        'Refused requests, by status',
        this.#refused.entries().map(([status, count]) => [{ status }, count] as const),
      ),
      ...tiersText(stats.tiers),
      own,
    ].join('\n')
  }
}

const TIER_COUNTS = {
  stored: 'Blocks that were written to a tier',
  dropped: 'Blocks that were not written to a tier',
  found: 'Blocks that were restored from a tier',
  damaged: 'Damaged entries of a tier',
} as const

function tiersText(tiers: ReturnType<PagedKvCache['stats']>['tiers']): string[] {
  if (tiers === undefined) return []
  const each = Object.entries(tiers)
  return [
    ...Object.entries(TIER_COUNTS).map(([count, help]) =>
      metric(
        `kvtide_tier_${count}_total`,
        'counter',
        help,
        each.map(([tier, stats]) => [{ tier }, stats[count as keyof typeof TIER_COUNTS]] as const),
      ),
    ),
    metric(
      'kvtide_tier_bytes',
      'gauge',
      'Bytes in a tier',
      each.map(([tier, stats]) => [{ tier }, stats.bytes] as const),
    ),
  ]
}
