import { createRequire } from 'node:module'
import { parseArgs } from 'node:util'

import { isKvTideError } from '../border/errors.js'
import type { Answer, Command } from './command.js'

/** A command as `kvtide --help` lists it. It is loaded when it is asked for, since what it needs may not be there. */
interface Listed {
  readonly summary: string
  readonly load: () => Promise<Command>
}

const COMMANDS: Readonly<Record<string, Listed>> = {
  plan: { summary: 'what a model needs for keys and values: bytes per token, contexts and batches that fit', load: async () => (await import('./plan.js')).plan },
  bench: { summary: 'how fast this machine is, in a few seconds, against a plain copy of memory', load: async () => (await import('./bench.js')).bench },
  inspect: { summary: 'the attention layers of an ONNX model, or the node at which it is not recognised', load: async () => (await import('./inspect.js')).inspect },
  doctor: { summary: 'which addon is loaded and why, what it runs on, and why a device is not usable', load: async () => (await import('./doctor.js')).doctor },
}

const listed = (name: string | undefined): Listed | undefined => (name !== undefined && Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined)

/** The command line: answers the exit code, 1 for what is refused and 2 for arguments that are not known. */
export async function main(args: readonly string[]): Promise<number> {
  const [name = 'help', ...rest] = args
  // Whoever wants JSON gets it of refusals too, even where the arguments are wrong.
  const isJson = rest.includes('--json')
  try {
    if (name === 'help' || name === '--help' || name === '-h') return await helped(rest[0])
    if (name === '--version' || name === '-v') return answered(version(), isJson)
    const found = listed(name)
    if (found === undefined) return refused(`kvtide has no command ${name}: there are ${Object.keys(COMMANDS).join(', ')}`, '', isJson)
    const command = await found.load()
    const call = read(command, rest)
    if (typeof call === 'string') return refused(call, `\nusage: kvtide ${name} ${command.usage}\n\`kvtide ${name} --help\` says more`, isJson)
    if (call.values['help'] === true) return await helped(name)
    return answered(await command.run(call), isJson)
  } catch (error) {
    return failed(name, error, isJson)
  }
}

/** Of the package, which can say it without its addon. */
function version(): Answer {
  const { version: text } = createRequire(import.meta.url)('#package') as { version: string }
  return { text, json: { version: text } }
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
  const found = listed(name)
  if (found !== undefined) {
    const { usage, help } = await found.load()
    console.log(`usage: kvtide ${name} ${usage}\n\n${help}`)
    return 0
  }
  const lines = Object.entries(COMMANDS).map(([command, { summary }]) => `  ${command.padEnd(9)} ${summary}`)
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

/** Refuses arguments; `usage` is for people alone. */
function refused(message: string, usage: string, isJson: boolean): number {
  if (isJson) console.log(JSON.stringify({ error: { code: 'INVALID_ARGUMENT', message } }, undefined, 2))
  else console.error(`${message}${usage}`)
  return 2
}
