// `kvtide-serve chat <folder | org/name>`: a chat in the terminal.
import { createInterface } from 'node:readline'

import { isKvTideError } from 'kvtide'
import type { ChatMessage, TextGeneration, TextModel, Usage } from 'kvtide/text'

import { flagsOf, MODEL_FLAGS, number, only, text } from './flags.js'
import { loadModel } from './load.js'

export const help = `usage: kvtide-serve chat <folder | org/name> [options]

Ctrl-C ends an answer, and Ctrl-C or Ctrl-D at an empty prompt ends the program.
/reset forgets the chat, /system TEXT begins a new one with a system message, /exit ends the program.

  --system TEXT       a system message
  --temperature T     0 by default: the most probable tokens
  --max-tokens N      tokens of an answer
  --dtype, --accuracy-level, --revision, --cache-folder, --offline, --config, --template, --memory, --threads, --backend, --draft: as for a server`

/** The streams that a chat reads and writes. */
export interface Terminal {
  readonly input: NodeJS.ReadableStream & { readonly isTTY?: boolean }
  readonly output: NodeJS.WritableStream & { readonly isTTY?: boolean }
  /** Calls a function at each Ctrl-C that the terminal does not handle itself. */
  onInterrupt(call: () => void): void
}

/** Options of a chat. */
export interface ChatSettings {
  readonly system?: string | undefined
  readonly temperature?: number | undefined
  readonly maxTokens?: number | undefined
  readonly isDrafting?: boolean
}

const PROMPT = '> '

/** One line about the work of an answer. */
export function usageLine(usage: Usage): string {
  const { promptTokens, cachedTokens, generatedTokens, firstTokenMs, tokensPerSecond } = usage
  const first = firstTokenMs === undefined ? '' : `, first after ${(firstTokenMs / 1000).toFixed(2)} s`
  const speed = tokensPerSecond === undefined ? '' : `, ${tokensPerSecond.toFixed(1)} tokens/s`
  return `[${promptTokens} prompt tokens, ${cachedTokens} of them cached${first}; ${generatedTokens} tokens${speed}]`
}

/** A chat in a terminal. */
export class TerminalChat {
  readonly #model: TextModel
  readonly #terminal: Terminal
  readonly #settings: ChatSettings
  #messages: ChatMessage[]
  #answer: { readonly generation: TextGeneration; readonly abort: AbortController } | undefined

  constructor(model: TextModel, terminal: Terminal, settings: ChatSettings) {
    this.#model = model
    this.#terminal = terminal
    this.#settings = settings
    this.#messages = beginning(settings.system)
  }

  /** Runs until the input ends. */
  async run(): Promise<void> {
    const { input, output } = this.#terminal
    const isTerminal = input.isTTY === true && output.isTTY === true
    const lines = createInterface({ input, ...(isTerminal ? { output } : {}), terminal: isTerminal, prompt: PROMPT })
    const interrupt = (): void => {
      if (this.#answer !== undefined) this.#answer.abort.abort()
      else if (lines.line === '') lines.close()
      else {
        output.write('\n')
        lines.write(null, { ctrl: true, name: 'u' })
        lines.prompt()
      }
    }
    lines.on('SIGINT', interrupt)
    this.#terminal.onInterrupt(interrupt)
    if (isTerminal) lines.prompt()
    for await (const line of lines) {
      if (!(await this.#read(line.trim()))) break
      if (isTerminal) lines.prompt()
    }
    lines.close()
  }

  /** Handles one line. Returns false at the end. */
  async #read(line: string): Promise<boolean> {
    const { output } = this.#terminal
    if (line === '') return true
    if (line === '/exit' || line === '/quit') return false
    const [, system] = /^\/system\s+(.*)$/.exec(line) ?? []
    if (line === '/reset' || system !== undefined) {
      this.#messages = beginning(system ?? this.#settings.system)
      output.write('(a new chat)\n')
    } else if (line.startsWith('/')) output.write(`unknown command ${line}; there are /reset, /system TEXT and /exit\n`)
    else await this.#ask(line)
    return true
  }

  async #ask(question: string): Promise<void> {
    const { output } = this.#terminal
    const { temperature = 0, maxTokens, isDrafting } = this.#settings
    const messages: ChatMessage[] = [...this.#messages, { role: 'user', content: question }]
    const abort = new AbortController()
    let answered = ''
    try {
      const generation = this.#model.chat({
        messages,
        temperature,
        signal: abort.signal,
        ...(maxTokens === undefined ? {} : { maxTokens }),
        ...(isDrafting === true ? { draft: 'lookup' as const } : {}),
      })
      this.#answer = { generation, abort }
      for await (const piece of generation) {
        answered += piece
        output.write(piece)
      }
      output.write(`\n${usageLine(generation.usage)}\n`)
    } catch (error) {
      if (!isKvTideError(error)) throw error
      if (error.code !== 'ABORTED') return void output.write(`${error.message}\n`)
      const usage = this.#answer?.generation.usage
      output.write(`\n(interrupted)${usage === undefined ? '' : ` ${usageLine(usage)}`}\n`)
    } finally {
      this.#answer = undefined
    }
    this.#messages = [...messages, { role: 'assistant', content: answered }]
  }
}

function beginning(system: string | undefined): ChatMessage[] {
  return system === undefined || system === '' ? [] : [{ role: 'system', content: system }]
}

const CHAT_FLAGS = {
  ...MODEL_FLAGS,
  system: { type: 'string' },
  temperature: { type: 'string' },
  'max-tokens': { type: 'string' },
} as const

export async function chat(args: readonly string[]): Promise<number> {
  const { flags, names } = flagsOf(args, CHAT_FLAGS)
  const settings: ChatSettings = {
    system: text(flags, 'system'),
    temperature: number(flags, 'temperature', 0),
    maxTokens: number(flags, 'max-tokens', 1, true),
    isDrafting: flags['draft'] === true,
  }
  await using loaded = await loadModel(only(names, 'one model: a folder, or a name of the Hub'), flags, process.stderr)
  if (!loaded.model.hasTemplate)
    throw new Error(
      `${loaded.model.name} has no chat template, which a chat needs: name one with --template FILE, or put chat_template.jinja into its folder`,
    )
  const terminal: Terminal = {
    input: process.stdin,
    output: process.stdout,
    onInterrupt: call => void process.on('SIGINT', call),
  }
  if (process.stdin.isTTY) console.log(`${loaded.model.name}: /reset begins a new chat, Ctrl-C ends an answer`)
  await new TerminalChat(loaded.model, terminal, settings).run()
  return 0
}
