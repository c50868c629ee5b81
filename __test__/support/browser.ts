import { existsSync } from 'node:fs'

import test, { type ExecutionContext } from 'ava'

/** The part of playwright that is used here: its own types need a browser's. */
export interface Page {
  goto(url: string): Promise<unknown>
  title(): Promise<string>
  close(): Promise<void>
  waitForSelector(selector: string): Promise<unknown>
  textContent(selector: string): Promise<string | null>
  evaluate<T = unknown>(script: string): Promise<T>
  focus(selector: string): Promise<void>
  fill(selector: string, words: string): Promise<void>
  press(selector: string, key: string): Promise<void>
  locator(selector: string): Located
  readonly keyboard: { press(key: string): Promise<void>; type(words: string): Promise<void> }
  on(event: 'request', listener: (request: { url(): string }) => void): void
  on(event: 'pageerror', listener: (error: Error) => void): void
  on(event: 'console', listener: (message: { type(): string; text(): string }) => void): void
}

interface Located {
  count(): Promise<number>
  first(): Located
  textContent(): Promise<string | null>
}

export interface Browser {
  newPage(options: { viewport: { width: number; height: number }; colorScheme?: 'light' | 'dark' }): Promise<Page>
  close(): Promise<void>
}

interface Playwright {
  readonly chromium: {
    launch(options: { executablePath: string; args: readonly string[]; env: NodeJS.ProcessEnv }): Promise<Browser>
  }
}

const playwright = 'playwright-core'

const PLACES = [
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/usr/bin/google-chrome',
  '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
]

/** The browser to use: that of `KVTIDE_BROWSER`, or one of the system. */
const BROWSER = [process.env['KVTIDE_BROWSER'] ?? '', ...PLACES].find(place => place !== '' && existsSync(place))

/** A test that needs a browser: reported as SKIPPED if there is none. */
export function browserTest(title: string, run: (t: ExecutionContext, browser: Browser) => Promise<void>): void {
  if (BROWSER === undefined) return test.skip(`SKIPPED: there is no chromium here: ${title}`, () => undefined)
  test.serial(title, async t => {
    const { chromium } = (await import(playwright)) as Playwright
    // A library that is loaded before node, as that of AddressSanitizer is, is not loaded before the browser.
    const { LD_PRELOAD: _, ...env } = process.env
    const browser = await chromium.launch({ executablePath: BROWSER, args: ['--no-sandbox'], env })
    try {
      await run(t, browser)
    } finally {
      await browser.close()
    }
  })
}
