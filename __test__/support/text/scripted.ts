// A TextModel whose model says what a test wants: the ids of texts, in order. It records the prompts that it gets.
import { INTERNAL } from '../../../lib/border/owner.js'
import { readTextFiles } from '../../../lib/text/files.js'
import { Codec } from '../../../lib/text/codec.js'
import { ChatTemplate } from '../../../lib/text/template.js'
import { TextTokenizer } from '../../../lib/text/tokenizer.js'
import { TextModel } from '../../../text.js'
import { NOTHING_USED } from '../../../lib/onnx/usage.js'
import { keptFolder } from '../folder.js'
import { tinyModel } from './tiny-tokenizer.js'

/** An answer: its ids, or its text, and the reason for its end. */
export interface Script {
  readonly ids?: readonly number[]
  readonly text?: string
  readonly end?: 'stop' | 'length'
}

export interface Scripted {
  readonly model: TextModel
  readonly tokenizer: TextTokenizer
  /** The prompts, and the options of the generations. */
  readonly prompts: Uint32Array[]
  readonly options: Readonly<Record<string, unknown>>[]
  readonly opened: Readonly<Record<string, unknown>>[]
}

/** Makes the model. `scripts` are its answers. */
export async function scripted(
  scripts: readonly Script[],
  files: Readonly<Record<string, unknown>> = {},
): Promise<Scripted> {
  // Its tokenizer may be read again later.
  const read = readTextFiles(tinyModel(keptFolder(), files))
  const codec = await Codec.load(read)
  const tokenizer = new TextTokenizer(INTERNAL, codec)
  const template = await ChatTemplate.of(read.templates, undefined, { eos_token: '<|im_end|>' })
  const [prompts, options, opened]: [Uint32Array[], Record<string, unknown>[], Record<string, unknown>[]] = [[], [], []]
  let next = 0
  const model = {
    contextLength: 100_000,
    endOfSequence: [2],
    open(given: { tokens: Uint32Array }) {
      prompts.push(given.tokens)
      opened.push({ ...given })
      return { dispose() {} }
    },
    generate(_sequence: unknown, given: Record<string, unknown>) {
      options.push(given)
      const { ids, text = '', end = 'stop' } = scripts[next++] ?? {}
      return generation([...(ids ?? tokenizer.encode(text, { addSpecialTokens: false }))], end)
    },
    async dispose() {},
  }
  const loaded = { model, codec, template, files: read, name: 'scripted' }
  return { model: new TextModel(INTERNAL, loaded), tokenizer, prompts, options, opened }
}

function generation(ids: number[], end: 'stop' | 'length') {
  let isOver = false
  return {
    logprobs: undefined,
    usage: NOTHING_USED,
    get finishReason() {
      return ids.length === 0 ? end : undefined
    },
    async next() {
      const value = ids.shift()
      return value === undefined || isOver ? { done: true, value: undefined } : { done: false, value }
    },
    async return() {
      isOver = true
      return { done: true, value: undefined }
    },
    [Symbol.asyncIterator]() {
      return this
    },
  }
}
