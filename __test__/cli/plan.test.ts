// The command line: `kvtide plan`.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

import test from 'ava'

import { PagedKvCache } from '../../index.js'
import { run, withFile } from '../support/command-line.js'

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
    readonly format: 'f32' | 'f16' | 'q8' | 'q4'
    readonly bytesPerToken: number
    readonly windowBytes: number
    readonly stateBytes: number
    readonly checkpointTokens: number | null
    readonly largestContext: number | null
    readonly largestBatch: number
    readonly refusal?: string
  }[]
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
  // An eighth of 1 MiB is 42 checkpoints of 3 KiB, and a sequence has two slots more. The rest is blocks of 16 tokens of 512 bytes, ten for each of ten.
  t.regex(lfm2.text, /^f16 .* 1,776 +10$/m)
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
  for (const model of Object.values(HYBRIDS)) {
    const { plan } = await planOf(model, '--formats', 'f32,q8')
    for (const { format, largestContext, stateBytes } of plan.rows) {
      const pages = { dtype: format === 'f32' ? format : 'f16', keyFormat: format, valueFormat: format } as const
      using cache = new PagedKvCache({ model, ...pages, memoryBytes: 2 ** 20, maxSequences: 1 })
      t.is(cache.groups[1]?.bytes, stateBytes)
      t.is((cache.stats().pools[0]?.totalBlocks ?? 0) * 16, largestContext as number, `${model.model_type} ${format}`)
    }
  }
  const mamba = await planOf({ model_type: 'mamba', num_hidden_layers: 2, hidden_size: 64 }, '--formats', 'f16')
  t.regex(mamba.text, /^f16 +0 +[\d.]+ KiB +- +any +\d+$/m)
})

test.serial('a config that Python wrote may have infinite numbers', async t => {
  const model = JSON.stringify({ ...CONFIGS.qwen3, time_step_limit: [0, 1] }).replace('[0,1]', '[0.0, Infinity]')
  await withFile(model, async file => t.is((await run('plan', file)).code, 0))
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
