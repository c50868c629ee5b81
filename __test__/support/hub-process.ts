// Downloads a model, as a program of its own: tests kill it, limit it, and run several at once. It prints its progress, and its result as JSON.
import { findModel } from '../../lib/text/hub/hub.js'
import { isKvTideError } from '../../index.js'

interface Task {
  readonly name: string
  readonly options: object
  readonly limits: object
}

const onProgress = ({ file, loaded }: { readonly file: string; readonly loaded: number }): void =>
  console.log(`at ${file} ${loaded}`)

const { name, options, limits } = JSON.parse(process.argv[2] as string) as Task
try {
  console.log(`found ${JSON.stringify(await findModel(name, { ...options, onProgress }, { limits }))}`)
} catch (error) {
  if (!isKvTideError(error)) throw error
  console.log(`refused ${JSON.stringify({ code: error.code, message: error.message, details: error.details })}`)
}
