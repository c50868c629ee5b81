// The colours of blocks on the map, and their legend.
import { OWNED } from '../messages.js'
import { element } from './html.js'

const STATES = [
  'free',
  'cached: no sequence uses it, prompts can reuse it',
  'held by a snapshot or a match',
  'shared by sequences',
] as const

const isDark = (): boolean => matchMedia('(prefers-color-scheme: dark)').matches

/** The red, green and blue of a hue, 0 to 360. */
function rgb(hue: number, saturation: number, lightness: number): readonly [number, number, number] {
  const part = (n: number): number => {
    const k = (n + hue / 30) % 12
    const a = saturation * Math.min(lightness, 1 - lightness)
    return Math.round(255 * (lightness - a * Math.max(-1, Math.min(k - 3, 9 - k, 1))))
  }
  return [part(0), part(8), part(4)]
}

const FIXED = {
  light: [
    [246, 248, 250],
    [175, 184, 193],
    [89, 99, 110],
    [31, 35, 40],
  ],
  dark: [
    [21, 27, 35],
    [61, 68, 77],
    [145, 152, 161],
    [240, 246, 252],
  ],
} as const

/** The colour of a code. Sequences with neighbouring numbers get very different colours. */
export function colourOf(code: number): readonly [number, number, number] {
  if (code < OWNED) return FIXED[isDark() ? 'dark' : 'light'][code as 0 | 1 | 2 | 3]
  return rgb(((code - OWNED) * 137.508) % 360, 0.65, isDark() ? 0.62 : 0.48)
}

export const css = (code: number): string => `rgb(${colourOf(code).join(' ')})`

export function describe(block: number, code: number | undefined): string {
  if (code === undefined) return ''
  return `block ${block}: ${code < OWNED ? STATES[code] : `of sequence ${code - OWNED}`}`
}

/** Describes a slot of states. `end` is the number of tokens before a checkpoint; 0 if there is none, or if it is unknown. */
export function describeSlot(slot: number, code: number | undefined, end: number): string {
  if (code === undefined || code === 0) return code === undefined ? '' : `slot ${slot}: free`
  const behind = end > 0 ? ` behind ${end.toLocaleString('en')} tokens` : ''
  if (code === 1)
    return `slot ${slot}: a checkpoint${behind || ', loaded and not found since'}: prompts can continue here`
  const held = code < OWNED ? STATES[code] : `the state of sequence ${code - OWNED}`
  return `slot ${slot}: ${held}${end > 0 ? `, and a checkpoint${behind}` : ''}`
}

export function legend(into: HTMLElement, isState = false): void {
  const shown = [
    ['free', 0],
    [isState ? 'a checkpoint' : 'cached', 1],
    ['held', 2],
    ['shared', 3],
    [isState ? 'a colour for the state of each sequence' : 'a colour for each sequence', OWNED],
  ] as const
  into.replaceChildren(
    ...shown.map(([words, code]) => {
      const box = element('i', {})
      box.style.background = css(code)
      return element('span', {}, box, words)
    }),
  )
}
