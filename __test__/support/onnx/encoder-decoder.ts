// Tiny decoders with encoders, and what transformers computes with them.
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

import { type EncoderInput, type Encoding, OnnxModel, type OnnxModelOptions } from '../../../onnx.js'
import { readSafetensors, type Stored } from '../llama/safetensors.js'

const FIXTURES = fileURLToPath(new URL('../../fixtures/encoder-decoder/', import.meta.url))
/** The inputs of encoders that are token ids. */
const IDS = new Set(['input_ids', 'attention_mask'])

/** A model, and its results in transformers for each input and each prompt. */
export interface Seq2Seq {
  readonly name: string
  readonly file: string
  readonly encoder: string
  /** True if the encoder gives keys and values, as that of onnxruntime-genai's builder does. */
  readonly isGiven: boolean
  /** The backends that run it: T5 adds numbers of its own to scores, which `plain` alone computes. */
  readonly backends: readonly ('graph' | 'parts' | 'plain')[]
  /** The names of the inputs: `a`, `b`. */
  readonly inputs: readonly string[]
  readonly prompts: Readonly<Record<string, readonly number[]>>
  inputsOf(input: string): Readonly<Record<string, EncoderInput>>
  greedy(input: string, prompt: string): number[]
  tensor(name: string): Stored
}

/** The fixtures, and the models of the folder in KVTIDE_ENCODER_DECODERS. */
export const models: readonly Seq2Seq[] = [FIXTURES, process.env['KVTIDE_ENCODER_DECODERS']].flatMap(folder =>
  folder === undefined
    ? []
    : readdirSync(folder, { withFileTypes: true })
        .filter(entry => entry.isDirectory())
        .map(({ name }) => modelIn(join(folder, name), folder === FIXTURES ? name : `made ${name}`)),
)

function modelIn(folder: string, name: string): Seq2Seq {
  const tensors = readSafetensors(pathToFileURL(join(folder, 'references.safetensors')))
  const { prompts, greedy } = JSON.parse(readFileSync(join(folder, 'references.json'), 'utf8')) as {
    prompts: Record<string, number[]>
    greedy: Record<string, number[]>
  }
  const tensor = (of: string): Stored => {
    const found = tensors.get(of)
    if (found === undefined) throw new Error(`there is no tensor ${of}`)
    return found
  }
  return {
    name,
    file: ['decoder_model_merged.onnx', 'decoder.onnx'].map(file => join(folder, file)).find(existsSync) as string,
    encoder: ['encoder_model.onnx', 'encoder.onnx'].map(file => join(folder, file)).find(existsSync) as string,
    isGiven: !existsSync(join(folder, 'decoder_model_merged.onnx')),
    backends: name.includes('t5') ? ['plain'] : ['graph', 'parts', 'plain'],
    inputs: [...tensors.keys()].filter(key => key.startsWith('encoded.')).map(key => key.slice(8)),
    prompts,
    inputsOf: input =>
      Object.fromEntries(
        [...tensors]
          .map(([key, value]) => [...key.split('.'), value] as unknown as [string, string, Stored])
          .filter(([kind, of]) => of === input && kind !== 'encoded' && kind !== 'logits')
          .map(([kind, , { data, shape }]) => [kind, IDS.has(kind) ? [...data] : { data, dims: shape }]),
      ),
    greedy: (input, prompt) => [...(greedy[`${input}.${prompt}`] as number[])],
    tensor,
  }
}

/** Loads a model with a small cache. */
export function load({ file }: Seq2Seq, options: OnnxModelOptions = {}): Promise<OnnxModel> {
  const cache = { memoryBytes: 2 ** 22, blockSize: 4, ...options.cache }
  return OnnxModel.load(file, { threads: 1, backend: 'plain', ...options, cache })
}

/** The encodings of all inputs of a model. */
export async function encodings(model: OnnxModel, of: Seq2Seq): Promise<Map<string, Encoding>> {
  const made = new Map<string, Encoding>()
  for (const input of of.inputs) made.set(input, await model.encode(of.inputsOf(input)))
  return made
}
