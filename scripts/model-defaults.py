"""Records how the configuration classes of transformers read a `config.json`: their defaults, and their results for small files.

The tests of `ModelDescription::from_config` compare with these records (crates/kvtide-core/tests/model/transformers). Each fixture has the
names and numbers of one version, and is named for it. To renew one, or to add a version:

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install transformers==5.23.0
    /tmp/venv/bin/python scripts/model-defaults.py crates/kvtide-core/tests/model/transformers

torch is not needed, and nothing is downloaded: no model is built, so `described` below repeats what a model's code does with the class's
fields. The files are the same for each version, because they are drawn with one seed. A version without a family's class has no record of it.
Add a new field to FIELDS or OWN, a new family to FAMILIES or ALIKE; families with states and their fields to HYBRIDS.
"""

import dataclasses
import inspect
import json
import os
import random
import sys
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_OFFLINE"] = "1"
import transformers
from transformers import CONFIG_MAPPING, AutoConfig

FAMILIES = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3_text", "gemma3", "phi3", "gpt_oss"]
# Families that read their fields as one of those above does, or nearly so: fewer files are recorded.
ALIKE = """
apertus arcee bitnet cohere cohere2 dots1 ernie4_5 ernie4_5_moe exaone4 flex_olmo gemma glm glm4 glm4_moe granite granitemoe granitemoeshared helium
hunyuan_v1_dense hunyuan_v1_moe ministral ministral3 mixtral olmo olmo2 olmo3 olmoe phi phimoe qwen2_5_vl_text qwen2_vl_text qwen3_moe qwen3_vl_text
seed_oss smollm3 stablelm starcoder2 vaultgemma
""".split()
ABSENT = object()
LISTED = object()

# The fields of a text model that kvtide reads, each with values to draw. A field that a family's class does not know must have no effect.
FIELDS = {
    "num_hidden_layers": [2, 7],
    "hidden_size": [64, 96, 100],
    "num_attention_heads": [4, 8],
    "num_key_value_heads": [1, 2, 4],
    "head_dim": [16, 80],
    "sliding_window": [9, 512],
    "use_sliding_window": [True, True, False],
    "max_window_layers": [0, 2, 40],
    "sliding_window_pattern": [2, 3],
    "_sliding_window_pattern": [4],
    "query_pre_attn_scalar": [144],
    "attn_logit_softcapping": [30.0],
    "layer_types": [LISTED],
}
# Those of single families.
OWN = {
    "granite": {"attention_multiplier": [0.5]},
    "granitemoe": {"attention_multiplier": [0.5]},
    "granitemoeshared": {"attention_multiplier": [0.5]},
    "smollm3": {"no_rope_layers": [[1, 0, 1, 0, 0, 1, 1]], "no_rope_layer_interval": [2, 3]},
}

# The sizes of Mamba 2, by the names of Bamba and of those like it. Few draws fit together: the heads divide the width.
MAMBA2 = {
    "mamba_expand": [2, 3],
    "mamba_n_heads": [4, 8, 5],
    "mamba_d_head": ["auto", "auto", 16, 32],
    "mamba_n_groups": [2],
    "mamba_d_state": [24],
    "mamba_d_conv": [2, 5],
}
MAMBA = {"conv_kernel": [2, 5], "expand": [1, 3], "state_size": [8]}
ATTENTION = {"num_attention_heads": [4, 8], "num_key_value_heads": [1, 2, 4]}
QWEN = ATTENTION | {
    "head_dim": [16, 80],
    "full_attention_interval": [2, 3],
    "layer_types": [["linear_attention", "full_attention", "linear_attention"]],
    "linear_num_key_heads": [2],
    "linear_num_value_heads": [6],
    "linear_key_head_dim": [8],
    "linear_value_head_dim": [10],
    "linear_conv_kernel_dim": [2, 5],
}
# Families with states, each with its fields and values to draw. A list of types is repeated for all layers.
HYBRIDS = {
    "lfm2": ATTENTION | {"conv_L_cache": [2, 5], "full_attn_idxs": [[0, 2], [], [99]], "layer_types": [["conv", "full_attention"]]},
    "lfm2_moe": ATTENTION | {"conv_L_cache": [2, 5], "layer_types": [["conv", "full_attention"], ["conv"]]},
    "granitemoehybrid": ATTENTION | MAMBA2 | {"layer_types": [["mamba", "attention"], ["attention"]], "attention_multiplier": [0.5]},
    "bamba": ATTENTION | MAMBA2 | {"attn_layer_indices": [[0, 2], [], [99]]},
    "falcon_h1": ATTENTION | MAMBA2 | {"mamba_d_ssm": [64, 96, 128]},
    "nemotron_h": ATTENTION
    | {
        "head_dim": [16, 80],
        "hybrid_override_pattern": ["M*-ME", "*", "M-"],
        "layers_block_type": [["mamba", "mlp", "attention"], ["linear_attention", "full_attention", "moe"]],
        "mamba_num_heads": [4, 8],
        "mamba_head_dim": [16],
        "n_groups": [2],
        "ssm_state_size": [24],
        "conv_kernel": [2, 5],
        "mamba_n_groups": [3],
        "mamba_d_conv": [3],
        "mamba_ssm_cache_dtype": ["bfloat16", "float16"],
    },
    "jamba": ATTENTION | {
        "attn_layer_period": [2, 3],
        "attn_layer_offset": [0, 1, 6],
        "mamba_expand": [3],
        "mamba_d_state": [24],
        "mamba_d_conv": [2, 5],
    },
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "mamba2": MAMBA | {"num_heads": [4, 6, 8], "head_dim": [16, 32], "n_groups": [2]},
    "qwen3_next": QWEN,
    "qwen3_5_text": QWEN,
    "qwen3_5": QWEN,
    "qwen3_5_moe_text": QWEN,
    "qwen3_5_moe": QWEN,
}
# Also read, so that their features are refused.
FLAGS = ["is_encoder_decoder", "add_cross_attention", "cross_attention_layers", "use_bidirectional_attention"]
# Families whose classes keep a list that their models ignore.
UNLISTED = ["llama", "phi3"]
CASES, CASES_ALIKE = 40, 10


def declared(family):
    """Returns the fields that a class declares, and their defaults."""
    known = text_class(family)
    if dataclasses.is_dataclass(known):
        found = {field.name: field.default for field in dataclasses.fields(known)}
    else:
        found = {name: parameter.default for name, parameter in inspect.signature(known.__init__).parameters.items()}
    # Some of them are declared in the base class.
    instance = known()
    found |= {name: getattr(instance, name) for name in FLAGS if name not in found and hasattr(instance, name)}
    return {name: found[name] for name in [*fields_of(family), *FLAGS] if name in found}


def fields_of(family):
    """Returns the fields that are recorded for a family, each with values to draw."""
    if family not in HYBRIDS:
        return FIELDS | OWN.get(family, {})
    sizes = {name: FIELDS[name] for name in ["num_hidden_layers", "hidden_size"]}
    return sizes | HYBRIDS[family]


def text_class(family):
    return type(CONFIG_MAPPING[family]().get_text_config())


def aliases(family):
    """Returns the other names of the fields that kvtide reads."""
    both = text_class(family).attribute_map | CONFIG_MAPPING[family].attribute_map
    known = fields_of(family)
    return {name: field for name, field in both.items() if name in known or field in known}


def files(family):
    """Yields small files: empty, then with single fields, then with several. They have few layers, so that fixtures stay small."""
    draw, fields = random.Random(family), fields_of(family)
    is_listed = family not in UNLISTED and (family not in ALIKE or "layer_types" in declared(family))
    known = [name for name in fields if name != "layer_types" or is_listed]
    yield {}
    for name in known:
        for value in [None, *fields[name]]:
            yield {"num_hidden_layers": 3, name: value}
    for _ in range(CASES_ALIKE if family in ALIKE else CASES):
        yield {"num_hidden_layers": 7} | {name: value for name in known if (value := drawn(draw, fields[name])) is not ABSENT}


def drawn(draw, values):
    kind = draw.random()
    return ABSENT if kind < 0.45 else None if kind < 0.48 else draw.choice(values)


def written(family, fields):
    """Returns a file with these fields, as it would be published."""
    fields = dict(fields)
    if fields.get("layer_types") is LISTED:
        layers = fields["num_hidden_layers"] or 1
        fields["layer_types"] = [["full_attention", "sliding_attention"][(layer * 2 + layers) % 3 % 2] for layer in range(layers)]
    for name in ["layer_types", "layers_block_type"] if family in HYBRIDS else []:
        if fields.get(name):
            layers = fields["num_hidden_layers"] or 1
            fields[name] = [fields[name][layer % len(fields[name])] for layer in range(layers)]
    if family not in ("gemma3", "qwen3_5", "qwen3_5_moe"):
        return {"model_type": family, **fields}
    return {"model_type": family, **({"text_config": fields} if fields else {})}


def described(file):
    """Returns the result of reading a file; None if the class refuses it, or no model can be built from it."""
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as out:
            json.dump(file, out)
        try:
            config = AutoConfig.from_pretrained(folder).get_text_config()
        except Exception:
            return None
    family = file["model_type"]
    if family not in HYBRIDS:
        return sizes(config, declared(family))
    try:
        return hybrid_sizes(config, family)
    except TypeError:
        # A size is null, and so the model's code fails, as this code does.
        return None


# The letters of types: attention, a state, or neither. Falcon-H1 has both in each layer.
LETTERS = {"full_attention": "F", "attention": "F", "linear_attention": "M", "mamba": "M", "conv": "M", "mlp": "-", "moe": "-"}


def hybrid_sizes(config, family):
    """Returns the numbers that a model with states takes from a configuration; a convolution keeps the columns that it needs to continue."""
    types = getattr(config, "layers_block_type", None) or getattr(config, "layer_types", None)
    if family in ("mamba", "falcon_mamba", "mamba2"):
        types = ["mamba"] * config.num_hidden_layers
    if not types:
        return None
    letters = "B" * len(types) if family == "falcon_h1" else "".join(LETTERS[name] for name in types)
    found = {"layers": letters}
    if "F" in letters or "B" in letters:
        queries, keys = config.num_attention_heads, config.num_key_value_heads
        dim = getattr(config, "head_dim", None) or (config.hidden_size // queries if queries else 0)
        if not (queries and keys and dim) or queries % keys:
            return None
        found |= {"query_heads": queries, "kv_heads": keys, "head_dim": dim}
        if family == "granitemoehybrid":
            if config.attention_multiplier is None:
                return None
            found |= {"scale": config.attention_multiplier}
    if "M" in letters or "B" in letters:
        states = states_of(config, family)
        if not all(all(shape) for shape in states.values()):
            return None
        found |= {"states": states}
        if family == "nemotron_h" and config.mamba_ssm_cache_dtype != "float32":
            found |= {"ssm_dtype": config.mamba_ssm_cache_dtype}
    return found


def states_of(config, family):
    """Returns the shapes of a layer's states, as the modelling code of the family makes them."""
    hidden = config.hidden_size
    if family in ("lfm2", "lfm2_moe"):
        return {"conv": [hidden, config.conv_L_cache - 1]}
    if family.startswith("qwen3"):
        keys, values = config.linear_num_key_heads, config.linear_num_value_heads
        key_dim, value_dim = config.linear_key_head_dim, config.linear_value_head_dim
        channels = 2 * keys * key_dim + values * value_dim
        return {"conv": [channels, config.linear_conv_kernel_dim - 1], "recurrent": [values, key_dim, value_dim]}
    if family in ("mamba", "falcon_mamba"):
        inner = int(config.expand * hidden)
        return {"conv": [inner, config.conv_kernel - 1], "ssm": [inner, config.state_size]}
    if family == "jamba":
        inner = config.mamba_expand * hidden
        return {"conv": [inner, config.mamba_d_conv - 1], "ssm": [inner, config.mamba_d_state]}
    if family == "mamba2":
        heads, dim, groups, state, kernel = config.num_heads, config.head_dim, config.n_groups, config.state_size, config.conv_kernel
    elif family == "nemotron_h":
        heads, dim, groups = config.mamba_num_heads, config.mamba_head_dim, config.n_groups
        state, kernel = config.ssm_state_size, config.conv_kernel
    else:
        heads, dim, groups = config.mamba_n_heads, config.mamba_d_head, config.mamba_n_groups
        state, kernel = config.mamba_d_state, config.mamba_d_conv
    return {"conv": [heads * dim + 2 * groups * state, kernel - 1], "ssm": [heads, dim, state]}


def sizes(config, known):
    """Returns the numbers that a model's attention takes from a configuration."""
    layers, queries, keys = config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads
    # In a class without this field, null has no effect.
    dim = getattr(config, "head_dim", None)
    if dim is None and not known.get("head_dim") and config.hidden_size and queries:
        dim = config.hidden_size // queries
    scalar, softcap = (getattr(config, name) if name in known else ABSENT for name in ["query_pre_attn_scalar", "attn_logit_softcapping"])
    scale = config.attention_multiplier if "attention_multiplier" in known else ABSENT
    if not (layers and queries and keys and dim) or queries % keys or scalar is None or scale is None:
        return None
    window = config.sliding_window if "sliding_window" in known else None
    types = getattr(config, "layer_types", None) or ["full_attention" if window is None else "sliding_attention"] * layers
    if window is None and "sliding_attention" in types:
        return None
    found = {"query_heads": queries, "kv_heads": keys, "head_dim": dim, "layers": "".join(name[0].upper() for name in types)}
    found |= {"window": window} if "S" in found["layers"] else {}
    found |= {"query_scalar": scalar} if scalar is not ABSENT else {}
    found |= {"scale": scale} if scale is not ABSENT else {}
    return found | ({"softcap": softcap} if softcap not in (ABSENT, None) else {})


def recorded(family):
    cases, seen = [], set()
    for fields in files(family):
        file = written(family, fields)
        text = json.dumps(file)
        if text not in seen:
            cases.append({"file": file, "is": described(file)})
            seen.add(text)
    return {"declared": declared(family), "aliases": aliases(family), "cases": cases}


def lines(families):
    """Returns JSON with one case per line."""
    for family, found in families.items():
        cases = ",\n".join("    " + json.dumps(case) for case in found.pop("cases"))
        rest = json.dumps(found)[:-1]
        yield f'  "{family}": {rest}, "cases": [\n{cases}\n  ]}}'


def main(folder):
    name = f"{transformers.__version__}.json"
    text = ",\n".join(lines({family: recorded(family) for family in [*FAMILIES, *ALIKE, *HYBRIDS] if family in CONFIG_MAPPING}))
    with open(os.path.join(folder, name), "w") as out:
        out.write("{\n" + text + "\n}\n")
    print(f"{name} is written")


if __name__ == "__main__":
    main(*sys.argv[1:])
