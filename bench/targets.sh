#!/bin/sh
# Products inside operators against gemm at the same shapes, and attention against its elementary steps: a table of
# ratios, each beside its target.
#   bench/targets.sh [PROGRAM] [more options of tigon_bench, such as --budget 0.2 or --threads 16]
# The environment names sizes: TOKENS HIDDEN VOCAB (losses), EXPERTS TOP_K INNER (moe), LENGTH (attention), DTYPE, and
# CSV, where the rows go.
set -eu
program=${1:-build/bench/bench/tigon_bench}
[ $# -gt 0 ] && shift
tokens=${TOKENS:-2048} hidden=${HIDDEN:-2048} vocab=${VOCAB:-32000}
experts=${EXPERTS:-16} top_k=${TOP_K:-4} inner=${INNER:-768} length=${LENGTH:-4096} dtype=${DTYPE:-f32}
csv=${CSV:-$(mktemp -d)/targets.csv}
pairs=$((tokens * top_k / experts))

case_of() { "$program" --csv "$csv" --overwrite --dtype "$dtype" --backend highway "$@" > /dev/null; }
has() { "$program" --list | grep -q "^$1\$"; }
# m x n x k of each product, as the variants of gemm have them.
products() {
  case_of --op gemm --variant nt --shape "${tokens}x${vocab}x$hidden,${pairs}x$((2 * inner))x$hidden,${pairs}x${hidden}x$inner" "$@"
  case_of --op gemm --variant nn --shape "${tokens}x${hidden}x$vocab,${pairs}x${inner}x$hidden,${pairs}x${hidden}x$((2 * inner))" "$@"
  case_of --op gemm --variant tn --shape "${vocab}x${hidden}x$tokens,${hidden}x${inner}x$pairs,$((2 * inner))x${hidden}x$pairs" "$@"
}

products "$@"
cp "$csv" "$csv.before"
for op in $("$program" --list | grep -E '^(fused_linear_|vocab_parallel_fused_linear_)'); do
  case_of --op "$op" --variant default --shape "${tokens}x${hidden}x$vocab" "$@"
done
if has moe; then
  case_of --op moe --variant default --shape "${tokens}x${experts}x${top_k}x${hidden}x$inner" "$@"
fi
products "$@"
for op in attention neighborhood_attention multi_token_attention; do
  has $op || continue
  case $op in
    attention) shape=1x${length}x8x2x64 ;;
    neighborhood_attention) shape=1x${length}x8x64x7x1 ;;
    *) shape=1x${length}x4x4x3 ;;
  esac
  case_of --backend plain --op $op --variant default --shape "$shape" --mode forward,backward,full "$@"
done

python3 - "$csv" "$tokens" "$hidden" "$vocab" "$experts" "$inner" "$pairs" << 'END'
import csv, json, sys

path = sys.argv[1]
tokens, hidden, vocab, experts, inner, pairs = map(int, sys.argv[2:])

def rows(path):
    out = {}
    for row in csv.DictReader(open(path)):
        if row['metric_name'] != 'speed':
            continue
        key = (row['kernel_name'], json.loads(row['extra_benchmark_config_str'])['variant'],
               row['kernel_operation_mode'], row['shape'], row['kernel_provider'])
        out[key] = (float(row['y_value_50']), float(row['gflops_per_s']), row['reason'])
    return out

before, after = rows(path + '.before'), rows(path)

def gemm(variant, *shape):
    """Milliseconds, the mean of the two measurements around the operators."""
    key = ('gemm', variant, 'forward', 'x'.join(map(str, shape)), 'highway')
    return (before[key][0] + after[key][0]) / 2

def line(name, mode, own, other, ratio, target):
    verdict = '' if ratio != ratio else 'ok' if ratio >= target else 'below'
    print(f'{name:52} {mode:16} {own:12.3f} {other:12.3f} {ratio:8.3f} {target:6.2f}  {verdict}')

print(f'{"products":52} {"mode":16} {"ms":>12} {"gemm ms":>12} {"ratio":>8} {"target":>6}')
one = 2e-6 * tokens * hidden * vocab  # operations of a product, in those that 1 GFLOP/s does in a millisecond
times = [gemm('nt', tokens, vocab, hidden), gemm('nn', tokens, hidden, vocab), gemm('tn', vocab, hidden, tokens)]
for (op, variant, mode, shape, provider), (ms, gflops, reason) in sorted(after.items()):
    if 'fused_linear' not in op or provider != 'highway':
        continue
    if reason:
        print(f'{op:52} {mode:16} {reason}')
        continue
    # Products of logits beside the two of the gradients; logits that are made twice count as one and a part.
    count = ms * gflops / one
    other = count * times[0] if mode == 'no_grad_forward' else (count - 2) * times[0] + times[1] + times[2]
    line(op, mode, ms, other, other / ms, 0.85)
forward = experts * (gemm('nt', pairs, 2 * inner, hidden) + gemm('nt', pairs, hidden, inner))
backward = experts * (gemm('nn', pairs, inner, hidden) + gemm('tn', hidden, inner, pairs) +
                      gemm('nn', pairs, hidden, 2 * inner) + gemm('tn', 2 * inner, hidden, pairs))
other = {'forward': forward, 'no_grad_forward': forward, 'backward': backward, 'full': forward + backward}
for (op, variant, mode, shape, provider), (ms, gflops, reason) in sorted(after.items()):
    if op == 'moe' and not reason:
        line(op, mode, ms, other[mode], other[mode] / ms, 0.85)

print(f'\n{"attention":52} {"mode":16} {"ms":>12} {"plain ms":>12} {"ratio":>8} {"target":>6}')
for (op, variant, mode, shape, provider), (ms, gflops, reason) in sorted(after.items()):
    if provider != 'highway' or (op, variant, mode, shape, 'plain') not in after:
        continue
    plain, _, why = after[op, variant, mode, shape, 'plain']
    if reason or why:
        print(f'{op:52} {mode:16} {reason or why}')
    else:
        line(op, mode, ms, plain, plain / ms, 5)
END
echo "rows: $csv"
