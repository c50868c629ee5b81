// The command line of the server.
import { readFileSync } from 'node:fs'
import type { AddressInfo } from 'node:net'
import { dirname } from 'node:path'
import { parseArgs } from 'node:util'

import { isKvTideError } from 'kvtide'
import { OnnxModel } from 'kvtide/onnx'

import { chatServer } from './server.js'
import { bytes, fromFolder } from './text.js'

const usage = `usage: main.ts --model model.onnx [options]

  --model       the ONNX file
  --config      its config.json; by default the one beside the model, or in the folder above
  --tokenizer   the folder with tokenizer.json and tokenizer_config.json, by default the model's; or "bytes"
  --name        the model name for clients; by default the name of the file's folder
  --memory      GiB for keys and values, 2 by default
  --threads     by default as many as the process may use
  --backend     graph, parts or plain; by default the first one that works
  --keys        a file with the accepted API keys, one per line; by default every key is a tenant
  --host        127.0.0.1 by default
  --port        8080 by default`

const { values } = parseArgs({
  options: {
    model: { type: 'string' },
    config: { type: 'string' },
    tokenizer: { type: 'string' },
    name: { type: 'string' },
    memory: { type: 'string', default: '2' },
    threads: { type: 'string' },
    backend: { type: 'string' },
    keys: { type: 'string' },
    host: { type: 'string', default: '127.0.0.1' },
    port: { type: 'string', default: '8080' },
    help: { type: 'boolean', default: false },
  },
})
if (values.help || values.model === undefined) {
  console[values.help ? 'log' : 'error'](usage)
  process.exit(values.help ? 0 : 2)
}
try {
  const codec = values.tokenizer === 'bytes' ? bytes : await fromFolder(values.tokenizer ?? dirname(values.model))
  const model = await OnnxModel.load(values.model, {
    ...(values.config === undefined ? {} : { config: values.config }),
    ...(values.threads === undefined ? {} : { threads: Number(values.threads) }),
    ...(values.backend === undefined ? {} : { backend: values.backend as 'graph' | 'parts' | 'plain' }),
    cache: { memoryBytes: Math.floor(Number(values.memory) * 2 ** 30) },
  })
  const name = values.name ?? dirname(values.model).split(/[\\/]/).at(-1) ?? 'model'
  const server = chatServer({ model, codec, name, ...(values.keys === undefined ? {} : { keys: keysIn(values.keys) }) })
  server.listen(Number(values.port), values.host, () => {
    const { port } = server.address() as AddressInfo
    console.log(`${name} (${model.backend}) on http://${values.host}:${port}/v1`)
  })
  process.once('SIGINT', () => {
    server.close()
    server.closeAllConnections()
    void model.dispose()
  })
} catch (error) {
  console.error(isKvTideError(error) ? error.toString() : error)
  process.exitCode = 1
}

/** Returns the keys in a file, one per line. With an empty file, no key is accepted. */
function keysIn(path: string): string[] {
  return readFileSync(path, 'utf8')
    .split('\n')
    .map(line => line.trim())
    .filter(line => line !== '')
}
