// Transcribes speech with a Whisper model, then asks about the same audio again: nothing is encoded a second time.
//
//     node examples/transcribe.mjs                                  a tiny model without a tokenizer, and a tone
//     node examples/transcribe.mjs <folder> speech.wav 50258 50259 50359 50363
//
// The folder is one of transformers.js' Whisper models, with onnx/encoder_model.onnx and onnx/decoder_model_merged.onnx. The file has one channel of 16-bit samples at 16 kHz.
// The ids are those of the start, the language and the task.
import { existsSync, readFileSync } from 'node:fs'
import { basename, dirname } from 'node:path'
import { fileURLToPath } from 'node:url'

import { AutoTokenizer, env, WhisperFeatureExtractor } from '@huggingface/transformers'
import { OnnxModel } from 'kvtide/onnx'

const tiny = fileURLToPath(new URL('../__test__/fixtures/encoder-decoder/whisper', import.meta.url))
const [folder = tiny, wav, ...start] = process.argv.slice(2)
const config = `${folder}/preprocessor_config.json`
const features = new WhisperFeatureExtractor(
  existsSync(config)
    ? JSON.parse(readFileSync(config, 'utf8'))
    : { feature_size: 8, sampling_rate: 16_000, hop_length: 160, n_fft: 400, n_samples: 3840, nb_max_frames: 24 },
)
const tone = () => Float32Array.from({ length: 3840 }, (_, place) => Math.sin(place / 5))
const bytes = wav === undefined ? undefined : readFileSync(wav)
const samples =
  bytes === undefined
    ? tone()
    : Float32Array.from({ length: (bytes.length - 44) >> 1 }, (_, place) => bytes.readInt16LE(44 + 2 * place) / 32_768)
env.localModelPath = dirname(folder)
const tokenizer =
  folder === tiny ? undefined : await AutoTokenizer.from_pretrained(basename(folder), { local_files_only: true })

const model = await OnnxModel.load(folder) // the configs in the folder say which ids end a text
for (const round of ['first', 'again']) {
  const encoded = await model.encode(await features(samples))
  const sequence = model.open({ tokens: start.length === 0 ? [3] : start.map(Number), encoded })
  const tokens = []
  for await (const token of model.generate(sequence, { maxTokens: 40 })) tokens.push(token)
  sequence.dispose()
  console.log(`${round}: ${tokenizer?.decode(tokens, { skip_special_tokens: true }) ?? tokens.join(' ')}`)
}
console.log(
  `the encoder ran ${model.crossCache?.encoderRuns} time, its keys and values were computed ${model.crossCache?.computed} time`,
)
await model.dispose()
