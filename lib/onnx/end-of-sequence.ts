// Reads which ids end an answer of a model: `eos_token_id` of the configs that exporters write beside it.
//
//     generation_config.json     beside the model, else beside the config that was given: in a chat model often several ids, the end of a turn among them
//     config.json                the given one, else the one beside the model; of a model that takes images, also its `text_config`
//     genai_config.json          `model.eos_token_id`
//
// The first of them that has ids of the vocabulary counts. A missing, unreadable or malformed config, or field, is as if it had none: the model then has no end of
// its own, and `stop` or `maxTokens` ends its answers.
import { configBeside, genaiEnd, parseConfig, readText } from './config.js'

const GENERATION = 'generation_config.json'
/** Ids are numbers of 32 bits. */
const IDS_END = 2 ** 32

/** The fields of a config that are used here. */
interface EndFields {
  readonly eos_token_id?: unknown
  readonly text_config?: unknown
}

/** @internal The ids that end an answer. `model` is the path of the graph, `config` the option of `OnnxModel.load`, `vocabulary` the number of ids. */
export function endOfSequence(
  model: string | undefined,
  config: unknown,
  vocabulary: number = IDS_END,
): readonly number[] {
  for (const declared of declarations(model, config)) {
    const ids = (Array.isArray(declared) ? declared : [declared]).filter(
      (id): id is number => Number.isInteger(id) && id >= 0 && id < vocabulary,
    )
    if (ids.length > 0) return Object.freeze([...new Set(ids)])
  }
  return Object.freeze([])
}

/** The values of `eos_token_id`, the first of which counts that has ids. */
function* declarations(model: string | undefined, config: unknown): Generator<unknown> {
  const given = typeof config === 'string' ? config : undefined
  for (const file of [model, given]) if (file !== undefined) yield fieldsIn(configBeside(file, GENERATION)).eos_token_id
  const beside = model === undefined ? undefined : configBeside(model)
  const own =
    config === undefined || given !== undefined ? fieldsIn(given ?? beside) : parsed(() => JSON.stringify(config))
  yield own.eos_token_id
  yield fieldsOf(own.text_config).eos_token_id
  if (model !== undefined) yield genaiEnd(model)
}

function fieldsIn(file: string | undefined): EndFields {
  return file === undefined ? {} : parsed(() => readText('config', file))
}

/** The fields of a config; none if it cannot be read. */
function parsed(read: () => string): EndFields {
  try {
    return fieldsOf(parseConfig(read()))
  } catch {
    return {}
  }
}

function fieldsOf(value: unknown): EndFields {
  return typeof value === 'object' && value !== null ? value : {}
}
