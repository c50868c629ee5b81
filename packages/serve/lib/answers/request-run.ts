// The answers to one request: generations of the model, streamed or sent at the end.
//
//   line -> first answer to each prompt -> further answers, once the prompt of the first one is cached -> end
//
// A stream starts with its first token, so an error before it has its own HTTP status. If the client disconnects, reads nothing for too long, or a time-out ends,
// all generations of the request end.
import { setMaxListeners } from 'node:events'
import type { ServerResponse } from 'node:http'

import type { TextGeneration, Usage } from 'kvtide/text'

import type { Line } from '../admission/line.js'
import type { Ended, ServerMetrics } from '../metrics/server-metrics.js'
import { Refusal } from '../refusal.js'
import { timerMs } from '../times.js'
import { type EventStream, SlowReader } from './event-stream.js'
import type { ChoiceForm, ResponseForm } from './form.js'
import { usageOf } from './usage.js'

/** The time limits of a request, in seconds. */
export interface RequestTimes {
  /** From the arrival to the first token. */
  readonly firstToken: number
  /** From the arrival to the end. */
  readonly request: number
}

/** The parts of the server that a request uses. */
export interface RunContext {
  readonly line: Line
  readonly metrics: ServerMetrics
  readonly times: RequestTimes
  /** The size of the request's body. */
  readonly bytes: number
  /** Aborted when the server ends. */
  readonly stopped: AbortSignal
}

/** A request that can be run. */
export interface Run {
  readonly tenant: string
  readonly form: ResponseForm
  /** The number of prompts, and the number of answers to each. */
  readonly prompts: number
  readonly count: number
  /** True to let at most one tool be called. */
  readonly isSingleCall: boolean
  readonly includeUsage: boolean
  /** Starts an answer to a prompt. */
  start(prompt: number, answer: number, signal: AbortSignal): TextGeneration
}

const late = (what: string, seconds: number): Refusal =>
  new Refusal(504, `${what} took longer than ${seconds} seconds`, null, 'timeout')

const NO_WORK: Usage = {
  promptTokens: 0,
  cachedTokens: 0,
  computedTokens: 0,
  generatedTokens: 0,
  draftedTokens: 0,
  acceptedTokens: 0,
  firstTokenMs: undefined,
  tokensPerSecond: undefined,
}

/** A request while it is answered. */
export class RequestRun {
  readonly #context: RunContext
  readonly #run: Run
  readonly #stream: EventStream | undefined
  readonly #abort = new AbortController()
  readonly #start: number = performance.now()
  readonly #forms: readonly ChoiceForm[]
  readonly #usages: Usage[] = []
  readonly #timers: NodeJS.Timeout[] = []
  #hasToken = false

  /** With `stream`, answers are streamed. */
  constructor(context: RunContext, run: Run, response: ServerResponse, stream: EventStream | undefined) {
    this.#context = context
    this.#run = run
    this.#stream = stream
    this.#forms = Array.from({ length: run.prompts * run.count }, (_, index) => run.form.choice(index))
    // Each answer listens.
    setMaxListeners(0, this.#abort.signal)
    response.on('close', () => {
      if (!response.writableFinished)
        this.#abort.abort(new Refusal(499, 'the client closed the request', null, 'aborted'))
    })
    const { firstToken, request } = context.times
    this.#limit('the first token', firstToken, () => !this.#hasToken)
    this.#limit('the answer', request, () => true)
    context.stopped.addEventListener('abort', this.#onStopped, { once: true })
    if (context.stopped.aborted) this.#onStopped()
  }

  readonly #onStopped = (): void => this.#abort.abort(this.#context.stopped.reason)

  /** Answers the request. Returns the response, or streams it and returns `undefined`. */
  async answer(): Promise<object | undefined> {
    const { line, metrics, bytes } = this.#context
    const { tenant, form, includeUsage } = this.#run
    const { signal } = this.#abort
    const end = this.#stream === undefined ? undefined : metrics.streaming()
    try {
      {
        using place = await line.admit({ tenant, places: this.#forms.length, bytes, signal })
        metrics.admitted(this.#seconds())
        await this.#all(place.count)
      }
      const usage = usageOf(this.#usages.map((each, at) => ({ usage: each, isFirst: at % this.#run.count === 0 })))
      metrics.answered(this.#seconds())
      if (this.#stream === undefined)
        return form.whole(
          this.#forms.map(choice => choice.whole()),
          usage,
        )
      if (includeUsage) await this.#stream.send(form.usage(usage))
      this.#stream.end()
      return undefined
    } catch (error) {
      throw signal.aborted ? signal.reason : error
    } finally {
      end?.()
      for (const timer of this.#timers) clearTimeout(timer)
      this.#context.stopped.removeEventListener('abort', this.#onStopped)
    }
  }

  /** Ends the request after some seconds, if a condition holds then. */
  #limit(what: string, seconds: number, isDue: () => boolean): void {
    if (!Number.isFinite(seconds)) return
    const timer = setTimeout(() => {
      if (isDue()) this.#abort.abort(late(what, seconds))
    }, timerMs(seconds))
    this.#timers.push(timer)
  }

  /** Computes all answers, at most as many at once as there are places. The first failure ends the others. */
  #all(most: number): Promise<void> {
    const { prompts, count } = this.#run
    return new Promise((resolve, reject) => {
      let [active, failure] = [0, undefined as { readonly error: unknown } | undefined]
      const queue: (readonly [prompt: number, answer: number])[] = []
      for (let prompt = 0; prompt < prompts; prompt++) queue.push([prompt, 0])
      const advance = (): void => {
        for (let next = queue[0]; next !== undefined && active < most; next = queue[0]) {
          queue.shift()
          active += 1
          void this.#one(...next, next[1] === 0 ? others(next[0]) : undefined)
            .catch((error: unknown) => {
              failure ??= { error }
              queue.length = 0
              this.#abort.abort(error)
            })
            .finally(() => {
              active -= 1
              advance()
            })
        }
        if (active > 0) return
        if (failure === undefined) resolve()
        else reject(failure.error)
      }
      /** Starts the further answers to a prompt, which find it in the cache. */
      const others = (prompt: number) => (): void => {
        for (let answer = 1; answer < count; answer++) queue.push([prompt, answer])
        advance()
      }
      advance()
    })
  }

  /** Computes one answer. `onToken` is called after its first event. */
  async #one(prompt: number, answer: number, onToken?: () => void): Promise<void> {
    const { metrics } = this.#context
    const index = prompt * this.#run.count + answer
    const form = this.#forms[index] as ChoiceForm
    let generation: TextGeneration | undefined
    let ended: Ended = 'error'
    this.#usages[index] = NO_WORK
    try {
      this.#abort.signal.throwIfAborted()
      generation = this.#run.start(prompt, answer, this.#abort.signal)
      ended = await this.#read(generation, form, onToken)
    } catch (error) {
      if (this.#abort.signal.aborted || error instanceof SlowReader) ended = 'abort'
      throw error
    } finally {
      if (generation !== undefined) {
        await generation.return()
        this.#usages[index] = generation.usage
      }
      metrics.finished(ended, this.#usages[index] ?? NO_WORK)
    }
  }

  async #read(generation: TextGeneration, form: ChoiceForm, onToken?: () => void): Promise<Ended> {
    const { metrics } = this.#context
    const events = generation.events()
    for (let isFirst = true; ; isFirst = false) {
      const asked = performance.now()
      const { value: event, done } = await events.next()
      if (done === true || event === undefined) throw new Error('a generation ended without its last event')
      if (isFirst) {
        if (!this.#hasToken) metrics.began(this.#seconds())
        this.#hasToken = true
        onToken?.()
        await this.#send(form.begin())
      } else if (event.type === 'text' || event.type === 'reasoning')
        metrics.continued((performance.now() - asked) / 1000, event.tokens.length)
      if (event.type === 'finish') {
        await this.#send(form.finish(event.finishReason))
        return event.finishReason
      }
      if (event.type === 'tool-call' && event.index > 0 && this.#run.isSingleCall) {
        await this.#send(form.finish('tool_calls'))
        return 'tool_calls'
      }
      await this.#send(form.add(event))
    }
  }

  async #send(chunk: string | undefined): Promise<void> {
    if (chunk !== undefined) await this.#stream?.send(chunk)
  }

  #seconds(): number {
    return (performance.now() - this.#start) / 1000
  }
}
