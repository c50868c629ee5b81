"""Runs the model builder of onnxruntime-genai, in a process of its own: it needs a newer transformers than the other exporters, in the folder beside it."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

# Builder 0.18.0 reads the two bases of Gemma 3 from fields that transformers 5 has moved.
BASES = '''own = t.AutoConfig.from_pretrained.__func__
def read(cls, *a, **k):
    config = own(cls, *a, **k)
    rope = getattr(config, "rope_parameters", None) or {}
    if "sliding_attention" in rope:
        config.rope_local_base_freq = rope["sliding_attention"]["rope_theta"]
        config.rope_theta = rope["full_attention"]["rope_theta"]
        config.rope_parameters = {"rope_theta": config.rope_theta, "rope_type": "default"}
    return config
t.AutoConfig.from_pretrained = classmethod(read)'''


def build(builder, model, out, options, patch=''):
    """Makes `out` of the model in a folder. `builder` is the folder onnxruntime_genai/models; `patch` is Python code that runs before it, with transformers as t."""
    shutil.rmtree(out, ignore_errors=True)
    code = f"""import sys; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[0])
import builder, runpy, transformers as t
{BASES}
{patch}
runpy.run_path(sys.argv[0] + "/builder.py", run_name="__main__")"""
    arguments = [sys.executable, '-c', code, str(builder), '-i', str(model), '-o', str(out), '-c', str(model.parent / 'cache'), *options]
    environment = {**os.environ, 'PYTHONPATH': str(Path(builder).resolve().parent.parent), 'HF_HUB_OFFLINE': '1'}
    run = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    if not (out / 'model.onnx').exists():
        raise RuntimeError('\n'.join(run.stderr.strip().splitlines()[-3:]) or 'no model')
