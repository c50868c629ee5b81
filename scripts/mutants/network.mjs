// Planted faults of everything that listens or asks: downloads from a Hub, the inspector, the server and its tenants, and the client of an indexer.
import { ava } from './checks.mjs'

const CLIENT = 'lib/text/hub/client.ts'
const BLOB = 'lib/text/hub/blob.ts'
const NAME = 'lib/text/hub/name.ts'
const INSPECTOR = 'lib/inspector/inspector.ts'
const KEYS = 'packages/serve/lib/access/keys.ts'
const DYNAMO = 'lib/router/dynamo-router.ts'

const hub = (file, title) => ava(`__test__/text/hub/${file}.test.ts`, title)
const http = title => ava('__test__/serve/http.test.ts', title)
const tenants = title => ava('__test__/serve/tenants.test.ts', title)
const inspector = title => ava('__test__/inspector/server.test.ts', title)
const indexer = title => ava('__test__/router/dynamo-router.test.ts', title)

export const network = [
  {
    name: 'hub-sum',
    fault: 'wrong bytes of a download are kept',
    file: BLOB,
    from: 'if (found === this.#file.sum) return',
    to: 'if (found.length === this.#file.sum.length) return',
    check: hub('faults', 'wrong bytes again and again are CORRUPT, and nothing of them stays'),
  },
  {
    name: 'hub-part',
    fault: 'the bytes that an earlier call left are not part of the sum',
    file: BLOB,
    from: '      this.#hash.update(piece.subarray(0, bytesRead))\n',
    to: '',
    check: hub('faults', 'what an earlier call left is hashed, and the rest is asked for'),
  },
  {
    name: 'hub-range',
    fault: 'a whole file is put behind the part that is there',
    file: BLOB,
    from: 'if (response.status !== 206 || Number(start) === 0) return false',
    to: 'if (Number(start) === 0) return false',
    check: hub('faults', 'a server that ignores ranges sends the whole file, which is not put behind the part'),
  },
  {
    name: 'hub-token',
    fault: 'the token follows a redirect to another host',
    file: CLIENT,
    from: '...(isOwn && authorization !== undefined ? { authorization } : {})',
    to: '...(authorization !== undefined ? { authorization } : {})',
    check: hub('client', 'the token goes to the endpoint, *'),
  },
  {
    name: 'hub-downgrade',
    fault: 'a redirect from https to http is followed',
    file: CLIENT,
    from: "if (at.protocol === 'https:' && next.protocol !== 'https:')",
    to: "if (at.protocol === 'https:' && !/^https?:$/.test(next.protocol))",
    check: hub('client', 'a redirect from https to http is not followed'),
  },
  {
    name: 'hub-dots',
    fault: 'the name of a file on a Hub may lead out of its folder',
    file: NAME,
    from: '!/[. ]$|^ /.test(part) &&',
    to: '!/ $|^ /.test(part) &&',
    check: hub('names', 'a file that could leave its folder, *'),
  },
  {
    name: 'hub-link',
    fault: 'a link of a snapshot that leads to other content is used',
    file: 'lib/text/hub/layout.ts',
    from: '.at(-1) === sum',
    to: '.at(-1) !== undefined',
    check: hub('download', 'a link that leads elsewhere is replaced'),
  },
  {
    name: 'inspector-token',
    fault: 'any token of the right length opens the inspector',
    file: INSPECTOR,
    from: '!timingSafeEqual(digest(token), this.#token)',
    to: '!timingSafeEqual(digest(token), this.#token) && token.length < 32',
    check: inspector('the page, its numbers and its answers are behind the token'),
  },
  {
    name: 'inspector-host',
    fault: 'a name that was made to lead here opens the inspector',
    file: INSPECTOR,
    from: ".includes(request.headers.host ?? '')",
    to: '.some(own => own.endsWith(`:${port}`))',
    check: inspector('the page, its numbers and its answers are behind the token'),
  },
  {
    name: 'inspector-body',
    fault: 'a body of any length is read',
    file: 'lib/inspector/body.ts',
    from: '      if (size > BODY_MAX) return tooLarge()\n',
    to: '',
    check: inspector('a body that is too large is refused, and ends its connection'),
  },
  {
    name: 'server-key',
    fault: 'a key is accepted whose start is a key of the server',
    file: KEYS,
    from: 'if (found === undefined) throw unauthorized(',
    to: 'if (found === undefined && this.#find(key.slice(0, -1)) === undefined) throw unauthorized(',
    check: http('with keys, nothing is served without one'),
  },
  {
    name: 'server-admin',
    fault: 'any key opens the inspector of a server',
    file: KEYS,
    from: 'if (!tenant.isAdmin)',
    to: 'if (!tenant.isAdmin && tenant.salt === undefined)',
    check: http('the inspector needs the key of an admin, and without keys a local name'),
  },
  {
    name: 'tenant-salt',
    fault: 'tenants find prompts of each other',
    file: KEYS,
    from: 'salt: saltOf(entry),',
    to: "salt: saltOf({ ...entry, name: 'all' }),",
    check: tenants('a prompt is found by its own tenant alone, also by its other key'),
  },
  {
    name: 'tenant-request-salt',
    fault: 'tenants with the same cache_salt find prompts of each other',
    file: KEYS,
    from: 'JSON.stringify([salt ?? null, cacheSalt])',
    to: 'JSON.stringify([null, cacheSalt])',
    check: tenants('a prompt is found by its own tenant alone, also by its other key'),
  },
  {
    name: 'tenant-public',
    fault: 'tokens behind the public prompt are shared',
    file: 'packages/serve/lib/public-prompt.ts',
    from: 'let length = 0\n    while (length < alone.length && alone[length] === more[length]) length += 1\n    return length',
    to: 'return Math.max(alone.length, more.length)',
    check: tenants('tenants share the public prompt, and nothing behind it'),
  },
  {
    name: 'tenant-line',
    fault: 'a place goes to the tenant with the most running answers',
    file: 'packages/serve/lib/admission/line.ts',
    from: ': one.running < other.running',
    to: ': one.running > other.running',
    check: ava('__test__/serve/line.test.ts'),
  },
  {
    name: 'server-body',
    fault: 'a body that is too large is read and answered',
    file: 'packages/serve/lib/body.ts',
    from: 'if (length > most) reject(tooLarge(most))\n      else resolve(',
    to: 'if (length > most + DROPPED_MAX) reject(tooLarge(most))\n      else resolve(',
    check: http('a body that is too large is answered, and its connection goes on'),
  },
  {
    name: 'server-log',
    fault: 'logs have the query of a request',
    file: 'packages/serve/lib/http.ts',
    from: 'method, path: pathOf(url), status,',
    to: 'method, path: url, status,',
    check: ava('__test__/serve/metrics.test.ts', 'no key, prompt or answer is in logs, and each request has one line'),
  },
  {
    name: 'indexer-answer',
    fault: 'an answer of an indexer with another status is routed by',
    file: DYNAMO,
    from: 'answer.status === 200 ? lengthsOf(answer.body) : undefined',
    to: 'lengthsOf(answer.body)',
    check: indexer('what is no answer of an indexer is an error, and nothing is routed by it'),
  },
  {
    name: 'indexer-count',
    fault: 'an indexer that claims more blocks than the prompt has is believed',
    file: DYNAMO,
    from: 'Math.min(Math.floor(length / this.blockSize), most)',
    to: 'Math.floor(length / this.blockSize)',
    check: indexer('more than was asked for, and workers of others, count for nothing'),
  },
  {
    name: 'indexer-body',
    fault: 'an answer of an indexer is read without a bound',
    file: DYNAMO,
    from: '    if (bytes > BODY_BYTES_MAX) throw',
    to: '    if (bytes > 2 ** 40) throw',
    check: indexer('a body is read up to a bound, decompressed or not, and until the deadline'),
  },
]
