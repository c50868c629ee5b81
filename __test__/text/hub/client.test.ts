// Requests over https, with a `fetch` of the test: what is sent where, and what an error shows.
import test from 'ava'

import { findModel } from '../../../lib/text/hub/hub.js'
import { folderOf } from '../../support/folder.js'
import { LIMITS, withoutVariables } from '../../support/hub-repository.js'
import { rejected } from '../../support/throws.js'

withoutVariables()

interface Sent {
  readonly url: string
  readonly authorization: string | null
}

const own = globalThis.fetch

/** Answers all requests until the test ends. Returns those that were made. */
function answering(answer: (url: string) => Response | Promise<Response>): Sent[] {
  const sent: Sent[] = []
  globalThis.fetch = async (input, init) => {
    const url = String(input)
    sent.push({ url, authorization: new Headers(init?.headers).get('authorization') })
    return answer(url)
  }
  return sent
}

test.afterEach.always(() => {
  globalThis.fetch = own
})

const redirect = (location: string): Response => new Response(null, { status: 302, headers: { location } })

test.serial('a redirect from https to http is not followed', async t => {
  const sent = answering(() => redirect('http://hub.example/api?key=secret'))
  const options = { endpoint: 'https://hub.example', token: 'hf_secret', cacheFolder: await folderOf(t) }
  const error = await rejected(findModel('org/name', options, { limits: LIMITS }), 'HUB_UNAVAILABLE')
  t.regex(error.message, /it redirects from https to http:\/\/hub\.example/)
  t.deepEqual(sent, [
    { url: 'https://hub.example/api/models/org/name/revision/main', authorization: 'Bearer hf_secret' },
  ])
})

test.serial('a redirect to an address with a name or a password is not followed, nor shown', async t => {
  for (const credentials of ['name:very-secret', 'very-secret']) {
    const sent = answering(() => redirect(`https://${credentials}@cdn.example/file?sig=very-secret`))
    const options = { endpoint: 'https://hub.example', cacheFolder: await folderOf(t) }
    const error = await rejected(findModel('org/name', options, { limits: LIMITS }), 'HUB_UNAVAILABLE')
    t.regex(error.message, /it redirects to cdn\.example with a name or a password/)
    t.false(JSON.stringify([error.message, error.details]).includes('very-secret'))
    t.is(sent.length, 1)
  }
})

test.serial(
  'the token goes to the endpoint, also after a redirect to itself, and to no other host, port or scheme',
  async t => {
    for (const other of ['https://cdn.example/x', 'https://hub.example:8443/x', 'https://hub.example.evil.example/x']) {
      const sent = answering(url =>
        url === other ? new Response('[]') : url.endsWith('/again') ? redirect(other) : redirect('/again'),
      )
      const options = { endpoint: 'https://hub.example', token: 'hf_secret', cacheFolder: await folderOf(t) }
      await rejected(findModel('org/name', options, { limits: LIMITS }), 'CORRUPT')
      t.deepEqual(
        sent.map(({ authorization }) => authorization),
        ['Bearer hf_secret', 'Bearer hf_secret', null],
        other,
      )
    }
  },
)

test.serial('the user of an endpoint is sent as a header, and is in no error', async t => {
  const sent = answering(() => {
    throw new TypeError('fetch failed', {
      cause: Object.assign(new Error('getaddrinfo ENOTFOUND mirror.example'), { code: 'ENOTFOUND' }),
    })
  })
  const options = { endpoint: 'https://me:secret@mirror.example/hf/', cacheFolder: await folderOf(t) }
  const error = await rejected(findModel('org/name', options, { limits: LIMITS }), 'HUB_UNAVAILABLE')
  t.is(sent.length, 5)
  t.is(sent[0]?.url, 'https://mirror.example/hf/api/models/org/name/revision/main')
  t.is(sent[0]?.authorization, `Basic ${Buffer.from('me:secret').toString('base64')}`)
  t.notRegex(JSON.stringify([error.message, error.details, error.stack]), /secret/)
  t.is(error.details.reason, 'getaddrinfo ENOTFOUND mirror.example')
})

test.serial('signed addresses are in no error', async t => {
  answering(url =>
    url.includes('/revision/')
      ? Response.json({ sha: 'a'.repeat(40) })
      : url.includes('/tree/')
        ? Response.json([{ type: 'file', path: 'model.onnx', size: 5, oid: 'b'.repeat(40) }])
        : url.includes('/resolve/')
          ? redirect('https://cdn.example/x?X-Amz-Signature=secret')
          : new Response(null, { status: 403 }),
  )
  const options = { endpoint: 'https://hub.example', cacheFolder: await folderOf(t) }
  const error = await rejected(findModel('org/name', options, { limits: LIMITS }), 'HUB_UNAVAILABLE')
  t.is(error.details.reason, 'its storage at cdn.example answers 403')
  t.notRegex(JSON.stringify([error.message, error.details, error.stack, String(error.cause)]), /secret/)
})

test.serial('an answer without an end is given up', async t => {
  const piece = new Uint8Array(2 ** 20).fill(32)
  const endless = (): Response => new Response(new ReadableStream({ pull: controller => controller.enqueue(piece) }))
  answering(endless)
  const options = { endpoint: 'https://hub.example', cacheFolder: await folderOf(t) }
  const limits = { ...LIMITS, attempts: 1, stallMs: 5000 }
  const error = await rejected(findModel('org/name', options, { limits }), 'HUB_UNAVAILABLE')
  t.is(error.details.reason, 'its answer is longer than 64 MiB')
})
