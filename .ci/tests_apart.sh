# For .ci/sanitize and .ci/x86_64, which source it: tests that are compiled and run by themselves, JOBS (1) at a time.
# `common`: flags of all; CXX (g++); WRAP: what a test is run under; `said`: the word for a test that passes.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
common=(-w -DTIGON_BACKEND=highway -DTIGON_TESTS_FEW_PAIRS -std=c++20 -Iinclude -Itests -isystem /usr/include/eigen3)
said=passes

# every_test FOLDER... : their tests as ops/softmax, the longest first.
every_test() { (cd tests && for folder in "$@"; do printf '%s\n' "$folder"/*_test.cpp; done | xargs ls -S) | sed 's/_test.cpp$//'; }

# run NAME TEST FLAGS... : prints a line, and what was found.
run() {
  while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-1}" ]; do wait -n; done
  compile_and_run "$@" &
}

compile_and_run() {
  local name=$1 source=tests/$2_test.cpp program=$scratch/${2//\//_} began=$SECONDS
  shift 2
  if ! "${CXX:-g++}" "${common[@]}" "$@" "$source" -o "$program" -lgtest -lgtest_main -pthread > "$program.log" 2>&1; then
    printf '%-44s does not compile\n' "$name"
    grep -m3 -A3 error "$program.log"
    touch "$scratch/failed"
  elif timeout 1800 ${WRAP:-} "$program" --gtest_brief=1 > "$program.log" 2>&1; then
    printf '%-44s %s, %d s\n' "$name" "$said" $((SECONDS - began))
  else
    printf '%-44s FAILED\n' "$name"
    grep -m3 -A12 -E 'ERROR|runtime error|WARNING|Failure|Invalid|uninitialised' "$program.log" || tail -20 "$program.log"
    touch "$scratch/failed"
  fi
  rm -f "$program"
}

# Waits for all; fails if a test did.
finish() {
  wait
  [ ! -e "$scratch/failed" ]
}
