import { parseArgs } from 'node:util'

import { isKvTideError } from '../border/errors.js'
import type { Answer, Command } from './command.js'

/** What there is, and where it is; loaded when it is asked for. */
const COMMANDS: Readonly<Record<string, () => Promise<Command>>> = {
  plan: async () => (await import('./plan.js')).plan,
  bench: async () => (await import('./bench.js')).bench,
  inspect: async () => (await import('./inspect.js')).inspect,
  doctor: async () => (await import('./doctor.js')).doctor,
}

/** The command line: answers the exit code, 1 for what is refused and 2 for arguments that are not known. */
export async function main(args: readonly string[]): Promise<number> {
  const [name = 'help', ...rest] = args
  if (name === 'help' || name === '--help' || name === '-h') return helped(rest[0])
  if (name === '--version' || name === '-v') {
    const { binding } = await import('../loading/binding.js')
    console.log(binding.buildInfo().version)
    return 0
  }
  const load = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (load === undefined) return refused(`kvtide has no command ${name}: there are ${Object.keys(COMMANDS).join(', ')}`)
  // Whoever wants JSON gets it of refusals too, even where the arguments are wrong.
  const isJson = rest.includes('--json')
  try {
    const command = await load()
    const call = read(command, rest)
    if (typeof call === 'string') return refused(`${call}\nusage: kvtide ${name} ${command.usage}\n\`kvtide ${name} --help\` says more`)
    if (call.values['help'] === true) return helped(name)
    return answered(await command.run(call), isJson)
  } catch (error) {
    return failed(name, error, isJson)
  }
}

/** The arguments of a command, or what is wrong with them. */
function read({ options, files }: Command, args: readonly string[]) {
  try {
    const { values, positionals } = parseArgs({ args: [...args], options: { ...options, help: { type: 'boolean', short: 'h' }, json: { type: 'boolean' } }, allowPositionals: true })
    if (values['help'] !== true && positionals.length !== files) return `it takes ${files === 0 ? 'no file' : files === 1 ? 'one file' : `${files} files`}, not ${positionals.length}`
    return { values: values as Record<string, string | boolean | undefined>, files: positionals }
  } catch (error) {
    return error instanceof Error ? error.message : String(error)
  }
}

async function helped(name: string | undefined): Promise<number> {
  const load = name !== undefined && Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined
  if (load !== undefined) {
    const { usage, help } = await load()
    console.log(`usage: kvtide ${name} ${usage}\n\n${help}`)
    return 0
  }
  const lines = await Promise.all(Object.entries(COMMANDS).map(async ([command, of]) => `  ${command.padEnd(9)} ${(await of()).summary}`))
  console.log(`usage: kvtide <command> [options]\n\n${lines.join('\n')}\n\nEach takes --help, and --json for programs. kvtide --version prints the version.\nIt ends with 0, with 1 for what is refused, with 2 for arguments that it does not know.`)
  return 0
}

function answered({ text, json, code = 0 }: Answer, isJson: boolean): number {
  if (isJson) console.log(JSON.stringify(json, undefined, 2))
  else console[code === 0 ? 'log' : 'error'](text)
  return code
}

/** A refusal in words, without a stack. What is no refusal is a defect, and says so. */
function failed(name: string, error: unknown, isJson: boolean): number {
  const known = isKvTideError(error)
  const message = error instanceof Error ? error.message : String(error)
  if (isJson) console.log(JSON.stringify({ error: known ? { code: error.code, message, details: error.details } : { message } }, undefined, 2))
  else console.error(known ? `kvtide ${name}: ${message} (${error.code})` : `kvtide ${name}: ${message}\nThis is a defect of kvtide: please report it.`)
  return 1
}

function refused(words: string): number {
  console.error(words)
  return 2
}
