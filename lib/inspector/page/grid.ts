// The map of the inspector: all blocks of a group as squares on a canvas.
import { OWNED } from '../messages.js'
import { colourOf } from './colours.js'

const HEIGHT = 380
const [LEAST, MOST] = [1, 18]
const BORDER = 1

/**
 * The map of all blocks. Each block is one pixel of a small picture, which is enlarged when it is drawn. So a change costs one pixel and a frame costs
 * one copy, for any number of blocks.
 */
export class BlockGrid {
  /** The number of times that it was drawn. */
  frames = 0
  readonly #canvas: HTMLCanvasElement
  readonly #selected: (block: number) => void
  #codes = new Uint16Array(0)
  #picture: ImageData | undefined
  #small = document.createElement('canvas')
  #columns = 1
  #cell = 1
  #at = -1
  #highlighted: number | undefined
  #isDue = false
  readonly #colours = new Map<number, number>()

  constructor(canvas: HTMLCanvasElement, selected: (block: number) => void) {
    this.#canvas = canvas
    this.#selected = selected
    // The parent's width comes from the page, and the picture's width from the parent.
    new ResizeObserver(() => this.#laidOut()).observe(canvas.parentElement as HTMLElement)
    canvas.addEventListener('pointermove', event => this.#select(this.#blockAt(event)))
    canvas.addEventListener('keydown', event => this.#key(event))
  }

  codeOf(block: number): number | undefined {
    return this.#codes[block]
  }

  set(codes: Uint16Array<ArrayBuffer>): void {
    this.#codes = codes
    this.#laidOut()
  }

  /** Applies changes: pairs of a block and its code. */
  change(pairs: Uint32Array): void {
    for (let at = 0; at < pairs.length; at += 2) {
      this.#codes[pairs[at] as number] = pairs[at + 1] as number
      this.#paint(pairs[at] as number)
    }
    this.#due()
  }

  /** Highlights the blocks of one sequence and fades the others; with `undefined`, shows all of them normally. */
  highlight(sequence: number | undefined): void {
    this.#highlighted = sequence
    this.redraw()
  }

  redraw(): void {
    this.#colours.clear()
    for (let block = 0; block < this.#codes.length; block++) this.#paint(block)
    this.#due()
  }

  #laidOut(): void {
    const blocks = this.#codes.length
    const width = (this.#canvas.parentElement as HTMLElement).clientWidth - 2 * BORDER
    if (blocks === 0 || width === 0) return
    this.#cell = Math.max(LEAST, Math.min(MOST, Math.floor(Math.sqrt((width * HEIGHT) / blocks))))
    this.#columns = Math.max(1, Math.floor(width / this.#cell))
    const rows = Math.ceil(blocks / this.#columns)
    Object.assign(this.#small, { width: this.#columns, height: rows })
    this.#picture = new ImageData(this.#columns, rows)
    this.#canvas.style.height = `${rows * this.#cell + 2 * BORDER}px`
    Object.assign(this.#canvas, { width: this.#columns * this.#cell, height: rows * this.#cell })
    this.#canvas.style.width = `${this.#columns * this.#cell + 2 * BORDER}px`
    this.redraw()
  }

  #paint(block: number): void {
    if (this.#picture === undefined) return
    const code = this.#codes[block] as number
    new Uint32Array(this.#picture.data.buffer, 4 * block, 1)[0] = this.#colour(code)
  }

  /** A colour as the value of a pixel. */
  #colour(code: number): number {
    const known = this.#colours.get(code)
    if (known !== undefined) return known
    const [red, green, blue] = colourOf(code)
    const isFaint = this.#highlighted !== undefined && code !== this.#highlighted + OWNED
    const pixel = (((isFaint ? 60 : 255) << 24) | (blue << 16) | (green << 8) | red) >>> 0
    this.#colours.set(code, pixel)
    return pixel
  }

  #due(): void {
    if (this.#isDue) return
    this.#isDue = true
    requestAnimationFrame(() => {
      this.#isDue = false
      this.#draw()
    })
  }

  #draw(): void {
    const context = this.#canvas.getContext('2d')
    if (context === null || this.#picture === undefined) return
    this.#small.getContext('2d')?.putImageData(this.#picture, 0, 0)
    context.imageSmoothingEnabled = false
    context.clearRect(0, 0, this.#canvas.width, this.#canvas.height)
    context.drawImage(this.#small, 0, 0, this.#canvas.width, this.#canvas.height)
    if (this.#cell >= 4) this.#lines(context)
    if (this.#at >= 0) {
      const [x, y] = [(this.#at % this.#columns) * this.#cell, Math.floor(this.#at / this.#columns) * this.#cell]
      context.strokeStyle = getComputedStyle(this.#canvas).color
      context.lineWidth = 2
      context.strokeRect(x - 1, y - 1, this.#cell + 2, this.#cell + 2)
    }
    this.frames += 1
  }

  /** Draws gaps between blocks that are large enough. */
  #lines(context: CanvasRenderingContext2D): void {
    context.fillStyle = getComputedStyle(document.body).backgroundColor
    for (let x = this.#cell - 1; x < this.#canvas.width; x += this.#cell) context.fillRect(x, 0, 1, this.#canvas.height)
    for (let y = this.#cell - 1; y < this.#canvas.height; y += this.#cell) context.fillRect(0, y, this.#canvas.width, 1)
  }

  #blockAt({ offsetX, offsetY }: PointerEvent): number {
    return (
      Math.floor(offsetY / this.#cell) * this.#columns + Math.min(this.#columns - 1, Math.floor(offsetX / this.#cell))
    )
  }

  #select(block: number): void {
    if (block < 0 || block >= this.#codes.length) return
    this.#at = block
    this.#selected(block)
    this.#due()
  }

  #key(event: KeyboardEvent): void {
    const steps: Readonly<Record<string, number>> = {
      ArrowLeft: -1,
      ArrowRight: 1,
      ArrowUp: -this.#columns,
      ArrowDown: this.#columns,
      Home: -this.#at,
      End: this.#codes.length - 1 - this.#at,
    }
    const step = steps[event.key]
    if (step === undefined) return
    event.preventDefault()
    this.#select(Math.max(0, Math.min(this.#codes.length - 1, this.#at + step)))
  }
}
