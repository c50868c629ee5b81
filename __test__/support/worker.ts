import { Worker } from 'node:worker_threads'

import { indexUrl, tsxUrl } from './packaging/child.js'

/** Starts a worker thread with a module that sees the package as `kvtide` and the other side as `parentPort`. */
export function startWorker(source: string, workerData: unknown = null): Worker {
  const script = `
    const { parentPort, workerData } = await import('node:worker_threads')
    const { register } = await import(${JSON.stringify(tsxUrl)})
    register()
    const kvtide = await import(${JSON.stringify(indexUrl)})
    ${source}`
  return new Worker(new URL(`data:text/javascript,${encodeURIComponent(script)}`), { workerData })
}
