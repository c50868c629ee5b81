// Compares the backends on a model that a test has written.
import type { ExecutionContext } from 'ava'

import { type BackendName, OnnxModel } from '../../../onnx.js'
import { distance } from '../llama/references.js'
import { read } from './chat.js'

/** The unmodified graph, and the others. */
export const BACKENDS: readonly BackendName[] = ['plain', 'graph', 'parts']
const PROMPTS = [[3, 9, 14, 22, 8, 31, 5], [7], Array.from({ length: 17 }, (_, at) => (at * 7 + 3) % 40)]

/** A model that a test has written, whose vocabulary has at least 40 tokens. */
export interface SmallModel {
  readonly decoder: Uint8Array
  readonly embeddings?: Uint8Array
  readonly vocabulary: number
}

/** Compares logits and tokens of all backends with those of the unmodified graph: alone, together, and in two pieces. */
export async function sameEverywhere(
  t: ExecutionContext,
  { decoder, embeddings, vocabulary }: SmallModel,
): Promise<void> {
  const found: { readonly logits: readonly Float32Array[]; readonly says: readonly number[][] }[] = []
  for (const backend of BACKENDS) {
    await using model = await OnnxModel.load(decoder, {
      backend,
      threads: 1,
      ...(embeddings === undefined ? {} : { embeddings }),
      cache: { memoryBytes: 2 ** 22, blockSize: 4 },
    })
    const logits: Float32Array[] = []
    for (const [place, tokens] of PROMPTS.entries()) {
      using sequence = model.open({ salt: `alone ${place}` })
      logits.push(...(await model.run([{ sequence, tokens }], { logits: 'all' })))
    }
    const all = PROMPTS.map(tokens => ({ sequence: model.open({ salt: 'together' }), tokens }))
    for (const [place, rows] of (await model.run(all, { logits: 'all' })).entries())
      t.true(distance(rows, logits[place] as Float32Array) < 1e-4, `${backend}: together`)
    for (const { sequence } of all) sequence.dispose()
    using pieces = model.open({ salt: 'pieces' })
    const tokens = PROMPTS[2] as number[]
    await model.run([{ sequence: pieces, tokens: tokens.slice(0, 9) }])
    const [tail] = await model.run([{ sequence: pieces, tokens: tokens.slice(9) }], { logits: 'all' })
    const whole = (logits[2] as Float32Array).subarray(9 * vocabulary)
    t.true(distance(tail as Float32Array, whole) < 1e-4, `${backend}: in pieces`)
    const says: number[][] = []
    for (const prompt of PROMPTS) {
      using chat = model.open({ tokens: prompt })
      says.push(await read(model, chat, 8))
    }
    found.push({ logits, says })
  }
  const [plain, ...others] = found as [(typeof found)[number], ...typeof found]
  for (const [place, other] of others.entries()) {
    t.deepEqual(other.says, plain.says, BACKENDS[place + 1] as string)
    for (const [at, rows] of other.logits.entries()) t.true(distance(rows, plain.logits[at] as Float32Array) < 1e-4)
  }
}
