#!/bin/sh
# Tests kvtide on this machine's GPU, or measures it with `bench` as the first argument, with what lies beside this file and CUDA's
# libraries, wherever they are. It calls no program but the node that it brings.
here=${0%/*}
[ "$here" = "$0" ] && here=.
here=$(cd "$here" && pwd) || exit 1

KVTIDE_LIBRARY_PATH_BEFORE=$LD_LIBRARY_PATH
export KVTIDE_LIBRARY_PATH_BEFORE
for folder in \
  /usr/local/cuda/lib64 /usr/local/cuda-*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib \
  /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/wsl/lib /usr/lib/x86_64-linux-gnu /usr/lib64 /run/opengl-driver/lib \
  /usr/local/lib/python3*/*-packages/nvidia/*/lib /usr/lib/python3*/*-packages/nvidia/*/lib \
  /opt/conda/lib /opt/conda/lib/python3*/site-packages/nvidia/*/lib /opt/venv/lib/python3*/site-packages/nvidia/*/lib
do
  for library in libcublas.so.13 libcublas.so.12 libcublasLt.so.13 libcublasLt.so.12 libcurand.so.10 libcuda.so.1; do
    if [ -e "$folder/$library" ]; then
      LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
      break
    fi
  done
done
export LD_LIBRARY_PATH
echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"

program=run.mjs
if [ "$1" = bench ]; then
  program=bench.mjs
  shift
fi
exec "$here/node" "$here/$program" "$@"
