"""Writes the graphs of hybrid families that no exporter writes, from the weights of transformers: Mamba, Mamba 2, and dense forms of Granite 4, Bamba, Falcon-H1,
Jamba and Nemotron-H.

The selective state of a layer is computed by a Scan over the tokens, its short convolution by a Concat, a depthwise Conv and a Slice. Names are those of
transformers.js: `past_conv.N`, `past_ssm.N`, `past_key_values.N.key`.
"""

import numpy
import onnx
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

    def norm(self, x, name, epsilon, groups=1):
        """Divides by the root of the mean square, of each group of elements."""
        size = self.weights[f'{name}.weight'].shape[0]
        if groups > 1:
            x = self.add('Reshape', x, self.integers(0, 0, groups, size // groups))
        mean = self.add('ReduceMean', self.add('Mul', x, x), self.integers(-1), keepdims=1)
        scaled = self.add('Div', x, self.add('Sqrt', self.add('Add', mean, self.number(epsilon))))
        if groups > 1:
            scaled = self.add('Reshape', scaled, self.integers(0, 0, size))
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


def convolved(graph, x, at, name, kernel):
    """The short convolution of a mixer and its activation: `x` is [batch, tokens, channels]. The columns before it are a state."""
    channels = graph.weights[f'{name}.weight'].shape[0]
    dims = ['batch', channels, kernel - 1]
    columns = graph.add('Concat', graph.port('inputs', f'past_conv.{at}', dims), graph.add('Transpose', x, perm=[0, 2, 1]), axis=2)
    graph.present(f'present_conv.{at}', graph.add('Slice', columns, graph.integers(1 - kernel), graph.integers(2 ** 31), graph.integers(2)), dims)
    bias = [graph.weight(f'{name}.bias')] if f'{name}.bias' in graph.weights else []
    mixed = graph.add('Conv', columns, graph.weight(f'{name}.weight'), *bias, group=channels)
    return graph.silu(graph.add('Transpose', mixed, perm=[0, 2, 1]))


def scanned(graph, at, name, dims, decay, written, b, c):
    """The recurrence of a state space over the tokens, `h = h * decay + written * b`, and the products of each state with `c`. The last state stays."""
    ssm = ['batch', *dims]
    last, read = f'{name}/state', f'{name}/read'
    floats = lambda *names: [helper.make_tensor_value_info(one, TensorProto.FLOAT, None) for one in names]
    end, column, row = (numpy_helper.from_array(numpy.array([axis]), label) for axis, label in [(-1, 'end'), (-2, 'column'), (-1, 'row')])
    body = helper.make_graph([
        helper.make_node('Mul', ['h', 'decay'], ['kept']),
        helper.make_node('Unsqueeze', ['written', 'end'], ['x']),
        helper.make_node('Unsqueeze', ['b', 'column'], ['key']),
        helper.make_node('Mul', ['x', 'key'], ['added']),
        helper.make_node('Add', ['kept', 'added'], ['next']),
        helper.make_node('Unsqueeze', ['c', 'column'], ['query']),
        helper.make_node('Mul', ['next', 'query'], ['products']),
        helper.make_node('ReduceSum', ['products', 'row'], ['y'], keepdims=0),
    ], 'token', floats('h', 'decay', 'written', 'b', 'c'), floats('next', 'y'), [end, column, row])
    graph.nodes.append(helper.make_node('Scan', [graph.port('inputs', f'past_ssm.{at}', ssm), decay, written, b, c], [last, read], body=body,
                                        num_scan_inputs=4, scan_input_axes=[1] * 4, scan_output_axes=[1]))
    graph.present(f'present_ssm.{at}', last, ssm)
    return read


def mamba2_mixer(graph, x, at, name, sizes, least=None, factors=None, gate_norm=True):
    """The mixer of Mamba 2: `x` is [batch, tokens, hidden]. `least` is the shortest time step, `factors` those of what the first product gives."""
    heads, dim, groups, state, kernel, epsilon, norms = sizes
    inner, bc = heads * dim, groups * state
    projected = graph.linear(x, f'{name}.in_proj')
    if factors is not None:
        each = [factor for factor, size in zip(factors, [inner, inner, bc, bc, heads]) for _ in range(size)]
        projected = graph.add('Mul', projected, graph.constant(numpy.array(each, numpy.float32)))
    gate, xbc, dt = graph.split(projected, inner, inner + 2 * bc, heads)
    inputs, b, c = graph.split(convolved(graph, xbc, at, f'{name}.conv1d', kernel), inner, bc, bc)

    step = graph.add('Softplus', graph.add('Add', dt, graph.weight(f'{name}.dt_bias')))
    if least is not None:
        step = graph.add('Max', step, graph.number(least))
    decay = graph.add('Exp', graph.add('Mul', step, graph.weight(f'{name}.A_log', lambda array: -numpy.exp(array))))
    rows = graph.add('Reshape', inputs, graph.integers(0, 0, heads, dim))
    written = graph.add('Mul', rows, graph.add('Unsqueeze', step, graph.integers(-1)))
    # Each head reads the group that it belongs to.
    of_heads = graph.integers(*[head * groups // heads for head in range(heads)])
    b, c = (graph.add('Gather', graph.add('Reshape', side, graph.integers(0, 0, groups, state)), of_heads, axis=2) for side in (b, c))
    read = scanned(graph, at, name, [heads, dim, state], graph.add('Unsqueeze', decay, graph.integers(-1, -2)), written, b, c)
    skipped = graph.add('Mul', rows, graph.weight(f'{name}.D', lambda array: array.reshape(1, 1, heads, 1)))
    y = graph.add('Reshape', graph.add('Add', read, skipped), graph.integers(0, 0, inner))
    gated = graph.add('Mul', y, graph.silu(gate))
    return graph.linear(graph.norm(gated, f'{name}.norm', epsilon, norms) if gate_norm else gated, f'{name}.out_proj')


def mamba_mixer(graph, x, at, name, sizes, norms=()):
    """The mixer of Mamba: `x` is [batch, tokens, hidden]. `norms` are those of the time step and of both sides of the state, if there are any."""
    inner, state, rank, kernel, epsilon = sizes
    xs, gate = graph.split(graph.linear(x, f'{name}.in_proj'), inner, inner)
    inputs = convolved(graph, xs, at, f'{name}.conv1d', kernel)
    parts = graph.split(graph.linear(inputs, f'{name}.x_proj'), rank, state, state)
    dt, b, c = (graph.norm(part, f'{name}.{norm}', epsilon) for part, norm in zip(parts, norms)) if norms else parts
    step = graph.add('Softplus', graph.linear(dt, f'{name}.dt_proj'))
    rates = graph.weight(f'{name}.A_log', lambda array: -numpy.exp(array))
    decay = graph.add('Exp', graph.add('Mul', graph.add('Unsqueeze', step, graph.integers(-1)), rates))
    read = scanned(graph, at, name, [inner, state], decay, graph.add('Mul', inputs, step), b, c)
    y = graph.add('Add', read, graph.add('Mul', inputs, graph.weight(f'{name}.D')))
    return graph.linear(graph.add('Mul', y, graph.silu(gate)), f'{name}.out_proj')


class Rotary:
    """Rotary embeddings of the first `dims` elements of each head."""

    def __init__(self, graph, dims, theta):
        self.graph, self.dims = graph, dims
        rates = graph.constant(1 / theta ** (numpy.arange(0, dims, 2, dtype=numpy.float32) / dims))
        places = graph.add('Unsqueeze', graph.add('Cast', 'position_ids', to=TensorProto.FLOAT), graph.integers(1, 3))
        half = graph.add('Mul', places, rates)
        angles = graph.add('Concat', half, half, axis=-1)
        self.cos, self.sin = graph.add('Cos', angles), graph.add('Sin', angles)

    def __call__(self, x, dim):
        graph, dims = self.graph, self.dims
        turned, *rest = graph.split(x, dims, dim - dims) if dims < dim else [x]
        first, second = graph.split(turned, dims // 2, dims // 2)
        swapped = graph.add('Concat', graph.add('Neg', second), first, axis=-1)
        both = graph.add('Add', graph.add('Mul', turned, self.cos), graph.add('Mul', swapped, self.sin))
        return graph.add('Concat', both, *rest, axis=-1) if rest else both


def attention(graph, x, at, name, sizes, rotary=None, key_factor=None):
    """Attention to all tokens: `x` is [batch, tokens, hidden]."""
    heads, kv_heads, dim, scale = sizes
    split = lambda x, count: graph.add('Transpose', graph.add('Reshape', x, graph.integers(0, 0, count, dim)), perm=[0, 2, 1, 3])
    turned = (lambda x: rotary(x, dim)) if rotary else (lambda x: x)
    q = turned(split(graph.linear(x, f'{name}.q_proj'), heads))
    sides = []
    for side in ('key', 'value'):
        own = split(graph.linear(x, f'{name}.{side[0]}_proj'), kv_heads)
        if side == 'key':
            own = turned(graph.add('Mul', own, graph.number(key_factor)) if key_factor else own)
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


def positions(graph):
    graph.port('inputs', 'position_ids', ['batch', 'sequence_length'], TensorProto.INT64)


def attention_sizes(config):
    """The heads of a layer with attention, their size, and the scale of scores."""
    heads = config['num_attention_heads']
    dim = config.get('head_dim') or config['hidden_size'] // heads
    return heads, config['num_key_value_heads'], dim, dim ** -0.5


def mamba2_sizes(config, norms=1):
    """The sizes of Mamba 2 as Granite 4, Bamba and Falcon-H1 name them."""
    return (config['mamba_n_heads'], config['mamba_d_head'], config['mamba_n_groups'], config['mamba_d_state'], config['mamba_d_conv'],
            config['rms_norm_eps'], norms)


def gated_mlp(graph, x, name, factors=(None, None)):
    """A feed-forward layer with a gate; `factors` are those of the gate and of the result."""
    times = lambda x, factor: x if factor is None else graph.add('Mul', x, graph.number(factor))
    gate = graph.silu(times(graph.linear(x, f'{name}.gate_proj'), factors[0]))
    return times(graph.linear(graph.add('Mul', gate, graph.linear(x, f'{name}.up_proj')), f'{name}.down_proj'), factors[1])


def mamba_layers(graph, config, mixer):
    """A model of mixers alone."""
    x = graph.add('Gather', graph.weight('backbone.embeddings.weight'), 'input_ids')
    epsilon = config['layer_norm_epsilon']
    for at in range(config['num_hidden_layers']):
        name = f'backbone.layers.{at}'
        x = graph.add('Add', x, mixer(graph.norm(x, f'{name}.norm', epsilon), at, f'{name}.mixer'))
    return graph.linear(graph.norm(x, 'backbone.norm_f', epsilon), 'lm_head')


def mamba(graph, config):
    sizes = (config['intermediate_size'], config['state_size'], config['time_step_rank'], config['conv_kernel'], config['layer_norm_epsilon'])
    return mamba_layers(graph, config, lambda x, at, name: mamba_mixer(graph, x, at, name, sizes))


def mamba2(graph, config):
    # Its norm is one of all groups.
    sizes = (config['num_heads'], config['head_dim'], config['n_groups'], config['state_size'], config['conv_kernel'], config['layer_norm_epsilon'], 1)
    return mamba_layers(graph, config, lambda x, at, name: mamba2_mixer(graph, x, at, name, sizes))


def granitemoehybrid(graph, config):
    positions(graph)
    epsilon, factor = config['rms_norm_eps'], config['residual_multiplier']
    x = graph.add('Mul', graph.add('Gather', graph.weight('model.embed_tokens.weight'), 'input_ids'), graph.number(config['embedding_multiplier']))
    attend = (*attention_sizes(config)[:3], config['attention_multiplier'])
    add = lambda x, y: graph.add('Add', x, graph.add('Mul', y, graph.number(factor)))
    for at, kind in enumerate(config['layer_types']):
        name = f'model.layers.{at}'
        normed = graph.norm(x, f'{name}.input_layernorm', epsilon)
        is_mamba = kind in ('mamba', 'linear_attention')
        x = add(x, mamba2_mixer(graph, normed, at, f'{name}.mamba', mamba2_sizes(config)) if is_mamba
                else attention(graph, normed, at, f'{name}.self_attn', attend))
        wide = graph.linear(graph.norm(x, f'{name}.post_attention_layernorm', epsilon), f'{name}.shared_mlp.input_linear')
        gate, up = graph.split(wide, *[config['shared_intermediate_size']] * 2)
        x = add(x, graph.linear(graph.add('Mul', graph.silu(gate), up), f'{name}.shared_mlp.output_linear'))
    logits = graph.linear(graph.norm(x, 'model.norm', epsilon), 'lm_head')
    return graph.add('Div', logits, graph.number(config['logits_scaling']))


def hybrid_layers(graph, config, mixed, embedding=None, factors=(None, None)):
    """A model whose layers mix tokens by `mixed`, which gets what the layer's norm gives, and then have a feed-forward layer."""
    epsilon = config['rms_norm_eps']
    x = graph.add('Gather', graph.weight('model.embed_tokens.weight'), 'input_ids')
    if embedding is not None:
        x = graph.add('Mul', x, graph.number(embedding))
    for at in range(config['num_hidden_layers']):
        name = f'model.layers.{at}'
        x = graph.add('Add', x, mixed(graph.norm(x, f'{name}.input_layernorm', epsilon), at, name))
        x = graph.add('Add', x, gated_mlp(graph, graph.norm(x, f'{name}.pre_ff_layernorm', epsilon), f'{name}.feed_forward', factors))
    return graph.linear(graph.norm(x, 'model.final_layernorm', epsilon), 'lm_head')


def bamba(graph, config):
    positions(graph)
    attend, rope = attention_sizes(config), config['rope_parameters']
    rotary = Rotary(graph, int(attend[2] * rope['partial_rotary_factor']), rope['rope_theta'])
    sizes = mamba2_sizes(config, config['mamba_n_groups'])
    is_full = lambda at: at in config['attn_layer_indices']
    return hybrid_layers(graph, config, lambda x, at, name: attention(graph, x, at, f'{name}.self_attn', attend, rotary) if is_full(at)
                         else mamba2_mixer(graph, x, at, f'{name}.mamba', sizes))


def falcon_h1(graph, config):
    positions(graph)
    attend = attention_sizes(config)
    rotary = Rotary(graph, attend[2], config['rope_parameters']['rope_theta'])
    times = lambda x, field: graph.add('Mul', x, graph.number(config[field]))

    def both(x, at, name):
        states = mamba2_mixer(graph, times(x, 'ssm_in_multiplier'), at, f'{name}.mamba', mamba2_sizes(config), factors=config['ssm_multipliers'],
                              gate_norm=config['mamba_rms_norm'])
        rows = attention(graph, times(x, 'attention_in_multiplier'), at, f'{name}.self_attn', attend, rotary, config['key_multiplier'])
        return graph.add('Add', times(states, 'ssm_out_multiplier'), times(rows, 'attention_out_multiplier'))

    logits = hybrid_layers(graph, config, both, config['embedding_multiplier'], config['mlp_multipliers'])
    return times(logits, 'lm_head_multiplier')


def jamba(graph, config):
    positions(graph)
    attend = attention_sizes(config)
    sizes = (config['mamba_expand'] * config['hidden_size'], config['mamba_d_state'], config['mamba_dt_rank'], config['mamba_d_conv'], config['rms_norm_eps'])
    norms = ('dt_layernorm', 'b_layernorm', 'c_layernorm')
    is_full = lambda at: at % config['attn_layer_period'] == config['attn_layer_offset']
    return hybrid_layers(graph, config, lambda x, at, name: attention(graph, x, at, f'{name}.self_attn', attend) if is_full(at)
                         else mamba_mixer(graph, x, at, f'{name}.mamba', sizes, norms))


def nemotron_h(graph, config):
    positions(graph)
    attend, epsilon, groups = attention_sizes(config), config['layer_norm_epsilon'], config['n_groups']
    sizes = (config['mamba_num_heads'], config['mamba_head_dim'], groups, config['ssm_state_size'], config['conv_kernel'], epsilon, groups)

    def squared(x, name):
        up = graph.add('Relu', graph.linear(x, f'{name}.up_proj'))
        return graph.linear(graph.add('Mul', up, up), f'{name}.down_proj')

    mixers = {
        'linear_attention': lambda x, at, name: mamba2_mixer(graph, x, at, name, sizes, least=config['time_step_min']),
        'full_attention': lambda x, at, name: attention(graph, x, at, name, attend),
        'mlp': lambda x, at, name: squared(x, name),
    }
    x = graph.add('Gather', graph.weight('model.embeddings.weight'), 'input_ids')
    for at, kind in enumerate(config['layers_block_type']):
        name = f'model.layers.{at}'
        x = graph.add('Add', x, mixers[kind](graph.norm(x, f'{name}.norm', epsilon), at, f'{name}.mixer'))
    return graph.linear(graph.norm(x, 'model.norm_f', epsilon), 'lm_head')


FAMILIES = dict(mamba=mamba, mamba2=mamba2, granitemoehybrid=granitemoehybrid, bamba=bamba, falcon_h1=falcon_h1, jamba=jamba, nemotron_h=nemotron_h)


def write(model, folder):
    """Writes the graph of a model of transformers."""
    config = model.config.to_dict()
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
