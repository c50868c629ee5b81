// `kvtide-serve demo`: serves the small model that the package brings, and shows what it writes.
import { existsSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import type { ChatMessage } from 'kvtide/text'

import { createServer } from '../server.js'
import { usageLine } from './chat.js'
import { flagsOf, SERVE_FLAGS } from './flags.js'
import { addressOf, listenOn } from './listen.js'
import { loadModel } from './load.js'
import { serverOptions } from './serve.js'
import { drainAtSignal } from './signals.js'

export const help = `usage: kvtide-serve demo [options]

Serves a small model that this package brings, which writes simple English, and asks it two questions. No download, no account.

  --port N, --host ADDRESS, and all other options of a server`

/** The second question continues the chat, so that the first one and its answer are cached. */
const QUESTIONS = ['Tell me a story.', 'Tell me another story.']

/** The folder of the model, beside the compiled files or the sources. */
export function demoFolder(): string {
  const places = ['../../../demo/', '../../demo/'].map(place => fileURLToPath(new URL(place, import.meta.url)))
  const found = places.find(place => existsSync(`${place}config.json`))
  if (found === undefined) throw new Error('this installation has no demo model')
  return found
}

export async function demo(args: readonly string[]): Promise<number> {
  const { flags } = flagsOf(args, SERVE_FLAGS)
  const [address, options] = [addressOf(flags), serverOptions(flags)]
  await using loaded = await loadModel(demoFolder(), { dtype: 'q4', memory: '0.25', ...flags }, process.stderr)
  const { model } = loaded
  await using server = createServer({ name: 'demo', ...options, model })
  const url = await listenOn(server, address)
  const messages: ChatMessage[] = []
  for (const content of QUESTIONS) {
    messages.push({ role: 'user', content })
    console.log(`\n> ${content}\n`)
    const answer = model.chat({ messages, maxTokens: 150, temperature: 0 })
    let written = ''
    for await (const piece of answer) {
      written += piece
      process.stdout.write(piece)
    }
    messages.push({ role: 'assistant', content: written })
    console.log(`\n\n${usageLine(answer.usage)}`)
  }
  console.log(`\nThe same model is served on ${url}/v1 until Ctrl-C:

  curl ${url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{ "messages": [{ "role": "user", "content": "${QUESTIONS[0]}" }], "stream": true, "max_tokens": 100 }'

  its cache: ${url}/inspector/   metrics: ${url}/metrics`)
  await drainAtSignal(server)
  return 0
}
