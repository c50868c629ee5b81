// Models by their TextModel, or by a name that is loaded once.
import { NoSuchModelError, type ProviderV4 } from '@ai-sdk/provider'
import { TextModel, type TextModelOptions } from 'kvtide/text'

import { INTERNAL, invalid, isObject, known } from './arguments.js'
import { type CallSettings, checkedSettings } from './call-settings.js'
import { KvtideLanguageModel } from './language-model.js'

/** A provider of the AI SDK. Called like a function, it returns a model. */
export interface KvtideProvider extends ProviderV4, AsyncDisposable {
  /**
   * Returns a model: of a {@link TextModel} that is loaded already, or of anything that `TextModel.load` takes. The second kind is loaded by its first
   * call, once for this provider, and disposed of with it. `settings` apply to all calls.
   */
  (model: TextModel | string | URL, settings?: CallSettings): KvtideLanguageModel
  /** As the call. */
  languageModel(model: string, settings?: CallSettings): KvtideLanguageModel
  /** Disposes of the models that this provider has loaded. */
  dispose(): Promise<void>
}

const none = (modelType: 'embeddingModel' | 'imageModel') => (modelId: string) => {
  throw new NoSuchModelError({ modelId, modelType, message: 'kvtide runs models that generate text alone' })
}

const OPTIONS: { readonly [K in keyof Required<TextModelOptions>]: true } = {
  accuracyLevel: true,
  backend: true,
  cache: true,
  cacheFolder: true,
  config: true,
  crossCacheBytes: true,
  dtype: true,
  embeddings: true,
  encoder: true,
  endpoint: true,
  folder: true,
  isOffline: true,
  maxStepTokens: true,
  onProgress: true,
  onRetry: true,
  revision: true,
  signal: true,
  template: true,
  threads: true,
  token: true,
}

/** Makes a provider. The options are those of `TextModel.load`, for the models that it loads. */
export function createKvtide(options: TextModelOptions = {}): KvtideProvider {
  const own = known('options', options, OPTIONS, 'option') as TextModelOptions
  const loaded = new Map<string, Promise<TextModel>>()

  /** Loads a model once. A load that failed is tried again by the next call. */
  function load(name: string, model: string | URL): Promise<TextModel> {
    const found = loaded.get(name)
    if (found !== undefined) return found
    const loading = TextModel.load(model, own)
    loaded.set(name, loading)
    loading.catch(() => {
      // After `dispose`, the name may belong to a newer load.
      if (loaded.get(name) === loading) loaded.delete(name)
    })
    return loading
  }

  function languageModel(model: TextModel | string | URL, settings: CallSettings = {}): KvtideLanguageModel {
    const checked = checkedSettings('settings', settings)
    if (typeof model === 'string' || (isObject(model) && model instanceof URL)) {
      const name = String(model)
      if (name === '') throw invalid('model', model, 'a name that is not empty')
      return new KvtideLanguageModel(INTERNAL, name, () => load(name, model), checked)
    }
    if (!isObject(model) || !(model instanceof TextModel))
      throw invalid('model', model, 'a TextModel, a folder, a file, a URL or a name on the Hub')
    return new KvtideLanguageModel(INTERNAL, model.name, () => Promise.resolve(model), checked)
  }

  async function dispose(): Promise<void> {
    const all = [...loaded.values()]
    loaded.clear()
    const models = await Promise.allSettled(all)
    await Promise.all(models.map(model => (model.status === 'fulfilled' ? model.value.dispose() : undefined)))
  }

  return Object.assign(languageModel, {
    specificationVersion: 'v4' as const,
    languageModel,
    embeddingModel: none('embeddingModel'),
    imageModel: none('imageModel'),
    dispose,
    [Symbol.asyncDispose]: dispose,
  })
}

/** The provider with default options. */
export const kvtide: KvtideProvider = createKvtide()
