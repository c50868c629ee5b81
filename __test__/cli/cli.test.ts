// The command line: `kvtide doctor`, `plan`, `inspect`, `bench`.
import { execFileSync } from 'node:child_process'
import {
  closeSync,
  ftruncateSync,
  lstatSync,
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

import { PagedKvCache } from '../../index.js'
import { OnnxModel } from '../../onnx.js'
import { main } from '../../lib/cli/cli.js'
import { threads } from '../../lib/border/process.js'
import { graphFile } from '../support/onnx/graphs.js'
import { type Ended, runNode, runProcess } from '../support/packaging/child.js'

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

const CONFIGS = {
  qwen3: {
    model_type: 'qwen3',
    num_hidden_layers: 4,
    hidden_size: 256,
    num_attention_heads: 8,
    num_key_value_heads: 2,
    head_dim: 32,
  },
  gemma3: {
    model_type: 'gemma3_text',
    num_hidden_layers: 6,
    sliding_window: 64,
    hidden_size: 128,
    num_attention_heads: 4,
    num_key_value_heads: 1,
    head_dim: 32,
  },
}

interface Plan {
  readonly groups: readonly object[]
  readonly rows: readonly {
    readonly window: number | null
    readonly format: 'f16' | 'q8' | 'q4'
    readonly bytesPerToken: number
    readonly windowBytes: number
    readonly stateBytes: number
    readonly checkpointTokens: number | null
    readonly largestContext: number | null
    readonly largestBatch: number
    readonly refusal?: string
  }[]
}

function withFile<T>(content: string, use: (file: string, folder: string) => Promise<T>): Promise<T> {
  const folder = mkdtempSync(join(tmpdir(), 'kvtide-plan-'))
  const file = join(folder, 'config.json')
  writeFileSync(file, content)
  return use(file, folder).finally(() => rmSync(folder, { recursive: true }))
}

test.serial('what a plan says is what a cache has room for', async t => {
  for (const [name, model] of Object.entries(CONFIGS)) {
    await withFile(JSON.stringify(model), async (file, folder) => {
      const { code, out } = await run(
        'plan',
        file,
        '--memory',
        '4MiB',
        '--context',
        '500',
        '--formats',
        'f16,q8,q4',
        '--json',
      )
      t.is(code, 0)
      for (const row of (JSON.parse(out) as Plan).rows) {
        const pages = { keyFormat: row.format, valueFormat: row.format, memoryBytes: 2 ** 22 }
        using one = new PagedKvCache({ model, ...pages, maxSequences: 1 })
        const longest = row.largestContext as number
        t.not(one.admit([], { answerTokens: longest + 1, stepTokens: 1 }).lacking, undefined, `${name} ${row.format}`)
        t.is(one.admit([], { answerTokens: longest, stepTokens: 1 }).lacking, undefined, `${name} ${row.format}`)
        using many = new PagedKvCache({ model, ...pages, maxSequences: row.largestBatch, maxPrefillTokens: 512 })
        const rest = one.bytesPerToken - row.bytesPerToken
        t.is(rest > 0, name === 'gemma3', 'a window takes the same for any length')
        for (let sequence = 0; sequence < row.largestBatch; sequence++) {
          const { lacking } = many.admit([], { answerTokens: 500, stepTokens: 1 })
          t.is(lacking, undefined, `${name} ${row.format}: ${sequence} of ${row.largestBatch}`)
        }
      }
      const text = await run(
        'plan',
        folder,
        '--memory',
        '4m',
        '--windows',
        '128,256',
        '--html',
        join(folder, 'plan.html'),
      )
      t.deepEqual([text.code, text.err], [0, ''])
      t.regex(
        text.out,
        /^format +window +bytes per token +windows per sequence +longest sequence +sequences of 8,192$/m,
      )
      t.regex(text.out, /^q8 +256 +0 +[\d.]+ KiB +any +\d+$/m)
      t.regex(
        text.out,
        name === 'gemma3'
          ? /^5 layers keep a window of 64: 1 head of 32\n1 layer keeps all tokens: 1 head of 32$/m
          : /^4 layers keep all tokens: 2 heads of 32$/m,
      )
      const page = readFileSync(join(folder, 'plan.html'), 'utf8')
      t.true(page.includes('q8, window 256') && !/(src|href)=/.test(page), 'nothing from elsewhere')
    })
  }
})

/** Models with states, as their files describe them, with fewer layers. */
const HYBRIDS = {
  lfm2: {
    model_type: 'lfm2',
    num_hidden_layers: 4,
    hidden_size: 256,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    conv_L_cache: 3,
    full_attn_idxs: [2],
  },
  granite: {
    model_type: 'granitemoehybrid',
    num_hidden_layers: 4,
    hidden_size: 128,
    num_attention_heads: 4,
    num_key_value_heads: 2,
    layer_types: ['mamba', 'attention', 'mamba', 'mamba'],
    mamba_n_heads: 8,
    mamba_d_head: 32,
    mamba_d_state: 16,
    mamba_n_groups: 1,
    mamba_d_conv: 4,
  },
} as const

test.serial('a plan counts the states of a sequence, and says what a checkpoint costs', async t => {
  const planOf = async (model: object, ...args: string[]): Promise<{ text: string; plan: Plan }> =>
    await withFile(JSON.stringify(model), async file => {
      const { code, out, err } = await run('plan', file, '--memory', '1MiB', '--context', '160', ...args)
      t.deepEqual([code, err], [0, ''])
      return {
        text: out,
        plan: JSON.parse((await run('plan', file, '--memory', '1MiB', ...args, '--json')).out) as Plan,
      }
    })
  const lfm2 = await planOf(HYBRIDS.lfm2, '--formats', 'f32,f16,q8')
  t.regex(lfm2.text, /^1 layer keeps all tokens: 2 heads of 64\n3 layers keep states: conv 256 x 2$/m)
  t.regex(lfm2.text, /^A checkpoint takes as many bytes as the states of a sequence\.$/m)
  t.regex(lfm2.text, /^format +bytes per token +states per sequence +as tokens +longest sequence +sequences of 160$/m)
  // Three layers of 256 channels and 2 columns; convolutions have 32 bits beside f32 alone.
  t.deepEqual(
    lfm2.plan.rows.map(row => [row.format, row.stateBytes, row.checkpointTokens]),
    [
      ['f32', 6144, 6],
      ['f16', 3072, 6],
      ['q8', 3072, 12],
    ],
  )
  t.regex(lfm2.text, /^f16 +512 +3 KiB +6 +/m)
  // 1 MiB less two slots of 3 KiB, in blocks of 16 tokens of 512 bytes; and sequences of ten blocks and two slots.
  t.regex(lfm2.text, /^f16 .* 2,032 +11$/m)
  const granite = await planOf(HYBRIDS.granite, '--formats', 'f16')
  t.regex(granite.text, /^3 layers keep states: conv 288 x 3, ssm 8 x 32 x 16$/m)
  const [row] = granite.plan.rows
  // Columns of 2 bytes, a state space of 4 bytes, each from a multiple of 64 bytes on.
  t.is(row?.stateBytes, 3 * (288 * 3 * 2 + 8 * 32 * 16 * 4))
  t.deepEqual(granite.plan.groups[1], {
    kind: 'state',
    layers: 3,
    tensors: [
      { name: 'conv', shape: [288, 3], dtype: 'f16' },
      { name: 'ssm', shape: [8, 32, 16], dtype: 'f32' },
    ],
  })
  const mamba = await planOf({ model_type: 'mamba', num_hidden_layers: 2, hidden_size: 64 }, '--formats', 'f16')
  t.regex(mamba.text, /^f16 +0 +[\d.]+ KiB +- +any +\d+$/m)
})

test.serial('a plan that cannot be made says what was expected', async t => {
  await withFile('{"model_type": "bert"}', async (file, folder) => {
    for (const [args, expected] of [
      [[file], /model_type is bert, expected one of llama, .*\(UNSUPPORTED_MODEL\)/],
      [[join(folder, 'none.json')], /none\.json", expected a file that can be read/],
      [[file, '--memory', 'lots'], /--memory is "lots", expected a number of bytes: 24GiB/],
      [[file, '--memory', '0'], /--memory/],
      [[file, '--context', '1.5'], /--context is "1\.5", expected a whole number/],
      [[file, '--formats', 'f16,q3'], /--formats is "q3", expected one of f32/],
      [[file, '--windows', 'wide'], /--windows/],
    ] as const) {
      const { code, out, err } = await run('plan', ...args)
      t.deepEqual([code, out], [1, ''])
      t.regex(err, expected)
      t.notRegex(err, /^ +at /m)
    }
    const { code, out, err } = await run('plan', file, '--json')
    t.deepEqual([code, err], [1, ''])
    t.like(JSON.parse(out), { error: { code: 'UNSUPPORTED_MODEL', details: { value: 'bert' } } })
  })
  await withFile('no config', async file =>
    t.regex((await run('plan', file)).err, /expected a Hugging Face config\.json/),
  )
  await withFile(JSON.stringify(CONFIGS.qwen3), async (file, folder) =>
    t.regex(
      (await run('plan', file, '--html', join(folder, 'none', 'a.html'))).err,
      /--html is .*expected a file that can be written/,
    ),
  )
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
  await withFile(JSON.stringify(CONFIGS.qwen3), async (file, folder) => {
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
      [['inspect', folder], 'not of a folder'],
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
