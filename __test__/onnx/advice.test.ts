// Graphs that are refused: each kind of refusal has its advice, in the error, in the warning and on the command line.
import { copyFileSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

import type { ExecutionContext } from 'ava'

import { backendsAnswer } from '../../lib/cli/backends.js'
import { refusalOf, refusedGraph } from '../../lib/errors/errors.js'
import { GRAPH_ADVICE, type GraphRefusal } from '../../lib/errors/graph-advice.js'
import { backendReports } from '../../lib/onnx/backend-reports.js'
import { isKvTideError } from '../../index.js'
import { OnnxModel } from '../../onnx.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { copied, inBf16, withNodes } from '../support/onnx/changed.js'
import { graphFile, WINDOWED } from '../support/onnx/paged-graph.js'

const fixture = (name: string): string => fileURLToPath(new URL(`../fixtures/${name}`, import.meta.url))
const LLAMA = graphFile('onnx')
const GQA = graphFile('onnx-gqa-f32')

/** A graph that is not recognised: another node reads a past. */
const unrecognised = (bytes: Uint8Array): Buffer =>
  withNodes(bytes, [{ operator: 'Identity', inputs: ['past_key_values.0.key'], output: 'extra' }])

/** A copy of a graph, alone in its folder. */
function apart(t: ExecutionContext, file: string, change?: (bytes: Buffer) => Uint8Array): string {
  const copy = copied(t, LLAMA)
  for (const name of ['config.json', 'genai_config.json']) rmSync(join(dirname(copy), name), { force: true })
  copyFileSync(file, copy)
  if (change !== undefined) writeFileSync(copy, change(readFileSync(copy)))
  return copy
}

/** The kind of the refusal of each backend; `runs` if it runs the graph. */
interface Case {
  readonly file: (t: ExecutionContext) => string
  readonly config?: object
  readonly kinds: readonly [graph: GraphRefusal | 'runs', parts: GraphRefusal | 'runs', plain: GraphRefusal | 'runs']
}

const CASES: Readonly<Record<string, Case>> = {
  'a recognised graph': { file: () => LLAMA, kinds: ['runs', 'runs', 'runs'] },
  'a node that reads a past': { file: t => apart(t, LLAMA, unrecognised), kinds: ['form', 'form', 'runs'] },
  'sizes that no config declares': { file: t => apart(t, GQA, unrecognised), kinds: ['form', 'form', 'config'] },
  'a decoder without its embeddings': {
    file: t => apart(t, fixture('vision/qwen2-vl/decoder_model_merged.onnx')),
    kinds: ['embeddings', 'embeddings', 'embeddings'],
  },
  'embeddings in place of a decoder': {
    file: () => fixture('vision/qwen2-vl/embed_tokens.onnx'),
    kinds: ['past', 'past', 'past'],
  },
  'a decoder with an encoder': {
    file: () => fixture('encoder-decoder/t5/decoder_model_merged.onnx'),
    kinds: ['form', 'form', 'runs'],
  },
  'an encoder': {
    file: () => fixture('encoder-decoder/whisper/encoder_model.onnx'),
    kinds: ['input', 'input', 'past'],
  },
  'windows that the graph lacks': { file: () => GQA, config: WINDOWED, kinds: ['runs', 'runs', 'added-window'] },
  'layers that the config lacks': {
    file: () => LLAMA,
    config: { ...WINDOWED, num_hidden_layers: 1 },
    kinds: ['windows', 'windows', 'windows'],
  },
  bfloat16: { file: t => apart(t, LLAMA, inBf16), kinds: ['runs', 'type', 'type'] },
}

for (const [name, { file, config, kinds }] of Object.entries(CASES)) {
  test(`advice: ${name}`, async t => {
    const model = file(t)
    const given = config === undefined ? undefined : join(dirname(copied(t, LLAMA)), 'given.json')
    if (given !== undefined) writeFileSync(given, JSON.stringify(config))
    const reports = await backendReports(model, given)
    const found = reports.map(({ refusal }) => (refusal === undefined ? 'runs' : kindOf(refusal)))
    t.deepEqual(found, [...kinds], reports.map(({ refusal }) => refusal?.message).join('\n'))
    const { text, runs } = await backendsAnswer(model, given)
    t.is(runs, kinds.includes('runs'))
    for (const [place, { backend, refusal }] of reports.entries()) {
      // A load of this backend alone is refused for the same reason, and otherwise runs.
      const options = {
        backend,
        threads: 1,
        cache: { memoryBytes: 2 ** 23 },
        ...(given === undefined ? {} : { config: given as never }),
      }
      const loaded = await OnnxModel.load(model, options).catch((error: unknown) => error)
      if (loaded instanceof OnnxModel) {
        await loaded.dispose()
        t.is(kinds[place], 'runs')
        t.regex(text, new RegExp(`^${backend} +runs it$`, 'm'))
        continue
      }
      const kind = kinds[place] as GraphRefusal
      t.is((loaded as Error).message, refusal?.message ?? '')
      t.true(refusal?.message.endsWith(`; ${GRAPH_ADVICE[kind]}`))
      t.true((refusal?.message.length ?? Infinity) <= 300)
      t.true(text.includes(`\n${' '.repeat(11)}${GRAPH_ADVICE[kind]}`), text)
    }
  })
}

function kindOf(error: unknown): string {
  return isKvTideError(error) && error.code === 'UNSUPPORTED_GRAPH' ? error.details.kind : String(error)
}

test('advice: a long reason is cut, the advice is not', t => {
  for (const kind of Object.keys(GRAPH_ADVICE) as GraphRefusal[]) {
    const details = { node: 'n'.repeat(400), operator: 'Softmax', reason: 'it is long', kind }
    for (const error of [
      refusedGraph(`the graph is not recognised at ${details.node}`, details),
      refusalOf('UNSUPPORTED_GRAPH', `the graph is not recognised at ${details.node}`, details),
    ]) {
      t.is(error.message.length, 300)
      t.true(error.message.endsWith(`…; ${GRAPH_ADVICE[kind]}`), error.message)
      t.is(kindOf(error), kind)
    }
  }
})

test('advice: a file that cannot be read is said once', async t => {
  const { text, json, runs } = await backendsAnswer('absent.onnx')
  t.false(runs)
  t.is(json.length, 3)
  t.regex(text, /^no backend runs it: model is absent\.onnx, expected a file that can be read[^\n]*$/)
})
