// Readers of calls whose name is not in JSON: Qwen3-Coder's tags, DeepSeek's tokens.
import type { Tool } from '../types.js'
import type { CallReader } from './call-reader.js'
import { isFields } from '../files.js'
import { JsonObject, type Progress } from './json-object.js'
import type { AnswerPart, CallList } from './parts.js'

/** The maximum number of characters of a name with what is around it. */
const HEAD_MAX = 400

/**
 * @internal Qwen3-Coder's calls: a tag for the function, and one for each parameter. Values are texts; those of parameters that the tool's schema does not
 * call strings are JSON. Each parameter is given out when it is whole.
 */
export class TaggedCalls implements CallReader {
  readonly #calls: CallList
  readonly #tools: readonly Tool[]
  readonly #isInTag: boolean
  #text = ''
  #state: 'head' | 'parameters' | 'value' | 'behind' = 'head'
  #index = 0
  #function = ''
  #parameter = ''
  #count = 0

  /** `opener` is the text that the call started with. */
  constructor(calls: CallList, tools: readonly Tool[], opener: string) {
    this.#calls = calls
    this.#tools = tools
    this.#isInTag = opener === '<tool_call>'
    if (!this.#isInTag) this.#text = opener
  }

  push(character: string, out: AnswerPart[]): Progress {
    this.#text += character
    switch (this.#state) {
      case 'head':
        return this.#head(out)
      case 'parameters':
        return this.#parameters(out)
      case 'value':
        // Closing tags end with this character. Text that is read in between stays in pieces, so that long values cost O(length).
        return character === '>' ? this.#value(out) : 'more'
      default:
        return this.#text.endsWith('</tool_call>') ? 'done' : this.#text.length > HEAD_MAX ? 'wrong' : 'more'
    }
  }

  end(): boolean {
    return this.#state === 'behind'
  }

  #head(out: AnswerPart[]): Progress {
    const [, name] = /^\s*<function=([^>\s]+)>$/.exec(this.#text) ?? []
    if (name === undefined) {
      const start = this.#text.trimStart().slice(0, '<function='.length)
      return '<function='.startsWith(start) && this.#text.length < HEAD_MAX ? 'more' : 'wrong'
    }
    if (!this.#calls.has(name)) return 'wrong'
    const started = this.#calls.start(name)
    this.#index = started.index
    this.#function = name
    out.push(started)
    this.#next('parameters')
    return 'more'
  }

  #parameters(out: AnswerPart[]): Progress {
    const [, name] = /<parameter=([^>]+)>$/.exec(this.#text) ?? []
    if (name !== undefined) {
      this.#parameter = name
      this.#next('value')
      return 'more'
    }
    if (this.#text.endsWith('</function>')) {
      this.#give(this.#count === 0 ? '{}' : '}', out)
      this.#next('behind')
      return this.#isInTag ? 'more' : 'done'
    }
    return this.#text.length > HEAD_MAX ? 'wrong' : 'more'
  }

  #value(out: AnswerPart[]): Progress {
    const close = ['</parameter>', '</function>'].find(tag => this.#text.endsWith(tag))
    if (close === undefined) return 'more'
    const value = this.#text.slice(0, -close.length).replace(/^\n/, '').replace(/\n$/, '')
    const json = JSON.stringify(this.#typed(value))
    this.#give(`${this.#count === 0 ? '{' : ', '}${JSON.stringify(this.#parameter)}: ${json}`, out)
    this.#count += 1
    this.#next('parameters')
    if (close !== '</function>') return 'more'
    this.#text = close
    return this.#parameters(out)
  }

  #typed(value: string): unknown {
    const tool = this.#tools.find(each => each.function.name === this.#function)
    const { properties } = (tool?.function.parameters ?? {}) as { readonly properties?: unknown }
    const schema = isFields(properties) ? properties[this.#parameter] : undefined
    if (isFields(schema) && schema['type'] === 'string') return value
    try {
      return JSON.parse(value) as unknown
    } catch {
      return value
    }
  }

  #give(text: string, out: AnswerPart[]): void {
    out.push({ type: 'tool-arguments', index: this.#index, text })
  }

  #next(state: 'parameters' | 'value' | 'behind'): void {
    this.#state = state
    this.#text = ''
  }
}

const BEGIN = '<｜tool▁call▁begin｜>'
const SEPARATOR = '<｜tool▁sep｜>'
const END = '<｜tool▁call▁end｜>'

/** @internal DeepSeek's calls: the kind, the name and JSON in a block of code (V3, R1), or the name and JSON (V3.1). */
export class DeepSeekCalls implements CallReader {
  readonly #calls: CallList
  #text = ''
  #object: JsonObject | undefined
  #isBehind = false
  #index = 0

  constructor(calls: CallList) {
    this.#calls = calls
  }

  push(character: string, out: AnswerPart[]): Progress {
    if (this.#object !== undefined && !this.#isBehind) {
      const progress = this.#object.push(character)
      if (progress !== 'wrong') out.push({ type: 'tool-arguments', index: this.#index, text: character })
      this.#isBehind = progress === 'done'
      return progress === 'done' ? 'more' : progress
    }
    this.#text += character
    if (this.#isBehind) return this.#text.endsWith(END) ? 'done' : this.#text.length > HEAD_MAX ? 'wrong' : 'more'
    if (character !== '{') return this.#text.length > HEAD_MAX ? 'wrong' : 'more'
    const head = this.#text.slice(0, -1).replace(BEGIN, '')
    const [kind = '', rest = ''] = head.split(SEPARATOR)
    const [, named] = /^\s*(\S+)\s*```json\s*$/.exec(rest) ?? []
    const name = named ?? kind.trim()
    if (!this.#calls.has(name)) return 'wrong'
    const started = this.#calls.start(name)
    this.#index = started.index
    this.#object = new JsonObject()
    this.#text = ''
    out.push(started)
    return this.push(character, out)
  }

  end(): boolean {
    return this.#isBehind
  }
}
