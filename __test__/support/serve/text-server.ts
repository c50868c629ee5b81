// A server of the tiny model with its text files, or of a real one: `KVTIDE_TEXT_MODEL` names its folder.
import { TextModel, type TextModelOptions } from 'kvtide/text'

import type { ServerOptions } from '../../../packages/serve/index.js'
import { Client } from './client.js'
import { modelFolder } from './model-folder.js'

/** The folder of a real model, for tests that are SKIPPED without one. */
export const realModel: string | undefined = process.env['KVTIDE_TEXT_MODEL']

/** Loads the tiny model. */
export function tinyModel(options: TextModelOptions = {}, contextLength?: number): Promise<TextModel> {
  const cache = { memoryBytes: 2 ** 25, maxSequences: 64, ...options.cache }
  return TextModel.load(modelFolder(contextLength), { threads: 1, ...options, cache })
}

/** A server of a model, with the model itself. */
export interface TextClient extends AsyncDisposable {
  readonly client: Client
  readonly text: TextModel
}

/** Starts a server of a model, by default of the tiny one. */
export async function textServer(options: Partial<ServerOptions> = {}, model?: TextModel): Promise<TextClient> {
  const text = model ?? (await tinyModel())
  const client = await Client.start({ name: 'tiny', ...options, model: text })
  return {
    client,
    text,
    async [Symbol.asyncDispose]() {
      await client.server.close()
      await text.dispose()
    },
  }
}
