// save, saveBytes, load, loadPrompts, loadSequence: a load returns what was saved, and invalid files are refused.
import { execFileSync } from 'node:child_process'
import { lstat, readdir, readFile, readlink, stat, symlink, writeFile } from 'node:fs/promises'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

import test from 'ava'

import {
  KvCache,
  type LoadOptions,
  PagedKvCache,
  type Progress,
  RollbackCache,
  type Sequence,
  type UniformCacheOptions,
} from '../../index.js'
import { inFolder } from '../support/folder.js'
import { layered, LAYERED } from '../support/layered.js'
import { rejected } from '../support/throws.js'
import { span } from '../support/tokens.js'

const { prefixKey: _, ...OPTIONS } = LAYERED
const cacheOf = (options: Partial<UniformCacheOptions> = {}): PagedKvCache =>
  new PagedKvCache({ ...OPTIONS, ...options })

function feed(seq: Sequence, tokens: readonly number[]): void {
  const [k, v] = layered(tokens)
  seq.append({ k, v, tokens })
}

const shown = (cache: PagedKvCache, seq: Sequence): number[][] =>
  [0, 1].flatMap(layer => {
    const { k, v } = cache.gather(seq, layer)
    return [[...(k.toArray() as Float32Array)], [...(v.toArray() as Float32Array)]]
  })

test('what prompts find is found again, from a path, a URL and bytes', async t =>
  inFolder(async folder => {
    using cache = cacheOf()
    feed(cache.openSequence(), span(0, 11))
    feed(cache.openSequence({ salt: 'tenant' }), span(50, 59))
    const path = join(folder, 'prompts.kv')
    const size = await cache.save(pathToFileURL(path))
    t.is((await stat(path)).size, size)
    t.is((await stat(path)).mode & 0o777, 0o600)
    const bytes = await cache.saveBytes()
    t.is(bytes.length, size)
    for (const source of [path, pathToFileURL(path), bytes]) {
      using again = await PagedKvCache.load(source)
      t.deepEqual([again.capacity, again.blockSize, again.numLayers, again.headDim], [64, 4, 2, 1])
      t.is(again.match(span(0, 20)).length, 8)
      t.is(again.match(span(50, 70), { salt: 'tenant' }).length, 8)
      t.is(again.match(span(50, 70)).length, 0)
      const [one, other] = [
        again.openSequence({ prefix: again.match(span(0, 9)) }),
        cache.openSequence({ prefix: cache.match(span(0, 9)) }),
      ]
      t.deepEqual(shown(again, one), shown(cache, other))
      again.checkInvariants()
    }
  }))

test('events tell of what was loaded, none before the one that it follows', async t => {
  using cache = cacheOf()
  feed(cache.openSequence(), span(0, 13))
  using again = await PagedKvCache.load(await cache.saveBytes(), { events: 16 })
  const names = cache.keys(span(0, 13))
  const told: [string, readonly number[], boolean][] = []
  for await (const event of again.events()) {
    if (event.type !== 'stored') break
    told.push([event.key, [...event.tokens], event.parent === names[told.length - 1]])
    if (told.length === 3) break
  }
  t.deepEqual(
    told,
    [0, 1, 2].map(place => [names[place], span(place * 4, place * 4 + 4), place > 0]),
  )
})

test('options that agree with the file are taken, others are refused and named', async t => {
  using cache = cacheOf()
  feed(cache.openSequence(), span(0, 9))
  const bytes = await cache.saveBytes()
  using same = await PagedKvCache.load(bytes, { ...OPTIONS, capacity: 1, events: 4 })
  t.deepEqual([same.capacity, same.stats().cachedBlocks], [1, 1])
  using sized = await PagedKvCache.load(bytes, { memoryBytes: 2 ** 16, maxSequences: 2 })
  t.is(sized.match(span(0, 9)).length, 8)
  const wrong: [LoadOptions, string][] = [
    [{ dtype: 'f16' }, 'dtype'],
    [{ keyFormat: 'q8' }, 'keyFormat'],
    [{ valueFormat: 'f16' }, 'valueFormat'],
    [{ blockSize: 8 }, 'blockSize'],
    [{ namespace: 'another model' }, 'namespace'],
    [{ ...OPTIONS, headDim: 2 }, 'groups[0].headDim'],
    [{ model: { layers: [{ kind: 'full', numKvHeads: 2, headDim: 1 }] } }, 'groups[0].layers'],
    [{ prefixKey: new Uint8Array(32) }, 'prefixKey'],
  ]
  for (const [options, field] of wrong) {
    const { details } = await rejected(PagedKvCache.load(bytes, options), 'INCOMPATIBLE')
    t.is(details.field, field)
  }
})

test('loadPrompts brings prompts to a cache that is in use', async t => {
  const prefixKey = new Uint8Array(32).fill(7)
  using cache = cacheOf({ prefixKey })
  feed(cache.openSequence(), span(0, 12))
  const bytes = await cache.saveBytes()
  using other = cacheOf({ prefixKey, capacity: 8 })
  const chat = other.openSequence()
  feed(chat, span(0, 6))
  t.is(await other.loadPrompts(bytes), 2, 'one of three is there')
  {
    using match = other.match(span(0, 20))
    t.is(match.length, 12)
  }
  t.is(await other.loadPrompts(bytes), 0)
  t.deepEqual([chat.length, other.freeCount], [6, 6])
  // A cache whose key was made at random: its file loads into an empty cache.
  using own = cacheOf()
  feed(own.openSequence(), span(0, 12))
  const keyless = await own.saveBytes()
  await rejected(other.loadPrompts(keyless), 'INCOMPATIBLE')
  using fresh = cacheOf()
  t.is(await fresh.loadPrompts(keyless), 3)
  t.is(fresh.match(span(0, 20)).length, 12)
  using used = cacheOf()
  used.createSequence()
  t.is(await used.loadPrompts(keyless), 3, 'in the process that saved it')
})

test('a sequence goes on in another cache', async t =>
  inFolder(async folder => {
    using cache = cacheOf({ keyFormat: 'q8', headDim: 1 })
    const chat = cache.openSequence({ salt: 'tenant', extra: [{ start: 1, end: 3, key: Uint8Array.of(1) }] })
    feed(chat, span(0, 10))
    const path = join(folder, 'chat.kv')
    await chat.save(path)
    using other = cacheOf({ keyFormat: 'q8', headDim: 1 })
    const prompt = { salt: 'tenant', extra: [{ start: 1, end: 3, key: Uint8Array.of(1) }] }
    const again = await other.loadSequence(path, prompt)
    t.deepEqual(shown(other, again), shown(cache, chat))
    feed(again, span(10, 17))
    feed(chat, span(10, 17))
    t.deepEqual(shown(other, again), shown(cache, chat))
    t.is(other.match(span(0, 30), prompt).length, 16)
    for (const wrong of [{}, { salt: 'tenant' }, { ...prompt, salt: 'other' }]) {
      const { details } = await rejected(other.loadSequence(path, wrong), 'INCOMPATIBLE')
      t.is(details.field, 'salt')
    }
    using small = cacheOf({ keyFormat: 'q8', headDim: 1, capacity: 2 })
    t.is((await rejected(small.loadSequence(path, prompt), 'OUT_OF_BLOCKS')).details.needed, 3)
    t.deepEqual([small.sequenceIds(), small.freeCount], [[], 2])
  }))

/** Tokens of a wider cache, with all elements equal. */
const rows = (n: number, of: number) => ({ data: new Float32Array(4 * 8 * n * 64).fill(of), shape: [4, 8, n, 64] })

const cause = async (promise: Promise<unknown>): Promise<unknown> => (await rejected(promise, 'ABORTED')).cause

test('the cache goes on while it is saved', async t =>
  inFolder(async folder => {
    using cache = new PagedKvCache({ capacity: 64, blockSize: 16, numLayers: 4, numKvHeads: 8, headDim: 64 })
    const chat = cache.openSequence()
    chat.append({ tokens: span(0, 640), k: rows(640, 1), v: rows(640, 2) })
    const saving = Promise.all([cache.save(join(folder, 'all.kv')), chat.save(join(folder, 'chat.kv'))])
    // This evicts everything else before the pages are written.
    chat.drop()
    const next = cache.openSequence()
    next.append({ tokens: span(1000, 1384), k: rows(384, 3), v: rows(384, 4) })
    await saving
    next.drop()
    const again = await cache.loadSequence(join(folder, 'chat.kv'))
    const { k, v } = cache.gather(again, 3)
    t.true(
      (k.toArray() as Float32Array).every(value => value === 1) &&
        (v.toArray() as Float32Array).every(value => value === 2),
    )
    using loaded = await PagedKvCache.load(join(folder, 'all.kv'))
    const found = loaded.match(span(0, 641))
    const kept = loaded.openSequence({ prefix: found })
    const keys = found.length === 0 ? [] : [...(loaded.gather(kept, 0).k.toArray() as Float32Array)]
    t.true(
      keys.every(value => value === 1),
      'what it has is what it was',
    )
    t.deepEqual(await readdir(folder), ['all.kv', 'chat.kv'])
  }))

test('progress, and an end before the end', async t =>
  inFolder(async folder => {
    using cache = new PagedKvCache({ capacity: 64, blockSize: 16, numLayers: 4, numKvHeads: 8, headDim: 64 })
    const chat = cache.openSequence()
    chat.append({ tokens: span(0, 1008), k: rows(1008, 1), v: rows(1008, 2) })
    const path = join(folder, 'chat.kv')
    const told: Progress[] = []
    await chat.save(path, { onProgress: progress => told.push(progress) })
    t.deepEqual(told.at(-1), { doneBytes: 63 * 4 * 8 * 16 * 64 * 2 * 4, totalBytes: 63 * 4 * 8 * 16 * 64 * 2 * 4 })
    const before = await readFile(path)
    const reason = new Error('enough')
    t.is(await cause(chat.save(path, { signal: AbortSignal.abort(reason) })), reason)
    const late = new AbortController()
    const saving = chat.save(path, { signal: late.signal })
    late.abort(reason)
    t.is(await cause(saving), reason)
    t.deepEqual([await readdir(folder), Buffer.compare(before, await readFile(path))], [['chat.kv'], 0])
    const controller = new AbortController()
    using other = new PagedKvCache({ capacity: 64, blockSize: 16, numLayers: 4, numKvHeads: 8, headDim: 64 })
    const loading = other.loadSequence(path, { signal: controller.signal })
    controller.abort(reason)
    t.is(await cause(loading), reason)
    t.deepEqual([other.sequenceIds(), other.freeCount], [[], 64])
    const thrown = await t.throwsAsync(
      other.loadSequence(path, {
        onProgress: () => {
          throw reason
        },
      }),
    )
    t.is(thrown, reason)
  }))

test('what cannot be is refused, and leaves no file', async t =>
  inFolder(async folder => {
    using cache = cacheOf()
    const chat = cache.openSequence()
    feed(chat, span(0, 9))
    const path = join(folder, 'chat.kv')
    for (const wrong of [undefined, '', 5, '\0', new URL('https://kvtide.dev/')]) {
      await rejected(cache.save(wrong as string), 'INVALID_ARGUMENT')
      await rejected(PagedKvCache.load(wrong as string), 'INVALID_ARGUMENT')
    }
    await rejected(PagedKvCache.load(new Float32Array(4) as unknown as Uint8Array), 'INVALID_ARGUMENT')
    await rejected(cache.save(path, { onProgress: 5 as never }), 'INVALID_ARGUMENT')
    await rejected(cache.save(path, { compress: true } as never), 'INVALID_ARGUMENT')
    t.is((await rejected(cache.save(join(folder, 'none', 'chat.kv')), 'IO_ERROR')).details.operation, 'create')
    t.is((await rejected(PagedKvCache.load(join(folder, 'none.kv')), 'IO_ERROR')).details.path, join(folder, 'none.kv'))
    await rejected(PagedKvCache.load(folder), 'IO_ERROR')
    {
      using draft = chat.begin()
      await rejected(chat.save(path), 'TRANSACTION_OPEN')
      draft.rollback()
    }
    t.deepEqual(await readdir(folder), [])
    await writeFile(path, 'no cache at all, but long enough to be one')
    t.regex(
      (await rejected(PagedKvCache.load(path), 'CORRUPT')).message,
      /the header is \d+ bytes long, expected at most 1048576/,
    )
    await chat.save(path)
    const bytes = await readFile(path)
    bytes[bytes.length - 300] = (bytes[bytes.length - 300] as number) ^ 1
    await rejected(cache.loadSequence(bytes), 'CORRUPT')
    const disposed = cacheOf()
    disposed.dispose()
    await rejected(disposed.save(path), 'DISPOSED')
    await rejected(disposed.loadSequence(path), 'DISPOSED')
    const ending = cacheOf()
    feed(ending.openSequence(), span(0, 9))
    const saving = ending.save(join(folder, 'ended.kv'))
    ending.dispose()
    await rejected(saving, 'DISPOSED')
    t.deepEqual(await readdir(folder), ['chat.kv'])
  }))

test('only regular files are opened, and written over', async t => {
  if (process.platform === 'win32') return t.pass('Windows has no such files')
  return inFolder(async folder => {
    const at = (name: string): string => join(folder, name)
    execFileSync('mkfifo', [at('fifo')])
    await symlink('/dev/null', at('null'))
    await symlink('fifo', at('link'))
    const server = createServer()
    await new Promise<void>(resolve => void server.listen(at('socket'), resolve))
    using cache = cacheOf()
    const chat = cache.openSequence()
    feed(chat, span(0, 9))
    using layer = new RollbackCache()
    const kinds = {
      [at('fifo')]: 'a FIFO',
      [at('link')]: 'a FIFO',
      [at('null')]: 'a character device',
      [at('socket')]: 'a socket',
      [folder]: 'a folder',
    }
    for (const [path, kind] of Object.entries(kinds)) {
      const calls = [
        () => PagedKvCache.load(path),
        () => cache.loadPrompts(path),
        () => cache.loadSequence(path),
        () => KvCache.load(path),
        () => RollbackCache.load(path),
        () => cache.save(path),
        () => chat.save(path),
        () => layer.save(path),
      ]
      for (const call of calls)
        t.regex((await rejected(call(), 'IO_ERROR')).message, new RegExp(`: it is ${kind}, expected a regular file$`))
    }
    t.deepEqual((await readdir(folder)).sort(), ['fifo', 'link', 'null', 'socket'])
    t.true(
      (await lstat(at('null'))).isSymbolicLink() &&
        (await lstat(at('fifo'))).isFIFO() &&
        (await stat('/dev/null')).isCharacterDevice(),
    )
    await new Promise(resolve => server.close(resolve))
    // A link to a regular file, or to nothing, is replaced by the saved file.
    await symlink('nothing', at('free'))
    await chat.save(at('free'))
    t.true((await lstat(at('free'))).isFile())
  })
})

test('a load closes its file, however it ends', async t =>
  inFolder(async folder => {
    if (process.platform !== 'linux') {
      t.log('SKIPPED: only Linux lists the open files of a process')
      t.pass()
      return
    }
    using cache = cacheOf()
    const seq = cache.openSequence()
    feed(seq, span(0, 11))
    const [whole, one] = ['prompts.kv', 'chat.kv'].map(name => join(folder, name)) as [string, string]
    await cache.save(whole)
    await seq.save(one)
    using again = await PagedKvCache.load(whole)
    t.is(again.match(span(0, 20)).length, 8)
    t.is((await cache.loadSequence(one)).length, 11)
    await cache.loadPrompts(whole)
    await rejected(PagedKvCache.load(whole, { blockSize: 0 }), 'INVALID_ARGUMENT')
    await rejected(cacheOf({ headDim: 2 }).loadSequence(one), 'INCOMPATIBLE')
    const files = await readdir('/proc/self/fd')
    const open = await Promise.all(files.map(file => readlink(join('/proc/self/fd', file)).catch(() => '')))
    t.deepEqual(
      open.filter(path => path === whole || path === one),
      [],
    )
  }))

test('bytes that change while they are read do not matter', async t => {
  using cache = cacheOf()
  feed(cache.openSequence(), span(0, 9))
  const bytes = await cache.saveBytes()
  const loading = PagedKvCache.load(bytes)
  bytes.fill(0)
  structuredClone(bytes.buffer, { transfer: [bytes.buffer as ArrayBuffer] })
  using again = await loading
  t.is(again.match(span(0, 9)).length, 8)
})

test('a file of another version is refused as such, whatever else is in it', async t => {
  using cache = cacheOf()
  const chat = cache.openSequence()
  feed(chat, span(0, 9))
  using layer = new RollbackCache()
  const loads = [
    [await cache.saveBytes(), (bytes: Uint8Array) => PagedKvCache.load(bytes)],
    [await cache.saveBytes(), (bytes: Uint8Array) => cache.loadPrompts(bytes)],
    [await chat.saveBytes(), (bytes: Uint8Array) => cache.loadSequence(bytes)],
    [await layer.saveBytes(), (bytes: Uint8Array) => RollbackCache.load(bytes)],
  ] as const
  for (const [bytes, load] of loads) {
    const newer = Buffer.from(bytes)
    const place = newer.indexOf('"version":"1"')
    t.true(place > 0)
    newer.write('2', place + '"version":"'.length)
    const { details } = await rejected(load(newer), 'INCOMPATIBLE')
    t.deepEqual(details, { field: 'version', value: '2', expected: '1' })
  }
})
