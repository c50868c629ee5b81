"""Records how the configuration classes of transformers read a `config.json`: their defaults, and their results for small files.

The tests of `ModelDescription::from_config` compare with these records (crates/kvtide-core/tests/model/transformers). Each fixture has the
names and numbers of one version, and is named for it. To renew one, or to add a version:

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install transformers==5.23.0
    /tmp/venv/bin/python scripts/model-defaults.py crates/kvtide-core/tests/model/transformers

torch is not needed, and nothing is downloaded: no model is built, so `described` below repeats what a model's code does with the class's
fields. The files are the same for each version, because they are drawn with one seed. Add a new field or family to FIELDS or FAMILIES.
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
# Also read, so that their features are refused.
FLAGS = ["is_encoder_decoder", "add_cross_attention", "cross_attention_layers", "use_bidirectional_attention"]
# Families whose classes keep a list that their models ignore.
UNLISTED = ["llama", "phi3"]
CASES = 40


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
    return {name: found[name] for name in [*FIELDS, *FLAGS] if name in found}


def text_class(family):
    return type(CONFIG_MAPPING[family]().get_text_config())


def aliases(family):
    """Returns the other names of the fields that kvtide reads."""
    both = text_class(family).attribute_map | CONFIG_MAPPING[family].attribute_map
    return {name: field for name, field in both.items() if name in FIELDS or field in FIELDS}


def files(family):
    """Yields small files: empty, then with single fields, then with several. They have few layers, so that fixtures stay small."""
    draw = random.Random(family)
    known = [name for name in FIELDS if name != "layer_types" or family not in UNLISTED]
    yield {}
    for name in known:
        for value in [None, *FIELDS[name]]:
            yield {"num_hidden_layers": 3, name: value}
    for _ in range(CASES):
        yield {"num_hidden_layers": 7} | {name: value for name in known if (value := drawn(draw, FIELDS[name])) is not ABSENT}


def drawn(draw, values):
    kind = draw.random()
    return ABSENT if kind < 0.45 else None if kind < 0.48 else draw.choice(values)


def written(family, fields):
    """Returns a file with these fields, as it would be published."""
    fields = dict(fields)
    if fields.get("layer_types") is LISTED:
        layers = fields["num_hidden_layers"] or 1
        fields["layer_types"] = [["full_attention", "sliding_attention"][(layer * 2 + layers) % 3 % 2] for layer in range(layers)]
    if family != "gemma3":
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
    return sizes(config, declared(file["model_type"]))


def sizes(config, known):
    """Returns the numbers that a model's attention takes from a configuration."""
    layers, queries, keys = config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads
    # In a class without this field, null has no effect.
    dim = getattr(config, "head_dim", None)
    if dim is None and not known.get("head_dim") and config.hidden_size and queries:
        dim = config.hidden_size // queries
    scalar, softcap = (getattr(config, name) if name in known else ABSENT for name in ["query_pre_attn_scalar", "attn_logit_softcapping"])
    if not (layers and queries and keys and dim) or queries % keys or scalar is None:
        return None
    window = config.sliding_window if "sliding_window" in known else None
    types = getattr(config, "layer_types", None) or ["full_attention" if window is None else "sliding_attention"] * layers
    if window is None and "sliding_attention" in types:
        return None
    found = {"query_heads": queries, "kv_heads": keys, "head_dim": dim, "layers": "".join(name[0].upper() for name in types)}
    found |= {"window": window} if "S" in found["layers"] else {}
    found |= {"query_scalar": scalar} if scalar is not ABSENT else {}
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
    text = ",\n".join(lines({family: recorded(family) for family in FAMILIES}))
    with open(os.path.join(folder, name), "w") as out:
        out.write("{\n" + text + "\n}\n")
    print(f"{name} is written")


if __name__ == "__main__":
    main(*sys.argv[1:])
