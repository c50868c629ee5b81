// Models that see images: their graphs, and the tokens that transformers gives for prompts with images.
import { readFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'

import type { BackendName, EmbedSpan } from '../../../onnx.js'
import { OnnxModel, type OnnxModelOptions } from '../../../onnx.js'
import { readSafetensors } from '../llama/safetensors.js'

const folder = new URL('../../fixtures/vision/', import.meta.url)

interface Reference {
  readonly ids: readonly number[]
  readonly images: readonly {
    readonly image: string
    readonly start: number
    readonly grid: [number, number, number]
  }[]
  readonly greedy: readonly number[]
  /** Three rows, if the model has them. */
  readonly positions: readonly (readonly number[])[] | null
}

/** A prompt with images, and the tokens behind it. */
export interface VisionPrompt extends Reference {
  readonly tokens: readonly number[]
  readonly embeds: readonly EmbedSpan[]
}

/** The decoders, by model. */
export const VISION = { 'qwen2-vl': 'decoder_model_merged.onnx', llama: 'model.onnx' } as const
export type VisionName = keyof typeof VISION

export const visionFile = (name: VisionName, file: string = VISION[name]): string =>
  fileURLToPath(new URL(`${name}/${file}`, folder))

/** Loads a model with small blocks, so that prefixes are found within prompts of a few tokens. */
export function visionModel(
  name: VisionName,
  backend: BackendName,
  options: OnnxModelOptions = {},
): Promise<OnnxModel> {
  const cache = { memoryBytes: 2 ** 22, blockSize: 4 }
  return OnnxModel.load(visionFile(name), { backend, threads: 1, cache, ...options })
}

/** Results of transformers, by the name of the prompt. An image of Qwen2-VL has a grid. */
export function visionPrompts(name: VisionName): Record<string, VisionPrompt> {
  const given = JSON.parse(readFileSync(visionFile(name, 'references.json'), 'utf8')) as Record<string, Reference>
  const rows = readSafetensors(new URL(`${name}/references.safetensors`, folder))
  const prompts = Object.entries(given).map(([prompt, reference]) => {
    const embeds = reference.images.map(({ image, start, grid }): EmbedSpan => {
      const data = rows.get(image)?.data
      if (data === undefined) throw new Error(`there are no rows of ${image}`)
      return { start, data, key: image, ...(name === 'qwen2-vl' ? { grid } : {}) }
    })
    return [prompt, { ...reference, tokens: [...reference.ids], embeds }] as const
  })
  return Object.fromEntries(prompts)
}
