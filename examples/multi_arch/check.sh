#!/bin/sh
# What the program cannot say of itself.
#   check.sh sealed NM OBJDUMP FOLDER   each object exports its entry alone, and uses its own registers and no wider ones
#   check.sh chosen PROGRAM             the widest set that the C library's loader finds is the one that was chosen
set -eu
fail() { echo "$1"; exit 1; }

if [ "$1" = sealed ]; then
  nm=$2 objdump=$3 folder=$4
  for set in x86_64 x86_64_v2 x86_64_v3 x86_64_v4; do
    object=$folder/$set.o
    global=$("$nm" --defined-only --extern-only --format=just-symbols "$object" | tr '\n' ' ')
    [ "$global" = "kernels_$set " ] || fail "$set exports $global"
    ymm=$("$objdump" -d "$object" | grep -c '%ymm' || true)
    zmm=$("$objdump" -d "$object" | grep -c '%zmm' || true)
    echo "$set: $ymm instructions on 256 bits, $zmm on 512"
    case $set in
      x86_64 | x86_64_v2) [ "$ymm" -eq 0 ] && [ "$zmm" -eq 0 ] || fail "$set goes beyond 128 bits" ;;
      x86_64_v3) [ "$ymm" -gt 0 ] && [ "$zmm" -eq 0 ] || fail "$set is not of 256 bits" ;;
      x86_64_v4) [ "$zmm" -gt 0 ] || fail "$set is not of 512 bits" ;;
    esac
  done
else
  program=$2
  loader=/lib64/ld-linux-x86-64.so.2
  levels=$("$loader" --help 2> /dev/null | sed -n 's/^ *\(x86-64-v[234]\) (supported.*/\1/p') || true
  [ -n "$levels" ] || { echo "the loader does not tell"; exit 77; }
  widest=$(printf '%s\n' "$levels" | sort | tail -n 1)
  chosen=$(env -u TIGON_INSTRUCTION_SET "$program" | sed -n 's/:.*//p')
  echo "the loader: $widest, the program: $chosen"
  [ "$chosen" = "$widest" ] || exit 1
fi
