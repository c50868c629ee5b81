// Planted faults of what tells prompts, models and tenants apart: each thing that a name or a file says of itself is left out once.
import { tested } from './checks.mjs'

const files = tested('files', 'identity::')
const names = tested('model', 'naming::names_are_alike_where_all_that_is_in_them_is_and_nowhere_else')

const KEY = 'crates/kvtide-core/src/paged/index/key.rs'
const IDENTITY = 'crates/kvtide-files/src/identity.rs'
const NAMER = 'crates/kvtide-tensor/src/sequences/prefix_namer.rs'

const root = 'update(&(namespace.len() as u64).to_le_bytes()).update(namespace).update(salt);'

/** Fields that are compared each by itself, with the value of the file. */
const fields = {
  byteOrder: 'self.byte_order.clone(), own.byte_order',
  layout: 'self.layout.to_string(), LAYOUT.to_string()',
  namespace: 'self.namespace.clone(), own.namespace',
  blockSize: 'self.block_size.to_string(), own.block_size.to_string()',
  dtype: 'self.dtype.clone(), own.dtype',
  keyFormat: 'self.key_format.clone(), own.key_format',
  valueFormat: 'self.value_format.clone(), own.value_format',
  hadamard: 'self.hadamard.to_string(), own.hadamard.to_string()',
  valueHadamard: 'self.value_hadamard.to_string(), own.value_hadamard.to_string()',
}

/** Fields of each group of layers. */
const ofGroups = {
  layers: 'format!("{:?}", of.layers)',
  numKvHeads: 'of.num_kv_heads.to_string()',
  headDim: 'of.head_dim.to_string()',
  valueHeadDim: 'of.value_head_dim.to_string()',
  window: 'of.window.map_or("none".to_owned(), |window| window.to_string())',
  sinks: 'of.sinks.map_or("none".to_owned(), |sinks| sinks.to_string())',
}

/** Parts of the form in a name. The size of blocks is left out here: their keys depend on it by the tokens of each block. */
const forms = {
  dtype: [', shape.dtype)', ', "")'],
  'key-format': ['{key_format} {value_format}', '{value_format}'],
  'value-format': ['{key_format} {value_format}', '{key_format}'],
  hadamard: ['{of_keys}{of_values}', '{of_values}'],
  'value-hadamard': ['{of_keys}{of_values}', '{of_keys}'],
  layers: ['[block_size, num_layers, num_kv_heads,', '[block_size, 0 * num_layers, num_kv_heads,'],
  heads: ['[block_size, num_layers, num_kv_heads,', '[block_size, num_layers, 0 * num_kv_heads,'],
  'head-dim': ['num_kv_heads, head_dim, value_head_dim];', 'num_kv_heads, 0 * head_dim, value_head_dim];'],
  'value-head-dim': ['num_kv_heads, head_dim, value_head_dim];', 'num_kv_heads, head_dim, 0 * value_head_dim];'],
  namespace: ['named.extend(namespace.as_bytes());', 'let _ = namespace;'],
}

export const identity = [
  {
    name: 'salt',
    fault: 'a prompt finds blocks of another salt',
    file: KEY,
    from: root,
    to: root.replace('.update(salt)', '.update(&salt[..0])'),
    check: tested('paged_parts', 'index::another_salt_and_other_tokens_find_nothing'),
  },
  {
    name: 'root-namespace',
    fault: 'a key does not depend on the model',
    file: KEY,
    from: root,
    to: root.replace('.update(namespace)', '.update(&namespace[..0])'),
    check: names,
  },
  {
    name: 'extras',
    fault: 'a key does not depend on extras',
    file: KEY,
    from: ' || over.clone().next().is_some()',
    to: '',
    check: names,
  },
  {
    name: 'owner',
    fault: 'a sequence of another salt is loaded from a file',
    file: 'crates/kvtide-files/src/sequence.rs',
    from: 'if owner != self.owner {',
    to: 'if owner != self.owner && owner == [0; 32] {',
    check: files,
  },
  {
    name: 'file-key',
    fault: 'a file whose keys were made under another secret is loaded',
    file: IDENTITY,
    from: 'match self.prefix_key.check == hex(&namer.key_check().0) {',
    to: 'match self.prefix_key.check.len() == hex(&namer.key_check().0).len() {',
    check: files,
  },
  {
    name: 'form-window',
    fault: 'the form of an entry leaves out windows',
    file: IDENTITY,
    from: '        own.prefix_key.key = None;\n',
    to:
      '        own.prefix_key.key = None;\n        own.groups.iter_mut().for_each(|group| group.window = None);\n' +
      '        own.layers.iter_mut().for_each(|layer| layer.window = None);\n',
    check: tested('files', 'left_out::the_form_of_blocks_depends_on_each_field'),
  },
  ...Object.entries(fields).map(([field, values]) => ({
    name: `file-${field}`,
    fault: `a file with another ${field} is loaded`,
    file: IDENTITY,
    from: `        differs("${field}", ${values})?;\n`,
    to: '',
    check: files,
  })),
  ...Object.entries(ofGroups).map(([field, value]) => ({
    name: `file-group-${field}`,
    fault: `a file with another ${field} of a group is loaded`,
    file: IDENTITY,
    from: `("${field}", ${value}),`,
    to: `("${field}", String::new()),`,
    check: files,
  })),
  {
    name: 'file-states',
    fault: 'a file with other states is loaded',
    file: IDENTITY,
    from: 'differs("states", states(&self.states), states(&own.states))',
    to: 'differs("states", states(&self.states), states(&self.states))',
    check: files,
  },
  ...Object.entries(forms).map(([part, [from, to]]) => ({
    name: `name-${part}`,
    fault: `a name leaves out the ${part.replaceAll('-', ' ')}`,
    file: NAMER,
    from,
    to,
    check: names,
  })),
]
