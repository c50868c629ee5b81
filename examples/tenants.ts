// Several tenants, one pool: the system prompt is shared, the rest of a prompt belongs to its tenant, and requests without room are not admitted.
//
//   npx tsx examples/tenants.ts [model.onnx]
import { OnnxModel } from 'kvtide/onnx'

const path = process.argv[2] ?? '__test__/fixtures/llama/onnx/model.onnx'
await using model = await OnnxModel.load(path, { cache: { capacity: 24, blockSize: 16 } })
const system = Array.from({ length: 128 }, (_, id) => 3 + id)

/** Answers a tenant, if the cache has room for question and answer. */
async function ask(tenant: string, question: readonly number[], maxTokens = 16): Promise<void> {
  const [tokens, prompt] = [[...system, ...question], { salt: tenant, saltFrom: system.length }]
  const { sequence, lacking } = model.admit(tokens, { ...prompt, answerTokens: maxTokens })
  if (sequence === undefined)
    return console.log(
      `${tenant}: not now, ${lacking.needed} blocks are needed and ${lacking.free} of ${lacking.total} free`,
    )
  using chat = sequence
  const found = chat.length
  const answer: number[] = []
  for await (const token of model.generate(chat, { maxTokens, temperature: 0 })) answer.push(token)
  console.log(`${tenant}: ${found} of ${tokens.length} tokens cached, answer ${answer.slice(0, 4).join(' ')} ..`)
}

const own = Array.from({ length: 40 }, (_, id) => 200 + id)
await ask('tenant 1', own)
await ask('tenant 1', [...own, 7]) // cache hit on its own question
await ask('tenant 2', [...own, 7]) // cache hit on the system prompt only: the rest is tenant 1's
await ask('tenant 3', [5], 400) // more than the whole cache can hold
const { hitRate, hitTokens } = model.cache.stats()
console.log(`${hitTokens} tokens were cache hits, ${(100 * hitRate).toFixed(0)} % of the prompt tokens`)
