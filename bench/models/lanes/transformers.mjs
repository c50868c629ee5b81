// One measurement of transformers.js, with one static batch of all chats: see kvtide.mjs. It has no second question: `generate` computes a prompt from its start.
import { basename, dirname } from 'node:path'

import { AutoModelForCausalLM, env, Tensor } from '@huggingface/transformers'

const { graph, ids, threads, chats, count } = JSON.parse(process.argv[2])
const folder = dirname(graph)
env.localModelPath = dirname(folder)
const model = await AutoModelForCausalLM.from_pretrained(basename(folder), {
  subfolder: '',
  dtype: 'fp32',
  local_files_only: true,
  session_options: { intraOpNumThreads: threads },
})
const loaded = process.resourceUsage().maxRSS / 1024
const row = BigInt64Array.from(Array(chats).fill(ids).flat(), BigInt)
const matrix = values => new Tensor('int64', values, [chats, ids.length])
const times = []
const found = []
let before
const streamer = {
  put: rows => {
    times.push(performance.now())
    // The prompt comes first, then a token of each chat.
    if (times.length > 1) found.push(Number(rows[0][0]))
    if (times.length === 2) before = process.cpuUsage()
  },
  end: () => {},
}
const lengths = { max_new_tokens: count + 1, min_new_tokens: count + 1 }
const given = { inputs: matrix(row), attention_mask: matrix(row.map(() => 1n)) }
await model.generate({ ...given, ...lengths, do_sample: false, streamer })
const { user, system } = process.cpuUsage(before)
console.log(
  JSON.stringify({
    prompt: times[1] - times[0],
    token: (times.at(-1) - times[1]) / count / chats,
    cpu: (user + system) / 1000 / count / chats,
    peak: process.resourceUsage().maxRSS / 1024,
    loaded,
    tokens: found.slice(0, 8).join(),
  }),
)
await model.dispose()
