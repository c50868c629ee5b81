// What the assembler says of kernels: registers, and what did not fit into them.

/** The kernels in what `ptxas -v` prints: `{ name, registers, spilled }`, bytes that go to memory and back. */
export function assembled(text) {
  const kernels = []
  for (const part of text.split(/Compiling entry function '/).slice(1)) {
    const [, name] = /^(\w+)'/.exec(part) ?? []
    const [, stores, loads] = /(\d+) bytes spill stores, (\d+) bytes spill loads/.exec(part) ?? []
    const [, registers] = /Used (\d+) registers/.exec(part) ?? []
    if (name === undefined || loads === undefined || registers === undefined) {
      throw new Error(`the assembler said something else than expected: ${part}`)
    }
    kernels.push({ name, registers: Number(registers), spilled: Number(stores) + Number(loads) })
  }
  return kernels
}

/** A line for each file: how many kernels, the most registers, and which of them spill. */
export function table(files) {
  const rows = files.map(({ file, gpu, kernels }) => {
    const spilling = kernels.filter(kernel => kernel.spilled > 0)
    const most = Math.max(...kernels.map(kernel => kernel.registers))
    const spilled = spilling.length === 0 ? 'none' : spilling.map(({ name, spilled: bytes }) => `${name} ${bytes} bytes`).join(', ')
    return [file, gpu, `${kernels.length} kernels`, `${most} registers at most`, `spilled: ${spilled}`]
  })
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map(row => row[column].length))) ?? []
  return rows.map(row => row.map((cell, column) => cell.padEnd(widths[column])).join('  ').trimEnd()).join('\n')
}
