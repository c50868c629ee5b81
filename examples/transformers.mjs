// transformers.js with a prefix cache: the second request computes only its new tokens.
//
//   node examples/transformers.mjs
import { AutoModelForCausalLM, AutoTokenizer } from '@huggingface/transformers'
import { CachedModel } from 'kvtide/transformers'

const name = 'onnx-community/Qwen3-0.6B-ONNX'
const tokenizer = await AutoTokenizer.from_pretrained(name)
const model = await AutoModelForCausalLM.from_pretrained(name, { dtype: 'q4' })
const cached = await CachedModel.of(model)

const system = { role: 'system', content: 'You answer in one sentence. '.repeat(10) }
for (const content of ['What is a window?', 'What is a sink?']) {
  const inputs = tokenizer.apply_chat_template([system, { role: 'user', content }], {
    add_generation_prompt: true,
    return_dict: true,
  })
  const { hitTokens } = cached.cache.stats()
  const output = await cached.generate({ ...inputs, max_new_tokens: 40 })
  console.log(
    `${content} ${cached.cache.stats().hitTokens - hitTokens} of ${inputs.input_ids.dims[1]} tokens were cached`,
  )
  console.log(
    tokenizer.batch_decode(output.slice(null, [inputs.input_ids.dims[1], null]), { skip_special_tokens: true })[0],
  )
}
cached.dispose()
