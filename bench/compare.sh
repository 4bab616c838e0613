#!/bin/sh
# Chosen operators on every backend of the build, measured into one table and drawn side by side:
#   bench/compare.sh --op rms_norm --op swiglu --sweep-mode token_length [more options of tigon_bench]
# TIGON_BENCH, TIGON_BENCH_CSV and TIGON_BENCH_PICTURES in the environment name another program, table and folder.
set -u
program=${TIGON_BENCH:-build/bench/bench/tigon_bench}
csv=${TIGON_BENCH_CSV:-data/all_benchmark_data.csv}
"$program" --csv "$csv" "$@"
measured=$?  # 1: a case failed, and its row says why
[ $measured -le 1 ] || exit $measured
python3 "$(dirname "$0")/plot.py" "$csv" --out "${TIGON_BENCH_PICTURES:-$(dirname "$csv")}" || exit
exit $measured
