// Planted faults at the border of the TypeScript layer: arguments, options, buffers, re-entrant calls, lifetimes, clocks and secrets.
import { ava } from './checks.mjs'

const CHECK = 'lib/errors/check.ts'
const SHOWN = 'lib/errors/shown.ts'
const TENSOR = 'lib/border/tensor.ts'
const OWNER = 'lib/border/owner.ts'
const STOP = 'lib/border/stop-signal.ts'
const DRAFT = 'lib/contiguous/kv-transaction.ts'

const matrix = title => ava('__test__/integration/arguments.test.ts', title)
const buffers = ava('__test__/border/buffers.test.ts')
const secrets = ava('__test__/integration/secrets.test.ts')
const canaries = ava('__test__/integration/canaries.test.ts', 'errors about prompts')
const background = title => ava('__test__/integration/attend-background.test.ts', title)
const clocks = ava('__test__/integration/clocks.test.ts')

export const calls = [
  {
    name: 'argument-count',
    fault: 'a number of tokens may have a fraction',
    file: CHECK,
    from: "typeof value === 'number' && Number.isInteger(value) && value >= min",
    to: "typeof value === 'number' && value >= min",
    check: matrix('a wrong argument is refused with its code, and nothing has changed'),
  },
  {
    name: 'argument-receiver',
    fault: 'a method runs on an object of another class',
    file: OWNER,
    from: 'return made === owner || made.prototype instanceof owner ? value.#native : undefined',
    to: 'return made.prototype instanceof Owner ? value.#native : undefined',
    check: matrix('a member called on something else is refused'),
  },
  {
    name: 'argument-twice',
    fault: 'an entry of a list is read again after it was checked',
    file: CHECK,
    from: 'entries.push(check(`${argument}[${place}]`, value[place]))',
    to: '{\n    check(`${argument}[${place}]`, value[place])\n    entries.push(value[place] as T)\n  }',
    check: matrix('every option is read once, also through a proxy'),
  },
  {
    name: 'field-twice',
    fault: 'the layout of a tensor is read again after it was checked',
    file: TENSOR,
    from: "found.bshd = layout === 'bshd'",
    to: "found.bshd = fields<HostTensor>(argument, value).layout === 'bshd'",
    check: ava('__test__/border/host-tensor.test.ts'),
  },
  {
    name: 'option-name',
    fault: 'an option that does not exist is ignored',
    file: CHECK,
    from: '    throw unknownOption(argument, name, Object.keys(names))\n',
    to: '',
    check: ava('__test__/border/options.test.ts'),
  },
  {
    name: 'shared-buffer',
    fault: 'an array is taken whose memory another thread can change',
    file: CHECK,
    from: 'if (types.isSharedArrayBuffer(bufferOf(array))) {',
    to: 'if (types.isSharedArrayBuffer(bufferOf(array)) && arrayLength(array) === 0) {',
    check: matrix('a wrong argument is refused with its code, and nothing has changed'),
  },
  {
    name: 'late-output',
    fault: 'an output that lost its memory during background work is written to',
    file: TENSOR,
    from: '    roomIn(out, dtype, length).set(elements)\n',
    to: '    ;(out as TensorData).set(elements as never)\n',
    check: buffers,
  },
  {
    name: 'borrowed-tokens',
    fault: 'a past commits tokens that the caller has changed since its call',
    file: 'lib/onnx/past.ts',
    from: "const ids = readTokens('tokens', tokens).slice()",
    to: "const ids = readTokens('tokens', tokens)",
    check: ava('__test__/onnx/past.test.ts', 'tokens may change between a call and its commit'),
  },
  {
    name: 'output-overlap',
    fault: 'arrays of a step batch may overlap unless they begin at the same place',
    file: 'lib/sequences/step-batch.ts',
    from: 'one.byteOffset < endOf(other) && other.byteOffset < endOf(one)',
    to: 'one.byteOffset === other.byteOffset',
    check: ava('__test__/sequences/step-batch.test.ts'),
  },
  {
    name: 'getter-of-values',
    fault: 'the description of K is written before the getters of V run',
    file: 'lib/contiguous/kv-cache.ts',
    from: "const [keys, values] = [readTensor('k', k), readTensor('v', v)]\n  return kvOf(cache.view(cache.native.update(put(keys, 0), put(values, 1), meta)))",
    to: "const keys = put(readTensor('k', k), 0)\n  return kvOf(cache.view(cache.native.update(keys, put(readTensor('v', v), 1), meta)))",
    check: ava('__test__/border/host-tensor.test.ts'),
  },
  {
    name: 'waiting-save',
    fault: 'a change overtakes a save that waits for background work',
    file: 'lib/sequences/shared-cache.ts',
    from: '    if (this.#attempts.size > 0) Array.from(this.#attempts).forEach(attempt => attempt())\n',
    to: '',
    check: background(
      'a save that is asked for meanwhile has what is there then, whatever is appended once the cache is free',
    ),
  },
  {
    name: 'store-thrown',
    fault: 'a value without a text that a store of the caller throws rejects a match',
    file: 'lib/tiers/block-store.ts',
    from: "    return 'a value without a text'\n",
    to: '    throw error\n',
    check: ava('__test__/store/own-stores.test.ts'),
  },
  {
    name: 'disposed',
    fault: 'a method runs on an object that was disposed of',
    file: OWNER,
    from: 'if (isEnded(value as Owner)) {',
    to: 'if (isEnded(value as Owner) && value === undefined) {',
    check: matrix('a member called on an object that was disposed of is refused'),
  },
  {
    name: 'abandoned-draft',
    fault: 'a transaction that is disposed of stays open',
    file: DRAFT,
    from: '    this.cache.native.dropDraft(...this.at)\n    this.cache.changed()\n',
    to: '',
    check: ava('__test__/contiguous/kv-transaction.test.ts'),
  },
  {
    name: 'aborted-meanwhile',
    fault: 'a signal that is aborted during background work does not end it',
    file: STOP,
    from: "    Reflect.apply(addEventListener, signal, ['abort', this.#listener, { once: true }])\n",
    to: '',
    check: ava('__test__/store/files.test.ts', 'progress, and an end before the end'),
  },
  {
    name: 'abort-reason',
    fault: 'an aborted call lacks the reason of its signal',
    file: 'lib/errors/errors.ts',
    from: "'aborted by its signal', {}, { cause: signal?.reason })",
    to: "'aborted by its signal', {})",
    check: background('an abort ends it: before, during, and not after'),
  },
  {
    name: 'clock-value',
    fault: 'the time of a clock is not checked',
    file: 'lib/sequences/shared-cache.ts',
    from: "return milliseconds('now()', now())",
    to: 'return Number(now())',
    check: ava(
      '__test__/integration/reentrancy.test.ts',
      'a clock that calls the cache, ends it, throws or tells nonsense',
    ),
  },
  {
    name: 'clock-of-deadlines',
    fault: 'deadlines are measured with the clock of the system',
    file: 'lib/border/timers.ts',
    from: 'now: () => performance.now()',
    to: 'now: () => Date.now()',
    check: clocks,
  },
  {
    name: 'secret-password',
    fault: 'errors show passwords',
    file: SHOWN,
    from: 'secret|passw|passphrase',
    to: 'secret|passphrase',
    check: secrets,
  },
  {
    name: 'secret-url',
    fault: 'errors show the user of a URL',
    file: SHOWN,
    from: "head.replaceAll(USER, '$1…@').replaceAll(QUERY, '$1…')",
    to: "head.replaceAll(QUERY, '$1…')",
    check: secrets,
  },
  {
    name: 'secret-salt',
    fault: 'errors show salts',
    file: SHOWN,
    from: '/^(?:salt|roots)$|',
    to: '/^roots$|',
    check: canaries,
  },
  {
    name: 'prompt-text',
    fault: 'the error of a prompt that is no tokens shows its text',
    file: 'lib/sequences/tokens.ts',
    from: "const isHidden = typeof value === 'string' || undefined\n    throw invalid(argument, value, 'an array of whole numbers",
    to: "const isHidden = undefined\n    throw invalid(argument, value, 'an array of whole numbers",
    check: canaries,
  },
]
