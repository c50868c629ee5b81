#!/bin/sh
# Tests kvtide on this machine's GPU, or measures it, with what lies beside this file and CUDA's libraries, wherever they are.
#
#   run.sh [--require-gpu] [--out <folder>] [caches] [kernels] [graph] [sanitize] [bench [<start of an id> ...] [options]]
#
# It brings its own node, unpacks it and all else into a folder beside this file when it is first run, and needs no other program but tar for
# that. run.mjs says what the parts are.
here=${0%/*}
[ "$here" = "$0" ] && here=.
here=$(cd "$here" && pwd) || exit 1

KVTIDE_LIBRARY_PATH_BEFORE=$LD_LIBRARY_PATH
export KVTIDE_LIBRARY_PATH_BEFORE
missing=

# Takes the folder, if one of the libraries that are still missing is in it.
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

# Where the system's loader, or the python that is first on the path, would find them.
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
# Anywhere else on the system's disk, eight folders deep: seconds.
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

[ -d "$here/unpacked" ] || "$here/unpack" "$here/carried.packed" "$here/unpacked" || exit 1
exec "$here/unpacked/node" "$here/unpacked/run.mjs" "$@"
