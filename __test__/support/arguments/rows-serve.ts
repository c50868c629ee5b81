import { isKvTideError } from 'kvtide'
import type { TextModel } from 'kvtide/text'

import * as serve from '../../../packages/serve/index.js'
import { ScriptedModel } from '../serve/scripted-model.js'
import { but, count, flag, type Kind, optional, options, text } from './kinds.js'
import { type Entry, free, Members, param, type Param, type Row, rowsOf } from './row.js'
import { ANY } from './rows-contiguous.js'
import { share } from './sampling.js'

/** Packages throw errors of the compiled kvtide. */
export const publishedError: Entry['errorOf'] = thrown => (isKvTideError(thrown) ? thrown : undefined)

const stand = new ScriptedModel()
const scripted = (): object => ({ model: stand.asModel })
const workers = (): object => ({ workers: ['http://127.0.0.1:9'] })
const made: (() => Promise<void>)[] = []

/** A server on any free port, also where a call asks for the default one: it may be in use. */
function kept<T extends serve.TextServer | serve.RouterServer>(own: T): T {
  const { app, close } = own
  const listen = app.listen.bind(app) as (place: object) => Promise<string>
  Object.defineProperty(app, 'listen', { value: (place: object) => listen({ ...place, port: 0 }) })
  made.push(() => close.call(own as never))
  return own
}

const server = (): serve.TextServer => kept(serve.createServer(scripted() as never))
const router = (): serve.RouterServer => kept(serve.createRouter(workers() as never))

/** Closes the servers that calls were made on. */
export async function closeServers(): Promise<void> {
  await Promise.all(made.splice(0).map(close => close()))
}

const words: Kind = but(text, { '"3"': 'ok' })
const large = { '2^31': 'ok', '2^32 + 5': 'ok' }
const limit: Kind = optional(but(count, large))
const seconds: Kind = optional(but(share, { '1.5': 'ok', Infinity: 'ok', ...large, '2^53': 'ok' }))

const serverOptions: Param = param(
  'options',
  options(scripted, {
    model: { legal: {} },
    name: optional(words),
    keys: optional({
      legal: { 'an empty array': 'ok' },
      entries: [options(() => ({ key: 'k' }), { name: optional(words), key: words })],
    }),
    publicPrompt: optional(words),
    maxRunning: limit,
    maxWaiting: limit,
    maxTokens: limit,
    maxBodyBytes: limit,
    times: optional(
      options(
        () => ({}),
        { firstToken: seconds, request: seconds, write: seconds, body: seconds, drain: seconds },
        ANY,
      ),
    ),
    events: optional(
      options(() => ({ endpoint: 'tcp://127.0.0.1:1' }), { endpoint: words, replayEndpoint: optional(words) }),
    ),
    isLogging: optional(flag),
    hasInspector: optional(flag),
  }),
  scripted,
)

const routerOptions: Param = param(
  'options',
  options(workers, {
    workers: { legal: {}, entries: [text] },
    maxBodyBytes: limit,
    drainSeconds: seconds,
    isLogging: optional(flag),
  }),
  workers,
)

const free0 = (): object => ({ port: 0 })
const address: Param = param('options', options(free0, { port: optional(count), host: optional(text) }, ANY), free0)

const always = { disposed: 'ok', foreign: 'INVALID_ARGUMENT' }
const members = (owner: string, self: () => object): readonly Row[] =>
  new Members(owner, self)
    .special('listen', always, address)
    .special('active', always)
    .special('drain', always)
    .special('close', always)
    .special('[asyncDispose]', always).rows

/** Rows of kvtide-serve. */
export const serveRows: readonly Row[] = rowsOf(
  serve,
  [
    free('new TextServer', serverOptions),
    free('createServer', serverOptions),
    ...members('TextServer', server),
    free('new RouterServer', routerOptions),
    free('createRouter', routerOptions),
    ...members('RouterServer', router),
    free(
      'keysOf',
      param('text', words, () => 'team key'),
    ),
  ],
  publishedError,
)

/** The options of a server whose draft its model checks. The stand-in of the other rows checks none. */
export const draftRows = (model: TextModel): readonly Row[] => {
  const given = (): object => ({ model, draft: 'lookup' })
  const draft = optional(options(() => ({}), { lookup: count, model: { legal: {} } }))
  return rowsOf(serve, [free('createServer', param('options', options(given, { draft }), given))], publishedError)
}
