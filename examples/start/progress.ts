/** Shows the progress: one line that is overwritten in a terminal, otherwise a new line each time. */
export function progress(done: number, all: number, what: string): void {
  const width = 24
  const full = Math.round((done / all) * width)
  const bar = `${'█'.repeat(full)}${'░'.repeat(width - full)} ${String(done).padStart(2)}/${all}`
  if (!process.stdout.isTTY) return console.log(`${bar}  ${what}`)
  const line = `${bar}  ${what}`.slice(0, (process.stdout.columns || 80) - 1)
  process.stdout.write(`\r\u001B[2K${line}${done === all ? '\n' : ''}`)
}
