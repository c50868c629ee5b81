// Opens the sessions of a graph on a session thread.
import { binding } from '../loading/binding.js'
import type { BackendForm } from './backend.js'
import { isAtLeast, onnxPackage } from './runtime.js'
import { type SessionHost, sessionHost } from './session-host.js'
import type { EmbeddingsModel, SessionsModel } from './sessions.js'

/** The first version of onnxruntime that accepts a folder for the weights of a model given as bytes. */
const FOLDER_MINOR = 21

/** @internal Ends the sessions of objects that were garbage collected without being disposed of. */
export const lost = new FinalizationRegistry<SessionHost>(host => void host.end())

function commonOf({ threads }: BackendForm, embeddings: EmbeddingsModel | undefined) {
  const { version, folder } = onnxPackage()
  return { runtime: { version, folder }, threads, takesFolder: isAtLeast(version, FOLDER_MINOR), embeddings }
}

/** @internal Opens sessions of a graph that was shared under a number. */
export async function opened(
  number: number,
  form: BackendForm,
  model: (number: number, common: ReturnType<typeof commonOf>) => SessionsModel,
): Promise<SessionHost> {
  const { embeddings } = form
  const shared = embeddings?.graph.share()
  try {
    const { names = [], width = 0 } = embeddings ?? {}
    const given = shared === undefined ? undefined : { graph: shared, names: [...names], width }
    return await sessionHost(model(number, commonOf(form, given)))
  } finally {
    binding.unshare(number)
    if (shared !== undefined) binding.unshare(shared)
  }
}
