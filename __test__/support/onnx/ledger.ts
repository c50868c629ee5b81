// A naive account of the steps of a model: which tokens of which sequences were computed, as the cache sees them committed.
import { Sequence } from '../../../index.js'
import type { Generation, OnnxModel, OnnxSequence, Usage } from '../../../onnx.js'

/** The tokens of one sequence in a step that was committed, drafted ones included. */
interface Entry {
  readonly sequence: unknown
  /** The number of tokens that the cache had before. */
  readonly from: number
  readonly tokens: number
}

const lengthOf = Object.getOwnPropertyDescriptor(Sequence.prototype, 'length')?.get as (this: unknown) => number

/** Notes all steps of a model. */
export class Ledger {
  readonly #entries: Entry[] = []

  constructor({ cache }: OnnxModel) {
    const begin = cache.beginStep.bind(cache)
    const beginStep = (options: Parameters<typeof begin>[0]): ReturnType<typeof begin> => {
      const { sequences, offsets = [] } = options
      const entries = Array.from(sequences, (sequence, place) => ({
        sequence,
        from: lengthOf.call(sequence),
        tokens: (offsets[place + 1] as number) - (offsets[place] as number),
      }))
      const step = begin(options)
      const commit = step.commit.bind(step)
      const noting = (): void => {
        commit()
        this.#entries.push(...entries)
      }
      Object.defineProperty(step, 'commit', { value: noting, configurable: true })
      return step
    }
    Object.defineProperty(cache, 'beginStep', { value: beginStep, configurable: true })
  }

  /** The tokens that all steps have computed. */
  get tokens(): number {
    return this.#entries.reduce((sum, { tokens }) => sum + tokens, 0)
  }

  /** Begins an account of a sequence, whose prompt has so many tokens. */
  of(sequence: OnnxSequence, promptTokens: number): { read(): { computed: number; cached: number } } {
    const first = this.#entries.length
    return {
      read: () => {
        const own = this.#entries.slice(first).filter(entry => entry.sequence === sequence)
        const positions = new Set<number>()
        for (const { from, tokens } of own)
          for (let at = from; at < from + tokens && at < promptTokens; at++) positions.add(at)
        return { computed: own.reduce((sum, { tokens }) => sum + tokens, 0), cached: promptTokens - positions.size }
      },
    }
  }
}

/** All tokens of a generation, and what it used. */
export async function used(generation: Generation): Promise<{ readonly tokens: number[]; readonly usage: Usage }> {
  const tokens: number[] = []
  for await (const token of generation) tokens.push(token)
  return { tokens, usage: generation.usage }
}
