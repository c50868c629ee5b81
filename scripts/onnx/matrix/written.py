"""Writes the graphs of hybrid families that no exporter writes: Mamba 2 and the dense hybrids of Granite 4, from the weights of transformers.

The selective state of a layer is computed by a Scan over the tokens, its short convolution by a Concat, a depthwise Conv and a Slice. Names are those of
transformers.js: `past_conv.N`, `past_ssm.N`, `past_key_values.N.key`.
"""
import json

import numpy
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """Nodes, constants and ports of a graph that is being written. A method that adds a node returns the name of its output."""

    def __init__(self, weights):
        self.weights = weights
        self.nodes, self.constants, self.inputs, self.outputs = [], {}, [], []

    def add(self, operator, *inputs, **attributes):
        output = f'/{operator}_{len(self.nodes)}'
        self.nodes.append(helper.make_node(operator, list(inputs), [output], output, **attributes))
        return output

    def constant(self, array, name=None):
        name = name or f'constant_{len(self.constants)}'
        self.constants[name] = numpy_helper.from_array(numpy.ascontiguousarray(array), name)
        return name

    def number(self, value):
        return self.constant(numpy.array(value, numpy.float32))

    def integers(self, *values):
        return self.constant(numpy.array(values, numpy.int64))

    def weight(self, name, change=lambda array: array):
        return self.constant(change(self.weights[name].float().numpy()), name)

    def linear(self, x, name):
        product = self.add('MatMul', x, self.weight(f'{name}.weight', numpy.transpose))
        return self.add('Add', product, self.weight(f'{name}.bias')) if f'{name}.bias' in self.weights else product

    def silu(self, x):
        return self.add('Mul', x, self.add('Sigmoid', x))

    def norm(self, x, name, epsilon):
        mean = self.add('ReduceMean', self.add('Mul', x, x), self.integers(-1), keepdims=1)
        scaled = self.add('Div', x, self.add('Sqrt', self.add('Add', mean, self.number(epsilon))))
        return self.add('Mul', scaled, self.weight(f'{name}.weight'))

    def split(self, x, *sizes):
        outputs = [f'/Split_{len(self.nodes)}_{at}' for at in range(len(sizes))]
        self.nodes.append(helper.make_node('Split', [x, self.integers(*sizes)], outputs, axis=-1))
        return outputs

    def port(self, kind, name, dims, element=TensorProto.FLOAT):
        getattr(self, kind).append(helper.make_tensor_value_info(name, element, dims))
        return name

    def present(self, name, value, dims):
        self.nodes.append(helper.make_node('Identity', [value], [self.port('outputs', name, dims)]))


def mixer(graph, x, at, name, sizes):
    """The mixer of Mamba 2: `x` is [batch, tokens, hidden]."""
    heads, dim, groups, state, kernel, epsilon = sizes
    inner, bc = heads * dim, groups * state
    channels = inner + 2 * bc
    gate, xbc, dt = graph.split(graph.linear(x, f'{name}.in_proj'), inner, channels, heads)

    conv = [ 'batch', channels, kernel - 1]
    columns = graph.add('Concat', graph.port('inputs', f'past_conv.{at}', conv), graph.add('Transpose', xbc, perm=[0, 2, 1]), axis=2)
    graph.present(f'present_conv.{at}', graph.add('Slice', columns, graph.integers(1 - kernel), graph.integers(2 ** 31), graph.integers(2)), conv)
    bias = [graph.weight(f'{name}.conv1d.bias')] if f'{name}.conv1d.bias' in graph.weights else []
    mixed = graph.add('Conv', columns, graph.weight(f'{name}.conv1d.weight'), *bias, group=channels)
    inputs, b, c = graph.split(graph.silu(graph.add('Transpose', mixed, perm=[0, 2, 1])), inner, bc, bc)

    step = graph.add('Softplus', graph.add('Add', dt, graph.weight(f'{name}.dt_bias')))
    decay = graph.add('Exp', graph.add('Mul', step, graph.weight(f'{name}.A_log', lambda array: -numpy.exp(array))))
    rows = graph.add('Reshape', inputs, graph.integers(0, 0, heads, dim))
    written = graph.add('Mul', rows, graph.add('Unsqueeze', step, graph.integers(-1)))
    # Each head reads the group that it belongs to.
    of_heads = graph.integers(*[head * groups // heads for head in range(heads)])
    b, c = (graph.add('Gather', graph.add('Reshape', side, graph.integers(0, 0, groups, state)), of_heads, axis=2) for side in (b, c))

    ssm = ['batch', heads, dim, state]
    last, read = f'{name}/state', f'{name}/read'
    floats = lambda *names: [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in names]
    end, ends = numpy_helper.from_array(numpy.array([-1]), 'end'), numpy_helper.from_array(numpy.array([-1, -2]), 'ends')
    column, row = numpy_helper.from_array(numpy.array([-2]), 'column'), numpy_helper.from_array(numpy.array([-1]), 'row')
    body = helper.make_graph([
        helper.make_node('Unsqueeze', ['decay', 'ends'], ['factor']),
        helper.make_node('Mul', ['h', 'factor'], ['kept']),
        helper.make_node('Unsqueeze', ['written', 'end'], ['x']),
        helper.make_node('Unsqueeze', ['b', 'column'], ['key']),
        helper.make_node('Mul', ['x', 'key'], ['added']),
        helper.make_node('Add', ['kept', 'added'], ['next']),
        helper.make_node('Unsqueeze', ['c', 'column'], ['query']),
        helper.make_node('Mul', ['next', 'query'], ['products']),
        helper.make_node('ReduceSum', ['products', 'row'], ['y'], keepdims=0),
    ], 'token', floats('h', 'decay', 'written', 'b', 'c'), floats('next', 'y'), [end, ends, column, row])
    graph.nodes.append(helper.make_node('Scan', [graph.port('inputs', f'past_ssm.{at}', ssm), decay, written, b, c], [last, read], body=body,
                                        num_scan_inputs=4, scan_input_axes=[1] * 4, scan_output_axes=[1]))
    graph.present(f'present_ssm.{at}', last, ssm)
    skipped = graph.add('Mul', rows, graph.weight(f'{name}.D', lambda array: array.reshape(1, 1, heads, 1)))
    y = graph.add('Reshape', graph.add('Add', read, skipped), graph.integers(0, 0, inner))
    gated = graph.add('Mul', y, graph.silu(gate))
    assert groups == 1, 'the norm of several groups is not written'
    return graph.linear(graph.norm(gated, f'{name}.norm', epsilon), f'{name}.out_proj')


def attention(graph, x, at, name, sizes):
    """Attention without positions, as Granite 4 has it."""
    heads, kv_heads, dim, scale = sizes
    q = graph.add('Transpose', graph.add('Reshape', graph.linear(x, f'{name}.q_proj'), graph.integers(0, 0, heads, dim)), perm=[0, 2, 1, 3])
    sides = []
    for side in ('key', 'value'):
        rows = graph.add('Reshape', graph.linear(x, f'{name}.{side[0]}_proj'), graph.integers(0, 0, kv_heads, dim))
        own = graph.add('Transpose', rows, perm=[0, 2, 1, 3])
        past = graph.port('inputs', f'past_key_values.{at}.{side}', ['batch', kv_heads, 'past_sequence_length', dim])
        present = graph.port('outputs', f'present.{at}.{side}', ['batch', kv_heads, 'total_sequence_length', dim])
        graph.nodes.append(helper.make_node('Concat', [past, own], [present], axis=2))
        repeated = graph.integers(*[head * kv_heads // heads for head in range(heads)])
        sides.append(graph.add('Gather', present, repeated, axis=1))
    k, v = sides
    scores = graph.add('Mul', graph.add('MatMul', q, graph.add('Transpose', k, perm=[0, 1, 3, 2])), graph.number(scale))
    count = graph.add('Gather', graph.add('Shape', scores), graph.constant(numpy.array(3)))
    places = graph.add('Range', graph.constant(numpy.array(0)), count, graph.constant(numpy.array(1)))
    seen = graph.add('LessOrEqual', places, graph.add('Unsqueeze', 'position_ids', graph.integers(1, 3)))
    masked = graph.add('Where', seen, scores, graph.number(-1e9))
    out = graph.add('Transpose', graph.add('MatMul', graph.add('Softmax', masked, axis=-1), v), perm=[0, 2, 1, 3])
    return graph.linear(graph.add('Reshape', out, graph.integers(0, 0, heads * dim)), f'{name}.o_proj')


def mamba2(graph, config):
    x = graph.add('Gather', graph.weight('backbone.embeddings.weight'), 'input_ids')
    epsilon = config['layer_norm_epsilon']
    sizes = (config['num_heads'], config['head_dim'], config['n_groups'], config['state_size'], config['conv_kernel'], epsilon)
    for at in range(config['num_hidden_layers']):
        name = f'backbone.layers.{at}'
        x = graph.add('Add', x, mixer(graph, graph.norm(x, f'{name}.norm', epsilon), at, f'{name}.mixer', sizes))
    return graph.linear(graph.norm(x, 'backbone.norm_f', epsilon), 'lm_head')


def granitemoehybrid(graph, config):
    graph.port('inputs', 'position_ids', ['batch', 'sequence_length'], TensorProto.INT64)
    epsilon, factor = config['rms_norm_eps'], config['residual_multiplier']
    x = graph.add('Mul', graph.add('Gather', graph.weight('model.embed_tokens.weight'), 'input_ids'), graph.number(config['embedding_multiplier']))
    mamba = (config['mamba_n_heads'], config['mamba_d_head'], config['mamba_n_groups'], config['mamba_d_state'], config['mamba_d_conv'], epsilon)
    heads = config['num_attention_heads']
    attend = (heads, config['num_key_value_heads'], config['hidden_size'] // heads, config['attention_multiplier'])
    add = lambda x, y: graph.add('Add', x, graph.add('Mul', y, graph.number(factor)))
    for at, kind in enumerate(config['layer_types']):
        name = f'model.layers.{at}'
        normed = graph.norm(x, f'{name}.input_layernorm', epsilon)
        is_mamba = kind in ('mamba', 'linear_attention')
        x = add(x, mixer(graph, normed, at, f'{name}.mamba', mamba) if is_mamba else attention(graph, normed, at, f'{name}.self_attn', attend))
        wide = graph.linear(graph.norm(x, f'{name}.post_attention_layernorm', epsilon), f'{name}.shared_mlp.input_linear')
        gate, up = graph.split(wide, *[config['shared_intermediate_size']] * 2)
        x = add(x, graph.linear(graph.add('Mul', graph.silu(gate), up), f'{name}.shared_mlp.output_linear'))
    logits = graph.linear(graph.norm(x, 'model.norm', epsilon), 'lm_head')
    return graph.add('Div', logits, graph.number(config['logits_scaling']))


FAMILIES = dict(mamba2=mamba2, granitemoehybrid=granitemoehybrid)


def write(model, folder):
    """Writes the graph of a model of transformers."""
    config = json.loads((folder / 'hf' / 'config.json').read_text())
    graph = Graph(model.state_dict())
    graph.port('inputs', 'input_ids', ['batch', 'sequence_length'], TensorProto.INT64)
    logits = FAMILIES[config['model_type']](graph, config)
    graph.nodes.append(helper.make_node('Identity', [logits], ['logits']))
    graph.port('outputs', 'logits', ['batch', 'sequence_length', config['vocab_size']])
    made = helper.make_graph(graph.nodes, config['model_type'], graph.inputs, graph.outputs, list(graph.constants.values()))
    proto = helper.make_model(made, opset_imports=[helper.make_opsetid('', 18)], ir_version=9)
    onnx.checker.check_model(proto)
    (folder / 'written').mkdir(exist_ok=True)
    onnx.save(proto, folder / 'written' / 'model.onnx')
