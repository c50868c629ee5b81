// `kvtide plan`: computes from a config.json the memory that a model's keys and values take, per page format, and that of its states. Sizes of pages come from
// real caches of one block, so they equal those of a cache made with the same options.
import { existsSync, statSync } from 'node:fs'
import { join } from 'node:path'

import type { DType } from '../border/host-array.js'
import { count } from '../errors/check.js'
import { invalid, isKvTideError, messageOf } from '../errors/errors.js'
import { writeRegular } from '../loading/regular-file.js'
import { parseConfig, readText } from '../onnx/config.js'
import type { ModelLayer } from '../sequences/model-description.js'
import { checkPageFormat, type PageFormat } from '../sequences/page-format.js'
import { groupsOfModel, type LayerGroup, type StatePlace } from '../sequences/layer-group.js'
import { PagedKvCache } from '../paged/paged-kv-cache.js'
import { type Answer, type Call, type Command, table } from './command.js'
import { barPage } from './page.js'

/** The memory of a model's keys and values in one format and with one window. */
interface PlanRow {
  /** The window that is given to all layers without one; `null` leaves the model as it is. */
  readonly window: number | null
  readonly format: PageFormat
  /** Bytes per token in layers without a window. */
  readonly bytesPerToken: number
  /** Bytes per sequence in layers with a window, for any length of the sequence. */
  readonly windowBytes: number
  /** Bytes of the states of a sequence; a checkpoint takes as many. */
  readonly stateBytes: number
  /** The number of tokens whose keys and values take as many bytes as a checkpoint; `null` if there are no states, or no keys and values of all tokens. */
  readonly checkpointTokens: number | null
  /** The maximum number of tokens of a single sequence; `null` if there is no limit. */
  readonly largestContext: number | null
  /** The maximum number of sequences of the requested context. */
  readonly largestBatch: number
  /** The reason why the format cannot be used; the numbers are then 0. */
  readonly refusal?: string
}

const FORMATS: readonly PageFormat[] = ['f16', 'f8e4m3', 'q8', 'q4']
/** The defaults of a cache. */
const [BLOCK, PREFILL] = [16, 512]
/** The slots of a sequence's states: a step writes one while the other is held. */
const SLOTS = 2
/** Checkpoints get one in this many bytes, and at least this many slots for each sequence. */
const [CHECKPOINT_PART, CHECKPOINTS_MIN] = [8, 2]
/** A slot is one page of 32-bit rows, each a multiple of 16 elements long. */
const SLOT_UNIT = 4 * 16 * BLOCK
const UNITS: Readonly<Record<string, number>> = { '': 1, k: 2 ** 10, m: 2 ** 20, g: 2 ** 30, t: 2 ** 40 }

export const plan: Command = {
  usage: 'config.json [--memory 8GiB] [--context 8192] [--formats f16,q8] [--windows 4096] [--html plan.html] [--json]',
  help: `Reads a model's config.json, or the one in a folder, and prints for each page format the bytes per token, the longest sequence that fits in the memory, and the
number of sequences of a given length. For a model whose layers keep states, it also prints the bytes of a sequence's states. A checkpoint of them takes as many.
No weights are needed or loaded.

  --memory    the memory for keys, values and states, without the model's weights: 8GiB by default
  --context   the length of each sequence when counting sequences: 8192 by default
  --formats   page formats: f32, f16, bf16, f8e4m3, q8, q4; by default ${FORMATS.join(',')}
  --windows   adds rows in which layers without a window get this one: 4096, or several: 4096,16384
  --html      also writes the table with a chart to this file

kvtide plan Qwen3-8B/config.json --memory 24GiB --formats f16,q8 --windows 8192`,
  options: {
    memory: { type: 'string' },
    context: { type: 'string' },
    formats: { type: 'string' },
    windows: { type: 'string' },
    html: { type: 'string' },
  },
  files: 1,
  run: ({ values, files }) => planned(files[0] as string, values),
}

function planned(path: string, values: Call['values']): Answer {
  const given = (name: string): string | undefined => values[name] as string | undefined
  const memory = memoryOf(given('memory') ?? '8GiB')
  const context = number('--context', given('context') ?? '8192')
  const formats =
    given('formats')
      ?.split(',')
      .map(format => checkPageFormat('--formats', format.trim())) ?? FORMATS
  const windows = [
    null,
    ...(given('windows')
      ?.split(',')
      .map(window => number('--windows', window.trim())) ?? []),
  ]
  const config = readText('config', existsSync(path) && statSync(path).isDirectory() ? join(path, 'config.json') : path)
  const groups = groupsOf(config, 'f16')
  const rows = windows.flatMap(window =>
    formats.map(format => rowOf(groupsOf(config, dtypeOf(format)), format, window, memory, context)),
  )
  const html = given('html')
  const text = asText(groups, rows, memory, context)
  if (html !== undefined) {
    const bars = rows
      .filter(row => row.refusal === undefined)
      .map(row => ({
        name: `${row.format}${row.window === null ? '' : `, window ${row.window}`}`,
        value: row.largestBatch,
      }))
    writeHtml(
      html,
      barPage(
        'Sequences that fit in memory',
        text,
        `Sequences of ${context.toLocaleString('en')} tokens in ${size(memory)}`,
        bars,
      ),
    )
  }
  const shown = groups.map(({ kind, layers: { length: layers }, numKvHeads, headDim, valueHeadDim, window, tensors }) =>
    tensors === undefined
      ? { kind, layers, numKvHeads, headDim, valueHeadDim, ...(window !== undefined && { window }) }
      : { kind, layers, tensors: tensorsOfLayer(tensors) },
  )
  return {
    text: html === undefined ? text : `${text}\n\nwith a chart: ${html}`,
    json: { memoryBytes: memory, context, groups: shown, rows },
  }
}

function writeHtml(file: string, page: string): void {
  try {
    writeRegular(file, page)
  } catch (error) {
    throw invalid('--html', file, `a file that can be written (${messageOf(error)})`)
  }
}

/** The groups of a model's layers. Convolutions have this element type. */
function groupsOf(config: string, dtype: DType): readonly LayerGroup[] {
  try {
    parseConfig(config)
  } catch {
    throw invalid('config', config.slice(0, 40), 'a Hugging Face config.json')
  }
  return groupsOfModel(config, dtype)
}

/** The element type of a model's activations beside pages of this format. */
const dtypeOf = (format: PageFormat): DType => (format === 'f32' || format === 'bf16' ? format : 'f16')

/** The states of one layer, without its number. All layers with states have the same ones. */
const tensorsOfLayer = (tensors: readonly StatePlace[]) =>
  tensors.filter(({ layer }) => layer === tensors[0]?.layer).map(({ name, shape, dtype }) => ({ name, shape, dtype }))

/** The bytes of a block of a group's layers in a format. */
function blockBytes({ layers, numKvHeads, headDim, valueHeadDim }: LayerGroup, format: PageFormat): number {
  const model = { layers: layers.map((): ModelLayer => ({ kind: 'full', numKvHeads, headDim, valueHeadDim })) }
  using cache = new PagedKvCache({
    model,
    blockSize: BLOCK,
    capacity: 1,
    dtype: 'f32',
    keyFormat: format,
    valueFormat: format,
  })
  return cache.bytesPerToken * BLOCK
}

function rowOf(
  groups: readonly LayerGroup[],
  format: PageFormat,
  window: number | null,
  memory: number,
  context: number,
): PlanRow {
  try {
    const states = groups.filter(group => group.kind === 'state')
    const sized = groups
      .filter(group => group.kind !== 'state')
      .map(group => ({
        bytes: blockBytes(group, format),
        window: group.window ?? window ?? undefined,
        sinks: group.sinks ?? 0,
      }))
    const full = sized.filter(group => group.window === undefined).reduce((sum, group) => sum + group.bytes, 0)
    const slide = sized.flatMap(group =>
      group.window === undefined
        ? []
        : [{ bytes: group.bytes, blocks: Math.ceil(group.window / BLOCK) + Math.ceil(group.sinks / BLOCK) + 2 }],
    )
    const once = slide.reduce((sum, { bytes }) => sum + bytes * (PREFILL / BLOCK), 0)
    const each = slide.reduce((sum, { bytes, blocks }) => sum + bytes * blocks, 0)
    const stateBytes = states.reduce((sum, { bytes = 0 }) => sum + bytes, 0)
    const slot = states.reduce((sum, { bytes = 0 }) => sum + Math.ceil(bytes / SLOT_UNIT) * SLOT_UNIT, 0)
    const room = (sequences: number): number => memory - once - slotBytes(slot, memory, sequences, full > 0)
    const longest = Math.floor((room(1) - each) / full) * BLOCK
    const fits = (sequences: number): boolean =>
      room(sequences) >= sequences * (full * Math.ceil(context / BLOCK) + each)
    return {
      window,
      format,
      bytesPerToken: full / BLOCK,
      windowBytes: each,
      stateBytes,
      checkpointTokens: stateBytes === 0 || full === 0 ? null : Math.ceil((stateBytes * BLOCK) / full),
      largestContext: full === 0 && room(1) >= each ? null : Math.max(0, longest),
      largestBatch: mostThat(fits),
    }
  } catch (error) {
    if (!isKvTideError(error)) throw error
    return {
      window,
      format,
      bytesPerToken: 0,
      windowBytes: 0,
      stateBytes: 0,
      checkpointTokens: null,
      largestContext: 0,
      largestBatch: 0,
      refusal: error.message,
    }
  }
}

/** The bytes of states in a cache for this many sequences: their slots, and those of checkpoints beside layers that keep all tokens. */
function slotBytes(slot: number, memory: number, sequences: number, hasFull: boolean): number {
  if (slot === 0 || !hasFull) return SLOTS * sequences * slot
  const checkpoints = Math.max(Math.floor(memory / CHECKPOINT_PART / slot), CHECKPOINTS_MIN * sequences)
  const slots = Math.min(SLOTS * sequences + checkpoints, Math.floor(memory / 2 / slot))
  return slots < SLOTS * sequences ? Infinity : slots * slot
}

/** The largest number that passes a test which all smaller ones pass; 0 if none does. */
function mostThat(passes: (count: number) => boolean): number {
  let [most, failed] = [0, 1]
  while (failed <= Number.MAX_SAFE_INTEGER / 2 && passes(failed)) [most, failed] = [failed, failed * 2]
  while (failed - most > 1) {
    const middle = Math.floor((most + failed) / 2)
    if (passes(middle)) most = middle
    else failed = middle
  }
  return most
}

function asText(groups: readonly LayerGroup[], rows: readonly PlanRow[], memory: number, context: number): string {
  const layers = groups.map(lineOf)
  const hasStates = rows.some(row => row.stateBytes > 0)
  const hasWindows = rows.some(row => row.windowBytes > 0)
  const head = [
    'format',
    ...(rows.some(row => row.window !== null) ? ['window'] : []),
    'bytes per token',
    ...(hasWindows ? ['windows per sequence'] : []),
    ...(hasStates ? ['states per sequence', 'as tokens'] : []),
    'longest sequence',
    `sequences of ${context.toLocaleString('en')}`,
  ]
  const cells = rows.map(row => {
    const window = head.includes('window') ? [row.window === null ? 'as it is' : row.window.toLocaleString('en')] : []
    if (row.refusal !== undefined) return [row.format, ...window, '-']
    const longest = row.largestContext === null ? 'any' : row.largestContext.toLocaleString('en')
    return [
      row.format,
      ...window,
      Math.round(row.bytesPerToken).toLocaleString('en'),
      ...(hasWindows ? [size(row.windowBytes)] : []),
      ...(hasStates ? [size(row.stateBytes), row.checkpointTokens?.toLocaleString('en') ?? '-'] : []),
      longest,
      row.largestBatch.toLocaleString('en'),
    ]
  })
  const refusals = [
    ...new Set(rows.flatMap(({ format, refusal }) => (refusal === undefined ? [] : [`${format}: ${refusal}`]))),
  ]
  const checkpoints = hasStates ? ['', 'A checkpoint takes as many bytes as the states of a sequence.'] : []
  const about = [...layers, `in ${size(memory)}, blocks of ${BLOCK} tokens`, '']
  return [...about, table([head, ...cells]), ...checkpoints, ...refusals].join('\n')
}

/** The line about a group. */
function lineOf({ kind, layers: { length }, numKvHeads, headDim, valueHeadDim, window, tensors }: LayerGroup): string {
  const keep = `${counted(length, 'layer')} ${length === 1 ? 'keeps' : 'keep'}`
  if (tensors !== undefined) {
    const states = tensorsOfLayer(tensors).map(({ name, shape }) => `${name} ${shape.join(' x ')}`)
    return `${keep} states: ${states.join(', ')}`
  }
  const dims = headDim === valueHeadDim ? headDim : `${headDim} and ${valueHeadDim}`
  return `${keep} ${kind === 'full' ? 'all tokens' : `a window of ${window}`}: ${counted(numKvHeads, 'head')} of ${dims}`
}

const counted = (times: number, noun: string): string => `${times} ${noun}${times === 1 ? '' : 's'}`

/** A number of bytes in the largest unit that fits. */
function size(bytes: number): string {
  const [unit, of] = (
    [
      ['TiB', 2 ** 40],
      ['GiB', 2 ** 30],
      ['MiB', 2 ** 20],
      ['KiB', 2 ** 10],
    ] as const
  ).find(([, least]) => bytes >= least) ?? ['bytes', 1]
  return `${Number((bytes / of).toFixed(of === 1 ? 0 : 1))} ${unit}`
}

/** Parses a number of bytes: 24GiB, 512M, 1000000. */
function memoryOf(words: string): number {
  const [, digits = '', unit = ''] = /^(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?$/i.exec(words.trim()) ?? []
  const bytes = Math.floor(Number(digits) * (UNITS[unit.toLowerCase()] ?? 1))
  if (digits === '' || bytes < 1 || bytes > Number.MAX_SAFE_INTEGER)
    throw invalid('--memory', words, 'a number of bytes: 24GiB, 512MiB, 1000000')
  return bytes
}

function number(argument: string, words: string): number {
  return count(argument, /^\d+$/.test(words) ? Number(words) : words, 1)
}
