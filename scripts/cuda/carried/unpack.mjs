// Unpacks what the archive carries beside node: a tar in brotli, whose window is as large as all of it, since every program has the same
// kernels in it. node reads that, and the machine needs no program for it.
import { spawn } from 'node:child_process'
import { createReadStream } from 'node:fs'
import { pipeline } from 'node:stream/promises'
import { fileURLToPath } from 'node:url'
import { constants, createBrotliDecompress } from 'node:zlib'

const here = fileURLToPath(new URL('.', import.meta.url))
const tar = spawn('tar', ['--extract', '--file', '-', '--directory', here], { stdio: ['pipe', 'inherit', 'inherit'] })
const ended = new Promise((resolve, reject) => {
  tar.on('error', reject)
  tar.on('close', resolve)
})
const decompress = createBrotliDecompress({ params: { [constants.BROTLI_DECODER_PARAM_LARGE_WINDOW]: 1 } })
const written = pipeline(createReadStream(new URL('rest.tar.br', import.meta.url)), decompress, tar.stdin).catch(error => error)
// tar ends once it has seen the end of the archive, and what pads it may not have been written by then: how tar ended is what counts. What
// is cut off or damaged has no end that tar would see.
const code = await ended
const error = await written
if (code !== 0) console.error(`rest.tar.br cannot be unpacked: ${error?.message ?? `tar has ended with ${code}`}`)
process.exitCode = code ?? 1
