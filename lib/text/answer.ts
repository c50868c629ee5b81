// Makes an answer: prompt to ids, ids to tokens, tokens to events.
//
//     messages -> template -> text -> ids -> OnnxModel.generate -> bytes -> text -> parser -> stop texts -> events
//
// Per token this costs some microseconds: a look at the token's bytes, at the characters of its text for markers and stop texts, and an event.
import { orDisposed } from '../border/owner.js'
import { checkSignal } from '../errors/errors.js'
import { checkContext } from '../onnx/context.js'
import type { Generation } from '../onnx/generation.js'
import type { GenerateOptions, OnnxModel } from '../onnx/model.js'
import { NOTHING_USED, type Usage } from '../onnx/usage.js'
import type { TokenLogprobs } from '../sampling/options.js'
import type { AnswerOptions } from './options.js'
import { StopTexts } from './stop-texts.js'
import type { Codec } from './codec.js'
import type { AnswerParser, AnswerPart } from './tools/parts.js'
import type { AssistantMessage, TextEvent, TextFinishReason, TextLogprob, TextLogprobs, ToolCall } from './types.js'

/** @internal A prompt, ready to be computed. */
export interface PreparedAnswer {
  readonly ids: Uint32Array
  /** Positions at which later prompts may differ. */
  readonly checkpoints: readonly number[]
  /** Options of the generation besides those of the call. */
  readonly options: GenerateOptions
  /** Ids that have text in the answer. */
  readonly isShown: (id: number) => boolean
  /** True if the answer is the start of a text: spaces that a tokenizer puts in front are removed. */
  readonly isStart: boolean
  readonly parser: AnswerParser
  /** True if calls end the answer as `tool_calls`. */
  readonly hasCalls: () => boolean
  /** Called with the ids of the answer and the calls in it. */
  readonly finished: (answer: readonly number[], calls: readonly ToolCall[]) => void
}

/** @internal What an answer is made of. */
export interface AnswerWork {
  readonly model: OnnxModel
  readonly codec: Codec
  readonly options: AnswerOptions
  /** Makes the prompt. It ends early if nothing is wanted any more. */
  readonly prepare: (isEnded: () => boolean) => Promise<PreparedAnswer>
}

/** The parts of events that belong to tokens. */
interface Unsent {
  tokens: number[]
  logprobs: TextLogprobs[]
}

/** @internal */
export class Answer {
  readonly #work: AnswerWork
  readonly #stops: StopTexts
  readonly #unsent: Unsent = { tokens: [], logprobs: [] }
  #generation: Generation | undefined
  #usage: Usage | undefined
  finishReason: TextFinishReason | undefined
  #isEnded = false
  /** The number of characters of the answer's text that were given out. */
  #given = 0
  readonly #calls: { id: string; name: string; json: string }[] = []
  readonly #texts: string[] = []
  readonly #reasoning: string[] = []

  constructor(work: AnswerWork) {
    this.#work = work
    this.#stops = new StopTexts(work.options.stop)
  }

  get usage(): Usage {
    return this.#usage ?? this.#generation?.usage ?? NOTHING_USED
  }

  /** The text that was given out so far, as a message. */
  get message(): AssistantMessage {
    const [content, reasoning, tool_calls] = [this.#texts.join(''), this.#reasoning.join(''), this.#toolCalls()]
    return {
      role: 'assistant',
      content: content === '' && tool_calls.length > 0 ? null : content,
      ...(tool_calls.length === 0 ? {} : { tool_calls }),
      ...(reasoning === '' ? {} : { reasoning_content: reasoning }),
    }
  }

  /** Ends the answer at once, also while a reader waits for its next token. */
  async end(): Promise<void> {
    this.#isEnded = true
    await this.#generation?.return()
  }

  /** All events, the last one `finish`. Ending it early ends the generation. */
  async *events(): AsyncGenerator<TextEvent, undefined, undefined> {
    const { model, codec, options } = this.#work
    checkSignal(options.signal)
    const prepared = await this.#work.prepare(() => this.#isEnded || options.signal?.aborted === true)
    checkSignal(options.signal)
    if (this.#isEnded) return undefined
    checkContext(prepared.ids.length, model.contextLength)
    const { salt, saltFrom } = options
    const sequence = model.open({
      tokens: prepared.ids,
      checkpoints: prepared.checkpoints,
      ...(salt === undefined ? {} : { salt }),
      ...(saltFrom === undefined ? {} : { saltFrom }),
    })
    const generation = orDisposed(sequence, () => model.generate(sequence, prepared.options))
    this.#generation = generation
    const answer: number[] = []
    // The number of characters of all tokens so far, for each of them.
    const lengths: number[] = []
    try {
      const text = codec.streamOf(prepared.isShown, prepared.isStart)
      for await (const id of generation) {
        answer.push(id)
        this.#unsent.tokens.push(id)
        if (generation.logprobs !== undefined) this.#unsent.logprobs.push(withTexts(codec, generation.logprobs))
        const piece = text.push(id)
        lengths.push((lengths.at(-1) ?? 0) + piece.length)
        if (piece !== '') yield* this.#sent(prepared.parser.push(piece))
        if (this.#stops.isStopped) break
      }
      if (this.#isEnded) return undefined
      if (!this.#stops.isStopped) {
        const rest = text.end()
        yield* this.#sent([...(rest === '' ? [] : prepared.parser.push(rest)), ...prepared.parser.end()])
      }
      yield* this.#rest()
      this.#usage = generation.usage
      const ended = generation.finishReason
      if (!this.#stops.isStopped) prepared.finished(answer, this.#toolCalls())
      const isCut = ended === 'length' && !this.#stops.isStopped
      this.finishReason = isCut ? 'length' : prepared.hasCalls() ? 'tool_calls' : 'stop'
      yield { type: 'finish', finishReason: this.finishReason, usage: this.#usage }
    } finally {
      await generation.return()
      this.#usage ??= generation.usage
      sequence.dispose()
      // The whole tokens of text in front of an early end, or of a stop text, may come back too. Marks of calls and of reasoning have tokens, but no text: behind
      // them, the length of the text is no place among the tokens.
      const isText = this.#calls.length === 0 && this.#reasoning.length === 0
      const kept = isText ? lengths.lastIndexOf(this.#given) + 1 : 0
      if (kept > 0 && (this.finishReason === undefined || this.#stops.isStopped))
        prepared.finished(answer.slice(0, kept), [])
    }
  }

  /** The events of parts. Stop texts apply to the answer's text alone. */
  *#sent(parts: readonly AnswerPart[]): Generator<TextEvent, void, undefined> {
    for (const part of parts) {
      if (this.#stops.isStopped) return
      if (part.type === 'text') yield* this.#text(this.#stops.push(part.text))
      else if (part.type === 'reasoning') yield this.#event('reasoning', part.text)
      else {
        // Text in front of a call cannot become a stop text any more.
        yield* this.#text(this.#stops.end())
        this.#unsent.tokens = []
        this.#unsent.logprobs = []
        if (part.type === 'tool-call') this.#calls[part.index] = { id: part.id, name: part.name, json: '' }
        else (this.#calls[part.index] as { json: string }).json += part.text
        yield part
      }
    }
  }

  #toolCalls(): ToolCall[] {
    return this.#calls.map(({ id, name, json }) => ({ id, type: 'function', function: { name, arguments: json } }))
  }

  *#text(text: string): Generator<TextEvent, void, undefined> {
    if (text !== '') yield this.#event('text', text)
  }

  /** The text that was held back at the end of the answer, and log-probabilities of tokens without text. */
  *#rest(): Generator<TextEvent, void, undefined> {
    const held = this.#stops.end()
    const hasLogprobs = this.#unsent.logprobs.length > 0
    if (held !== '' || hasLogprobs) yield this.#event('text', held)
  }

  #event(type: 'text' | 'reasoning', text: string): TextEvent {
    const { tokens, logprobs } = this.#unsent
    this.#unsent.tokens = []
    this.#unsent.logprobs = []
    if (type === 'text') this.#given += text.length
    ;(type === 'text' ? this.#texts : this.#reasoning).push(text)
    return { type, text, tokens, ...(this.#work.options.sampling.logprobs === undefined ? {} : { logprobs }) }
  }
}

const decoder = new TextDecoder('utf-8', { ignoreBOM: true })

function withTexts(codec: Codec, { token, logprob, top }: TokenLogprobs): TextLogprobs {
  const named = (id: number, value: number): TextLogprob => {
    const bytes = codec.bytesOf(id).slice()
    return { token: id, text: decoder.decode(bytes), bytes, logprob: value }
  }
  return { ...named(token, logprob), top: top.map(other => named(other.token, other.logprob)) }
}
