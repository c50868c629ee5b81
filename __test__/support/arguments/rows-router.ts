import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'

import { type CacheEvent, DynamoRouter, PagedKvCache, PrefixRouter } from '../../../index.js'
import { but, count, duration, optional, options, text, tokenIds, whole, type Kind } from './kinds.js'
import { free, Members, param, type Row } from './row.js'
import { ANY } from './rows-contiguous.js'

const NAMES = ['ab'.repeat(32)]
const stored: CacheEvent = {
  number: 0,
  type: 'stored',
  key: NAMES[0] as string,
  parent: 'cd'.repeat(32),
  isFirst: true,
  tokens: new Uint32Array(2),
}

function router(): PrefixRouter {
  const made = new PrefixRouter()
  made.addWorker('one')
  return made
}

const anyText = but(text, { '"3"': 'ok' })
const worker = param('worker', text, () => 'one')
const names = param('keys', { legal: { 'an empty array': 'ok' } }, () => NAMES)
const load: Kind = { legal: { '-1': 'ok', '1.5': 'ok', '2^31': 'ok', '2^32 + 5': 'ok', '2^53': 'ok' } }
const followed = (): object => ({ endpoint: 'tcp://127.0.0.1:1' })

const weight = param(
  'options',
  options(() => ({}), { loadWeight: optional(but(load, { '-1': 'INVALID_ARGUMENT' })) }, ANY),
  () => ({ loadWeight: 2 }),
)

const routers = new Members('PrefixRouter', router)
  .plain('stats')
  .method(
    'addWorker',
    param('worker', anyText, () => 'other'),
  )
  .method('removeWorker', worker)
  .method(
    'setLoad',
    worker,
    param('load', load, () => 2),
  )
  .method(
    'apply',
    worker,
    param('events', { legal: { 'an empty array': 'ok' } }, () => [stored]),
  )
  .method(
    'follow',
    worker,
    param(
      'options',
      options(followed, { endpoint: text, replayEndpoint: optional(text), topic: optional(anyText) }),
      followed,
    ),
  )
  .method('route', names, weight)
  .method('lengths', names)
  .disposable()

/** A server that answers like Dynamo's indexer: every request succeeds, and no worker has any block. */
const indexer = createServer((request, response) => {
  response.statusCode = request.url === '/register' ? 201 : 200
  response.end('{"instances":{}}')
})
await new Promise<void>(resolve => indexer.listen(0, '127.0.0.1', resolve))
indexer.unref()

const dynamoOptions = (): object => ({
  url: `http://127.0.0.1:${(indexer.address() as AddressInfo).port}`,
  blockSize: 2,
})
const dynamo = new Members('DynamoRouter', dynamoRouter)
  .method(
    'addWorker',
    param('worker', anyText, () => 'other'),
    param('options', options(followed, { endpoint: text, replayEndpoint: optional(text) }), followed),
  )
  .method('removeWorker', worker)
  .method(
    'setLoad',
    worker,
    param('load', load, () => 2),
  )
  .method(
    'route',
    param('tokens', tokenIds, () => [1, 2, 3]),
    weight,
  )
  .method(
    'lengths',
    param('tokens', tokenIds, () => [1, 2, 3]),
  )
  .disposable()

/** A router with a worker. The worker is added at once, before the indexer has answered. */
function dynamoRouter(): DynamoRouter {
  const made = new DynamoRouter(dynamoOptions() as never)
  void made.addWorker('one', { endpoint: 'tcp://127.0.0.1:1' }).catch(() => {})
  return made
}

const published = (): object => ({ endpoint: 'tcp://127.0.0.1:0' })
const cache = (): PagedKvCache =>
  new PagedKvCache({ capacity: 2, blockSize: 2, numLayers: 1, numKvHeads: 1, headDim: 1, events: 4 })

/** Every row of the router and of event publishing. */
export const routerRows: readonly Row[] = [
  free('new PrefixRouter'),
  free('PrefixRouter.shortKeys', names),
  ...routers.rows,
  free(
    'new DynamoRouter',
    param(
      'options',
      options(dynamoOptions, { url: text, blockSize: count, model: optional(anyText), deadline: optional(duration) }),
      dynamoOptions,
    ),
  ),
  ...dynamo.rows,
  free(
    'publishEvents',
    param('cache', { legal: {} }, cache),
    param(
      'options',
      options(published, {
        endpoint: text,
        replayEndpoint: optional(text),
        topic: optional(anyText),
        rank: optional(count),
        first: optional(whole('ok')),
      }),
      published,
    ),
  ),
]
