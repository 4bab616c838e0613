#!/bin/sh
# Which cores the flags of a translation unit name, and that its symbols say so.
#   cores.sh COMPILER INCLUDE_FOLDER
set -eu
compiler=$1
include=$2
failed=0

# Cores, then the flags; a set of flags that the compiler does not know is passed over.
expect() {
  wanted=$1
  shift
  if ! "$compiler" "$@" -E -x c++ /dev/null >/dev/null 2>&1; then
    echo "not known to $compiler: $*"
    return 0
  fi
  got=$(printf '#include <tigon/config.hpp>\nis TIGON_INTEL_CORES TIGON_ZEN4_CORES TIGON_STRING(TIGON_ABI)\n' |
    "$compiler" -std=c++20 "$@" -I"$include" -E -P -x c++ - | tail -n 1)
  case "$wanted:$got" in
    "intel:is 1 0 "*_intel\" | "zen4:is 0 1 "*_zen4\" | "none:is 0 0 "*_checks?\") ;;
    *)
      echo "$*: wanted $wanted, got: $got"
      failed=1
      ;;
  esac
}

expect none -march=x86-64-v3
expect none -march=x86-64-v4
expect none -march=haswell
expect none -march=znver3
expect intel -march=skylake-avx512
expect intel -march=icelake-server
expect intel -march=sapphirerapids
expect zen4 -march=znver3 -mavx512f
expect zen4 -march=znver4
expect none -march=znver3 -mavx512f -mavxvnni
expect none -march=znver3 -mavx512f -mmovdiri
expect none -march=znver3 -mavx512f -mavx512vp2intersect
expect none -march=znver5
exit $failed
