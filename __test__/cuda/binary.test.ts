// What is said of a built addon: read from readelf's output.
import test from 'ava'

import { glibcVersion, neededLibraries } from '../../scripts/cuda/binary.mjs'

test('needed libraries are listed', t => {
  const dynamic = `
Dynamic section at offset 0x1f0 contains 30 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libstdc++.so.6]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libkvtide.so]
`
  t.deepEqual(neededLibraries(dynamic), ['libstdc++.so.6', 'libc.so.6'])
  t.deepEqual(neededLibraries('There is no dynamic section in this file.'), [])
})

test('the newest glibc counts, by numbers and not by letters', t => {
  const info = `
  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 12
  0x0020:   Name: GLIBC_2.34  Flags: none  Version: 5
  0x0030:   Name: GLIBC_2.2.5  Flags: none  Version: 3
  0x0040:   Name: GLIBCXX_3.4.30  Flags: none  Version: 4
`
  t.is(glibcVersion(info), '2.34')
  t.is(glibcVersion('GLIBC_2.2 GLIBC_2.2.5'), '2.2.5')
  t.is(glibcVersion(''), undefined)
})
