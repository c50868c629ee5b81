// The script of the inspector's page: receives the cache's events and draws the map, the charts and the tree.
import type { Message, Sample } from '../messages.js'
import { charts } from './charts.js'
import { colourOf, describe, legend } from './colours.js'
import { explainForm } from './explain.js'
import { BlockGrid } from './grid.js'
import { byId, element } from './html.js'
import { drawTree } from './tree.js'

const status = byId('status')
const grid = new BlockGrid(byId<HTMLCanvasElement>('map'), block => {
  byId('block').textContent = describe(block, grid.codeOf(block))
})
const over = charts(byId('charts'))
let history: Sample[] = []
let sequences = 0
let events: EventSource | undefined

/** The share of prompt tokens that were hits between two samples; `null` if none was looked up. */
function hitRate(before: Sample, now: Sample): number | null {
  const asked = now.promptTokens - before.promptTokens
  return asked === 0 ? null : (now.hitTokens - before.hitTokens) / asked
}

function bytes(value: number): string {
  const [unit, of] = (
    [
      ['GiB', 2 ** 30],
      ['MiB', 2 ** 20],
      ['KiB', 2 ** 10],
    ] as const
  ).find(([, least]) => value >= least) ?? ['bytes', 1]
  return `${(value / of).toFixed(of === 1 ? 0 : 1)} ${unit}`
}

function tiles(limitBytes: number | null): void {
  const now = history.at(-1) as Sample
  const all = now.activeBlocks + now.cachedBlocks + now.freeBlocks
  const rate = now.promptTokens === 0 ? '–' : `${((100 * now.hitTokens) / now.promptTokens).toFixed(1)} %`
  const shown: [id: string, value: string, words: string][] = [
    ['hit-rate', rate, `hit rate of ${now.promptTokens.toLocaleString('en')} prompt tokens`],
    ['active', now.activeBlocks.toLocaleString('en'), `active of ${all.toLocaleString('en')} blocks`],
    ['cached', now.cachedBlocks.toLocaleString('en'), 'cached blocks'],
    ['sequences', sequences.toLocaleString('en'), 'sequences'],
    ['used', bytes(now.usedBytes), limitBytes === null ? 'in use' : `in use of ${bytes(limitBytes)}`],
    ['evictions', now.evictions.toLocaleString('en'), 'evictions'],
  ]
  byId('tiles').replaceChildren(
    ...shown.map(([id, value, words]) =>
      element('div', { className: 'tile', id: `tile-${id}` }, element('b', {}, value), element('span', {}, words)),
    ),
  )
}

function sampled(sample: Sample, limitBytes: number | null): void {
  history = [...history.slice(-599), sample]
  tiles(limitBytes)
  const pairs = history.slice(1).map((now, at) => [history[at] as Sample, now] as const)
  over.draw(
    pairs.map(([, now]) => now.time / 1000),
    [
      pairs.map(([before, now]) => {
        const rate = hitRate(before, now)
        return rate === null ? null : 100 * rate
      }),
      pairs.map(([before, now]) => (1000 * (now.evictions - before.evictions)) / Math.max(1, now.time - before.time)),
      pairs.map(([, now]) => now.usedBytes / 2 ** 20),
    ],
  )
}

/** Decodes an array that was sent as base64. */
function decoded(words: string): ArrayBuffer {
  return Uint8Array.from(atob(words), character => character.charCodeAt(0)).buffer
}

function told(message: Message): void {
  switch (message.kind) {
    case 'hello': {
      byId('name').textContent = message.name
      document.title = `kvtide ${message.name}`
      history = [...message.history]
      const select = byId<HTMLSelectElement>('group')
      const options = message.groups.map(({ kind, layers, window }, at) =>
        element(
          'option',
          { value: String(at) },
          `${layers} ${kind === 'full' ? 'without a window' : kind === 'state' ? 'with states' : `with a window of ${window}`}`,
        ),
      )
      if (select.options.length !== options.length) select.replaceChildren(...options)
      return
    }
    case 'blocks':
      return grid.set(new Uint16Array(decoded(message.codes)))
    case 'changes':
      return grid.change(new Uint32Array(decoded(message.pairs)))
    case 'sample':
      return sampled(message.sample, message.limitBytes)
    case 'tree': {
      sequences = Object.keys(message.lengths).length
      return drawTree(byId('tree'), message.tree, message.lengths, id => grid.highlight(id))
    }
    case 'ended':
      status.textContent = 'the cache was disposed of'
      events?.close()
  }
}

function follow(group: string): void {
  events?.close()
  events = new EventSource(`events?group=${group}`)
  events.addEventListener('open', () => {
    status.textContent = 'live'
  })
  events.addEventListener('error', () => {
    status.textContent = 'the process has ended or is busy, retrying'
  })
  events.addEventListener('message', ({ data }: MessageEvent<string>) => told(JSON.parse(data) as Message))
}

byId<HTMLSelectElement>('group').addEventListener('change', event => follow((event.target as HTMLSelectElement).value))
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
  legend(byId('legend'))
  grid.redraw()
  over.restyle()
})
legend(byId('legend'))
explainForm(byId<HTMLFormElement>('explain'))
follow('0')

// For scripts that test the page: the number of frames, the code of a block, and the colour of a code.
Object.assign(window, {
  kvtide: { frames: () => grid.frames, codeOf: (block: number) => grid.codeOf(block), colourOf },
})
