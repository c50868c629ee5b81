// The tree of sequences by common prefix.
import { type Branch, OWNED } from '../messages.js'
import { css } from './colours.js'
import { element } from './html.js'

/** The maximum number of sequences that are drawn: more would cost time, and are not readable. */
const SHOWN_MAX = 500

/** The maximum number of checkpoints of a sequence that are listed. */
const CHECKPOINTS_MAX = 8

/** The numbers of each sequence: its length, and the lengths at which it has a checkpoint. */
interface Lengths {
  readonly lengths: Readonly<Record<number, number>>
  readonly checkpoints?: Readonly<Record<number, readonly number[]>>
}

/** The length of a sequence, and its checkpoints: the latest ones, if there are many. */
function lengthsOf(id: number, { lengths, checkpoints }: Lengths): string {
  const tokens = `${(lengths[id] ?? 0).toLocaleString('en')} tokens`
  const of = checkpoints?.[id]
  if (of === undefined) return tokens
  if (of.length === 0) return `${tokens}, no checkpoints`
  const hidden = Math.max(0, of.length - CHECKPOINTS_MAX)
  const shown = of.slice(hidden).map(length => length.toLocaleString('en'))
  return `${tokens}, checkpoints at ${hidden > 0 ? `${hidden} more, ` : ''}${shown.join(', ')}`
}

/** Draws the tree of sequences. `pick` is called with the sequence under the pointer, or with `undefined`. */
export function drawTree(
  into: HTMLElement,
  tree: readonly Branch[],
  lengths: Lengths,
  pick: (sequence: number | undefined) => void,
): void {
  const closed = new Set([...into.querySelectorAll('details:not([open])')].map(of => of.getAttribute('data-place')))
  let [left, hidden] = [SHOWN_MAX, 0]

  const leaf = (id: number): HTMLLIElement => {
    const box = element('i', {})
    box.style.background = css(OWNED + id)
    const item = element('li', {}, box, `sequence ${id} `, element('small', {}, lengthsOf(id, lengths)))
    item.addEventListener('pointerenter', () => pick(id))
    item.addEventListener('pointerleave', () => pick(undefined))
    return item
  }

  const count = ({ sequences, children }: Branch): number =>
    sequences.length + children.reduce((sum, child) => sum + count(child), 0)

  function items(branch: Branch, place: string): HTMLLIElement[] {
    const all = count(branch)
    if (left <= 0) {
      hidden += all
      return []
    }
    if (all === 1 && branch.sequences.length === 1) {
      left -= 1
      return [leaf(branch.sequences[0] as number)]
    }
    const own = branch.sequences.slice(0, left)
    left -= own.length
    hidden += branch.sequences.length - own.length
    const inner = [...own.map(leaf), ...branch.children.flatMap((child, at) => items(child, `${place}.${at}`))]
    if (branch.to === branch.from) return inner
    const details = element(
      'details',
      { open: !closed.has(place) },
      element(
        'summary',
        {},
        `${all} sequences share ${branch.to - branch.from} blocks `,
        element('small', {}, `beginning at block ${branch.from}`),
      ),
      element('ul', {}, ...inner),
    )
    details.setAttribute('data-place', place)
    return [element('li', {}, details)]
  }

  const drawn = tree.flatMap((branch, at) => items(branch, String(at)))
  if (hidden > 0) drawn.push(element('li', {}, `and ${hidden.toLocaleString('en')} more`))
  if (drawn.length === 0) drawn.push(element('li', {}, 'none'))
  into.replaceChildren(...drawn)
}
