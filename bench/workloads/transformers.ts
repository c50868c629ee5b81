// Measures transformers.js alone, against the same model over a cache.
import { existsSync, linkSync, mkdirSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

import { CachedModel, type DynamicCache, type TransformersModel, type TransformersTensor } from 'kvtide/transformers'

import { workloadOf, type Workload } from '../report/report.js'
import { type Contestant, lane, measure, type Role } from '../../lib/cli/rounds.js'
import { REPORTS } from '../run/suites.js'
import { DECODER, writeDecoder } from './decoder.js'
import { ids } from './onnx-lanes.js'

interface Model extends TransformersModel {
  generate(options: {
    input_ids: TransformersTensor
    max_new_tokens: number
    do_sample: boolean
    past_key_values?: DynamicCache
  }): Promise<TransformersTensor>
}

/** The part of the package that is used here: its own types need those of a browser. */
interface Package {
  readonly Tensor: new (type: string, data: object, dims: readonly number[]) => TransformersTensor
  readonly AutoModelForCausalLM: { from_pretrained(name: string, options: object): Promise<Model> }
  readonly env: { allowRemoteModels: boolean; localModelPath: string }
}

const name = '@huggingface/transformers'

/** Writes the decoder of the other workloads as transformers.js loads it. */
async function load(threads: number): Promise<{ model: Model; row: (tokens: Uint32Array) => TransformersTensor }> {
  const { AutoModelForCausalLM, env, Tensor } = (await import(name)) as Package
  const path = writeDecoder(join(REPORTS, 'decoder'))
  const folder = join(REPORTS, 'transformers', 'decoder', 'onnx')
  mkdirSync(folder, { recursive: true })
  for (const [from, to] of [
    [path, 'model.onnx'],
    [join(dirname(path), 'decoder.onnx.data'), 'decoder.onnx.data'],
  ] as const) {
    if (existsSync(join(folder, to))) rmSync(join(folder, to))
    linkSync(from, join(folder, to))
  }
  const { layers, width, heads, kvHeads, headDim, vocabulary, positions } = DECODER
  const config = {
    model_type: 'llama',
    num_hidden_layers: layers,
    hidden_size: width,
    num_attention_heads: heads,
    num_key_value_heads: kvHeads,
    head_dim: headDim,
    vocab_size: vocabulary,
    max_position_embeddings: positions,
  }
  writeFileSync(join(folder, '..', 'config.json'), JSON.stringify(config))
  Object.assign(env, { allowRemoteModels: false, localModelPath: join(REPORTS, 'transformers') })
  const model = await AutoModelForCausalLM.from_pretrained('decoder', {
    dtype: 'fp32',
    session_options: { intraOpNumThreads: threads, interOpNumThreads: 1 },
  })
  return { model, row: tokens => new Tensor('int64', BigInt64Array.from(tokens, BigInt), [1, tokens.length]) }
}

/** Measures the first token of a request that shares most of its tokens with an earlier one, and a whole turn without any cached prefix. */
export async function transformers(
  common: number,
  own: number,
  answer: number,
  threads: number,
  rounds: number,
): Promise<Workload> {
  const id = `js-transformers-${common}-${threads}`
  const { model, row } = await load(threads)
  using cached = await CachedModel.of(model, { cache: { memoryBytes: 2 ** 30, maxSequences: 8 } })
  const known = ids(common, 1)
  await cached.generate({ input_ids: row(known), max_new_tokens: 1, do_sample: false })
  let turn = 0
  const prompt = (): TransformersTensor => row(Uint32Array.from([...known, ...ids(own, (turn += 1))]))
  const fresh = (): TransformersTensor => row(Uint32Array.from(ids(256, 10_000 + (turn += 1))))
  const first = { max_new_tokens: 1, do_sample: false }
  const whole = { max_new_tokens: answer, do_sample: false }
  const request = prompt()
  const [alone, kept] = [
    await model.generate({ input_ids: request, ...first }),
    await cached.generate({ input_ids: request, ...first }),
  ]
  if (String(alone.data) !== String(kept.data)) throw new Error('the tokens differ')
  const asked = (
    role: Role,
    label: string,
    of: Pick<Model, 'generate'>,
    input: () => TransformersTensor,
    options: typeof first,
  ): Contestant =>
    lane(role, label, 1, async () => void (await of.generate({ input_ids: input(), ...options })), { shared: true })
  const measured = await measure(
    [
      asked('peer', 'transformers.js, first token', model, prompt, first),
      asked('ours', 'kvtide, first token', cached, prompt, first),
      asked('peer', `transformers.js, a turn of ${answer}`, model, fresh, whole),
      asked('ours', `kvtide, a turn of ${answer}`, cached, fresh, whole),
    ],
    rounds,
    undefined,
    1,
  )
  return workloadOf(
    id,
    `transformers.js: a request that shares ${common} of ${common + own} tokens, and a turn that shares none, ${threads} threads`,
    'request',
    measured,
    [
      {
        id: `${id}/first-alone-over-ours`,
        over: 'transformers.js, first token',
        under: 'kvtide, first token',
        toReach: { atLeast: 5 },
      },
      {
        id: `${id}/turn-ours-over-alone`,
        over: `kvtide, a turn of ${answer}`,
        under: `transformers.js, a turn of ${answer}`,
        toReach: { atMost: 1.03 },
      },
    ],
  )
}
