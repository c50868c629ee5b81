// Names of models, of revisions and of files, and the variables of the environment.
import { homedir } from 'node:os'
import { join, resolve } from 'node:path'
import { writeFileSync } from 'node:fs'

import test from 'ava'

import { isHubName, isRevision, isSafePath, parseName } from '../../../lib/text/hub/name.js'
import { readSettings } from '../../../lib/text/hub/settings.js'
import { isKvTideError } from '../../../index.js'
import { folderOf } from '../../support/folder.js'
import { withoutVariables } from '../../support/hub-repository.js'
import { throwsCode } from '../../support/throws.js'

withoutVariables()

test('a name has an organisation, and may have a folder and a revision', t => {
  t.deepEqual(parseName('org/name'), { model: 'org/name', folder: undefined, revision: undefined })
  t.deepEqual(parseName('HuggingFaceTB/SmolLM2-135M-Instruct@refs/pr/3'), {
    model: 'HuggingFaceTB/SmolLM2-135M-Instruct',
    folder: undefined,
    revision: 'refs/pr/3',
  })
  t.deepEqual(parseName('microsoft/Phi-3-mini-4k-instruct-onnx/cpu_and_mobile/cpu-int4-rtn-block-32@main'), {
    model: 'microsoft/Phi-3-mini-4k-instruct-onnx',
    folder: 'cpu_and_mobile/cpu-int4-rtn-block-32',
    revision: 'main',
  })
})

const WRONG = [
  '',
  'name',
  '/name',
  'org/',
  './model',
  '../model',
  '/models/name',
  'C:\\models\\name',
  'org/../name',
  'org/name/../../x',
  'org/name/',
  'org//name',
  'org/na--me',
  'org/na..me',
  'org/-name',
  'org/name.git',
  'org/na me',
  'org/name@',
  'org/name@..',
  'org/name@a/../b',
  'org/name@one@two',
  'org/name\0',
  `org/${'n'.repeat(97)}`,
  'x'.repeat(10_000),
  undefined,
  7,
  {},
]

for (const name of WRONG)
  test(`no name: ${JSON.stringify(String(name).slice(0, 40))}`, t => {
    throwsCode(t, 'INVALID_ARGUMENT', () => parseName(name))
    if (typeof name === 'string') t.false(isHubName(name))
  })

test('a file that could leave its folder, or that some system reads as something else, has no safe path', t => {
  for (const path of [
    'config.json',
    'onnx/model_q4.onnx',
    'cpu-int4/model.onnx.data',
    '.gitattributes',
    'a b/c (1).json',
    'é.json',
  ])
    t.true(isSafePath(path), path)
  const unsafe = [
    '..',
    '../x',
    'a/../../x',
    '/etc/passwd',
    'a//b',
    'a/',
    './a',
    'a\\..\\b',
    '\\\\host\\share',
    'C:x',
    'C:/x',
    'a:stream',
    'a\0',
  ]
  const odd = [
    'a\nb',
    'a\u202Eb',
    'a.',
    'a ',
    ' a',
    'CON',
    'nul.json',
    'x/AUX.onnx',
    'com1',
    'a?',
    'a*',
    'a<b',
    'a|b',
    'a"b',
    '\uD800',
  ]
  for (const path of [...unsafe, ...odd, '', 'a'.repeat(201), 'a/'.repeat(600)])
    t.false(isSafePath(path), JSON.stringify(path))
})

test('revisions are branches, tags, commits and references', t => {
  for (const revision of ['main', 'v1.0', 'refs/pr/1', 'a'.repeat(40), 'feature/x+y'])
    t.true(isRevision(revision), revision)
  for (const revision of ['', '../x', 'a b', 'a//b', '/a', 'a/', 'a\\b', 'x'.repeat(201), 'a..b/..'])
    t.false(isRevision(revision), revision)
})

/** The cache folder with these variables. */
const at = (variables: Readonly<Record<string, string>>, options: object = {}): string => {
  withoutVariables()
  Object.assign(process.env, variables)
  try {
    return readSettings('org/name', options).cacheFolder
  } finally {
    withoutVariables()
  }
}

test.serial('the cache folder follows the variables of huggingface_hub', t => {
  t.is(at({}), join(homedir(), '.cache', 'huggingface', 'hub'))
  t.is(at({ XDG_CACHE_HOME: '/xdg' }), resolve('/xdg/huggingface/hub'))
  t.is(at({ XDG_CACHE_HOME: '/xdg', HF_HOME: '/home' }), resolve('/home/hub'))
  t.is(at({ HF_HOME: '/home', HUGGINGFACE_HUB_CACHE: '/old' }), resolve('/old'))
  t.is(at({ HUGGINGFACE_HUB_CACHE: '/old', HF_HUB_CACHE: '/new' }), resolve('/new'))
  t.is(at({ HF_HUB_CACHE: '/new' }, { cacheFolder: '/given' }), resolve('/given'))
  t.is(at({ HF_HUB_CACHE: '~/models' }), join(homedir(), 'models'))
  t.is(at({ HF_HUB_CACHE: '$HF_PLACE/models', HF_PLACE: '/place' }), resolve('/place/models'))
  t.is(at({ HF_HUB_CACHE: '' }), join(homedir(), '.cache', 'huggingface', 'hub'), 'an empty variable is none')
})

test.serial('offline mode, the address and the token follow the variables', async t => {
  const folder = await folderOf(t)
  writeFileSync(join(folder, 'token'), 'hf_of_the_file\n')
  const of = (variables: Readonly<Record<string, string>>, options: object = {}): ReturnType<typeof readSettings> => {
    withoutVariables()
    delete process.env['HF_HUB_DISABLE_IMPLICIT_TOKEN']
    Object.assign(process.env, { HF_HOME: folder, ...variables })
    try {
      return readSettings('org/name', options)
    } finally {
      withoutVariables()
    }
  }
  for (const value of ['1', 'ON', 'yes', 'True']) t.true(of({ HF_HUB_OFFLINE: value }).isOffline)
  t.false(of({ HF_HUB_OFFLINE: '0' }).isOffline)
  t.true(of({ TRANSFORMERS_OFFLINE: '1' }).isOffline)
  t.false(of({ HF_HUB_OFFLINE: '1' }, { isOffline: false }).isOffline)
  t.is(of({}).endpoint, 'https://huggingface.co')
  t.is(of({ HF_ENDPOINT: 'https://mirror.example/hf/' }).endpoint, 'https://mirror.example/hf')
  t.is(of({}).authorization, 'Bearer hf_of_the_file')
  t.is(of({ HF_TOKEN: ' hf_variable ' }).authorization, 'Bearer hf_variable')
  t.is(of({ HF_TOKEN: 'hf_variable' }, { token: 'hf_given' }).authorization, 'Bearer hf_given')
  t.is(of({ HF_TOKEN: 'hf_variable' }, { token: false }).authorization, undefined)
  t.is(of({ HF_HUB_DISABLE_IMPLICIT_TOKEN: '1' }).authorization, undefined)
  t.is(of({ HF_TOKEN_PATH: join(folder, 'none') }).authorization, undefined)
  const user = of({}, { endpoint: 'https://me:pass%20word@mirror.example' })
  t.is(user.endpoint, 'https://mirror.example')
  t.is(user.authorization, `Basic ${Buffer.from('me:pass word').toString('base64')}`)
  t.is(of({ HF_HUB_ETAG_TIMEOUT: '3', HF_HUB_DOWNLOAD_TIMEOUT: '60' }).limits.stallMs, 60_000)
})

test.serial('a wrong value is refused, and a secret is not shown', t => {
  const secrets = ['hf_secret with a space', 'hf_secret\n', 'https://me:hf_secret@/']
  for (const options of [
    { token: secrets[0] },
    { token: secrets[1] },
    { endpoint: 'ftp://me:hf_secret@mirror' },
    { token: true },
  ]) {
    const error = throwsCode(t, 'INVALID_ARGUMENT', () => readSettings('org/name', options))
    t.notRegex(JSON.stringify([error.message, error.details]), /secret/)
  }
  delete process.env['HF_HUB_DISABLE_IMPLICIT_TOKEN']
  process.env['HF_TOKEN'] = 'hf_secret\u0001'
  try {
    readSettings('org/name', {})
    t.fail()
  } catch (error) {
    t.true(isKvTideError(error))
    t.notRegex(String(error), /hf_secret/)
  }
  withoutVariables()
  for (const options of [
    { revision: '../x' },
    { revision: 3 },
    { folder: '../x' },
    { dtype: 'q3' },
    { dtype: 'toString' },
    { cacheFolder: '' },
    { cacheFolder: 7 },
    { isOffline: 'yes' },
    { endpoint: 'mirror' },
    { endpoint: 'https://mirror/?token=1' },
    { onProgress: 1 },
    { onRetry: 'log' },
    { signal: {} },
    { cachefolder: '/x' },
    'org',
  ])
    throwsCode(t, 'INVALID_ARGUMENT', () => readSettings('org/name', options))
})
