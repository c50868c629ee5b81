#!/bin/sh
# Tests or measures kvtide on this machine's GPU, with the files next to this one and with CUDA's libraries, which it looks for.
#
#   run.sh [--require-gpu] [--out <folder>] [caches] [kernels] [sanitize] [bench [<start of an id> ...] [options]]
#
# It contains its own node. run.mjs explains the parts.
here=${0%/*}
[ "$here" = "$0" ] && here=.
here=$(cd "$here" && pwd) || exit 1

KVTIDE_LIBRARY_PATH_BEFORE=$LD_LIBRARY_PATH
export KVTIDE_LIBRARY_PATH_BEFORE
missing=

# Adds the folder if it contains one of the missing libraries.
offer() {
  left= taken=
  for group in $missing; do
    found=
    for name in $(names "$group"); do
      [ -e "$1/$name" ] && found=yes
    done
    if [ -n "$found" ]; then taken=yes; else left="$left $group"; fi
  done
  [ -n "$taken" ] && LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$1
  missing=$left
}

names() {
  case $1 in
    driver) echo libcuda.so.1 ;;
    cublas) echo libcublas.so.13 libcublas.so.12 ;;
    cublasLt) echo libcublasLt.so.13 libcublasLt.so.12 ;;
    curand) echo libcurand.so.10 ;;
  esac
}

missing='driver cublas cublasLt curand'
for folder in \
  /usr/local/cuda/lib64 /usr/local/cuda-*/lib64 /usr/local/cuda*/targets/x86_64-linux/lib \
  /usr/local/nvidia/lib64 /usr/local/nvidia/lib /usr/lib/wsl/lib /usr/lib/x86_64-linux-gnu /usr/lib64 /run/opengl-driver/lib
do
  offer "$folder"
done

# The places where the system's loader, or the first python on the path, would find them.
if [ -n "$missing" ]; then
  listed=$(ldconfig -p 2>/dev/null || /sbin/ldconfig -p 2>/dev/null) || listed=
  for file in $listed; do
    case $file in /*/libcuda.so.1 | /*/libcublas*.so.1[23] | /*/libcurand.so.10) offer "${file%/*}" ;; esac
  done
fi
if [ -n "$missing" ]; then
  packages=$(python3 -c 'import site, sys; print("\n".join(dict.fromkeys([*site.getsitepackages(), site.getusersitepackages(), *sys.path])))' 2>/dev/null) || packages=
  for folder in $packages; do
    for wheel in "$folder"/nvidia/*/lib; do
      [ -d "$wheel" ] && offer "$wheel"
    done
  done
fi
# All other folders of the system's disk, eight levels deep. This takes seconds.
scan() {
  set --
  for group in $missing; do
    for name in $(names "$group"); do set -- "$@" -o -name "$name"; done
  done
  shift
  find / -xdev -maxdepth 8 '(' "$@" ')' 2>/dev/null
}
if [ -n "$missing" ]; then
  listed=$(scan) || :
  for file in $listed; do offer "${file%/*}"; done
fi
export LD_LIBRARY_PATH
echo "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"
for group in $missing; do echo "not found: $(names "$group")"; done

exec "$here/node" "$here/run.mjs" "$@"
