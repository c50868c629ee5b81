// The forms of answers: each endpoint turns the events of a generation into chunks of a stream, and into a choice of a whole response.
import type { TextEvent, TextFinishReason } from 'kvtide/text'

/** One answer in the form of an endpoint. */
export interface ChoiceForm {
  /** Returns what a stream begins the answer with; `undefined` for nothing. */
  begin(): string | undefined
  /** Adds an event. Returns its chunk for a stream; `undefined` if the client gets nothing for it. */
  add(event: Exclude<TextEvent, { readonly type: 'finish' }>): string | undefined
  /** Ends the answer. Returns the last chunk. */
  finish(reason: TextFinishReason): string
  /** Returns the whole answer. */
  whole(): object
}

/** The form of a response. */
export interface ResponseForm {
  /** The object of a whole response. */
  whole(choices: readonly object[], usage: object): object
  /** The chunk with the usage, behind all answers. */
  usage(usage: object): string
  choice(index: number): ChoiceForm
}

/** The properties that all responses of a request share. */
export interface ResponseHead {
  readonly id: string
  readonly created: number
  readonly model: string
  readonly fingerprint: string
  /** True if a stream ends with its usage: then all other chunks say that they have none. */
  readonly hasUsage: boolean
}

/** Makes the JSON of chunks. All of a chunk except the choice is written once. */
export class Chunks {
  readonly #head: string
  readonly #tail: string

  constructor(object: string, { id, created, model, fingerprint, hasUsage }: ResponseHead) {
    const head = JSON.stringify({ id, object, created, model, system_fingerprint: fingerprint })
    this.#head = `${head.slice(0, -1)},"choices":[`
    this.#tail = hasUsage ? '],"usage":null}' : ']}'
  }

  /** The chunk of one choice, given as JSON. */
  of(choice: string): string {
    return this.#head + choice + this.#tail
  }

  /** The last chunk, with the usage and without choices. */
  usage(usage: object): string {
    return `${this.#head}],"usage":${JSON.stringify(usage)}}`
  }
}
