// The command line: `kvtide doctor`, `inspect`, `bench`, and all commands alike.
import { execFileSync } from 'node:child_process'
import {
  closeSync,
  cpSync,
  ftruncateSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'

import test from 'ava'

import { OnnxModel } from '../../onnx.js'
import { threads } from '../../lib/border/process.js'
import { run, withFile } from '../support/command-line.js'
import { graphFile } from '../support/onnx/graphs.js'
import { type Ended, runNode, runProcess } from '../support/packaging/child.js'

test.serial('doctor prints what is loaded, and why a device cannot be used', async t => {
  const { code, out, err } = await run('doctor')
  t.deepEqual([code, err], [0, ''])
  const rows = Object.fromEntries(
    out
      .trimEnd()
      .split('\n')
      .map(line => [line.slice(0, 14).trim(), line.slice(15)]),
  )
  t.deepEqual(Object.keys(rows), [
    'binary',
    'loaded from',
    'chosen',
    'platform',
    'cpu features',
    'kernels',
    'threads',
    'memory limit',
    'device cpu',
    'device cuda',
    'device metal',
    'network',
    'onnxruntime',
  ])
  t.regex(rows['binary'] ?? '', /^kvtide \d+\.\d+\.\d+, \w+-\w+$/)
  t.regex(rows['loaded from'] ?? '', /kvtide.*\.node$/)
  t.true(rows['platform']?.includes(process.versions.node))
  t.regex(rows['kernels'] ?? '', /^(portable|neon|avx2|avx512)$/)
  t.is(rows['threads'], String(threads()))
  t.is(rows['device cpu'], 'usable')
  t.regex(rows['chosen'] ?? '', /^(cpu|net|cuda): \w/)
  // An addon with CUDA looks for a driver, the other one says where to get it.
  t.regex(
    rows['device cuda'] ?? '',
    rows['chosen']?.startsWith('cuda')
      ? /^(usable$|not usable: \w)/
      : /^not usable: .*(npm install kvtide-cuda-linux-x64-gnu@\d|none for this system)/,
  )
  t.regex(rows['device metal'] ?? '', /^not usable: /)
  t.regex(
    rows['network'] ?? '',
    /^(usable$|not usable: this build has none; install it with `npm install kvtide-net-[\w-]+@\d)/,
  )
  const json = await run('doctor', '--json')
  t.deepEqual(JSON.parse(json.out), rows)
})

test('doctor says when a variable of the environment is wrong', async t => {
  const doctorUrl = new URL('../../lib/cli/doctor.ts', import.meta.url).href
  const { out, err } = await runProcess(`
    process.env.KVTIDE_KERNELS = 'fast'
    process.env.KVTIDE_THREADS = '0'
    const { doctor } = await import(${JSON.stringify(doctorUrl)})
    console.log((await doctor.run({ values: {}, files: [] })).text)`)
  t.regex(out, /^kernels +KVTIDE_KERNELS is fast, expected auto or one of /m, err)
  t.regex(out, /^threads +KVTIDE_THREADS is 0, expected /m)
})

test.serial('asked for help it prints how it is used', async t => {
  for (const args of [[], ['help'], ['--help'], ['help', 'nothing']]) {
    const { code, out, err } = await run(...args)
    t.deepEqual([code, err], [0, ''])
    t.true(out.startsWith('usage: kvtide <command>'))
  }
  for (const name of ['plan', 'bench', 'inspect', 'doctor']) {
    for (const args of [
      ['help', name],
      [name, '--help'],
      [name, 'a', 'b', '-h'],
    ]) {
      const { code, out, err } = await run(...args)
      t.deepEqual([code, err], [0, ''])
      t.true(out.startsWith(`usage: kvtide ${name} `))
      t.true(out.length > 200, name)
    }
  }
  const { version } = JSON.parse(readFileSync(new URL('../../package.json', import.meta.url), 'utf8')) as {
    version: string
  }
  t.deepEqual(await run('--version'), { code: 0, out: `${version}\n`, err: '' })
  t.deepEqual(JSON.parse((await run('-v', '--json')).out), { version })
})

test('without its addon it still says what it is, and refuses the rest in words', async t => {
  const cliUrl = new URL('../../lib/cli/cli.ts', import.meta.url).href
  const asked = (...args: readonly string[]): Promise<Ended> =>
    runNode(
      [
        '--import=tsx',
        '--input-type=module',
        '--eval',
        `process.exitCode = await (await import(${JSON.stringify(cliUrl)})).main(${JSON.stringify(args)})`,
      ],
      { env: { ...process.env, NAPI_RS_NATIVE_LIBRARY_PATH: '/none/kvtide.node' } },
    )
  t.like(await asked('--help'), { code: 0, err: '' })
  t.like(await asked('--version'), { code: 0, err: '' })
  for (const name of ['plan', 'bench', 'inspect', 'doctor']) {
    const { code, out, err } = await asked(name)
    t.deepEqual([code, out], [1, ''], name)
    t.regex(err, new RegExp(`^kvtide ${name}: .*\\(BINDING_`))
    t.notRegex(err, /^ +at /m)
  }
})

test.serial('arguments that it does not know end with 2', async t => {
  for (const args of [
    ['doctors'],
    ['doctor', 'x', 'y'],
    [''],
    ['onnx'],
    ['inspect'],
    ['inspect', 'a.onnx', 'b.onnx'],
    ['inspect', 'a.onnx', '--jsonn'],
    ['inspect', 'a.onnx', '--config'],
    ['plan'],
    ['plan', '--memory'],
    ['bench', 'x'],
    ['toString'],
    ['doctor', '--json=yes'],
  ]) {
    const { code, out, err } = await run(...args)
    t.deepEqual([code, out], [2, ''], args.join(' '))
    t.regex(err, /^(kvtide has no command|usage|.*\nusage: kvtide)/)
    t.notRegex(err, /^ +at /m)
  }
  for (const args of [
    ['inspect', '--json'],
    ['plan', '--json', '--memoryy', '1'],
    ['doctors', '--json'],
  ]) {
    const { code, out, err } = await run(...args)
    t.deepEqual([code, err], [2, ''], args.join(' '))
    t.like(JSON.parse(out), { error: { code: 'INVALID_ARGUMENT' } })
  }
})

test.serial('bench measures against a plain copy', async t => {
  const { code, out, err } = await run('bench', '--json')
  t.deepEqual([code, err], [0, ''])
  const { lanes } = JSON.parse(out) as {
    lanes: { name: string; microseconds: number; p10: number; p90: number; ofCopy: number }[]
  }
  t.is(lanes.length, 9)
  for (const { name, microseconds, p10, p90, ofCopy } of lanes)
    t.true(p10 > 0 && p10 <= microseconds && microseconds <= p90 && ofCopy > 0, name)
})

test.serial('inspect prints layers, ports and weights', async t => {
  const { code, out, err } = await run('inspect', graphFile('families/gemma2/builder'))
  t.deepEqual([code, err], [0, ''])
  t.regex(out, /^layers +form +heads/)
  t.regex(out, /^ +0 +GroupQueryAttention +4 +2 +32 +f32 +scale 0\.2\d+, softcap 5, window 9/m)
  t.regex(out, /^windows +as the graph shows them/m)
})

test.serial('inspect takes windows from a config, and prints JSON', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-inspect-'))
  try {
    const [model, config] = [join(folder, 'model.onnx'), join(folder, 'config.json')]
    writeFileSync(model, readFileSync(graphFile('llama/onnx')))
    const llama = {
      model_type: 'mistral',
      num_hidden_layers: 3,
      num_attention_heads: 4,
      num_key_value_heads: 2,
      head_dim: 16,
      hidden_size: 64,
      sliding_window: 4096,
    }
    writeFileSync(config, JSON.stringify(llama))
    for (const args of [[model], [model, '--config', config]]) {
      const { code, out, err } = await run('inspect', ...args, '--json')
      t.deepEqual([code, err], [0, ''])
      const found = JSON.parse(out) as {
        config: string
        layers: { window?: number; form: string }[]
        droppedInputs: string[]
      }
      t.is(found.config, config)
      t.deepEqual(
        found.layers.map(layer => [layer.form, layer.window]),
        [
          ['plain', 4096],
          ['plain', 4096],
          ['plain', 4096],
        ],
      )
      t.true(found.droppedInputs.includes('attention_mask'))
    }
    // A config of another model: asked for, it is refused; lying there, it says nothing.
    writeFileSync(config, '{"model_type": "bert"}')
    const lying = await run('inspect', model)
    t.deepEqual([lying.code, lying.err], [0, ''])
    const asked = await run('inspect', model, '--config', config)
    t.deepEqual([asked.code, asked.out], [1, ''])
    t.regex(asked.err, /bert/)
    const missing = await run('inspect', model, '--config', join(folder, 'none.json'))
    t.deepEqual([missing.code, missing.out], [1, ''])
    t.regex(missing.err, /none\.json/)
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test.serial(
  'inspect, doctor and load read the windows of genai_config.json, unless a config.json has windows',
  async t => {
    const folder = mkdtempSync(join(tmpdir(), 'kvtide-inspect-'))
    try {
      const [model, config] = [join(folder, 'model.onnx'), join(folder, 'config.json')]
      const genai = join(folder, 'genai_config.json')
      cpSync(graphFile('llama/onnx'), model)
      const decoder = { num_hidden_layers: 3, sliding_window: { window_size: 5, layers: [0] } }
      writeFileSync(genai, JSON.stringify({ model: { decoder } }))
      /** The file that declares the windows, and the window of each layer: of inspect, and of a load. */
      const windows = async (): Promise<[string | undefined, ...(number | undefined)[][]]> => {
        const { out } = await run('inspect', model, '--json')
        const found = JSON.parse(out) as { config?: string; layers: { window?: number }[] }
        await using loaded = await OnnxModel.load(model, { threads: 1, cache: { memoryBytes: 2 ** 22 } })
        const ofLayers = [0, 1, 2].map(layer => loaded.layers.find(({ layers }) => layers.includes(layer))?.window)
        return [found.config, found.layers.map(({ window }) => window), ofLayers]
      }
      const slides = [5, undefined, undefined]
      t.deepEqual(await windows(), [genai, slides, slides])
      const asked = await run('inspect', model)
      t.true(asked.out.includes(`\nwindows  as ${genai} declares them\n`), asked.out)
      for (const { out } of [asked, await run('doctor', model)])
        t.regex(
          out,
          /^plain +refuses it at past_key_values\.0\.key \(input\): genai_config\.json declares a window of 5 for layer 0, .*\n +load it on the backend graph or parts/m,
        )
      // A config without windows leaves those of genai_config.json, one with windows replaces them.
      writeFileSync(config, '{"model_type": "stranger", "num_key_value_heads": 2}')
      t.deepEqual(await windows(), [genai, slides, slides])
      const all = [7, 7, 7]
      const mistral = {
        model_type: 'mistral',
        num_hidden_layers: 3,
        hidden_size: 64,
        num_attention_heads: 4,
        head_dim: 16,
      }
      writeFileSync(config, JSON.stringify({ ...mistral, num_key_value_heads: 2, sliding_window: 7 }))
      t.deepEqual(await windows(), [config, all, all])
    } finally {
      rmSync(folder, { recursive: true })
    }
  },
)

test.serial('inspect and doctor take a folder, in which --dtype chooses the graph', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-inspect-'))
  try {
    const at = (name: string): string => join(folder, 'onnx', name)
    mkdirSync(join(folder, 'onnx'))
    cpSync(graphFile('llama/onnx'), at('model.onnx'))
    cpSync(graphFile('llama/onnx-gqa-int4'), at('model_q4.onnx'))
    for (const [args, model, form] of [
      [[], at('model.onnx'), 'plain'],
      [['--dtype', 'q4'], at('model_q4.onnx'), 'GroupQueryAttention'],
    ] as const) {
      const { code, out, err } = await run('inspect', folder, ...args, '--json')
      t.deepEqual([code, err], [0, ''])
      const found = JSON.parse(out) as { model: string; layers: { form: string }[] }
      t.deepEqual([found.model, found.layers[0]?.form], [model, form])
      const asked = JSON.parse((await run('doctor', folder, ...args, '--json')).out) as { model: string }
      t.is(asked.model, model)
    }
    for (const [dtype, says] of [
      ['q8', /onnx.model_q4\.onnx/],
      ['q9', /f32, q4, q8/],
    ] as const) {
      for (const command of ['inspect', 'doctor']) {
        const { code, err } = await run(command, folder, '--dtype', dtype)
        t.is(code, 1)
        t.regex(err, says)
        t.notRegex(err, /^ +at /m)
      }
    }
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test.serial('inspect says what is wrong with a file, without a stack', async t => {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-inspect-'))
  try {
    const file = join(folder, 'model.onnx')
    const missing = await run('inspect', file)
    t.deepEqual([missing.code, missing.out], [1, ''])
    t.regex(missing.err, /a file that can be read/)
    writeFileSync(file, 'no model')
    const broken = await run('inspect', file)
    t.deepEqual([broken.code, broken.out], [1, ''])
    t.regex(broken.err, /malformed/)
    const safetensors = Buffer.concat([
      Buffer.from(BigUint64Array.of(40n).buffer),
      Buffer.from('{"__metadata__":{"format":"pt"}}         '),
    ])
    for (const [content, said] of [
      [
        Buffer.concat([Buffer.from('GGUF'), Buffer.alloc(40, 3)]),
        /is a GGUF file of llama\.cpp, expected an ONNX graph: export/,
      ],
      [safetensors, /is a safetensors file, which has weights and no graph, expected an ONNX graph: export/],
      [Buffer.concat([Buffer.from('PK\u0003\u0004'), Buffer.alloc(40)]), /is a zip archive, as PyTorch saves weights/],
      ['version https://git-lfs.github.com/spec/v1\noid sha256:0\n', /a pointer of Git LFS.*git lfs pull/],
      ['{"model_type": "llama"}', /perhaps a config\.json.*kvtide plan/],
    ] as const) {
      writeFileSync(file, content)
      const { code, out, err } = await run('inspect', file)
      t.deepEqual([code, out], [1, ''])
      t.regex(err, said)
      t.regex(err, /\(INVALID_GRAPH\)\n$/)
    }
    for (const head of ['', 'GG', 'PK', '\u0001']) {
      writeFileSync(file, head)
      t.is((await run('inspect', file)).code, 1, 'a file of a few bytes is looked at as well')
    }
    // A graph whose past is not read: one input more is a past that no attention knows.
    writeFileSync(file, Buffer.concat([readFileSync(graphFile('llama/onnx')), strangePast()]))
    const refused = await run('inspect', file)
    t.deepEqual([refused.code, refused.out], [1, ''])
    t.regex(
      refused.err,
      /is not recognised\ngraph +refuses it at past\.x \(input\): past\.x is a past that no recognised attention reads\n +export it with/,
    )
    t.regex(
      refused.err,
      /\nplain +refuses it at past\.x \(input\): its purpose is not known\n +export it with the inputs/,
    )
    const asked = await run('doctor', file)
    t.deepEqual([asked.code, asked.out], [1, ''])
    t.regex(asked.err, /^onnxruntime .*\n\n.*model\.onnx\n/m)
    t.is(asked.err.slice(asked.err.indexOf('\ngraph ')), refused.err.slice(refused.err.indexOf('\ngraph ')))
    const json = await run('inspect', file, '--json')
    t.deepEqual([json.code, json.err], [1, ''])
    t.like(JSON.parse(json.out), {
      error: { code: 'UNSUPPORTED_GRAPH', details: { node: 'past.x', operator: 'input', kind: 'input' } },
    })
    for (const { err } of [missing, broken, refused]) t.notRegex(err, /^ +at /m)
  } finally {
    rmSync(folder, { recursive: true })
  }
})

test.serial('plan and inspect open regular files alone, of a size that a file of their kind has', async t => {
  if (process.platform === 'win32') return t.pass('Windows has no such files')
  await withFile('{"model_type": "qwen3"}', async (file, folder) => {
    const at = (name: string): string => join(folder, name)
    execFileSync('mkfifo', [at('fifo')])
    symlinkSync('/dev/zero', at('zero'))
    const sparse = openSync(at('sparse'), 'w')
    ftruncateSync(sparse, 5e9)
    closeSync(sparse)
    const model = graphFile('llama/onnx')
    const refused = [
      [['plan', at('fifo')], 'it is a FIFO'],
      [['plan', at('zero')], 'it is a character device'],
      [['plan', at('sparse')], 'it is 5000000000 bytes long, expected at most 16777216'],
      [['plan', file, '--html', at('fifo')], 'it is a FIFO'],
      [['plan', file, '--html', at('zero')], 'it is a character device'],
      [['inspect', at('fifo')], 'it is a FIFO'],
      [['inspect', at('zero')], 'it is a character device'],
      [['inspect', folder], 'it has no .onnx file'],
      [['inspect', model, '--config', at('fifo')], 'it is a FIFO'],
      [['inspect', model, '--config', at('sparse')], 'it is 5000000000 bytes long'],
    ] as const
    for (const [args, expected] of refused) {
      const { code, out, err } = await run(...args)
      t.deepEqual([code, out], [1, ''], args.join(' '))
      t.true(err.includes(expected), `${args.join(' ')}: ${err}`)
    }
    t.true(lstatSync(at('fifo')).isFIFO() && lstatSync(at('zero')).isSymbolicLink())
    await t.throwsAsync(OnnxModel.load(at('fifo')), { message: /it is a FIFO/ })
  })
})

/** A message of protobuf, with its tag. */
function message(field: number, ...parts: readonly Buffer[]): Buffer {
  const body = Buffer.concat(parts)
  return Buffer.concat([Buffer.from([(field << 3) | 2, body.length]), body])
}

/** One more input of a graph, floats of four dimensions, to put behind a model's bytes. */
function strangePast(): Buffer {
  const float = Buffer.from([1 << 3, 1])
  const shape = message(2, ...[1, 2, 3, 4].map(size => message(1, Buffer.from([1 << 3, size]))))
  return message(7, message(11, message(1, Buffer.from('past.x')), message(2, message(1, float, shape))))
}
