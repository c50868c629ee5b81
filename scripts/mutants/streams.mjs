// Planted faults of answers that are streamed: clients that read slowly or hang up, tenants in a line, and workers behind a router that go away.
import { ava } from './checks.mjs'

const streams = title => ava('__test__/serve/streams.test.ts', title)
const line = title => ava('__test__/serve/line.test.ts', title)
const router = title => ava('__test__/serve/router.test.ts', title)

export const streamed = [
  {
    name: 'slow-reader',
    fault: 'a generation goes on although its reader does not read',
    file: 'packages/serve/lib/answers/event-stream.ts',
    from: '    if (this.#drained !== undefined) await this.#drained\n',
    to: '',
    check: streams('a slow reader pauses its generation, *'),
  },
  {
    name: 'hang-up',
    fault: 'a client that hangs up does not end its generation',
    file: 'packages/serve/lib/answers/request-run.ts',
    from: '      if (!response.writableFinished)\n',
    to: '      if (response.writableFinished)\n',
    check: streams('a client that hangs up ends its generations, *'),
  },
  {
    name: 'line-hang-up',
    fault: 'a client that hangs up stays in the line',
    file: 'packages/serve/lib/admission/line.ts',
    from: "      signal.addEventListener('abort', () => this.#withdraw(entry, signal.reason), { once: true })\n",
    to: '',
    check: line('a client that hangs up leaves the line; *'),
  },
  {
    name: 'line-share',
    fault: 'a place goes to a tenant that has more running answers than another one',
    file: 'packages/serve/lib/admission/line.ts',
    from: 'return one.running === other.running ? one.served < other.served : one.running < other.running',
    to: 'return one.served < other.served',
    check: line('places go to the tenant with the fewest running answers, *'),
  },
  {
    name: 'worker-full',
    fault: 'a request is refused because the first worker is full',
    file: 'packages/serve/lib/router/router.ts',
    from: 'if (answer.statusCode === 503 && !isLast) {',
    to: 'if (answer.statusCode === 503 && isLast) {',
    check: router('a request moves on from a worker that is full, *'),
  },
  {
    name: 'worker-lost',
    fault: 'a stream whose worker has gone ends as if it was whole',
    file: 'packages/serve/lib/router/proxy.ts',
    from: 'if (!from.complete) broken(from, to)',
    to: 'if (!from.complete) to.end()',
    check: router('a worker that goes during a stream *'),
  },
]
