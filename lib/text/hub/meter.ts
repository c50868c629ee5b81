// Counts the bytes of a download, and tells the caller: at most twenty times a second, and at the end of each file. If the caller throws, the download ends with
// that error.
import type { HubFile } from './tree.js'
import type { DownloadProgress } from './settings.js'

const EVERY_MS = 50

/** @internal The progress of a download. */
export class Meter {
  readonly #tell: ((progress: DownloadProgress) => void) | undefined
  readonly #loaded = new Map<HubFile, number>()
  #allLoaded = 0
  #allTotal = 0
  #told = -Infinity

  constructor(tell: ((progress: DownloadProgress) => void) | undefined) {
    this.#tell = tell
  }

  /** Bytes that are still to come. */
  get left(): number {
    return this.#allTotal - this.#allLoaded
  }

  /** Adds a file that is to be downloaded, and the bytes of it that are there. */
  add(file: HubFile, loaded: number): void {
    if (this.#loaded.has(file)) return
    this.#loaded.set(file, loaded)
    this.#allTotal += file.size
    this.#allLoaded += loaded
  }

  /** Notes the bytes of a file that are there. */
  at(file: HubFile, loaded: number): void {
    const before = this.#loaded.get(file)
    if (before === undefined) return
    this.#loaded.set(file, loaded)
    this.#allLoaded += loaded - before
    const now = performance.now()
    const isEnd = loaded === file.size && before !== loaded
    if (this.#tell === undefined || before === loaded || (!isEnd && now - this.#told < EVERY_MS)) return
    this.#told = now
    const { path, size } = file
    this.#tell({ file: path, loaded, total: size, allLoaded: this.#allLoaded, allTotal: this.#allTotal })
  }
}
