// The inspector's page in a browser: what it shows is what the cache says.
import { PagedKvCache, type Sequence } from '../../index.js'
import { inspect } from '../../inspector.js'
import { nativeArgument } from '../../lib/border/owner.js'
import { blockMap } from '../../lib/inspector/blocks.js'
import type { SharedCache } from '../../lib/sequences/shared-cache.js'
import { browserTest, type Page } from '../support/browser.js'
import { span } from '../support/tokens.js'
import { until } from '../support/until.js'

const rows = (n: number): { data: Float32Array; shape: number[] } => ({
  data: new Float32Array(n),
  shape: [1, 1, n, 1],
})

function user(cache: PagedKvCache, number: number): Sequence {
  const tokens = [...span(0, 64), ...span(1000 * number, 1000 * number + 30)]
  const prefix = cache.match([...tokens, 0])
  const { length } = prefix
  const seq = cache.openSequence({ prefix })
  const rest = tokens.slice(length)
  seq.append({ tokens: rest, k: rows(rest.length), v: rows(rest.length) })
  return seq
}

/** The text of a tile. */
const tile = async (page: Page, id: string): Promise<string> =>
  (await page.locator(`#tile-${id} b`).textContent()) ?? ''

/** The differences between the blocks on the page and those of the cache. */
async function differing(page: Page, cache: PagedKvCache): Promise<number> {
  const { codes } = blockMap(nativeArgument<SharedCache>('cache', cache, PagedKvCache), 0)
  const shown = await page.evaluate<number[]>(
    `Array.from({ length: ${codes.length} }, (_, block) => kvtide.codeOf(block))`,
  )
  return shown.filter((code, block) => code !== codes[block]).length
}

browserTest('numbers, blocks, tree and answers are those of the cache', async (t, browser) => {
  using cache = new PagedKvCache({ capacity: 300, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 1 })
  await using inspector = inspect(cache, { name: 'chats' })
  const url = await inspector.listen()
  const open = span(1, 9).map(number => user(cache, number))
  const snapshot = open[0]?.snapshot()
  open[0]?.drop()
  const page = await browser.newPage({ viewport: { width: 1200, height: 900 } })
  const [asked, wrong]: [string[], string[]] = [[], []]
  page.on('request', request => asked.push(request.url()))
  page.on('pageerror', error => wrong.push(error.message))
  page.on('console', message => {
    if (message.type() === 'error') wrong.push(message.text())
  })
  await page.goto(url)
  await page.waitForSelector('#tile-used')
  t.is(await page.title(), 'kvtide chats')

  const stats = cache.stats()
  t.true(await until(async () => (await tile(page, 'sequences')) === String(cache.sequenceIds().length)))
  t.is(await tile(page, 'hit-rate'), `${(100 * stats.hitRate).toFixed(1)} %`)
  t.deepEqual(
    [await tile(page, 'active'), await tile(page, 'cached'), await tile(page, 'evictions')],
    [stats.activeBlocks, stats.cachedBlocks, stats.evictions].map(String),
  )
  t.true(await until(async () => (await differing(page, cache)) === 0))

  // Pixels too: the middle of each block has the colour of its code.
  const colours = await page.evaluate<boolean[]>(`(() => {
    const map = document.getElementById('map')
    const context = map.getContext('2d')
    const cell = Math.max(1, Math.min(18, Math.floor(Math.sqrt((map.parentElement.clientWidth - 2) * 380 / 300))))
    const columns = map.width / cell
    return Array.from({ length: 300 }, (_, block) => {
      const pixel = context.getImageData((block % columns) * cell + (cell >> 1), Math.floor(block / columns) * cell + (cell >> 1), 1, 1).data
      return kvtide.colourOf(kvtide.codeOf(block)).every((part, at) => Math.abs(part - pixel[at]) <= 1)
    })
  })()`)
  t.deepEqual(colours.filter(same => !same).length, 0)

  t.true(
    await until(
      async () =>
        (await page.locator('#tree summary').first().textContent())?.startsWith('7 sequences share 16 blocks') === true,
    ),
  )
  t.is(await page.locator('#tree ul li').count(), 7)
  // What happens is shown.
  open[1]?.dispose()
  open.push(user(cache, 20), user(cache, 21))
  t.true(
    await until(async () => (await differing(page, cache)) === 0 && (await page.locator('#tree ul li').count()) === 8),
  )

  // By keyboard alone.
  await page.focus('#map')
  for (const key of ['Home', 'ArrowRight', 'ArrowLeft']) await page.keyboard.press(key)
  t.regex((await page.textContent('#block')) ?? '', /^block 0: shared by sequences/)
  await page.focus('#tokens')
  await page.keyboard.type('0 1 2 3 4 5 6 7 99 100 101 102 103')
  await page.keyboard.press('Tab')
  await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  t.true(await until(async () => ((await page.textContent('#answer')) ?? '') !== ''))
  t.regex(
    (await page.textContent('#answer')) ?? '',
    /^8 of 13 tokens are cached\. Block 2 is a miss: it was never computed in this cache/,
  )
  await page.fill('#tokens', '-1')
  await page.press('#salt', 'Enter')
  t.true(await until(async () => /expected a whole number/.test((await page.textContent('#answer')) ?? '')))

  t.deepEqual(
    wrong.filter(words => !words.includes('status of 400')),
    [],
    'but for the answer that was refused',
  )
  t.deepEqual(
    asked.filter(to => !to.startsWith(url) && !to.startsWith('data:')),
    [],
    'nothing is asked for elsewhere',
  )
  snapshot?.dispose()
  cache.dispose()
  t.true(await until(async () => (await page.textContent('#status')) === 'the cache was disposed of'))
})

browserTest('it is readable at 360 pixels, in the dark as well', async (t, browser) => {
  using cache = new PagedKvCache({ capacity: 300, blockSize: 4, numLayers: 1, numKvHeads: 1, headDim: 1 })
  await using inspector = inspect(cache)
  const url = await inspector.listen()
  user(cache, 1)
  for (const [colorScheme, background] of [
    ['light', 'rgb(255, 255, 255)'],
    ['dark', 'rgb(13, 17, 23)'],
  ] as const) {
    const page = await browser.newPage({ viewport: { width: 360, height: 800 }, colorScheme })
    await page.goto(url)
    await page.waitForSelector('#tile-used')
    t.true(await until(async () => (await differing(page, cache)) === 0))
    t.is(await page.evaluate('getComputedStyle(document.body).backgroundColor'), background)
    t.true(await page.evaluate('document.documentElement.scrollWidth <= 360'), 'nothing sticks out')
    await page.close()
  }
})

browserTest('a hundred thousand blocks, a thousand of which change each second', async (t, browser) => {
  using cache = new PagedKvCache({ capacity: 100_000, blockSize: 1, numLayers: 1, numKvHeads: 1, headDim: 1 })
  await using inspector = inspect(cache)
  const url = await inspector.listen()
  const open = span(0, 50).map(number => user(cache, number))
  const page = await browser.newPage({ viewport: { width: 1200, height: 900 } })
  await page.goto(url)
  await page.waitForSelector('#tile-used')
  let number = 100
  // Thirty blocks thirty times a second.
  const busy = setInterval(() => {
    open.shift()?.dispose()
    open.push(user(cache, number++))
  }, 33)
  const frames = (): Promise<number> => page.evaluate<number>('kvtide.frames()')
  const [before, started] = [await frames(), performance.now()]
  const animated = await page.evaluate<number>(
    'new Promise(done => { let frames = 0; const started = performance.now(); requestAnimationFrame(function next() { frames += 1; if (performance.now() - started > 3000) done(frames / 3); else requestAnimationFrame(next) }) })',
  )
  const drawn = ((await frames()) - before) / ((performance.now() - started) / 1000)
  t.log(`${drawn.toFixed(1)} maps drawn a second, ${animated.toFixed(1)} frames`)
  t.true(await until(async () => (await frames()) > before))
  clearInterval(busy)
  t.true(await until(async () => (await differing(page, cache)) === 0))
})
