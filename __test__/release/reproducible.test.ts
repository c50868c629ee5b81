// What makes builds the same wherever they are made. That they are is checked by `npm run check:reproducible`, in the full run.
import test from 'ava'

import { remapped } from '../../scripts/release/addon.mjs'
import { firstDifference } from '../../scripts/release/reproducible.mjs'

const flags = (env: NodeJS.ProcessEnv): string[] => remapped('/a folder/', env).CARGO_ENCODED_RUSTFLAGS.split('\u001f')

test('folders of the machine are named alike, and flags that were given stay', t => {
  const own = ['--remap-path-prefix=/cargo home=/cargo', '--remap-path-prefix=/a folder=/kvtide']
  const CARGO_HOME = '/cargo home'
  t.deepEqual(flags({ CARGO_HOME }), own)
  t.deepEqual(flags({ CARGO_HOME, RUSTFLAGS: '-C debuginfo=0  -g' }), ['-C', 'debuginfo=0', '-g', ...own])
  t.deepEqual(flags({ CARGO_HOME, CARGO_ENCODED_RUSTFLAGS: '-C\u001fa b', RUSTFLAGS: '-g' }), ['-C', 'a b', ...own])
  t.regex(flags({})[0] ?? '', /\.cargo=\/cargo$/)
})

test('where two builds differ is shown', t => {
  t.is(firstDifference(Buffer.from('same'), Buffer.from('same')), undefined)
  t.is(
    firstDifference(Buffer.from('in /one\0x'), Buffer.from('in /two\0x')),
    'the builds have 9 and 9 bytes and differ from byte 4 on:\nin /one·x\nin /two·x',
  )
  t.regex(
    firstDifference(Buffer.from('a'), Buffer.from('ab')) ?? '',
    /^the builds have 1 and 2 bytes and differ from byte 1 on/,
  )
})
