#!/bin/sh
# The table of docs/lab/performance.md: every operator at its shape, on the default engine, one thread, into one CSV.
#   bench/run_table.sh [PROGRAM] [CSV] [more options of tigon_bench, such as --repetitions 5]
set -eu
program=${1:-build/bench/bench/tigon_bench}
csv=${2:-results/table.csv}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] && shift

case_of() { "$program" --csv "$csv" --overwrite --backend highway "$@" | grep -v '^op  '; }

case_of --op rms_norm "$@"
case_of --op layer_norm "$@"
case_of --op swiglu --mode forward --variant default "$@"
case_of --op swiglu --mode backward --variant in_place "$@"
case_of --op geglu --mode forward --variant default "$@"
case_of --op geglu --mode backward --variant in_place "$@"
case_of --op rope --variant in_place "$@"
case_of --op softmax --mode forward --variant default "$@"
case_of --op cross_entropy --mode full --variant in_place "$@"
case_of --op swiglu --mode forward --variant default --dtype bf16 "$@"
case_of --op gemm --dtype f32 "$@"
# The bf16 dot instruction, and tile registers, are backends of their own, where the flags of the build have them.
tiles=$("$program" --list 2> /dev/null | grep -qw amx && echo '--backend amx' || true)
"$program" --csv "$csv" --overwrite --backend highway --backend avx512_bf16 $tiles --op gemm --dtype bf16 "$@"
case_of --op fused_linear_cross_entropy --variant default "$@"
