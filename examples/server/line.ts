// Admission: a request gets blocks for its prompt and its answer before it is computed, or waits in a queue for them, or is refused.
import type { OnnxModel, OnnxSequence } from 'kvtide/onnx'

import { overloaded, Refusal } from './refusal.js'

/** A request for admission. */
export interface Asked {
  readonly tokens: Uint32Array
  readonly tenant: string | undefined
  /** The number of answers. */
  readonly count: number
  readonly maxTokens: number
  /** The parameter that set `maxTokens`; without one, the answer may be shortened to the room that the cache has in total. */
  readonly maxTokensParam: string | undefined
  readonly signal: AbortSignal
}

/** More tokens than any cache can hold. */
const ANSWER_MAX = 2 ** 30

interface Waiting {
  readonly asked: Asked
  resolve(admitted: Admitted): void
  reject(reason: unknown): void
}

/** An admitted request: its prompt, pending, with room for its answers. Disposing of it admits the next request. */
export class Admitted implements Disposable {
  readonly sequence: OnnxSequence
  readonly maxTokens: number
  /** The number of answers that fit at once: all, or one. */
  readonly count: number
  #leave: (() => void) | undefined

  constructor(
    sequence: OnnxSequence,
    { maxTokens, count }: { readonly maxTokens: number; readonly count: number },
    leave: () => void,
  ) {
    this.sequence = sequence
    this.maxTokens = maxTokens
    this.count = count
    this.#leave = leave
  }

  [Symbol.dispose](): void {
    this.sequence.dispose()
    this.#leave?.()
    this.#leave = undefined
  }
}

function tooLong(tokens: Uint32Array, maxTokens: number, limit: string, param: string | undefined): Refusal {
  return new Refusal(
    400,
    `the prompt has ${tokens.length} tokens and its answer up to ${maxTokens}: ${limit}`,
    param ?? null,
    'context_length_exceeded',
  )
}

/** Admits requests in order of arrival. */
export class Line {
  readonly #model: OnnxModel
  readonly #most: number
  readonly #waiting: Waiting[] = []
  #inside = 0

  constructor(model: OnnxModel, most: number) {
    this.#model = model
    this.#most = most
  }

  /** Admits a request once there is room. Refuses it with 400 if it can never fit, and with 503 if too many requests are waiting. */
  admit(asked: Asked): Promise<Admitted> {
    return new Promise((resolve, reject) => {
      const waiting: Waiting = { asked, resolve, reject }
      this.#waiting.push(waiting)
      this.#advance()
      const at = this.#waiting.indexOf(waiting)
      if (at < 0) return
      const leave = (reason: unknown): void => {
        const place = this.#waiting.indexOf(waiting)
        if (place < 0) return
        this.#waiting.splice(place, 1)
        reject(reason)
        this.#advance()
      }
      if (at >= this.#most) return leave(overloaded(`${this.#most} requests are waiting already`))
      asked.signal.addEventListener('abort', () => leave(asked.signal.reason), { once: true })
    })
  }

  #advance(): void {
    for (let next = this.#waiting[0]; next !== undefined; next = this.#waiting[0]) {
      try {
        const admitted = this.#enter(next.asked)
        if (admitted === undefined) {
          if (this.#inside > 0) return
          // No admitted request holds the blocks, so no end of a request would check the queue again.
          throw overloaded('there is no room now')
        }
        next.resolve(admitted)
      } catch (error) {
        next.reject(error)
      }
      this.#waiting.shift()
    }
  }

  /** Admits a request if there is room now. */
  #enter({ tokens, tenant, count, maxTokens, maxTokensParam }: Asked): Admitted | undefined {
    const {
      cache: { blockSize },
      contextLength = Infinity,
    } = this.#model
    const inContext = contextLength - tokens.length
    if (inContext < 1 || (maxTokensParam !== undefined && maxTokens > inContext)) {
      const param = inContext < 1 ? 'messages' : maxTokensParam
      throw tooLong(tokens, maxTokens, `the model's context holds ${contextLength}`, param)
    }
    let [answers, answer] = [count, Math.min(maxTokens, inContext, ANSWER_MAX)]
    for (;;) {
      // Further answers share all blocks of the prompt except the last one.
      const watermark = (answers - 1) * (1 + Math.ceil(answer / blockSize))
      const { sequence, lacking } = this.#model.admit(tokens, {
        answerTokens: answer,
        watermark,
        ...(tenant === undefined ? {} : { salt: tenant }),
      })
      if (sequence !== undefined) return this.#entered(sequence, { maxTokens: answer, count: answers })
      const excess = lacking.needed - lacking.total
      if (excess <= 0) return undefined
      if (answers > 1) {
        answers = 1
        continue
      }
      answer -= excess * blockSize
      if (answer > 0 && maxTokensParam === undefined) continue
      const param = answer > 0 ? maxTokensParam : 'messages'
      throw tooLong(tokens, maxTokens, `there is room for ${lacking.total * blockSize} in all`, param)
    }
  }

  #entered(sequence: OnnxSequence, has: { readonly maxTokens: number; readonly count: number }): Admitted {
    this.#inside += 1
    return new Admitted(sequence, has, () => {
      this.#inside -= 1
      this.#advance()
    })
  }
}
