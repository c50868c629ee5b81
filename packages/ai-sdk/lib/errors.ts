// Errors of kvtide as errors of the AI SDK, with the original as the cause.
import {
  AISDKError,
  APICallError,
  InvalidArgumentError,
  InvalidPromptError,
  type LanguageModelV4CallOptions,
  NoSuchModelError,
  UnsupportedFunctionalityError,
} from '@ai-sdk/provider'
import { isKvTideError, type KvTideError } from 'kvtide'

/** Returns the error that the AI SDK expects. An abort keeps the reason that the caller gave. */
export function sdkError(error: unknown, model: string, options?: LanguageModelV4CallOptions): unknown {
  const signal = options?.abortSignal
  if (signal?.aborted === true) return signal.reason
  if (!isKvTideError(error)) return error
  const { message } = error
  switch (error.code as string) {
    case 'INVALID_ARGUMENT':
      if (argumentOf(error) === 'tools')
        return causedBy(new UnsupportedFunctionalityError({ functionality: 'tools', message }), error)
      return new InvalidArgumentError({ argument: argumentOf(error), message, cause: error })
    case 'INVALID_GRAMMAR':
      return new InvalidArgumentError({ argument: 'responseFormat', message, cause: error })
    case 'CONTEXT_OVERFLOW':
    case 'TEMPLATE_FAILED':
      return new InvalidPromptError({ prompt: options?.prompt, message, cause: error })
    case 'MODEL_NOT_FOUND':
      return causedBy(new NoSuchModelError({ modelId: model, modelType: 'languageModel', message }), error)
    case 'OUT_OF_BLOCKS':
    case 'OUT_OF_MEMORY':
    case 'BUSY':
      return exhausted(error, model, options)
    default:
      return new AISDKError({ name: `AI_KvtideError`, message, cause: error })
  }
}

/** Memory that other generations hold is free again later: the AI SDK tries once more. A prompt beyond the whole pool never fits. */
function exhausted(error: KvTideError, model: string, options: LanguageModelV4CallOptions | undefined): APICallError {
  const { needed, free, held } = error.details as { needed?: number; free?: number; held?: number }
  const isHopeless = needed !== undefined && free !== undefined && needed > free + (held ?? 0)
  return new APICallError({
    message: error.message,
    url: `kvtide:${model}`,
    requestBodyValues: { prompt: options?.prompt },
    isRetryable: !isHopeless,
    cause: error,
  })
}

const argumentOf = ({ details }: KvTideError): string => (details as { argument?: string }).argument ?? 'options'

/** The classes of the AI SDK that take no cause get it afterwards. */
function causedBy<E extends AISDKError>(error: E, cause: unknown): E {
  Object.defineProperty(error, 'cause', { value: cause, enumerable: false, configurable: true })
  return error
}
