"""Verifies a file that kvtide saved, and prints its content: python3 examples/read.py chat.kv. Needs numpy and xxhash."""
import json
import struct
import sys

import numpy as np
from xxhash import xxh3_64_intdigest as checksum

TYPES = {'U8': 'u1', 'F16': '<f2', 'BF16': '<u2', 'F32': '<f4', 'U32': '<u4', 'U64': '<u8'}


def check(holds, what):
    if not holds:
        raise ValueError(f'damaged: {what}')


def read(path):
    """Returns the metadata and the tensors of a file, after verifying all of it."""
    data = open(path, 'rb').read()
    check(len(data) >= 8, 'no header')
    length = struct.unpack('<Q', data[:8])[0]
    check(length <= 2**20 and length + 8 <= len(data), 'the length of the header')
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop('__metadata__')
    check(metadata.get('format') == 'kvtide' and metadata.get('version') == '1', 'another format')
    start, end, tensors, paged = 8 + length, 0, {}, []
    for name, info in sorted(header.items(), key=lambda item: item[1]['data_offsets']):
        (first, last), shape, kind = info['data_offsets'], info['shape'], np.dtype(TYPES[info['dtype']])
        check(first == end and last - first == int(np.prod(shape, dtype=object)) * kind.itemsize, name)
        tensors[name] = np.frombuffer(data, kind, int(np.prod(shape)), start + first).reshape(shape)
        end = last
    check(start + end == len(data), 'bytes behind the last tensor')
    # Tensors of pages come first, one for each list of checksums. The seal is the checksum of the header and of everything behind the pages.
    paged = list(tensors)[: sum(name.startswith('sums.') for name in tensors)]
    behind = start + sum(tensors[name].nbytes for name in paged)
    check(checksum(data[:start] + data[behind:-8]) == tensors['seal'][0], 'the seal')
    for group, name in enumerate(paged):
        sums = tensors[f'sums.{group}']
        pages = np.ascontiguousarray(tensors[name]).view('u1').reshape(sums.size, -1)
        check(all(checksum(page) == own for page, own in zip(pages, sums.ravel())), name)
    return metadata, tensors, paged


def main(path):
    metadata, tensors, paged = read(path)
    content, kind = json.loads(metadata['content']), metadata['kind']
    print(f"{kind}, written by {metadata['writer']}: {json.dumps(content)[:200]}")
    for name in paged:
        print(f'{name}: {tensors[name].dtype} {list(tensors[name].shape)}')
    if kind == 'sequence':
        known = [group['known'] for group in content['groups']]
        print('ids:', *tensors['tokens.0'].ravel()[: known[0]][:16])
    if kind == 'sequence' and tensors['pages.0'].ndim == 6:
        # [block, layer, K or V, head, slot, element] -> K of the first layer and head, token by token
        print('K:', *tensors['pages.0'][:, 0, 0, 0].reshape(-1, tensors['pages.0'].shape[-1])[: content['length'], 0][:8])


if __name__ == '__main__':
    main(sys.argv[1])
