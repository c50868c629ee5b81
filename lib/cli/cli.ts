// The command line, `kvtide <command>`: parses arguments, runs the command, and prints its answer as text or with `--json` as JSON. A command is loaded only when
// it is used, so `--help` and `--version` work without the addon. Exit codes: 0, 1 for a refusal, 2 for wrong arguments. It never prints a stack.
import { parseArgs } from 'node:util'

import { isKvTideError, messageOf } from '../errors/errors.js'
import { version as packageVersion } from '../loading/version.js'
import type { Answer, Command } from './command.js'

/** A command as `kvtide --help` lists it. Its module is loaded on use, because the addon that it needs may be missing. */
interface Listed {
  readonly summary: string
  readonly load: () => Promise<Command>
}

const COMMANDS: Readonly<Record<string, Listed>> = {
  plan: {
    summary: 'the memory that keys and values of a model take: bytes per token, contexts and batches that fit',
    load: async () => (await import('./plan.js')).plan,
  },
  bench: {
    summary: 'the speed of this machine relative to a plain memory copy, in a few seconds',
    load: async () => (await import('./bench.js')).bench,
  },
  inspect: {
    summary: 'the attention layers of an ONNX model, the backends that run it, and what would help the others',
    load: async () => (await import('./inspect.js')).inspect,
  },
  doctor: {
    summary: 'which addon is loaded and why, the platform, and why a device or a model is not usable',
    load: async () => (await import('./doctor.js')).doctor,
  },
}

const listed = (name: string | undefined): Listed | undefined =>
  name !== undefined && Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined

/** Runs the command line. Returns the exit code: 1 for a refusal and 2 for wrong arguments. */
export async function main(args: readonly string[]): Promise<number> {
  const [name = 'help', ...rest] = args
  // With --json, refusals are JSON too, even if the arguments are wrong.
  const isJson = rest.includes('--json')
  try {
    if (name === 'help' || name === '--help' || name === '-h') return await helped(rest[0])
    if (name === '--version' || name === '-v') return answered(version(), isJson)
    const found = listed(name)
    if (found === undefined)
      return refused(`kvtide has no command ${name}, expected one of ${Object.keys(COMMANDS).join(', ')}`, '', isJson)
    const command = await found.load()
    const call = read(command, rest)
    if (typeof call === 'string')
      return refused(
        call,
        `\nusage: kvtide ${name} ${command.usage}\n\`kvtide ${name} --help\` explains the options`,
        isJson,
      )
    if (call.values['help'] === true) return await helped(name)
    return answered(await command.run(call), isJson)
  } catch (error) {
    return failed(name, error, isJson)
  }
}

/** The version of the package, which does not need the addon. */
function version(): Answer {
  return { text: packageVersion, json: { version: packageVersion } }
}

/** Parses the arguments of a command, or returns the message about what is wrong with them. */
function read({ options, files, isOptional = false }: Command, args: readonly string[]) {
  try {
    const { values, positionals } = parseArgs({
      args: [...args],
      options: { ...options, help: { type: 'boolean', short: 'h' }, json: { type: 'boolean' } },
      allowPositionals: true,
    })
    const isLeftOut = isOptional && positionals.length === 0
    if (values['help'] !== true && positionals.length !== files && !isLeftOut)
      return `expected ${files === 0 ? 'no file' : files === 1 ? 'one file' : `${files} files`}, got ${positionals.length}`
    return { values: values as Record<string, string | boolean | undefined>, files: positionals }
  } catch (error) {
    return messageOf(error)
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
  console.log(
    `usage: kvtide <command> [options]\n\n${lines.join('\n')}\n\nEvery command has --help, and --json for programs. kvtide --version prints the version.\nExit codes: 0 for success, 1 if the command was refused, 2 for unknown arguments.`,
  )
  return 0
}

function answered({ text, json, code = 0 }: Answer, isJson: boolean): number {
  if (isJson) console.log(JSON.stringify(json, undefined, 2))
  else console[code === 0 ? 'log' : 'error'](text)
  return code
}

/** Prints a refusal without a stack. Any other error is a defect of kvtide, and the message says so. */
function failed(name: string, error: unknown, isJson: boolean): number {
  const known = isKvTideError(error)
  const message = messageOf(error)
  if (isJson)
    console.log(
      JSON.stringify(
        { error: known ? { code: error.code, message, details: error.details } : { message } },
        undefined,
        2,
      ),
    )
  else
    console.error(
      known
        ? `kvtide ${name}: ${message} (${error.code})`
        : `kvtide ${name}: ${message}\nThis is a defect of kvtide: please report it.`,
    )
  return 1
}

/** Refuses arguments. `usage` is printed for people only, not in JSON. */
function refused(message: string, usage: string, isJson: boolean): number {
  if (isJson) console.log(JSON.stringify({ error: { code: 'INVALID_ARGUMENT', message } }, undefined, 2))
  else console.error(`${message}${usage}`)
  return 2
}
