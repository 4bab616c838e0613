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
  got=$(printf '#include <tigon/config.hpp>\nis TIGON_STRING(TIGON_CORE) TIGON_STRING(TIGON_ABI)\n' |
    "$compiler" -std=c++20 "$@" -I"$include" -E -P -x c++ - | tail -n 1)
  case "$got" in
    "is \"$wanted\" "*_checks?_"$wanted"\") ;;
    *)
      echo "$*: wanted $wanted, got: $got"
      failed=1
      ;;
  esac
}

expect other -march=x86-64-v3
expect other -march=x86-64-v4
expect other -march=haswell
expect other -march=znver3
expect intel -march=skylake-avx512
expect intel -march=icelake-server
expect intel -march=sapphirerapids
expect zen4 -march=znver3 -mavx512f
expect zen4 -march=znver4
expect zen5 -march=znver3 -mavx512f -mavxvnni
expect zen5 -march=znver3 -mavx512f -mmovdiri
expect zen5 -march=znver3 -mavx512f -mavx512vp2intersect
expect zen5 -march=znver5
expect intel -march=x86-64-v3 -DTIGON_CORE=intel
expect other -march=sapphirerapids -DTIGON_CORE=other
exit $failed
