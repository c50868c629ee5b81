// The AI SDK's functions, with types of their own: its declarations don't compile with exactOptionalPropertyTypes.
import type { LanguageModelV4 } from '@ai-sdk/provider'
import test, { type ExecutionContext } from 'ava'

interface Usage {
  readonly inputTokens: number
  readonly inputTokenDetails: { readonly cacheReadTokens: number | undefined }
  readonly outputTokens: number
  readonly outputTokenDetails: { readonly textTokens: number | undefined }
}

interface Settings {
  readonly model: LanguageModelV4
  readonly prompt: string
  readonly instructions?: string
  readonly temperature?: number
  readonly maxRetries?: number
  readonly tools?: Readonly<Record<string, unknown>>
  readonly toolChoice?: string
  readonly stopWhen?: unknown
  readonly output?: unknown
  readonly schema?: unknown
  readonly abortSignal?: AbortSignal
}

interface Result {
  readonly text: string
  readonly output: unknown
  readonly finishReason: string
  readonly usage: Usage
  readonly warnings: readonly unknown[] | undefined
  readonly toolCalls: readonly { readonly input: unknown }[]
  readonly steps: readonly { readonly usage: Usage }[]
}

export interface Sdk {
  generateText(settings: Settings): Promise<Result>
  streamText(settings: Settings): { readonly textStream: AsyncIterable<string>; readonly usage: Promise<Usage> }
  generateObject(settings: Settings): Promise<{ readonly object: unknown }>
  isStepCount(count: number): unknown
  jsonSchema(schema: object): unknown
  tool(described: {
    readonly description: string
    readonly inputSchema: unknown
    readonly execute: (input: { readonly city: string }) => unknown
  }): unknown
  readonly Output: { object(options: { readonly schema: unknown }): unknown }
}

const name: string = 'ai'
/** The AI SDK says that it needs node 22. Where it does not load, its tests are skipped by name; language-model.test.ts runs everywhere. */
const sdk: Sdk | undefined = await import(name).catch((error: unknown) => {
  console.log(`SKIPPED: the AI SDK does not load on node ${process.versions.node}: ${String(error)}`)
  return undefined
})

/** A test that needs the AI SDK. */
export function sdkTest(title: string, body: (t: ExecutionContext, sdk: Sdk) => Promise<void>): void {
  if (sdk === undefined) test.skip(title, () => {})
  else test(title, t => body(t, sdk))
}
