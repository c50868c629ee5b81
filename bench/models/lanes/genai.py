"""One measurement of onnxruntime-genai, with one static batch of all chats: see kvtide.mjs."""
import json
import os
import resource
import sys
import time

import onnxruntime_genai as og

job = json.loads(sys.argv[1])
ids, count, chats = job['ids'], job['count'], job['chats']


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


folder = os.path.dirname(job['graph'])
with open(os.path.join(folder, 'genai_config.json')) as file:
    window = json.load(file)['model']['decoder'].get('sliding_window')
config = og.Config(folder)
# A graph for GPUs runs on the CPU as well.
config.clear_providers()
config.overlay(json.dumps({'model': {'decoder': {'session_options': {'intra_op_num_threads': job['threads']}}}}))
model = og.Model(config)
loaded = peak()
params = og.GeneratorParams(model)
# Its cache must have room for a window.
longest = max(len(ids) + count + 20, 0 if window is None else 2 * window['window_size'])
params.set_search_options(max_length=longest, do_sample=False, batch_size=chats)
generator = og.Generator(model, params)
start = time.perf_counter()
generator.append_tokens([ids] * chats if chats > 1 else ids)
generator.generate_next_token()
first = time.perf_counter()
before = time.process_time()
for _ in range(count):
    generator.generate_next_token()
last = time.perf_counter()
used = time.process_time() - before
tokens = [int(id) for id in generator.get_sequence(0)][len(ids):]
answer = dict(prompt=(first - start) * 1000, token=(last - first) * 1000 / count / chats, total=(last - start) * 1000,
              cpu=used * 1000 / count / chats, loaded=loaded, peak=peak(), tokens=','.join(str(id) for id in tokens[:8]))
if chats == 1 and (window is None or len(ids) + count <= window['window_size']):
    # Once a window has moved, it cannot return to the end of the prompt.
    generator.rewind_to(len(ids))
    asked = time.perf_counter()
    generator.append_tokens(ids[:16])
    generator.generate_next_token()
    answer['second'] = (time.perf_counter() - asked) * 1000
print(json.dumps(answer))
