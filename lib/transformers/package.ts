import { createRequire } from 'node:module'

import { invalid, KvTideError } from '../border/errors.js'
import { projects } from '../loading/projects.js'

/** A tensor of transformers.js. */
export interface TransformersTensor {
  readonly type: string
  readonly data: unknown
  readonly dims: readonly number[]
  readonly location?: string
}

/** A `DynamicCache` of transformers.js: its tensors are properties, by the names of the graph's pasts. */
export interface DynamicCache {
  get_seq_length(): number
  dispose(): Promise<void>
}

/** A model of transformers.js, as far as it is looked at. */
export interface TransformersModel {
  readonly config: object
  readonly sessions: object
  generate(options: never): Promise<unknown>
}

/** @internal As much of transformers.js as is used here. Its own types need those of a browser. */
export interface TransformersPackage {
  readonly PreTrainedModel: abstract new (...args: never[]) => TransformersModel
  readonly Tensor: new (type: string, data: object, dims: readonly number[]) => TransformersTensor
  readonly DynamicCache: new (entries?: Record<string, TransformersTensor>) => DynamicCache
}

const NAME = '@huggingface/transformers'

/**
 * @internal The package that a model is of. A process may have it twice, once for `import` and once for `require`, and neither takes tensors of the
 * other: the one is taken whose class the model has.
 */
export async function packageOf(model: unknown): Promise<TransformersPackage> {
  // A model can be called: it is a function.
  if (typeof model !== 'function' && (typeof model !== 'object' || model === null)) throw invalid('model', model, EXPECTED)
  let reason: unknown
  for (const load of [required, imported]) {
    try {
      const found = await load()
      if (found !== undefined && model instanceof found.PreTrainedModel) return found
    } catch (cause) {
      reason = cause
    }
  }
  if (reason === undefined) throw invalid('model', model, EXPECTED)
  const [said = ''] = (reason instanceof Error ? reason.message : String(reason)).split('\n')
  const why = `it cannot be loaded (${said}): run \`npm install ${NAME}@4\``
  throw new KvTideError('RUNTIME_UNAVAILABLE', `${NAME} cannot be used: ${why}`, { runtime: NAME, reason: why }, { cause: reason })
}

const EXPECTED = `a model of ${NAME}: await AutoModelForCausalLM.from_pretrained(..)`

/** The one that somebody has required already. */
function required(): TransformersPackage | undefined {
  for (const project of projects()) {
    const { resolve, cache } = createRequire(project)
    try {
      const found = cache[resolve(NAME)]
      if (found?.loaded === true) return found.exports as TransformersPackage
    } catch {
      continue
    }
  }
  return undefined
}

async function imported(): Promise<TransformersPackage> {
  return (await import(NAME)) as unknown as TransformersPackage
}
