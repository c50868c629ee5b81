const columns = (): number => process.stdout.columns || 100

/** Shows the progress in one line of a terminal, until {@link clear} or the next call. Nothing is shown elsewhere. */
export function progress(done: number, all: number, what: string): void {
  if (!process.stdout.isTTY) return
  const width = 24
  const full = all === 0 ? 0 : Math.round((done / all) * width)
  const line = `${'█'.repeat(full)}${'░'.repeat(width - full)}  ${what}`.slice(0, columns() - 1)
  process.stdout.write(`\r\u001B[2K${line}`)
}

/** Removes the line of {@link progress}. */
export function clear(): void {
  if (process.stdout.isTTY) process.stdout.write('\r\u001B[2K')
}

/** Returns a text in lines of the terminal's width, with `end` at the right of the last line. */
export function lines(text: string, end: string): string {
  const width = Math.min(columns(), 120) - 1
  const made = ['']
  for (const word of text.split(' ')) {
    const line = made.at(-1) as string
    if (line !== '' && line.length + 1 + word.length > width) made.push(`  ${word}`)
    else made[made.length - 1] = line === '' ? word : `${line} ${word}`
  }
  if ((made.at(-1) as string).length + 2 + end.length > width) made.push('')
  const last = made.pop() as string
  return [...made, last + end.padStart(width - last.length)].join('\n')
}
