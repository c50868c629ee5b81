// A model's form of chats: its template, the token that ends a turn, the texts around reasoning, the family of its calls. All of it follows from the template.
import { randomBytes } from 'node:crypto'

import { invalid } from '../errors/errors.js'
import type { WrittenAnswer } from './called.js'
import { inTemplate, type ReadMessage } from './messages.js'
import type { ReadChat } from './options.js'
import { type ChatTemplate, missingTemplate, type Variables } from './template.js'
import type { Codec } from './codec.js'
import { CallParser, type ReasoningMarks } from './tools/answer-parser.js'
import { callGrammar, reasonedGrammar } from './tools/call-grammar.js'
import { HarmonyParser } from './tools/harmony.js'
import { type AnswerParser, CallList, PLAIN } from './tools/parts.js'
import { readerOf } from './tools/readers.js'
import { familyOf, MARKERS, OPENERS } from './tools/syntax.js'
import type { Grammar } from '../sampling/grammar.js'
import type { Tool, ToolFamily } from './types.js'

/** The texts around reasoning that templates know. */
const REASONING: readonly ReasoningMarks[] = [
  { open: '<think>', close: '</think>' },
  { open: '[THINK]', close: '[/THINK]' },
  { open: '<|START_THINKING|>', close: '<|END_THINKING|>' },
]

/** @internal How the answer of a chat is read. */
export interface ChatReading {
  readonly parser: AnswerParser
  readonly calls: CallList
  readonly isShown: (id: number) => boolean
  readonly grammar: Grammar | undefined
}

/** @internal */
export class ChatFormat {
  readonly family: ToolFamily | undefined
  /** The token that the template puts behind an answer. */
  readonly endOfTurn: number | undefined
  readonly #name: string
  readonly #codec: Codec
  readonly #template: ChatTemplate | undefined
  readonly #reasoning: ReasoningMarks | undefined

  constructor(name: string, codec: Codec, template: ChatTemplate | undefined) {
    this.#name = name
    this.#codec = codec
    this.#template = template
    this.family = template === undefined ? undefined : familyOf(template.text)
    this.#reasoning = REASONING.find(({ close }) => template?.mentions(close) === true)
    this.endOfTurn = this.#endOfTurn()
  }

  get hasTemplate(): boolean {
    return this.#template !== undefined
  }

  /** The text of a chat, up to the place of the answer. */
  render(messages: readonly ReadMessage[], tools: readonly Tool[] | undefined, variables: Variables): string {
    const template = this.#template
    if (template === undefined) throw missingTemplate(this.#name)
    if (tools !== undefined && !/\btools\b/.test(template.text))
      throw invalid('tools', tools, `no tools: the chat template of ${this.#name} has no place for them`)
    return template.render({
      add_generation_prompt: true,
      ...variables,
      messages: inTemplate(messages, template),
      tools: tools ?? null,
      documents: variables['documents'] ?? null,
    })
  }

  /** The way in which the answer after a prompt is read. */
  reading({ tools, toolChoice, grammar }: ReadChat, prompt: string): ChatReading {
    const { family } = this
    const reasoning = this.#reasoning
    const isReasoning = this.#opens(prompt)
    const called = tools?.map(tool => tool.function.name) ?? []
    const calls = new CallList(called, family === 'mistral' ? shortId : longId)
    const isForced = tools !== undefined && toolChoice !== 'auto' && toolChoice !== 'none'
    if (isForced && family === undefined)
      throw invalid(
        'toolChoice',
        toolChoice,
        `'auto': the form of calls in the chat template of ${this.#name} is not known`,
      )
    const special = (text: string): number | undefined => {
      const id = this.#codec.idOf(text)
      return id !== undefined && this.#codec.isSpecial(id) ? id : undefined
    }
    const around = { reasoning, isReasoning, specialOf: special }
    const wanted =
      typeof toolChoice === 'object' ? tools?.filter(tool => tool.function.name === toolChoice.name) : tools
    const form = {
      ...around,
      family: family as ToolFamily,
      tools: wanted ?? [],
      isSingle: typeof toolChoice === 'object',
      answer: grammar !== undefined && 'json' in grammar ? grammar : undefined,
    }
    // Calls of an unknown form cannot be told from JSON.
    const hasBoth = form.answer !== undefined && tools !== undefined && family !== undefined
    return {
      parser: this.#parser(tools, calls, isReasoning),
      calls,
      isShown: this.#shown(tools !== undefined),
      grammar:
        isForced || hasBoth ? callGrammar(form) : grammar === undefined ? undefined : reasonedGrammar(grammar, around),
    }
  }

  /** The raw text of an answer behind a prompt, with its reasoning apart. */
  written(raw: string, prompt: string): WrittenAnswer {
    const reasoning = this.#reasoning
    if (reasoning === undefined) return { reasoning: '', text: raw }
    const { open, close } = reasoning
    const start = raw.trimStart()
    const from = this.#opens(prompt) ? 0 : start.startsWith(open) ? open.length : -1
    const end = from < 0 ? -1 : start.indexOf(close, from)
    if (end < 0) return { reasoning: '', text: raw }
    return { reasoning: start.slice(from, end).trim(), text: start.slice(end + close.length).trimStart() }
  }

  /** True if a prompt opens the reasoning of its answer. */
  #opens(prompt: string): boolean {
    return this.#reasoning !== undefined && prompt.trimEnd().endsWith(this.#reasoning.open)
  }

  #parser(tools: readonly Tool[] | undefined, calls: CallList, isReasoning: boolean): AnswerParser {
    const { family } = this
    if (family === 'gpt-oss') return new HarmonyParser(calls)
    const reasoning = this.#reasoning
    const isCalling = tools !== undefined && family !== undefined
    if (!isCalling && reasoning === undefined) return PLAIN
    return new CallParser({
      reasoning,
      isReasoning,
      calls,
      openers: isCalling ? OPENERS[family] : [],
      ignored: isCalling && family === 'deepseek' ? ['<｜tool▁calls▁end｜>'] : [],
      mayBeBare: isCalling && family === 'llama3',
      reader: opener => readerOf(family as ToolFamily, opener, calls, tools ?? []),
    })
  }

  /** Special tokens have no text in answers, except those that say what a part of the answer is. */
  #shown(hasTools: boolean): (id: number) => boolean {
    const marks = this.#reasoning === undefined ? [] : [this.#reasoning.open, this.#reasoning.close]
    const texts = hasTools || this.family === 'gpt-oss' ? [...marks, ...MARKERS] : marks
    const shown = new Set(texts.map(text => this.#codec.idOf(text)))
    return id => !this.#codec.isSpecial(id) || shown.has(id)
  }

  /** Looks where the template puts an answer, and which token follows it. */
  #endOfTurn(): number | undefined {
    // In the channels of gpt-oss, that token also ends the reasoning, behind which the answer comes.
    if (this.#template === undefined || this.family === 'gpt-oss') return undefined
    const answer = 'answer-7f3a9c'
    const messages: ReadMessage[] = [
      { role: 'user', content: 'question' },
      { role: 'assistant', content: answer },
    ]
    let text: string
    try {
      text = this.render(messages, undefined, { add_generation_prompt: false })
    } catch {
      return undefined
    }
    const place = text.lastIndexOf(answer)
    const behind = place < 0 ? '' : text.slice(place + answer.length)
    const first = this.#codec.encoder.encode(behind, false)[0]
    return first !== undefined && this.#codec.isAdded(first) ? first : undefined
  }
}

const LETTERS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789'

function letters(count: number): string {
  return Array.from(randomBytes(count), byte => LETTERS[byte % LETTERS.length]).join('')
}

const longId = (): string => `call_${letters(24)}`
/** Mistral's templates accept no other length. */
const shortId = (): string => letters(9)
