// The values that the configs of a model declare, and the file that declares its windows. `load`, `inspect` and `doctor` read them here.
//
//     the option config, else config.json        sizes, windows, context
//     genai_config.json                          those of them that are missing
import { invalid, isKvTideError } from '../errors/errors.js'
import { configBeside, type ConfigSizes, configSizes, genaiSizes, readText } from './config.js'
import { smallest } from './context.js'
import { configWindows } from './windows.js'

/** @internal The values of configs that are used here. */
export interface Declared extends ConfigSizes {
  /** The window of each layer, `null` if it has none. */
  readonly windows?: (number | null)[] | undefined
  /** The file that declares the windows; `undefined` if none does, or an object that was passed. */
  readonly windowsFile?: string | undefined
}

/**
 * @internal Reads the config that was passed, or the one next to the model, which is ignored if it is invalid. Missing values are taken from
 * `genai_config.json`. If both files next to the model declare a context, the shorter one counts.
 */
export function readDeclared(source: string | Uint8Array, config: unknown): Declared {
  const beside = typeof source === 'string' ? configBeside(source) : undefined
  const genai = typeof source === 'string' ? genaiSizes(source) : {}
  const file = typeof config === 'string' ? config : config === undefined ? beside : undefined
  if (config === undefined && file === undefined) return genai
  try {
    const json = file === undefined ? JSON.stringify(config) : readText('config', file)
    const { numKvHeads = genai.numKvHeads, headDim = genai.headDim, contextLength } = configSizes(json)
    const context =
      config === undefined ? smallest([contextLength, genai.contextLength]) : (contextLength ?? genai.contextLength)
    const own = configWindows(json, config !== undefined)
    const { windows, windowsFile } = own === undefined ? genai : { windows: own, windowsFile: file }
    return { numKvHeads, headDim, windows, windowsFile, contextLength: context }
  } catch (error) {
    if (config === undefined) return genai
    if (isKvTideError(error)) throw error
    throw invalid('config', config, 'a Hugging Face config.json')
  }
}
