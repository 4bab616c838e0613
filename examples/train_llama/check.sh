#!/bin/sh
# Runs the program at small sizes: check.sh refuses|threads|micro|resume|compare|experts|profile|mpi PROGRAM FOLDER [MPIRUN];
# check.sh device PROGRAM FOLDER OTHER compares the one for a GPU with that for a CPU.
set -eu
part=$1 program=$2 folder=$3 mpirun=${4:-} other=${4:-}
. "$(dirname "$0")/../../support/check_refusals.sh"
. "$(dirname "$0")/check_outputs.sh"
rm -rf "$folder" && mkdir -p "$folder" && cd "$folder"

small_text
small="--text text --cache-dir cache --vocab 300 --layers 2 --hidden 48 --intermediate 80 --heads 4 --kv-heads 2
  --seq-len 32 --batch 3 --steps 8 --warmup 2 --sample-tokens 12"

case $part in
refuses)
  "$program" --help > out || fail "--help ended with $?"
  grep -q -- --compare out || fail "--help does not name --compare"
  refused "--wrong" --wrong
  refused "layers: 0 is not" $small --layers 0
  refused "steps: -3 is not" $small --steps -3
  refused "lr: nan is not" $small --lr nan
  refused "not a multiple of --kv-heads 3" $small --kv-heads 3
  refused "cannot be divided among" $small --heads 5 --kv-heads 1
  refused "need an even number" $small --hidden 36
  refused "experts 1 is no choice" $small --experts 1
  refused "top-k 3 is more than --experts 2" $small --experts 2 --top-k 3
  refused "need --experts N" $small --top-k 2
  refused "need --experts N" $small --balance 0.1
  refused "neither f32 nor bf16" $small --dtype f16
  refused "neither f32 nor bf16" $small --state f16
  refused "needs a program that is built for a GPU" $small --dtype bf16 --state bf16
  refused "takes no --plain or --compare" $small --tied --plain
  refused "has no text whose bytes" --random --bytes
  refused "batch 3 is not a multiple of --micro-batch 2" $small --micro-batch 2
  refused "takes no --plain" $small --compare --plain
  refused "text missing does not exist" $small --text missing
  echo "a few words" > short
  refused "too short: it has 12 tokens" --text short --bytes --seq-len 24
  refused "smallest is --vocab" $small --vocab 20
  refused "largest is --vocab" $small --vocab 100000
  "$program" $small --text missing --random > out 2> err || fail "--random: $(cat err)"
  grep -q "^random: " out && ! grep -q "^sample" out || fail "--random read a text, or made one: $(cat out)"
  # Address space for some of the threads. A sanitizer needs more of it than any limit.
  grep -q __asan_init "$program" || (ulimit -v 2000000 && refused "of 999 threads" $small --threads 1000)
  # In f32 these are 0, infinite, or 1.
  for option in eps lr min-lr weight-decay grad-clip temperature; do
    refused "$option: 1e-50 rounds away in f32" $small --$option 1e-50
    refused "$option: 1e39 is infinite in f32" $small --$option 1e39
    refused "$option: inf is not" $small --$option inf
    refused "$option: -1 is not" $small --$option -1
  done
  for option in beta1 beta2; do
    refused "$option: 0.99999999999 is 1 in f32" $small --$option 0.99999999999
    refused "$option: 1e-50 rounds away in f32" $small --$option 1e-50
  done
  refused "steps: 99999999999999999999 is not" $small --steps 99999999999999999999
  refused "does not fit into memory" $small --seq-len 65536 --batch 65536
  refused "does not fit into memory" $small --vocab 1048576 --hidden 65536 --heads 1024 --kv-heads 1024 --layers 1024
  outputs_are_checked $small
  "$program" $small --checkpoint state > out 2> err
  refused "--csv and --resume name one file" $small --resume state --csv ./state
  cp state whole
  head -c 1000 whole > state
  refused "state" $small --resume state
  head -c -1 whole > state
  refused "ends before tensor" $small --resume state
  head -c 1000 text > state
  refused "claims a header" $small --resume state
  refused "cannot be opened" $small --resume missing
  refused "trained with hidden 48, not 32" $small --hidden 32 --resume whole
  refused "trained with tokenizer" $small --vocab 301 --resume whole
  refused "trained with dtype f32, not bf16" $small --dtype bf16 --resume whole
  refused "has 8 steps already" $small --resume whole
  refused "--csv and --cache-dir name one file" $small --csv "$(ls cache/bpe-*.model | head -n 1)"
  # What was there stays where the run fails.
  echo old > kept
  code=0
  "$program" $small --lr 1e30 --min-lr 1e30 --warmup 0 --csv kept --svg kept.svg > out 2> err || code=$?
  [ $code -eq 1 ] && [ "$(cat kept)" = old ] || fail "a run that failed with $code wrote $(cat kept)"
  six_runs_at_once $small --steps 1 --sample-tokens 0
  ;;
threads)
  for dtype in f32 bf16; do
    for model in "" --plain; do
      for threads in 1 2 3; do
        "$program" $small --dtype $dtype $model --threads $threads --eval-every 3 --csv $threads.csv \
          --checkpoint $threads.state > $threads.out 2> err
        cmp 1.csv $threads.csv || fail "$dtype $model: the losses depend on the threads"
        cmp 1.state $threads.state || fail "$dtype $model: the weights depend on the threads"
        sed -n '/^sample:/,$p' $threads.out > $threads.sample
        cmp 1.sample $threads.sample || fail "$dtype $model: the sample depends on the threads"
      done
    done
  done
  [ "$(wc -l < 1.csv)" -eq 9 ] || fail "the CSV has $(wc -l < 1.csv) lines"
  "$program" $small --seed 2 --csv other.csv > out 2> err
  if cmp -s 1.csv other.csv; then fail "the seed changes nothing"; fi
  ;;
micro)
  # The same batch in pieces: other roundings, the same training. With such an --eps the size of the gradient counts.
  small="$small --eval-every 3 --eps 1 --lr 0.2 --grad-clip 0"
  for dtype in f32 bf16; do
    "$program" $small --dtype $dtype --csv whole.csv > out 2> err
    "$program" $small --dtype $dtype --csv same.csv --micro-batch 3 > out 2> err
    cmp whole.csv same.csv || fail "$dtype: a micro-batch that is the batch changes the losses"
    "$program" $small --dtype $dtype --csv parts.csv --micro-batch 1 --threads 2 > out 2> err
    grep -q "3 micro-batches a step over 1 rank" out || fail "$dtype: micro-batches are not told"
    if cmp -s whole.csv parts.csv; then fail "$dtype: micro-batches change no bit, so there are none"; fi
    paste -d, whole.csv parts.csv | awk -F, -v dtype=$dtype 'NR > 1 {
        limit = dtype == "f32" ? 1e-4 : 5e-2
        if (($3 - $7) ^ 2 > limit ^ 2 || ($4 - $8) ^ 2 > limit ^ 2) { print "step " $1 ": " $0; exit 1 } }' ||
      fail "$dtype: micro-batches train another model"
  done
  ;;
mpi)
  # More ranks than cores, as root, on a busy machine; a run that fails ends without a second of waiting.
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
    OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_odls_base_sigkill_timeout=0
  small="$small --batch 8 --eval-every 3 --threads 1"
  for dtype in f32 bf16; do
    "$program" $small --dtype $dtype --micro-batch 2 --csv one.csv --checkpoint one > out 2> err
    sed -n '/^sample:/,$p' out > one.sample
    for ranks in 2 4; do
      "$mpirun" -n $ranks "$program" $small --dtype $dtype --micro-batch 2 --csv $ranks.csv --checkpoint $ranks > out 2> err
      cmp one.csv $ranks.csv || fail "$dtype: $ranks ranks have other losses than one"
      cmp one $ranks || fail "$dtype: $ranks ranks have other weights than one"
      sed -n '/^sample:/,$p' out | cmp one.sample - || fail "$dtype: not one sample of $ranks ranks"
      [ "$(grep -c micro-batches out)" -eq 1 ] || fail "another rank than the first is heard"
    done
    # Without --micro-batch, a rank has one: that of the batch divided by the ranks.
    "$mpirun" -n 4 "$program" $small --dtype $dtype --csv default.csv --checkpoint state --stop-at 5 > out 2> err
    "$mpirun" -n 2 "$program" $small --dtype $dtype --micro-batch 2 --resume state --csv rest.csv > out 2> err
    (head -n 6 default.csv; tail -n 3 rest.csv) > both.csv
    # The run that stopped has a held-out loss where it did.
    cut -d, -f1-3 one.csv > expected
    cut -d, -f1-3 both.csv | cmp expected - || fail "$dtype: four ranks, resumed by two, have other losses"
  done
  refused_by_ranks() {
    sentence=$1
    shift
    if timeout 60 "$mpirun" -n 2 "$program" "$@" > out 2> err; then fail "$* was accepted"; fi
    [ "$(grep -c -- "$sentence" err)" -eq 1 ] || fail "$* wrote: $(cat err)"
  }
  refused_by_ranks "batch 3 cannot be divided among 2 ranks" $small --batch 3
  refused_by_ranks "gives 1 of them, which 2 ranks cannot share evenly" $small --micro-batch 8
  refused_by_ranks "text missing does not exist" $small --text missing
  refused_by_ranks "missing cannot be opened" $small --resume missing
  "$program" $small --micro-batch 2 --checkpoint whole > out 2> err
  refused_by_ranks "has 8 steps already" $small --micro-batch 2 --resume whole
  refused_by_ranks "trained with micro_batch 2, not 4" $small --resume whole
  refused_by_ranks "the loss is no longer finite" $small --lr 1e30 --min-lr 1e30 --warmup 0
  refused_by_ranks "layers: 0 is not" $small --layers 0
  refused_by_ranks "does not exist" $small --csv nowhere/losses.csv
  # Two ranks that were not given the same: one sentence, both end, and none of them trains.
  refused_apart() {
    code=0
    timeout 60 "$mpirun" -n 1 "$program" $small $2 : -n 1 "$program" $small $3 > out 2> err || code=$?
    [ $code -eq 2 ] || fail "$2 beside $3 ended with $code: $(cat err)"
    [ "$(grep -c -- "$1" err)" -eq 1 ] || fail "$2 beside $3 wrote: $(cat err)"
    if grep -q "training" err; then fail "$2 beside $3 trained: $(cat err)"; fi
  }
  for run in "first" "second --seed 2" "third --stop-at 4"; do
    "$program" $small --micro-batch 4 --stop-at 5 --checkpoint $run > out 2> err
  done
  refused_apart "trained with seed 2, not 1" "--resume first" "--resume second --seed 1"
  refused_apart "resume from different checkpoints" "--resume first" "--resume third"
  refused_apart "different --resume" "--resume first" ""
  refused_apart "missing cannot be opened" "--resume first" "--resume missing"
  refused_apart "different --seed" "" "--seed 2"
  refused_apart "different --steps" "" "--steps 9"
  refused_apart "different --lr" "" "--lr 2e-3"
  refused_apart "different --stop-at" "" "--stop-at 4"
  refused_apart "different --eval-every" "" "--eval-every 2"
  refused_apart "different --save-every" "--checkpoint one --save-every 2" "--checkpoint one"
  refused_apart "different --dtype" "" "--dtype bf16"
  refused_apart "layers: 0 is not" "" "--layers 0"
  refused_apart "asked for --help alone" "" "--help"
  cp text text2
  echo more >> text2
  refused_apart "read different texts" "" "--text text2"
  refused_apart "text missing does not exist" "" "--text missing"
  # The same by other names, with other threads, is the same.
  cp first copy
  "$mpirun" -n 1 "$program" $small --resume first --checkpoint end : -n 1 "$program" $small --resume copy --threads 2 \
    > out 2> err || fail "equal checkpoints are refused: $(cat err)"
  [ -s end ] || fail "the first rank alone has --checkpoint, and there is none"
  # The first rank finds at the end that it cannot write; the others do not wait for it.
  mkdir later
  timeout 60 "$mpirun" -n 2 "$program" $small --steps 300 --csv later/losses.csv > out 2> err &
  job=$!
  until grep -q training err || ! kill -0 $job 2> /dev/null; do sleep 0.1; done
  rmdir later
  code=0
  wait $job || code=$?
  [ $code -eq 2 ] || fail "a run that could not write ended with $code: $(cat err)"
  [ "$(grep -c "cannot be written" err)" -eq 1 ] || fail "a run that could not write wrote: $(cat err)"
  ;;
resume)
  for dtype in f32 bf16; do
    "$program" $small --dtype $dtype --csv whole.csv --checkpoint whole > whole.out 2> err
    "$program" $small --dtype $dtype --stop-at 5 --checkpoint state > out 2> err
    "$program" $small --dtype $dtype --resume state --checkpoint state --csv rest.csv > rest.out 2> err
    cmp whole state || fail "$dtype: the resumed run ends with other weights"
    tail -n 3 whole.csv > expected
    tail -n 3 rest.csv | cmp expected - || fail "$dtype: the resumed run has other losses"
    [ "$(wc -l < rest.csv)" -eq 4 ] || fail "the resumed run took other steps"
    "$program" $small --dtype $dtype --save-every 3 --stop-at 4 --checkpoint early > out 2> err
    "$program" $small --dtype $dtype --stop-at 4 --checkpoint late > out 2> err
    cmp early late || fail "$dtype: saving on the way changes the run"
  done
  # Whatever decides the steps to come has to be the same, with all digits; of what does not, each run has its own.
  "$program" $small --stop-at 5 --checkpoint state > out 2> err
  for other in "lr 0.002:0.001" "lr 0.0010000000000000002:0.001" "min-lr 2e-4:1e-04" "warmup 3:2" \
    "weight-decay 0.2:0.1" "beta1 0.8:0.9" "beta2 0.9:0.95" "eps 1e-7:1e-08" "grad-clip 2:1" "seq-len 16:32" "batch 6:3" \
    "micro-batch 1:3" "steps 9:8" "seed 2:1"; do
    option=${other%% *} values=${other#* }
    key=$(echo "$option" | tr - _)
    refused "was trained with $key ${values#*:}, not" $small --$option ${values%:*} --resume state
  done
  refused "was trained with plain false, not true" $small --plain --resume state
  (cat text; echo more) > longer
  "$program" $small --bytes --text text --vocab 256 --stop-at 5 --checkpoint bytes > out 2> err && fail "--vocab with --bytes"
  of_bytes="--cache-dir cache --bytes --layers 1 --hidden 16 --intermediate 16 --heads 2 --kv-heads 1 --seq-len 16 --batch 2
    --steps 8 --sample-tokens 0"
  "$program" $of_bytes --text text --stop-at 5 --checkpoint bytes > out 2> err || fail "$(cat err)"
  refused "was trained with text" $of_bytes --text longer --resume bytes
  "$program" $of_bytes --text text --stop-at 7 --eval-every 2 --save-every 1 --threads 2 --csv other.csv --checkpoint other \
    --resume bytes > out 2> err || fail "what does not decide the steps is refused: $(cat err)"
  ;;
compare)
  for dtype in f32 bf16; do
    "$program" $small --steps 30 --compare --dtype $dtype --csv losses.csv --svg losses.svg > out 2> err
    # step,rate,fused,held out,plain,held out
    awk -F, -v dtype=$dtype 'NR == 2 { first = $3 } NR > 1 {
        limit = dtype == "f32" ? 1e-3 : 5e-2
        if (($3 - $5) ^ 2 > limit ^ 2) { print "step " $1 ": " $3 " and " $5; exit 1 }
        last = $3 }
      END { if (!(last < first - 0.3)) { print "from " first " to " last; exit 1 } }' losses.csv ||
      fail "$dtype: the two ways do not agree, or do not learn"
    grep -q "tokens per second" out && grep -q "peak of activations" out || fail "the table lacks a line"
    grep -q ">plain<" losses.svg || fail "the picture lacks a curve"
    grep -q "30/30" err || fail "there was no progress"
  done
  ;;
experts)
  small="$small --intermediate 40 --experts 4 --top-k 2"
  for dtype in f32 bf16; do
    "$program" $small --dtype $dtype --threads 1 --csv whole.csv --checkpoint whole > whole.out 2> err
    grep -q "4 experts a layer, 2 of them for a token" whole.out || fail "the experts are not told"
    "$program" $small --dtype $dtype --threads 3 --csv more.csv --checkpoint more > more.out 2> err
    cmp whole.csv more.csv && cmp whole more || fail "$dtype: the bits depend on the threads"
    sed -n '/^sample:/,$p' whole.out > expected
    sed -n '/^sample:/,$p' more.out | cmp expected - || fail "$dtype: the sample depends on the threads"
    "$program" $small --dtype $dtype --stop-at 5 --checkpoint state > out 2> err
    "$program" $small --dtype $dtype --resume state --checkpoint state > rest.out 2> err
    cmp whole state || fail "$dtype: the resumed run ends with other weights"
    sed -n '/^sample:/,$p' rest.out | cmp expected - || fail "$dtype: the resumed run has another sample"
  done
  refused "trained with top_k 2, not 1" $small --dtype bf16 --top-k 1 --resume state
  refused "trained with experts 4, not 5" $small --dtype bf16 --experts 5 --resume state
  refused "trained with experts 4, not 0" ${small% --experts 4 --top-k 2} --dtype bf16 --resume state
  "$program" $small --balance 0 --threads 1 --csv unbalanced.csv > out 2> err
  "$program" $small --threads 1 --csv whole.csv > out 2> err
  if cmp -s whole.csv unbalanced.csv; then fail "the balance loss trains nothing"; fi
  "$program" $small --steps 30 --compare --csv losses.csv > out 2> err
  # In bf16 a rounding may send a token to another expert.
  awk -F, 'NR == 2 { first = $3 } NR > 1 {
      if (($3 - $5) ^ 2 > 1e-6) { print "step " $1 ": " $3 " and " $5; exit 1 }
      last = $3 }
    END { if (!(last < first - 0.3)) { print "from " first " to " last; exit 1 } }' losses.csv ||
    fail "the two ways do not agree, or do not learn"
  "$program" $small --experts 3 --top-k 3 --steps 30 --dtype bf16 --compare --csv losses.csv > out 2> err
  awk -F, 'NR > 1 { if (($3 - $5) ^ 2 > 25e-4) { print "step " $1 ": " $3 " and " $5; exit 1 } }' losses.csv ||
    fail "the two ways do not agree in bf16"
  ;;
device)
  small="--text text --cache-dir cache --bytes --layers 2 --hidden 16 --intermediate 24 --heads 4 --kv-heads 2 --seq-len 16
    --batch 2 --steps 3 --warmup 1 --sample-tokens 3 --temperature 0 --threads 1"
  for model in "--dtype f32" "--dtype bf16" "--dtype f32 --tied"; do
    "$program" $small $model --csv device.csv --checkpoint device > out 2> err || fail "$model: $(cat err)"
    sed -n '/^sample:/,$p' out > sample
    "$other" $small $model --csv host.csv > out 2> err || fail "$model: $(cat err)"
    [ "$model" = "--dtype bf16" ] || sed -n '/^sample:/,$p' out | cmp - sample || fail "$model: another sample"
    paste -d, host.csv device.csv | awk -F, -v limit="$([ "$model" = "--dtype bf16" ] && echo 2e-3 || echo 2e-6)" '
      NR > 1 && (($3 - $7) ^ 2 > limit ^ 2 || ($4 - $8) ^ 2 > limit ^ 2) { print "step " $1 ": " $0; exit 1 }' ||
      fail "$model: other losses than on a CPU"
  done
  cp device whole
  "$program" $small --tied --stop-at 2 --checkpoint state > out 2> err || fail "$(cat err)"
  "$program" $small --tied --resume state --checkpoint state > out 2> err || fail "$(cat err)"
  cmp whole state || fail "the resumed run ends with other weights"
  refused "trained with tied true, not false" $small --resume whole
  "$other" $small --csv host.csv > out 2> err || fail "$(cat err)"
  "$program" $small --dtype bf16 --state bf16 --csv device.csv --checkpoint device > out 2> err || fail "$(cat err)"
  paste -d, host.csv device.csv | awk -F, 'NR > 1 && ($3 - $7) ^ 2 > 1e-2 { print "step " $1 ": " $0; exit 1 }' ||
    fail "without masters in f32: other losses than on a CPU"
  refused "no --plain, --compare, --experts, --profile and --trace" $small --plain
  refused "no --plain, --compare, --experts, --profile and --trace" $small --experts 2
  refused "no --micro-batch" $small --micro-batch 1
  refused "needs --dtype bf16" $small --state bf16
  ;;
profile)
  small="$small --threads 2 --batch 4"
  "$program" $small --csv plain.csv > out 2> err
  "$program" $small --csv timed.csv --profile --trace trace.json > table 2> err
  cmp plain.csv timed.csv || fail "a profile changes the losses"
  # A table for one thread and one for two: name, pass, calls, milliseconds, share, part of the limit.
  [ "$(grep -c "profile of 3 steps on 1 thread," table)" -eq 1 ] || fail "no table of one thread: $(cat table)"
  [ "$(grep -c "profile of 3 steps on 2 threads," table)" -eq 1 ] || fail "no table of two threads: $(cat table)"
  awk '/^profile of / { tables += 1; step[tables] = $(NF - 3) }
    $2 ~ /^(forward|backward|optimizer)$/ && NF == 7 { share[tables] += $5; ms[tables] += $4
      if (!($7 >= 0 && $7 < 1000)) { print "of the limit: " $0; exit 1 } }
    /^between the calls/ { share[tables] += $(NF - 1); ms[tables] += $(NF - 2); between = $(NF - 1) }
    END { for (t = 1; t <= tables; ++t)
        if (share[t] < 99 || share[t] > 101 || ms[t] < 0.9 * step[t] || ms[t] > 1.1 * step[t]) {
          print "table " t ": " share[t] " %, " ms[t] " of " step[t] " ms"; exit 1 }
      if (tables != 2) exit 1 }' table || fail "the shares do not add up to a step: $(cat table)"
  # What a step of two layers calls.
  called() {
    [ "$(grep -c "^$1  *$2  *$3 " table)" -eq 2 ] || fail "$1 $2 was not called $3 times a step: $(cat table)"
  }
  called embedding forward 1
  called rms_norm forward 1
  called gemm forward 8
  called attention forward 2
  called fused_linear_cross_entropy forward 1
  called gemm backward 18
  called attention backward 2
  called fused_add_rms_norm backward 7
  called swiglu backward 4
  called adamw optimizer 1
  if grep -q "^moe" table; then fail "a model without experts calls moe"; fi
  # The trace: an array of complete events, calls within passes within steps.
  if command -v python3 > python; then python3 -m json.tool trace.json > parsed || fail "the trace is no JSON"; fi
  [ "$(head -n 1 trace.json)$(tail -n 1 trace.json)" = "[]" ] || fail "the trace is no array"
  sed -n 's/.*"name":"\([a-z_]*\)","cat":"\([a-z]*\)","ph":"X","ts":\([0-9.]*\),"dur":\([0-9.]*\),"pid":1,"tid":\([12]\).*/\1 \2- \3 \4 \5/p' \
    trace.json > events
  [ "$(wc -l < events)" -eq $(($(wc -l < trace.json) - 2)) ] || fail "not every line of the trace is an event"
  awk '{ end = $3 + $4 } 
    $1 == "step" { ++steps; tids[$5] += 1; first = $3; last = end; next }
    $2 == "-" { ++passes; pass = $1; pass_first = $3; pass_last = end
      if ($3 < first || end > last + 0.002) { print; exit 1 }; next }
    { ++calls; if ($2 != pass "-" || $3 < pass_first || end > pass_last + 0.002) { print; exit 1 } }
    END { if (steps != 8 || passes != 24 || calls < 8 * 40 || tids[1] != 4 || tids[2] != 4) {
        print steps, passes, calls, tids[1], tids[2]; exit 1 } }' events || fail "events are not nested"
  refused "take no --plain or --compare" $small --profile --plain
  refused "take no --plain or --compare" $small --trace trace.json --compare
  refused "does not exist" $small --trace nowhere/trace.json
  "$program" $small --threads 1 --steps 1 --profile --experts 2 --top-k 1 > table 2> err
  [ "$(grep -c "profile of 1 step on 1 thread" table)" -eq 1 ] || fail "no table of a single step"
  [ "$(grep -c "^moe  *\(forward\|backward\)  *2 " table)" -eq 2 ] || fail "the experts are not in the table"
  ;;
*)
  fail "there is no such part"
  ;;
esac
