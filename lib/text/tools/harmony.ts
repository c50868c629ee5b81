// The answers of gpt-oss, in channels:
//
//     <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…<|return|>
//     <|channel|>commentary to=functions.f <|constrain|>json<|message|>{…}<|call|>
//
// `analysis` is reasoning, `final` and `commentary` are text, and a recipient `functions.…` makes it a call.
import { type AnswerParser, type AnswerPart, type CallList, firstOf, heldLength } from './parts.js'

const MESSAGE = '<|message|>'
const ENDS = ['<|end|>', '<|call|>', '<|return|>', '<|start|>', '<|channel|>']

/** @internal */
export class HarmonyParser implements AnswerParser {
  readonly #calls: CallList
  #state: 'first' | 'header' | 'text' | 'reasoning' | 'call' = 'first'
  #buffer = ''
  #index = 0

  constructor(calls: CallList) {
    this.#calls = calls
  }

  push(text: string): AnswerPart[] {
    this.#buffer += text
    const out: AnswerPart[] = []
    while (this.#buffer !== '' && this.#step(out)) continue
    return out
  }

  end(): AnswerPart[] {
    const out: AnswerPart[] = []
    // A header without a message says nothing.
    if (this.#state !== 'header') this.#give(this.#buffer, out)
    this.#buffer = ''
    return out
  }

  #step(out: AnswerPart[]): boolean {
    if (this.#state === 'first') {
      // Answers without channels are text.
      const starts = ['<|channel|>', '<|start|>', ' to=', MESSAGE]
      if (starts.some(start => this.#buffer.startsWith(start))) this.#state = 'header'
      else if (starts.some(start => start.startsWith(this.#buffer))) return false
      else this.#state = 'text'
      return true
    }
    if (this.#state === 'header') {
      const at = this.#buffer.indexOf(MESSAGE)
      if (at < 0) return false
      const header = this.#buffer.slice(0, at)
      this.#buffer = this.#buffer.slice(at + MESSAGE.length)
      this.#enter(header, out)
      return true
    }
    const found = firstOf(this.#buffer, ENDS)
    const end = found?.at ?? this.#buffer.length - heldLength(this.#buffer, ENDS)
    this.#give(this.#buffer.slice(0, end), out)
    this.#buffer = this.#buffer.slice(end + (found?.word.length ?? 0))
    if (found === undefined) return false
    // The text of `<|channel|>` belongs to the header.
    this.#buffer = (found.word === '<|channel|>' ? found.word : '') + this.#buffer
    this.#state = 'header'
    return true
  }

  #enter(header: string, out: AnswerPart[]): void {
    const [, name] = /\bto=(?:functions\.)?([^\s<]+)/.exec(header) ?? []
    const [, channel] = /<\|channel\|>\s*(\w+)/.exec(header) ?? []
    if (this.#calls.has(name)) {
      const started = this.#calls.start(name)
      this.#index = started.index
      this.#state = 'call'
      out.push(started)
    } else this.#state = channel === 'analysis' ? 'reasoning' : 'text'
  }

  #give(text: string, out: AnswerPart[]): void {
    if (text === '') return
    if (this.#state === 'call') out.push({ type: 'tool-arguments', index: this.#index, text })
    else out.push({ type: this.#state === 'reasoning' ? 'reasoning' : 'text', text })
  }
}
