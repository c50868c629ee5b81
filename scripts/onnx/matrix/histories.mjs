// Histories of sequences, for models whose layers keep states: however a sequence came to its tokens, the next ones are the expected ones.

/** All tokens of a generation. The expected tokens go on behind the end of a sequence. */
async function read(model, sequence, maxTokens, options = {}) {
  const tokens = []
  const all = { maxTokens, ignoreEndOfSequence: true, ...options }
  for await (const token of model.generate(sequence, all)) tokens.push(token)
  return tokens
}

/** The histories of one prompt, by name: each gives tokens, and the tokens that it should give. */
async function* told(model, prompt, expected) {
  const count = expected.length
  const half = count >> 1
  const chat = model.open({ tokens: prompt })
  yield ['chunked', await read(model, chat, half), expected.slice(0, half)]
  const fork = chat.fork()
  const both = await Promise.all([
    read(model, fork, count - half),
    read(model, chat, count - half, { draft: { lookup: 4 } }),
  ])
  yield ['forked', both[0], expected.slice(half)]
  yield ['drafted', both[1], expected.slice(half)]
  for (const kept of [half + 1, 2, 0]) {
    fork.truncate(prompt.length + kept)
    yield ['truncated', await read(model, fork, count - kept), expected.slice(kept)]
  }
  chat.resume([...prompt, ...expected.slice(0, 3)])
  yield ['resumed', await read(model, chat, count - 3), expected.slice(3)]
  const second = model.open({ tokens: prompt })
  yield ['found', await read(model, second, count), expected]
  yield ['saved', await saved(model, fork, prompt.length, count).catch(error => [String(error)]), expected]
  for (const sequence of [chat, fork, second]) sequence.dispose()
}

/** Saves a sequence, loads it, and reads the tokens behind its first ones. */
async function saved(model, sequence, length, count) {
  const loaded = await model.loadSequence(await sequence.saveBytes())
  loaded.truncate(length)
  const tokens = await read(model, loaded, count)
  loaded.dispose()
  return tokens
}

/** The number of histories of all prompts, those that give the expected tokens, and the names of the others. `found` is the number of tokens that prompts found. */
export async function histories(model, { prompts, expected }) {
  const wrong = []
  let [same, of] = [0, 0]
  for (const name of Object.keys(prompts)) {
    for await (const [history, tokens, wanted] of told(model, prompts[name], expected[name].tokens)) {
      of += 1
      if (tokens.join() === wanted.join()) same += 1
      else wrong.push(`${name} ${history}: ${tokens.join()}`)
    }
  }
  return { same, of, wrong, found: model.cache.stats().hitTokens }
}
