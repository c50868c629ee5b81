// The command line: `kvtide doctor`, `kvtide onnx inspect`.
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test from 'ava'

import { main } from '../../lib/loading/cli.js'
import { doctor } from '../../lib/loading/doctor.js'
import { threads } from '../../lib/border/process.js'
import { graphFile } from '../support/onnx/graphs.js'
import { runProcess } from '../support/packaging/child.js'

/** Runs the command line, keeping what it prints. */
async function run(...args: string[]): Promise<{ code: number; out: string; err: string }> {
  const { log, error } = console
  const printed = { out: '', err: '' }
  console.log = (text: unknown) => void (printed.out += `${String(text)}\n`)
  console.error = (text: unknown) => void (printed.err += `${String(text)}\n`)
  try {
    return { code: await main(args), ...printed }
  } finally {
    Object.assign(console, { log, error })
  }
}

test.serial('doctor prints what is loaded, and why a device cannot be used', async t => {
  const { code, out, err } = await run('doctor')
  t.deepEqual([code, err], [0, ''])
  const rows = Object.fromEntries(out.trimEnd().split('\n').map(line => [line.slice(0, 14).trim(), line.slice(15)]))
  t.deepEqual(Object.keys(rows), [
    'binary', 'loaded from', 'chosen', 'platform', 'cpu features', 'kernels', 'threads', 'memory limit', 'device cpu', 'device cuda', 'device metal', 'onnxruntime',
  ])
  t.regex(rows['binary'] ?? '', /^kvtide \d+\.\d+\.\d+, \w+-\w+$/)
  t.regex(rows['loaded from'] ?? '', /kvtide.*\.node$/)
  t.true(rows['platform']?.includes(process.versions.node))
  t.regex(rows['kernels'] ?? '', /^(portable|neon|avx2|avx512)$/)
  t.is(rows['threads'], String(threads()))
  t.is(rows['device cpu'], 'usable')
  t.regex(rows['chosen'] ?? '', /^(cpu|cuda): \w/)
  // An addon with CUDA looks for a driver, the other one says where to get it.
  t.regex(rows['device cuda'] ?? '', rows['chosen']?.startsWith('cuda') ? /^(usable$|not usable: \w)/ : /^not usable: .*(npm install kvtide-cuda-linux-x64-gnu@\d|none for this system)/)
  t.regex(rows['device metal'] ?? '', /^not usable: /)
  t.is(`${doctor()}\n`, out)
})

test('doctor says when a variable of the environment is wrong', async t => {
  const doctorUrl = new URL('../../lib/loading/doctor.ts', import.meta.url).href
  const { out, err } = await runProcess(`
    process.env.KVTIDE_KERNELS = 'fast'
    process.env.KVTIDE_THREADS = '0'
    console.log((await import(${JSON.stringify(doctorUrl)})).doctor())`)
  t.regex(out, /^kernels +KVTIDE_KERNELS is fast, expected auto or one of /m, err)
  t.regex(out, /^threads +KVTIDE_THREADS is 0, expected /m)
})

test.serial('asked for help it prints how it is used', async t => {
  for (const args of [[], ['help'], ['--help']]) {
    const { code, out, err } = await run(...args)
    t.deepEqual([code, err], [0, ''])
    t.true(out.startsWith('usage: kvtide doctor'))
  }
})

test.serial('a command that it does not know ends with 2', async t => {
  for (const args of [['doctors'], ['doctor', 'x'], [''], ['onnx'], ['onnx', 'inspect'], ['onnx', 'look', 'a.onnx'], ['onnx', 'inspect', 'a.onnx', 'b.onnx'],
    ['onnx', 'inspect', 'a.onnx', '--jsonn'], ['onnx', 'inspect', 'a.onnx', '--config'], ['onnx', 'inspect', '--json']]) {
    const { code, out, err } = await run(...args)
    t.deepEqual([code, out], [2, ''])
    t.true(err.startsWith('usage: kvtide doctor'))
  }
})

test.serial('onnx inspect prints layers, ports and weights', async t => {
  const { code, out, err } = await run('onnx', 'inspect', graphFile('families/gemma2/builder'))
  t.deepEqual([code, err], [0, ''])
  t.regex(out, /^layers +form +heads/)
  t.regex(out, /^ +0 +GroupQueryAttention +4 +2 +32 +f32 +scale 0\.2\d+, softcap 5, window 9/m)
  t.regex(out, /^windows +as the graph shows them/m)
})

test.serial('onnx inspect takes windows from a config, and prints JSON', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-inspect-'))
  try {
    const [model, config] = [join(folder, 'model.onnx'), join(folder, 'config.json')]
    writeFileSync(model, readFileSync(graphFile('llama/onnx')))
    const llama = { model_type: 'mistral', num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2, head_dim: 16, hidden_size: 64, sliding_window: 4096 }
    writeFileSync(config, JSON.stringify(llama))
    for (const args of [[model], [model, '--config', config]]) {
      const { code, out, err } = await run('onnx', 'inspect', ...args, '--json')
      t.deepEqual([code, err], [0, ''])
      const found = JSON.parse(out) as { config: string; layers: { window?: number; form: string }[]; droppedInputs: string[] }
      t.is(found.config, config)
      t.deepEqual(found.layers.map(layer => [layer.form, layer.window]), [['plain', 4096], ['plain', 4096], ['plain', 4096]])
      t.true(found.droppedInputs.includes('attention_mask'))
    }
    // A config of another model: asked for, it is refused; lying there, it says nothing.
    writeFileSync(config, '{"model_type": "bert"}')
    const lying = await run('onnx', 'inspect', model)
    t.deepEqual([lying.code, lying.err], [0, ''])
    const asked = await run('onnx', 'inspect', model, '--config', config)
    t.deepEqual([asked.code, asked.out], [1, ''])
    t.regex(asked.err, /bert/)
    const missing = await run('onnx', 'inspect', model, '--config', join(folder, 'none.json'))
    t.deepEqual([missing.code, missing.out], [1, ''])
    t.regex(missing.err, /none\.json/)
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test.serial('onnx inspect says what is wrong with a file, without a stack', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-inspect-'))
  try {
    const file = join(folder, 'model.onnx')
    const missing = await run('onnx', 'inspect', file)
    t.deepEqual([missing.code, missing.out], [1, ''])
    t.regex(missing.err, /a file that can be read/)
    writeFileSync(file, 'no model')
    const broken = await run('onnx', 'inspect', file)
    t.deepEqual([broken.code, broken.out], [1, ''])
    t.regex(broken.err, /malformed/)
    // A graph whose past nobody reads: one input more is a past that no attention knows.
    writeFileSync(file, Buffer.concat([readFileSync(graphFile('llama/onnx')), strangePast()]))
    const refused = await run('onnx', 'inspect', file)
    t.deepEqual([refused.code, refused.out], [1, ''])
    t.regex(refused.err, /is not recognised\nnode +past\.x\noperator +input\nreason +past\.x is a past, and no attention that is known reads it\nas it is +the graph cannot be run at past\.x \(input\): it is not known/)
    const json = await run('onnx', 'inspect', file, '--json')
    t.deepEqual([json.code, json.err], [1, ''])
    t.like(JSON.parse(json.out), { error: { code: 'UNSUPPORTED_GRAPH', details: { node: 'past.x', operator: 'input' } } })
    for (const { err } of [missing, broken, refused]) t.notRegex(err, /^ +at /m)
  } finally {
    rmSync(folder, { recursive: true })
  }
})

/** A message of protobuf, with its tag. */
function message(field: number, ...parts: readonly Buffer[]): Buffer {
  const body = Buffer.concat(parts)
  return Buffer.concat([Buffer.from([field << 3 | 2, body.length]), body])
}

/** One more input of a graph, floats of four dimensions, to put behind a model's bytes. */
function strangePast(): Buffer {
  const float = Buffer.from([1 << 3, 1])
  const shape = message(2, ...[1, 2, 3, 4].map(size => message(1, Buffer.from([1 << 3, size]))))
  return message(7, message(11, message(1, Buffer.from('past.x')), message(2, message(1, float, shape))))
}
