// The command line, `kvtide-serve`. Exit codes: 0, 1 for a failure, 2 for wrong arguments. It prints no stack for what a caller can correct.
import { existsSync, readFileSync } from 'node:fs'

import { isKvTideError } from 'kvtide'

import { WrongFlag } from './flags.js'
import { nearest } from '../nearest.js'

interface Command {
  readonly help: string
  readonly run: (args: readonly string[]) => Promise<number>
}

const COMMANDS: Readonly<Record<string, () => Promise<Command>>> = {
  serve: async () => import('./serve.js').then(({ help, serve }) => ({ help, run: serve })),
  chat: async () => import('./chat.js').then(({ help, chat }) => ({ help, run: chat })),
  demo: async () => import('./demo.js').then(({ help, demo }) => ({ help, run: demo })),
  router: async () => import('./router.js').then(({ help, router }) => ({ help, run: router })),
}

const USAGE = `usage: kvtide-serve <folder | org/name> [options]   serves a model with OpenAI's API
       kvtide-serve chat <folder | org/name>         talks in the terminal
       kvtide-serve demo                             serves a small model that the package brings
       kvtide-serve router --worker URL ..           a front for several workers

kvtide-serve help, kvtide-serve chat --help, .. list the options.`

/** Runs the command line, and returns the exit code. */
export async function main(args: readonly string[]): Promise<number> {
  const [first = '--help', ...rest] = args
  try {
    if (first === '--version' || first === '-v') return printed(version())
    const asksHelp = [first, ...rest].some(arg => arg === '--help' || arg === '-h')
    const isNamed = Object.hasOwn(COMMANDS, first)
    if (args.length === 0) return printed(USAGE)
    const load = COMMANDS[isNamed ? first : 'serve'] as () => Promise<Command>
    if (asksHelp || first === 'help') {
      const { help } = await load()
      return printed(isNamed ? help : `${USAGE}\n\n${help}`)
    }
    if (!isNamed) checkCommand(first)
    return await (await load()).run(isNamed ? rest : args)
  } catch (error) {
    return failed(error)
  }
}

/** Refuses a misspelled command, which would be taken for a model. */
function checkCommand(first: string): void {
  const meant = nearest(first, Object.keys(COMMANDS))
  if (meant === undefined || existsSync(first)) return
  throw new WrongFlag(`there is no command ${first}, did you mean ${meant}?`)
}

function printed(text: string): number {
  console.log(text)
  return 0
}

/** The version of the package. */
function version(): string {
  for (const place of ['../../package.json', '../../../package.json']) {
    try {
      const found = JSON.parse(readFileSync(new URL(place, import.meta.url), 'utf8')) as {
        name?: string
        version: string
      }
      if (found.name === 'kvtide-serve') return found.version
    } catch {
      // It is in the other place.
    }
  }
  return 'unknown'
}

function failed(error: unknown): number {
  if (error instanceof WrongFlag) {
    console.error(`kvtide-serve: ${error.message}\n\`kvtide-serve --help\` lists the options`)
    return 2
  }
  const message = error instanceof Error ? error.message : String(error)
  console.error(`kvtide-serve: ${message}${isKvTideError(error) ? ` (${error.code})` : ''}`)
  return 1
}
