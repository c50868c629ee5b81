// The table of models with states in docs/hybrid.md: its numbers are computed here.
import { readFileSync } from 'node:fs'

import test from 'ava'

import { groupsOfModel, type LayerGroup, type StatePlace } from '../../lib/sequences/layer-group.js'
import { HYBRID_CONFIGS } from '../support/hybrid-configs.js'

const shown = (count: number): string => count.toLocaleString('en')

/** `36 x 8 heads of 64`, of layers with attention. */
const attentionOf = (groups: readonly LayerGroup[]): string =>
  groups
    .filter(group => group.kind !== 'state')
    .map(({ layers, numKvHeads, headDim }) => `${layers.length} x ${numKvHeads} heads of ${headDim}`)
    .join(', ') || 'none'

/** `36 x (conv 3,328 x 3, ssm 48 x 64 x 128)`, of layers with states, which all have the same ones. */
function statesOf(layers: readonly number[], tensors: readonly StatePlace[]): string {
  const first = tensors.filter(({ layer }) => layer === layers[0])
  return `${layers.length} x (${first.map(({ name, shape }) => `${name} ${shape.map(shown).join(' x ')}`).join(', ')})`
}

function rowOf(name: string, config: object): string {
  const groups = groupsOfModel(config, 'f16')
  const perToken = groups.reduce(
    (sum, { layers, numKvHeads, headDim, valueHeadDim }) =>
      sum + 2 * layers.length * numKvHeads * (headDim + valueHeadDim),
    0,
  )
  const { layers, tensors = [] } = groups.at(-1) as LayerGroup
  // From the shapes, without the rounding of offsets.
  const bytes = tensors.reduce(
    (sum, { shape, dtype }) => sum + shape.reduce((product, size) => product * size, dtype === 'f32' ? 4 : 2),
    0,
  )
  const tokens = perToken === 0 ? '-' : shown(Math.ceil(bytes / perToken))
  const numbers = [shown(bytes), perToken === 0 ? '-' : shown(perToken), tokens]
  return `| ${[name, attentionOf(groups), statesOf(layers, tensors), ...numbers].join(' | ')} |`
}

test('the table of models with states has the numbers of their files', t => {
  const rows = Object.entries(HYBRID_CONFIGS).map(([name, config]) => rowOf(name, config))
  const lines = readFileSync(new URL('../../docs/hybrid.md', import.meta.url), 'utf8').split('\n')
  const start = lines.findIndex(line => line.startsWith('| model | attention |'))
  t.true(start > 0)
  t.deepEqual(lines.slice(start + 2, start + 2 + rows.length), rows)
  t.is(lines[start + 2 + rows.length], '')
})
