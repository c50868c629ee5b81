// The script of the inspector's page: receives the cache's events and draws the map, the charts and the tree.
import { BLOCK, type GroupShape, type Message, type Sample } from '../messages.js'
import { charts } from './charts.js'
import { colourOf, describe, describeSlot, legend } from './colours.js'
import { explainForm } from './explain.js'
import { BlockGrid } from './grid.js'
import { byId, element } from './html.js'
import { drawTree } from './tree.js'

const status = byId('status')
const grid = new BlockGrid(byId<HTMLCanvasElement>('map'), block => {
  const code = grid.codeOf(block)
  byId('block').textContent = isState() ? describeSlot(block, code, ends[block] ?? 0) : describe(block, code)
})
const over = charts(byId('charts'))
let history: Sample[] = []
let sequences = 0
let groups: readonly GroupShape[] = []
/** The tokens before each checkpoint, while a group of states is shown. */
let ends = new Uint32Array(0)
let events: EventSource | undefined

const shownGroup = (): GroupShape | undefined => groups[Number(byId<HTMLSelectElement>('group').value)]
const isState = (): boolean => shownGroup()?.kind === 'state'

/** Shows the number of checkpoints in the group of states that is shown, and their bytes. */
function summary(): void {
  if (!isState()) return void (byId('states').textContent = '')
  const { blocks = 0, bytes: each = 0 } = shownGroup() ?? {}
  let count = 0
  for (let slot = 0; slot < blocks; slot++) if (grid.codeOf(slot) === BLOCK.cached || (ends[slot] ?? 0) > 0) count += 1
  byId('states').textContent =
    `${count.toLocaleString('en')} checkpoints, ${bytes(count * each)}, in ${blocks.toLocaleString('en')} slots of ${bytes(each)}`
}

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
  if (groups.some(({ kind }) => kind === 'state'))
    shown.push(['lost', now.lostTokens.toLocaleString('en'), 'lost tokens, for want of a checkpoint'])
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
      groups = message.groups
      const select = byId<HTMLSelectElement>('group')
      const options = message.groups.map(({ kind, layers, window }, at) =>
        element(
          'option',
          { value: String(at) },
          `${layers} ${kind === 'full' ? 'without a window' : kind === 'state' ? 'with states' : `with a window of ${window}`}`,
        ),
      )
      if (select.options.length !== options.length) select.replaceChildren(...options)
      ends = new Uint32Array(0)
      legend(byId('legend'), isState())
      return summary()
    }
    case 'blocks':
      grid.set(new Uint16Array(decoded(message.codes)))
      return summary()
    case 'changes':
      grid.change(new Uint32Array(decoded(message.pairs)))
      return summary()
    case 'sample':
      return sampled(message.sample, message.limitBytes)
    case 'tree': {
      sequences = Object.keys(message.lengths).length
      return drawTree(byId('tree'), message.tree, message, id => grid.highlight(id))
    }
    case 'ends':
      ends = new Uint32Array(decoded(message.ends))
      return summary()
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
  legend(byId('legend'), isState())
  grid.redraw()
  over.restyle()
})
legend(byId('legend'))
explainForm(byId<HTMLFormElement>('explain'))
follow('0')

// For scripts that test the page: the number of frames, the code of a block, and the colour of a code.
Object.assign(window, {
  kvtide: {
    frames: () => grid.frames,
    codeOf: (block: number) => grid.codeOf(block),
    endOf: (slot: number) => ends[slot] ?? 0,
    colourOf,
  },
})
