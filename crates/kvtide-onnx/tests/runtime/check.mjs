// Runs the subgraphs of a rewritten graph with onnxruntime-node and a naive attention between them, and prints the differences.
//
//   node check.mjs <folder of parts> <onnxruntime-node> <folder of references>
import { readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'

import { tensors } from './safetensors.mjs'

const [folder, runtime, references] = process.argv.slice(2)
const ort = createRequire(import.meta.url)(runtime)
const plan = JSON.parse(readFileSync(join(folder, 'plan.json'), 'utf8'))
const expected = JSON.parse(readFileSync(join(references, 'references.json'), 'utf8'))

const half = bits => {
  const exponent = (bits >> 10) & 31
  const fraction = bits & 1023
  const size =
    exponent === 0 ? fraction * 2 ** -24 : exponent === 31 ? Infinity : (1024 + fraction) * 2 ** (exponent - 25)
  return bits >> 15 ? -size : size
}

const words = new Uint32Array(1)
const float = new Float32Array(words.buffer)
const toHalf = number => {
  float[0] = number
  const sign = (words[0] >>> 16) & 0x8000
  const size = Math.abs(number)
  if (size < 2 ** -14) return sign | Math.round(size * 2 ** 24)
  const exponent = Math.floor(Math.log2(size))
  return sign | (((exponent + 15) << 10) + Math.round((size / 2 ** exponent - 1) * 1024))
}

const floats = ({ type, data }) =>
  type === 'float16' && !(data instanceof Float32Array)
    ? Float32Array.from(data, data instanceof Uint16Array ? half : Number)
    : data
const like = ({ type }, data, dims) =>
  type === 'float16'
    ? new ort.Tensor('float16', Uint16Array.from(data, toHalf), dims)
    : new ort.Tensor('float32', data, dims)

/** Row `token` of head `head`. */
const rowOf = (data, dims, headsFirst, heads, token, head, width) => {
  const tokens = headsFirst ? dims[2] : dims[1]
  const start = (headsFirst ? head * tokens + token : token * heads + head) * width
  return data.subarray(start, start + width)
}

/** One head of one query over all keys that it sees. */
const attendOne = (layer, query, keys, values, { sink, slope }) => {
  const first = layer.window === null ? 0 : Math.max(0, keys.length - layer.window)
  const scores = keys.slice(first).map((key, at) => {
    // The query is the last key.
    const bias = slope === undefined ? 0 : slope * (first + at - (keys.length - 1))
    let sum = 0
    for (let i = 0; i < query.length; i++) sum += query[i] * key[i]
    sum *= layer.scale
    return bias + (layer.softcap === null ? sum : Math.tanh(sum / layer.softcap) * layer.softcap)
  })
  const most = Math.max(...scores, sink ?? -Infinity)
  const weights = scores.map(score => Math.exp(score - most))
  const total = weights.reduce((sum, weight) => sum + weight, sink === undefined ? 0 : Math.exp(sink - most))
  const out = new Float64Array(layer.value_dim)
  for (const [index, weight] of weights.entries()) {
    for (let i = 0; i < out.length; i++) out[i] += (weight / total) * values[first + index][i]
  }
  return out
}

const noRows = () =>
  Object.fromEntries(
    plan.layers.map(({ layer, kv_num_heads }) => [layer, Array.from({ length: kv_num_heads }, () => [])]),
  )

class Sequence {
  keys = noRows()
  values = noRows()
  states = plan.states.map(({ shape }) => new Float64Array(shape.reduce((product, size) => product * size, 1)))
  length = 0
  /** The position of its first token: long sequences read another part of rotary tables. */
  start = 0

  constructor(total = 0) {
    if (plan.rope && total > plan.rope.threshold) this.start = plan.rope.offset
  }
}

/** Attention of one layer over all tokens of a call; `owners` says whose each token is. */
const attend = (layer, tensorsOf, owners) => {
  const { num_heads: heads, kv_num_heads: kvHeads, head_dim: dim, value_dim: valueDim, heads_first: first } = layer
  const [query, key, value] = tensorsOf.map(tensor => ({ data: floats(tensor), dims: tensor.dims }))
  const tokens = owners.length
  const out = new Float32Array(tokens * heads * valueDim)
  // A layer without keys of its own reads those of another one, which has all tokens of the call already.
  const from = layer.source ?? layer.layer
  const seen = new Map()
  for (const [token, owner] of owners.entries()) {
    const count = (seen.get(owner) ?? owner.length) + 1
    seen.set(owner, count)
    for (let head = 0; head < kvHeads && layer.source === null; head++) {
      owner.keys[layer.layer][head].push(Float64Array.from(rowOf(key.data, key.dims, first, kvHeads, token, head, dim)))
      owner.values[layer.layer][head].push(
        Float64Array.from(rowOf(value.data, value.dims, first, kvHeads, token, head, valueDim)),
      )
    }
    for (let head = 0; head < heads; head++) {
      const shared = Math.floor(head / (heads / kvHeads))
      const row = rowOf(query.data, query.dims, first, heads, token, head, dim)
      const [keys, values] = [owner.keys, owner.values].map(rows => rows[from][shared].slice(0, count))
      const made = attendOne(layer, row, keys, values, { sink: layer.sinks?.[head], slope: layer.slopes?.[head] })
      out.set(made, (first ? head * tokens + token : token * heads + head) * valueDim)
    }
  }
  return like(tensorsOf[0], out, first ? [1, heads, tokens, valueDim] : [1, tokens, heads * valueDim])
}

/** A short convolution over all tokens of a call. */
const convolve = (a, [x, weight, bias], owners) => {
  const { channels, kernel, columns } = a
  const tokens = owners.length
  const at = (channel, token) => (a.channels_first ? channel * tokens + token : token * channels + channel)
  const place = (channel, column) => (a.state_channels_first ? channel * columns + column : column * channels + channel)
  const out = new Float32Array(channels * tokens)
  for (const [token, owner] of owners.entries()) {
    const state = owner.states[a.state]
    for (let channel = 0; channel < channels; channel++) {
      const seen = Array.from({ length: columns }, (_, column) => state[place(channel, column)])
      seen.push(x[at(channel, token)])
      const sum = seen
        .slice(-kernel)
        .reduce((total, value, column) => total + value * weight[channel * kernel + column], bias?.[channel] ?? 0)
      out[at(channel, token)] = a.silu ? sum / (1 + Math.exp(-sum)) : sum
      for (let column = 0; column < columns; column++) state[place(channel, column)] = seen[column + 1]
    }
  }
  return out
}

/** A linear attention over all tokens of a call: `S = e^g S + k x b (v - e^g S^T k)`, `o = S^T q * scale`. */
const recur = (a, [query, key, value, decay, beta], owners) => {
  const { q_heads: qHeads, k_heads: kHeads, v_heads: vHeads, k_dim: kDim, v_dim: vDim } = a
  const heads = Math.max(qHeads, vHeads)
  const [perDecay, perBeta] = [decay, beta].map(gate => (gate === undefined ? 0 : gate.length / owners.length))
  const out = new Float32Array(owners.length * heads * vDim)
  for (const [token, owner] of owners.entries()) {
    for (let head = 0; head < vHeads; head++) {
      const state = owner.states[a.state].subarray(head * kDim * vDim, (head + 1) * kDim * vDim)
      const k = key.subarray((token * kHeads + Math.floor(head / (vHeads / kHeads))) * kDim)
      const v = value.subarray((token * vHeads + head) * vDim)
      const rate = beta?.[token * perBeta + (perBeta === 1 ? 0 : head)]
      for (let i = 0; i < kDim; i++) {
        const g = decay?.[token * perDecay + (perDecay === vHeads ? head : head * kDim + i)]
        for (let j = 0; j < vDim; j++) state[i * vDim + j] *= g === undefined ? 1 : Math.exp(g)
      }
      for (let j = 0; j < vDim; j++) {
        let kept = 0
        for (let i = 0; i < kDim; i++) kept += state[i * vDim + j] * k[i]
        const written = rate === undefined ? v[j] : rate * (v[j] - kept)
        for (let i = 0; i < kDim; i++) state[i * vDim + j] += k[i] * written
      }
      for (let one = 0; one < heads / vHeads; one++) {
        const to = (head * heads) / vHeads + one
        const q = query.subarray((token * qHeads + Math.floor((to * qHeads) / heads)) * kDim)
        for (let j = 0; j < vDim; j++) {
          let sum = 0
          for (let i = 0; i < kDim; i++) sum += state[i * vDim + j] * q[i]
          out[(token * heads + to) * vDim + j] = sum * a.scale
        }
      }
    }
  }
  return out
}

/** A state space model over all tokens of a call: `S = e^(dt A) S + dt x B`, `y = S C + D x`. */
const scan = (a, [x, b, c, dt, decay, d, bias], owners) => {
  const { heads, head_dim: dim, groups, state_size: size } = a
  const out = new Float32Array(owners.length * heads * dim)
  for (const [token, owner] of owners.entries()) {
    for (let head = 0; head < heads; head++) {
      const raw = dt[token * heads + head] + (bias?.[head] ?? 0)
      const soft = a.softplus ? Math.log1p(Math.exp(raw)) : raw
      const step = a.limits ? Math.min(Math.max(soft, a.limits[0]), a.limits[1]) : soft
      const group = (token * groups + Math.floor(head / (heads / groups))) * size
      for (let i = 0; i < dim; i++) {
        const own = x[(token * heads + head) * dim + i]
        const state = owner.states[a.state].subarray((head * dim + i) * size, (head * dim + i + 1) * size)
        let sum = d === undefined ? 0 : d[d.length === heads ? head : head * dim + i] * own
        for (let n = 0; n < size; n++) {
          state[n] = Math.exp(step * decay[head]) * state[n] + step * own * b[group + n]
          sum += state[n] * c[group + n]
        }
        out[(token * heads + head) * dim + i] = sum
      }
    }
  }
  return out
}

const OPERATORS = { ShortConv: convolve, LinearAttention: recur, StateSpace: scan }

/** A layer with a state over all tokens of a call. */
const keepState = ({ operator, attributes, inputs }, known, owners) => {
  const numbers = Object.fromEntries(
    Object.entries(attributes).map(([name, list]) => [name, list.length === 1 ? list[0] : list]),
  )
  const given = inputs.map(name => (name === null ? undefined : floats(known[name])))
  const out = OPERATORS[operator](numbers, given, owners)
  const first = known[inputs[0]]
  const dims = operator === 'ShortConv' ? first.dims : [1, owners.length, out.length / owners.length]
  return like(first, out, dims)
}

const options = {
  intraOpNumThreads: 1,
  interOpNumThreads: 1,
  logSeverityLevel: 3,
  extra: { session: { intra_op: { allow_spinning: '0' } } },
}
const sessions = []
for (const part of plan.parts)
  sessions.push(part.empty ? undefined : await ort.InferenceSession.create(join(folder, part.file), options))

const described = sessions.flatMap(session => session?.inputMetadata ?? [])
const types = new Map(described.map(({ name, type }) => [name, type]))
/** Positions as a graph takes them: some have a row for time, height and width each, which are alike for text. */
const positionsOf = (positions, { type, shape }) =>
  shape?.length === 3
    ? ints([...positions, ...positions, ...positions], [3, 1, positions.length], type)
    : ints(positions, [1, positions.length], type)
const ints = (numbers, dims, type) =>
  type === 'int32'
    ? new ort.Tensor('int32', Int32Array.from(numbers), dims)
    : new ort.Tensor('int64', BigInt64Array.from(numbers, BigInt), dims)

/** Logits of all tokens of a call, or of the rows that are asked for. */
const run = async (batch, rows) => {
  const owners = batch.flatMap(({ sequence, tokens }) => tokens.map(() => sequence))
  const positions = batch.flatMap(({ sequence, tokens }) =>
    tokens.map((_, index) => sequence.start + sequence.length + index),
  )
  const ids = batch.flatMap(({ tokens }) => tokens)
  const known = {}
  known[plan.tokens] = ints(ids, [1, ids.length], types.get(plan.tokens))
  known.position_ids = positionsOf(positions, described.find(({ name }) => name === 'position_ids') ?? {})
  if (plan.rows) known.logit_rows = ints(rows ?? ids.map((_, index) => index), [(rows ?? ids).length])
  for (const [index, part] of plan.parts.entries()) {
    if (sessions[index])
      Object.assign(known, await sessions[index].run(Object.fromEntries(part.inputs.map(name => [name, known[name]]))))
    for (const call of part.attentions) {
      known[call.output] = attend(
        plan.layers.find(({ layer }) => layer === call.layer),
        call.inputs.map(name => known[name]),
        owners,
      )
    }
    for (const call of part.states) known[call.output] = keepState(call, known, owners)
  }
  for (const { sequence, tokens } of batch) sequence.length += tokens.length
  return floats(known.logits)
}

const difference = (one, other) => {
  if (one.length !== other.length) throw new Error(`${one.length} numbers instead of ${other.length}`)
  let most = 0
  for (let i = 0; i < one.length; i++) {
    const distance = Math.abs(one[i] - other[i])
    if (!(distance <= most)) most = distance
  }
  return most
}

const argmax = row => row.reduce((best, number, index) => (number > row[best] ? index : best), 0)
const result = { prefill: 0, decode: 0, same: 0, of: 0, ragged: 0, rows: 0 }
const width = expected.vocab_size
const own = plan.logits === 'references' ? tensors(join(references, 'references.safetensors')) : undefined

for (const [name, prompt] of Object.entries(expected.prompts)) {
  const sequence = new Sequence(prompt.length)
  const greedy = (plan.greedy ?? expected.greedy)[name]
  if (greedy === undefined) continue
  // In two pieces, so that the second one has a past.
  const cut = prompt.length >> 1
  const pieces = cut > 0 ? [prompt.slice(0, cut), prompt.slice(cut)] : [prompt]
  const all = []
  for (const tokens of pieces) all.push(...(await run([{ sequence, tokens }])))
  if (own) result.prefill = Math.max(result.prefill, difference(all, own(`logits.${name}`)))
  let row = all.slice(-width)
  for (const [step, token] of greedy.entries()) {
    if (own)
      result.decode = Math.max(
        result.decode,
        difference(row, own(`greedy_logits.${name}`).subarray(step * width, (step + 1) * width)),
      )
    result.same += argmax(row) === token ? 1 : 0
    result.of += 1
    // Beyond the threshold, all tokens would have to be computed again.
    const isCrossing = plan.rope && sequence.start === 0 && sequence.length + 1 > plan.rope.threshold
    if (step + 1 < Math.min(greedy.length, plan.steps) && !isCrossing) row = await run([{ sequence, tokens: [token] }])
    else break
  }
}

/** Logits of the graph as it was, for each prompt. */
const originals = []

// The graph as it was, with an empty past.
if (plan.original) {
  const session = await ort.InferenceSession.create(join(folder, plan.original), options)
  for (const prompt of Object.values(expected.prompts)) {
    const feeds = {}
    for (const { name, type, shape } of session.inputMetadata) {
      if (name === plan.tokens) feeds[name] = ints(prompt, [1, prompt.length], type)
      else if (name === 'position_ids') feeds[name] = positionsOf([...prompt.keys()], { type, shape })
      else if (type === 'bool') feeds[name] = new ort.Tensor('bool', Uint8Array.of(0), shape)
      else if (name === 'attention_mask')
        feeds[name] = ints(
          prompt.map(() => 1),
          [1, prompt.length],
          type,
        )
      // The numbers of a static cache: of tokens before the call, and of all tokens.
      else if (name === 'write_indices') feeds[name] = ints([0], [1])
      else if (name === 'nonpad_kv_seqlen') feeds[name] = ints([prompt.length], [1])
      else if (plan.states.some(({ past }) => past === name)) {
        const dims = [1, ...plan.states.find(({ past }) => past === name).shape]
        const count = dims.reduce((product, size) => product * size, 1)
        feeds[name] = new ort.Tensor(type, new (type === 'float16' ? Uint16Array : Float32Array)(count), dims)
      } else {
        // Keys and values may be beside each other in the rows of one past.
        const layer = plan.layers.find(({ pasts }) => pasts.includes(name.replace(/key_value$/, 'key')))
        // A past that the graph slides by itself has a fixed number of rows.
        const rows = layer.form === 'GroupQueryAttention' && String(shape[2]).includes('sliding') ? 64 : 0
        const row = name === layer.pasts[0] ? layer.head_dim : layer.value_dim
        // Keys and values may be one tensor.
        const lead = shape.length === 5 ? [2, 1] : [1]
        const isBeside = name.endsWith('key_value')
        const isStatic = shape.slice(1).every(size => typeof size === 'number')
        const sizes = isStatic ? [1, ...shape.slice(1)] : [...lead, layer.kv_num_heads, rows, row]
        const dims = isBeside ? shape.map((size, axis) => (axis === 0 ? 1 : Number(size) || 0)) : sizes
        const count = dims.reduce((product, size) => product * size, 1)
        feeds[name] = new ort.Tensor(type, new (type === 'float16' ? Uint16Array : Float32Array)(count), dims)
      }
    }
    const { logits } = await session.run(feeds)
    const sequence = new Sequence(prompt.length)
    const rest = prompt.length > 1 ? await run([{ sequence, tokens: prompt.slice(0, 1) }]) : []
    const all = [...rest, ...(await run([{ sequence, tokens: prompt.slice(sequence.length) }]))]
    // A graph with a pruned head gives the last row only.
    const rows = floats(logits)
    const last = other => other.slice(other.length - rows.length)
    result.original = Math.max(result.original ?? 0, difference(last(all), rows))
    originals.push({ prompt, rows })
    if (own) {
      const name = Object.keys(expected.prompts).find(other => expected.prompts[other] === prompt)
      result.itself = Math.max(result.itself ?? 0, difference(rows, last(own(`logits.${name}`))))
    }
  }
}

/** The number of tokens of a prompt in the first of two calls. */
const cut = ({ length }) => length - (length >> 1)

// States of sequences in one call must not mix: the prompts are cut in two calls, at different places.
if (plan.states.length > 0 && originals.length > 0 && !plan.rows) {
  const sequences = originals.map(({ prompt }) => ({ prompt, sequence: new Sequence(prompt.length) }))
  const first = await run(sequences.map(({ prompt, sequence }) => ({ sequence, tokens: prompt.slice(0, cut(prompt)) })))
  const rest = sequences.filter(({ prompt }) => prompt.length > cut(prompt))
  const second = await run(rest.map(({ prompt, sequence }) => ({ sequence, tokens: prompt.slice(cut(prompt)) })))
  let [at, behind] = [0, 0]
  for (const { prompt, rows } of originals) {
    const [some, others] = [cut(prompt) * width, (prompt.length - cut(prompt)) * width]
    const all = [...first.slice(at, at + some), ...second.slice(behind, behind + others)]
    result.ragged = Math.max(result.ragged, difference(all.slice(all.length - rows.length), rows))
    at += some
    behind += others
  }
}

// Prompts of unequal length in one call, and rows chosen out of it.
if (own) {
  const names = Object.keys(expected.prompts)
  const sequenceOf = name => new Sequence(expected.prompts[name].length)
  const all = await run(names.map(name => ({ sequence: sequenceOf(name), tokens: expected.prompts[name] })))
  const whole = Float32Array.from(names.flatMap(name => [...own(`logits.${name}`)]))
  result.ragged = difference(all, whole)
  if (plan.rows) {
    let end = 0
    const last = names.map(name => (end += expected.prompts[name].length) - 1)
    const chosen = await run(
      names.map(name => ({ sequence: sequenceOf(name), tokens: expected.prompts[name] })),
      last,
    )
    result.rows = difference(
      chosen,
      Float32Array.from(last.flatMap(row => [...whole.subarray(row * width, (row + 1) * width)])),
    )
  }
}
console.log(JSON.stringify(result))
