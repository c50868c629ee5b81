// Positions and rows of images in steps: those of transformers for whole prompts, and the same for any part of them.
import test from 'ava'

import { joinedRows, readEmbeds, Spans, type StepRows } from '../../lib/onnx/spans.js'
import { Dice } from '../support/onnx/toy-model.js'
import { visionPrompts } from '../support/onnx/vision.js'

/** The positions of a part of a prompt, in three rows. */
function positionsOf(spans: Spans, from: number, count: number): number[][] {
  const to = new Int32Array(3 * count)
  spans.place(to, { at: 0, from, count, offset: 0 }, count, 3)
  return [0, 1, 2].map(row => [...to.subarray(row * count, (row + 1) * count)])
}

test('positions are those of get_rope_index, for whole prompts and for parts of them', t => {
  for (const [name, { tokens, embeds, positions }] of Object.entries(visionPrompts('qwen2-vl'))) {
    const spans = new Spans(readEmbeds(embeds, { width: 32, hasGrids: true }), Uint32Array.from(tokens))
    const wanted = positions as readonly (readonly number[])[]
    for (let from = 0; from < tokens.length; from++)
      for (let count = 1; count <= tokens.length - from; count++)
        t.deepEqual(
          positionsOf(spans, from, count),
          wanted.map(row => row.slice(from, from + count)),
          `${name}: ${count} from ${from}`,
        )
    // New tokens count on from the largest position of the prompt.
    const last = Math.max(...wanted.flat())
    t.deepEqual(
      positionsOf(spans, tokens.length, 2),
      [0, 1, 2].map(() => [last + 1, last + 2]),
    )
  }
})

test('rows of a part of a prompt are those of its tokens', t => {
  const dice = new Dice(7)
  const width = 3
  for (let round = 0; round < 300; round++) {
    const length = 1 + dice.roll(30)
    const naive = new Map<number, number[]>()
    const given = []
    for (let start = dice.roll(4); start < length;) {
      const rows = 1 + dice.roll(Math.min(5, length - start))
      const data = Float32Array.from({ length: rows * width }, () => dice.roll(1000))
      for (let row = 0; row < rows; row++) naive.set(start + row, [...data.subarray(row * width, (row + 1) * width)])
      given.push({ start, data, key: `${start}` })
      start += rows + dice.roll(6)
    }
    const spans = new Spans(readEmbeds(given.toReversed(), { width, hasGrids: false }), new Uint32Array(length))
    const from = dice.roll(length)
    const [count, at] = [1 + dice.roll(length - from), dice.roll(5)]
    const found: StepRows = { places: [], rows: [] }
    spans.collect({ at, from, count }, found)
    const { places, data } = joinedRows(found) ?? { places: [], data: new Float32Array() }
    const wanted = [...naive].filter(([position]) => position >= from && position < from + count)
    t.deepEqual(
      [...places],
      wanted.map(([position]) => at + position - from),
    )
    t.deepEqual(
      [...data],
      wanted.flatMap(([, row]) => row),
    )
  }
})
