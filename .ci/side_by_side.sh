# Steps and functions that run side by side. For .ci/run and .ci/compilers, which source it.
step() { printf '\n== %s (%d s)\n' "$1" "$SECONDS"; }

smoke=$(mktemp -d)
trap 'rm -rf "$smoke"' EXIT
cores=$(nproc)

# Runs functions side by side, each of which keeps one core busy; prints what each said as soon as all are done, and ends
# where one failed.
side_by_side() {
  local name failed=
  for name in "$@"; do
    while [ "$(jobs -rp | wc -l)" -ge "$cores" ]; do sleep 0.2; done
    (
      "$name"
      printf '%s took until %d s\n' "$name" "$SECONDS"
      touch "$smoke/$name.passed"
    ) > "$smoke/$name.log" 2>&1 &
  done
  wait
  for name in "$@"; do
    cat "$smoke/$name.log"
    [ -e "$smoke/$name.passed" ] || failed="$failed $name"
  done
  [ -z "$failed" ] || { printf 'failed:%s\n' "$failed"; return 1; }
}

every_door() {
  step "every door with $1"
  "$@" -std=c++20 -Wno-unknown-warning-option -Iinclude -isystem /usr/include/eigen3 tests/link/all_doors.cpp
}

# one_program_of COMPILER BACKEND. clang++ 19 warns of the features that it finds itself on CPUs with AVX10.
one_program_of() {
  local library=
  [ "$2" != onednn ] || library=-ldnnl
  "$1" -std=c++20 -O1 -march=native -Wall -Wextra -Werror -Wno-unknown-warning-option -Wno-maybe-uninitialized \
    -Wno-invalid-feature-combination -DTIGON_BACKEND="$2" -Iinclude -isystem /usr/include/eigen3 tests/consumer/main.cpp \
    -o "$smoke/program_of_$1_$2" $library
  printf '%-11s ' "$1"
  "$smoke/program_of_$1_$2"
}
