// Parses answers with reasoning and calls of tools. Text is held back only while it may still become the start of one of them.
//
//     start ──<think>──> reasoning ──</think>──> start ──opener──> call ──> text ──opener──> call …
//       └────────────────── any other text ─────────> text
import type { CallReader } from './call-reader.js'
import { type AnswerParser, type AnswerPart, type CallList, firstOf, heldLength } from './parts.js'

/** @internal The texts around reasoning. */
export interface ReasoningMarks {
  readonly open: string
  readonly close: string
}

/** @internal How an answer is read. */
export interface AnswerForm {
  readonly reasoning: ReasoningMarks | undefined
  /** True if the prompt has opened the reasoning. */
  readonly isReasoning: boolean
  readonly calls: CallList
  /** The texts that start calls. None without tools. */
  readonly openers: readonly string[]
  /** Texts behind calls that mean nothing. */
  readonly ignored: readonly string[]
  /** True if an answer that starts with `{` may be a call. */
  readonly mayBeBare: boolean
  readonly reader: (opener: string) => CallReader
}

type State = 'start' | 'reasoning' | 'text' | 'call'

/** @internal */
export class CallParser implements AnswerParser {
  readonly #form: AnswerForm
  #state: State
  #buffer = ''
  /** True behind reasoning or a call: whitespace there is no text. */
  #dropsSpace = false
  #mayReason: boolean
  #reader: CallReader | undefined
  /** The text of the call that is being read, and the number of calls before it. */
  #raw = ''
  #callsBefore = 0

  constructor(form: AnswerForm) {
    this.#form = form
    this.#state = form.isReasoning ? 'reasoning' : 'start'
    this.#dropsSpace = form.isReasoning
    this.#mayReason = form.reasoning !== undefined
  }

  push(text: string): AnswerPart[] {
    this.#buffer += text
    const out: AnswerPart[] = []
    while (this.#buffer !== '' && this.#step(out)) continue
    return merged(out)
  }

  end(): AnswerPart[] {
    const out: AnswerPart[] = []
    const rest = this.#buffer
    this.#buffer = ''
    if (this.#state === 'call') {
      if (!(this.#reader as CallReader).end(out) && this.#form.calls.count === this.#callsBefore)
        out.push({ type: 'text', text: this.#raw })
    } else if (rest !== '' && !(this.#dropsSpace && rest.trim() === ''))
      out.push({ type: this.#state === 'reasoning' ? 'reasoning' : 'text', text: rest })
    return merged(out)
  }

  /** Reads some of the buffer. Returns false if more text is needed. */
  #step(out: AnswerPart[]): boolean {
    switch (this.#state) {
      case 'start':
        return this.#start()
      case 'reasoning':
        return this.#reason(out)
      case 'text':
        return this.#text(out)
      case 'call':
        return this.#call(out)
    }
  }

  #start(): boolean {
    const rest = this.#buffer.trimStart()
    if (rest === '') return false
    const { reasoning, mayBeBare } = this.#form
    if (this.#mayReason && reasoning !== undefined) {
      if (rest.startsWith(reasoning.open)) {
        this.#state = 'reasoning'
        this.#buffer = rest.slice(reasoning.open.length)
        this.#dropsSpace = true
        return true
      }
      if (reasoning.open.startsWith(rest)) return false
    }
    this.#mayReason = false
    if (this.#dropsSpace) this.#buffer = rest
    if (mayBeBare && rest.startsWith('{')) {
      this.#open('', this.#buffer.slice(0, this.#buffer.length - rest.length))
      this.#buffer = rest
    } else this.#state = 'text'
    return true
  }

  #reason(out: AnswerPart[]): boolean {
    const { close } = this.#form.reasoning as ReasoningMarks
    if (this.#dropsSpace) this.#buffer = this.#buffer.trimStart()
    const at = this.#buffer.indexOf(close)
    if (at >= 0) {
      const text = this.#buffer.slice(0, at).trimEnd()
      if (text !== '') out.push({ type: 'reasoning', text })
      this.#buffer = this.#buffer.slice(at + close.length)
      this.#state = 'start'
      this.#mayReason = false
      this.#dropsSpace = true
      return true
    }
    // Whitespace in front of the end is held back as well.
    const certain = this.#buffer.slice(0, this.#buffer.length - heldLength(this.#buffer, [close])).trimEnd()
    if (certain === '') return false
    out.push({ type: 'reasoning', text: certain })
    this.#buffer = this.#buffer.slice(certain.length)
    this.#dropsSpace = false
    return false
  }

  #text(out: AnswerPart[]): boolean {
    const { openers, ignored } = this.#form
    const words = [...openers, ...ignored]
    const found = firstOf(this.#buffer, words)
    // A longer word that starts at the same place may still come.
    const isOpen = found !== undefined && words.some(word => isLonger(word, this.#buffer.slice(found.at)))
    const end = found?.at ?? this.#buffer.length - heldLength(this.#buffer, words)
    this.#give(this.#buffer.slice(0, end), out)
    this.#buffer = this.#buffer.slice(end)
    if (found === undefined || isOpen) return false
    this.#buffer = this.#buffer.slice(found.word.length)
    if (openers.includes(found.word)) this.#open(found.word, '')
    else this.#dropsSpace = true
    return true
  }

  /** Gives out text. Whitespace behind a call waits for other text. */
  #give(text: string, out: AnswerPart[]): void {
    if (text === '' || (this.#dropsSpace && text.trim() === '')) return
    out.push({ type: 'text', text: this.#dropsSpace ? text.trimStart() : text })
    this.#dropsSpace = false
  }

  #call(out: AnswerPart[]): boolean {
    const reader = this.#reader as CallReader
    for (const character of this.#buffer) {
      this.#buffer = this.#buffer.slice(character.length)
      this.#raw += character
      const progress = reader.push(character, out)
      if (progress === 'more') continue
      this.#state = 'text'
      const isCall = this.#form.calls.count > this.#callsBefore
      if (progress === 'done') this.#dropsSpace = true
      else if (isCall) this.#buffer = character + this.#buffer
      else out.push({ type: 'text', text: this.#raw })
      return true
    }
    return false
  }

  #open(opener: string, before: string): void {
    this.#state = 'call'
    this.#reader = this.#form.reader(opener)
    this.#raw = before + opener
    this.#callsBefore = this.#form.calls.count
  }
}

function isLonger(word: string, text: string): boolean {
  return word.length > text.length && word.startsWith(text)
}

/** Parts with neighbours of one kind joined. */
function merged(parts: readonly AnswerPart[]): AnswerPart[] {
  const all: AnswerPart[] = []
  for (const part of parts) {
    const last = all.at(-1)
    if (last === undefined || part.type === 'tool-call' || last.type !== part.type || indexOf(last) !== indexOf(part))
      all.push(part)
    else all[all.length - 1] = { ...part, text: (last as typeof part).text + part.text }
  }
  return all
}

function indexOf(part: AnswerPart): number | undefined {
  return 'index' in part ? part.index : undefined
}
