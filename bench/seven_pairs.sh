#!/bin/bash
# What a change cost: tigon_bench of an old commit and of this tree in turn, seven times, and what compiling takes with each.
#   bench/seven_pairs.sh OLD [OPTIONS]
# OLD: a commit, or a folder with its files. OPTIONS choose cases as for tigon_bench; without any: every operator at its own
# shape, forward and backward, in f32 and bf16 on highway. Prints the cases whose medians of seven are more than 3 % apart, then
# CPU seconds of compilers, best of five. For a quiet machine: both builds, then half an hour of one core, or of CORES (1), each
# of which takes a part of the operators. PAIRS (7): fewer to try it out. BITS=1: bench/same_bits.sh with both programs as well.
# Works in build/pairs, in which the old tree and the tables stay.
set -euo pipefail
cd "$(dirname "$0")/.."
old=$1
shift
[ $# -gt 0 ] || set -- --dtype f32,bf16 --backend highway --budget 0.05 --repetitions 5
pairs=${PAIRS:-7} cores=${CORES:-1}
here=$PWD work=$PWD/build/pairs
mkdir -p "$work"
rm -f "$work"/*.csv "$work"/*.err
if [ -d "$old" ]; then
  tree=$(cd "$old" && pwd)
else
  tree=$work/tree
  [ -e "$tree/.git" ] || git worktree add --detach "$tree" "$old"
  git -C "$tree" checkout -q --detach "$old"
fi

build() {  # build TREE FOLDER
  cmake -S "$1" -B "$2" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE='-O2 -DNDEBUG' -DTIGON_BUILD_TESTS=OFF \
    -DTIGON_BUILD_EXAMPLES=OFF -DTIGON_BUILD_BENCH=ON -DTIGON_BENCH_QUICK=ON > /dev/null
  cmake --build "$2" --target tigon_bench -- --quiet
}
build "$tree" "$work/old"
build . "$work/new"

# The operators that both have.
operators=$(for which in "$tree" .; do (cd "$which/bench/ops" && printf '%s\n' *.cpp | sed 's/\.cpp$//'); done | sort | uniq -d |
  grep -vx table)
run_pairs() {  # run_pairs CORE: its part of the operators
  local core=$1 k order which part
  shift
  part=$(awk -v core="$core" -v cores="$cores" '(NR - 1) % cores == core' <<< "$operators" | paste -sd,)
  for ((k = 1; k <= pairs; ++k)); do
    order='old new'
    [ $((k % 2)) -eq 1 ] || order='new old'
    for which in $order; do
      taskset -c "$core" "$work/$which/bench/tigon_bench" --csv "$work/$which.$k.$core.csv" --pin --op "$part" "$@" \
        > /dev/null 2> "$work/$which.$k.$core.err" ||
        echo "seven_pairs: a case of $which failed: $work/$which.$k.$core.err"
    done
  done
}
for ((core = 0; core < cores; ++core)); do run_pairs "$core" "$@" & done
wait
python3 - "$work" << 'END'
import csv
import glob
import statistics
import sys

times = {'old': {}, 'new': {}}
for which, cases in times.items():
    for name in glob.glob(f'{sys.argv[1]}/{which}.*.csv'):
        with open(name, newline='') as table:
            for row in csv.DictReader(table):
                if row['metric_name'] == 'speed' and row['y_value_50'] != 'NaN':
                    case = (row['kernel_name'], row['kernel_provider'], row['kernel_operation_mode'], row['shape'],
                            row['extra_benchmark_config_str'])
                    cases.setdefault(case, []).append(float(row['y_value_50']))
common = [case for case in times['old'] if case in times['new']]
if not common:
    sys.exit('seven_pairs: no case was measured by both')
ratios = {case: statistics.median(times['new'][case]) / statistics.median(times['old'][case]) for case in common}
for case in sorted(common, key=lambda case: -ratios[case]):
    if not 0.97 <= ratios[case] <= 1.03:
        old, new = (statistics.median(times[which][case]) for which in ('old', 'new'))
        print(f'{ratios[case]:6.3f}  {old:.4g} ms, now {new:.4g} ms  {" ".join(case)}')
slower = sum(ratio > 1.03 for ratio in ratios.values())
print(f'seven_pairs: {len(common)} cases, median of the ratios {statistics.median(ratios.values()):.3f}, '
      f'{slower} more than 3 % slower, {sum(ratio < 0.97 for ratio in ratios.values())} more than 3 % faster')
END
[ -z "${BITS:-}" ] || bench/same_bits.sh "$work/old/bench/tigon_bench" "$work/new/bench/tigon_bench" --dtype f32,bf16 \
  --sweep-mode token_length --model small --tokens 1,7,130 || true

# README's first program, and the calls in the contracts of today.
awk '/^```cpp/ { on = 1; next } /^```/ { if (on) exit } on' README.md > "$work/readme.cpp"
for header in ops/rms_norm losses/cross_entropy ops/attention; do
  {
    printf '#include <tigon/%s.hpp>\n#include <vector>\nint main() {\n' "$header"
    sed -n '/^\/\/\/ ```cpp$/,/^\/\/\/ ```$/p' "include/tigon/$header.hpp" | grep -v '```' | sed 's,^/// \?,,'
    echo '}'
  } > "$work/${header#*/}.cpp"
done
for program in readme rms_norm cross_entropy attention; do
  for compiler in g++ clang++; do
    command -v $compiler > /dev/null || continue
    printf '%-14s %-8s -O2 -march=native' $program $compiler
    for side in "$tree" "$here"; do
      best=
      for _ in 1 2 3 4 5; do
        took=$( (TIMEFORMAT=%3U; time $compiler -std=c++20 -O2 -march=native -w -I"$side/include" -isystem /usr/include/eigen3 \
          -c "$work/$program.cpp" -o "$work/program.o") 2>&1) || { echo " does not compile: $took" | head -3; continue 2; }
        took=$((10#${took/./}))
        [ -z "$best" ] || [ "$took" -lt "$best" ] && best=$took
      done
      printf '  %s %d.%02d s' "$([ "$side" = "$here" ] && echo now || echo old)" $((best / 1000)) $((best % 1000 / 10))
    done
    echo
  done
done
for side in "$tree" "$here"; do
  (cd "$side" && printf '%s\n' "$side" && .ci/compile_time)
done
