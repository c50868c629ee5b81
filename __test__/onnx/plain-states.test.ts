// The backend plain over graphs with states, with a cache in plain JavaScript: a call has the states of exactly the tokens before it, however tokens are divided.
import { isKvTideError } from '../../index.js'
import { onnxTest as test } from '../support/onnx/available.js'
import { argmax } from '../support/onnx/graphs.js'
import {
  BUILDER,
  following,
  hybridGraph,
  type HybridForm,
  POISON,
  STATES,
  VOCABULARY,
} from '../support/onnx/hybrid-graph.js'
import { type Content, EMPTY, MemoryCache } from '../support/onnx/memory-run.js'

const prompt = Array.from({ length: 50 }, (_, at) => (at * at * 3 + at) % (VOCABULARY - 1))
const other = Array.from({ length: 31 }, (_, at) => (at * 11 + 2) % (VOCABULARY - 1))

const forms: Readonly<Record<string, HybridForm>> = {
  'keys and values beside states': {},
  'states in half floats, names of mobius': { isHalf: true, names: STATES },
  'logits of the last token alone, names of the builder': { isPruned: true, names: BUILDER },
  'no attention': { hasAttention: false },
}

for (const [title, form] of Object.entries(forms)) {
  test(`whole, in chunks, token by token, in batches and forked, states are those of all tokens before: ${title}`, async t => {
    const cache = await MemoryCache.open(hybridGraph(form))
    const [expected, others] = [prompt, other].map(ids => following(ids, form.hasAttention)) as [number[], number[]]
    for (const piece of [50, 16, 7, 1]) {
      let content = EMPTY
      const tokens: number[] = []
      for (let at = 0; at < prompt.length; at += piece) {
        const { contents, logits } = await cache.step([[content, prompt.slice(at, at + piece)]], true)
        tokens.push(...logits.map(argmax))
        content = contents[0] as Content
      }
      t.deepEqual(tokens, expected, `pieces of ${piece}`)
      t.is(cache.reads, 0, 'presents are the next pasts')
    }
    // Two sequences in each step, one of them with more tokens.
    let both: Content[] = [EMPTY, EMPTY]
    for (let at = 0; at < 30; at += 10) {
      const parts = [prompt.slice(at, at + 5), other.slice(at, at + 10)]
      const more = [prompt.slice(at + 5, at + 10), []]
      const first = await cache.step(both.map((content, place) => [content, parts[place] as number[]] as const))
      const second = await cache.step([[first.contents[0] as Content, more[0] as number[]]])
      both = [second.contents[0] as Content, first.contents[1] as Content]
      t.deepEqual([...second.logits, ...first.logits.slice(1)].map(argmax), [expected[at + 9], others[at + 9]])
    }
    // A fork has no presents: its states are read from the cache. The first one goes on as if there were none.
    const [one, two] = both as [Content, Content]
    const fork = { ...one, kept: undefined }
    const again = await cache.step([
      [fork, prompt.slice(30, 33)],
      [two, other.slice(30)],
      [one, prompt.slice(30, 34)],
    ])
    t.deepEqual(again.logits.map(argmax), [expected[32], others[30], expected[33]])
    t.is(cache.reads, 1)
    // Presents of more tokens than the sequence has: a state cannot be cut, so that of the cache counts.
    const behind = again.contents[2] as Content
    const back = await cache.step([[{ ...one, kept: behind.kept }, prompt.slice(30, 32)]])
    t.is(argmax(back.logits[0] as Float32Array), expected[31] as number)
    t.is(cache.reads, 2)
    await cache.release()
  })
}

test('a state with a value that is not a number refuses the step by the name of the tensor', async t => {
  for (const isHalf of [false, true]) {
    const cache = await MemoryCache.open(hybridGraph({ isHalf }))
    const { contents } = await cache.step([[EMPTY, prompt.slice(0, 9)]])
    const error = await t.throwsAsync(cache.step([[contents[0] as Content, [POISON]]]))
    t.true(isKvTideError(error) && error.code === 'RUNTIME_FAILED', String(error))
    t.regex((error as Error).message, /present_conv\.0 has a value that is not a number/)
    const { logits } = await cache.step([[{ ...(contents[0] as Content), kept: undefined }, prompt.slice(9, 12)]])
    t.is(argmax(logits[0] as Float32Array), following(prompt.slice(0, 12)).at(-1) as number)
    await cache.release()
  }
})
