// The parts of transformers.js that are used here, and finding the copy of the package that a model belongs to.
import { isObject } from '../errors/check.js'
import { invalid, KvTideError, messageOf } from '../errors/errors.js'
import { projects, requireFrom } from '../loading/projects.js'

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
  // Its tensors have types of transformers.js, which are not imported here: `any` is assignable to theirs and ours.
  // oxlint-disable-next-line typescript/no-explicit-any
  update(entries: Record<string, any>): void
  dispose(): Promise<void>
  // oxlint-disable-next-line typescript/no-explicit-any
  readonly [past: string]: any
}

/** A model of transformers.js: the members that are used here. */
export interface TransformersModel {
  readonly config: object
  readonly sessions: object
  generate(options: never): Promise<unknown>
}

/** @internal The members of transformers.js that are used here. Its own types need those of a browser. */
export interface TransformersPackage {
  readonly PreTrainedModel: abstract new (...args: never[]) => TransformersModel
  readonly Tensor: new (type: string, data: object, dims: readonly number[]) => TransformersTensor
  readonly DynamicCache: new (entries?: Record<string, TransformersTensor>) => DynamicCache
}

const NAME = '@huggingface/transformers'

/**
 * @internal The package that a model belongs to. A process may have it twice, once for `import` and once for `require`, and neither accepts tensors of the
 * other. So the one is used whose class the model is an instance of.
 */
export async function packageOf(model: unknown): Promise<TransformersPackage> {
  // A transformers.js model is callable, so its type is function.
  if (typeof model !== 'function' && !isObject(model)) throw invalid('model', model, EXPECTED)
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
  const [said = ''] = messageOf(reason).split('\n')
  const why = `it cannot be loaded (${said}): run \`npm install ${NAME}@4\``
  throw new KvTideError(
    'RUNTIME_UNAVAILABLE',
    `${NAME} cannot be used: ${why}`,
    { runtime: NAME, reason: why },
    { cause: reason },
  )
}

const EXPECTED = `a model of ${NAME}: await AutoModelForCausalLM.from_pretrained(..)`

/** The package, if it was already loaded with `require`. */
function required(): TransformersPackage | undefined {
  for (const project of projects()) {
    const { resolve, cache } = requireFrom(project)
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
