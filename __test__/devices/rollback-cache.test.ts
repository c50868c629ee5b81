// RollbackCache in rows of a model's size, on each device: drafts, trees, and the rows of an accepted path.
import { RollbackCache } from '../../index.js'
import { onDevices } from '../support/devices.js'
import { throwsCode } from '../support/throws.js'
import { span } from '../support/tokens.js'
import { given, placed, showsBoth, wideOn } from '../support/wide.js'

/** Eight nodes: the path 1, 4, 6, 7 leaves gaps of each length. */
const PARENTS = [-1, -1, 0, 0, 1, 1, 4, 6]

onDevices('the rows of an accepted path follow what was committed', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = new RollbackCache({ device })
    cache.append(...given(shape, 0, 45))
    cache.commit()
    for (const round of span(0, 4)) {
      const first = 100 + 8 * round
      const kept = [...span(0, 45), ...span(0, round).flatMap(past => [1, 4, 6, 7].map(node => 100 + 8 * past + node))]
      showsBoth(
        cache.append(...(round % 2 === 0 ? given : placed)(shape, first, first + 8), { parents: PARENTS }),
        shape,
        [...kept, ...span(first, first + 8)],
      )
      throwsCode(t, 'INVALID_PATH', () => cache.acceptPath([1, 6]))
      cache.acceptPath([1, 4, 6, 7])
      showsBoth(cache.current(), shape, [...kept, ...[1, 4, 6, 7].map(node => first + node)])
    }
    t.deepEqual([cache.committedLen, cache.totalLen], [61, 61])
  }
})

onDevices('a mark goes back to what was committed', (t, device) => {
  for (const shape of wideOn(device)) {
    using cache = new RollbackCache({ device })
    cache.append(...given(shape, 0, 30))
    cache.commit(20)
    const mark = cache.snapshot()
    cache.commit()
    cache.append(...given(shape, 30, 80))
    cache.rollback(mark)
    showsBoth(cache.current(), shape, span(0, 20))
    cache.append(...given(shape, 60, 65))
    showsBoth(cache.current(), shape, [...span(0, 20), ...span(60, 65)])
    t.is(cache.committedLen, 20)
  }
})

onDevices("a tree's mask and positions are the same wherever the cache lives", (t, device) => {
  const [shape] = wideOn(device)
  if (shape === undefined) return
  using cache = new RollbackCache({ device })
  cache.append(...given(shape, 0, 3))
  cache.commit()
  t.deepEqual(Array.from(cache.treePositions([-1, 0, 0])), [3, 4, 4])
  const seen = [[0], [0, 1], [0, 2]]
  const wanted = seen.flatMap(nodes => span(0, 6).map(column => column < 3 || nodes.includes(column - 3)))
  t.deepEqual(
    Array.from(cache.treeMask([-1, 0, 0]).toArray(), value => value === 0),
    wanted,
  )
})
