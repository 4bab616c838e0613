#!/bin/sh
# Runs the program at small sizes: check_preference.sh refuses|learns|policy PROGRAM FOLDER TRAIN_LLAMA
set -eu
part=$1 program=$2 folder=$3 train_llama=$4
. "$(dirname "$0")/../../support/check_refusals.sh"
. "$(dirname "$0")/check_outputs.sh"
rm -rf "$folder" && mkdir -p "$folder" && cd "$folder"

small_text
common="--text text --cache-dir cache --vocab 300 --seq-len 32"
model="--layers 2 --hidden 48 --intermediate 80 --heads 4 --kv-heads 2"
small="$common $model --batch 4 --pairs 256 --held-out-pairs 32 --steps 60 --warmup 2 --lr 1e-3"

case $part in
refuses)
  "$program" --help > out || fail "--help ended with $?"
  grep -q -- --rejected out || fail "--help does not name --rejected"
  refused "--wrong" --wrong
  refused "ppo is not one of dpo, orpo, simpo and kto" $small --loss ppo
  refused "is not one of dpo" $small --loss "dpo orpo"
  refused "neither elsewhere nor shuffled" $small --rejected worse
  refused "steps: 0 is not" $small --steps 0
  refused "pairs: 0 is not" $small --pairs 0
  refused "beta: nan is not" $small --beta nan
  refused "gamma: -1 is not" $small --loss simpo --gamma -1
  refused "dpo takes no --gamma" $small --gamma 1
  refused "leaves too little of --seq-len 32" $small --prompt-len 33
  refused "leaves too little of --seq-len 32" $small --prompt-len 32 --rejected shuffled
  refused "takes no --warmup-steps" $small --policy state --warmup-steps 3
  refused "not a multiple of --kv-heads 3" $small --kv-heads 3
  refused "min-lr is larger" $small --lr 1e-6
  refused "text missing does not exist" $small --text missing
  echo "a few words" > short
  refused "too short: it has 12 tokens" --text short --bytes --seq-len 4
  : > empty
  refused "is empty" $small --text empty
  refused "cannot be opened" $small --policy missing
  # In f32 these are 0 or infinite.
  for option in lr min-lr warmup-lr beta gamma; do
    refused "$option: 1e-50 rounds away in f32" $small --loss simpo --$option 1e-50
    refused "$option: 1e39 is infinite in f32" $small --loss simpo --$option 1e39
  done
  refused "leave no room in f32 for a reward" $small --beta 1e31
  refused "steps: 99999999999999999999 is not" $small --steps 99999999999999999999
  refused "do not fit into memory" $small --seq-len 65536 --pairs 1048576
  outputs_are_checked $small
  refused "--checkpoint and --policy name one file" $small --policy kept --checkpoint ./kept
  head -c 1000 text > state
  refused "state" $small --policy state
  # The shortest text, and the longest prompt.
  head -c 30 text > short
  "$program" --text short --bytes --seq-len 4 --prompt-len 4 $model --batch 2 --pairs 3 --held-out-pairs 2 --steps 1 \
    --warmup-steps 1 > out 2> err || fail "the shortest text: $(cat err)"
  ;;
learns)
  "$train_llama" $common $model --batch 8 --steps 300 --sample-tokens 0 --checkpoint start > out 2> err
  small="$small --policy start"
  for loss in dpo orpo simpo kto; do
    for threads in 1 2 3; do
      "$program" $small --loss $loss --threads $threads --csv $threads.csv --svg margins.svg \
        --checkpoint $threads.state > $threads.out 2> err
      cmp 1.csv $threads.csv || fail "$loss: the rewards depend on the threads"
      cmp 1.state $threads.state || fail "$loss: the weights depend on the threads"
    done
    # step,loss,chosen,rejected,margin,accuracy,held-out margin,held-out accuracy
    [ "$(wc -l < 1.csv)" -eq 61 ] || fail "$loss: the CSV has $(wc -l < 1.csv) lines"
    awk -F, 'NR > 1 && NR < 7 { before += $5 / 5 } NR > 56 { after += $5 / 5; loss += $2 / 5 } NR == 2 { first = $2 }
      END { if (!(after > before && loss < first)) { print before, after, first, loss; exit 1 } }' 1.csv ||
      fail "$loss: the margin does not grow"
    awk '/^reward margin/ { before = $3; after = $4 } END { if (!(after > before)) { print before, after; exit 1 } }' 1.out ||
      fail "$loss: the held-out margin does not grow"
    # The start is the trained policy: random weights would prefer the true text in half of the pairs.
    awk '/^chosen has/ { exit !($6 > 0.7) }' 1.out || fail "$loss: $(grep "^chosen has" 1.out)"
    # ORPO and SimPO have no reference: their accuracy is high from the start.
    case $loss in dpo | kto) said="rose from 0.500" ;; *) said="" ;; esac
    grep -q "The held-out accuracy $said" 1.out || fail "$loss: $(grep accuracy 1.out)"
    grep -q ">batch<" margins.svg && grep -q ">held out<" margins.svg || fail "$loss: the picture lacks a curve"
    grep -q "60/60  loss .*  margin " err || fail "$loss: there was no progress: $(cat err)"
    cp 1.csv $loss.csv
  done
  # Each loss is another one; DPO and KTO begin at the reference.
  for loss in dpo kto; do
    awk -F, 'NR == 2 { exit !($5 ^ 2 < 1e-8) }' $loss.csv || fail "$loss does not begin at its reference"
  done
  if cmp -s dpo.csv kto.csv || cmp -s orpo.csv simpo.csv; then fail "two losses are the same"; fi
  "$program" $small --seed 2 --csv other.csv > out 2> err
  if cmp -s dpo.csv other.csv; then fail "the seed changes nothing"; fi
  "$program" $small --rejected shuffled --csv shuffled.csv > out 2> err
  if cmp -s dpo.csv shuffled.csv; then fail "--rejected changes nothing"; fi
  grep -q "The held-out accuracy rose from 0" out || fail "shuffled: $(grep accuracy out)"
  ;;
policy)
  "$train_llama" $common $model --batch 8 --steps 20 --sample-tokens 0 --checkpoint state > out 2> err
  "$program" $small --steps 5 --policy state --checkpoint from_file > out 2> err
  # The same policy trained here ends the same.
  "$program" $small --steps 5 --warmup-steps 20 --threads 3 --checkpoint same > out 2> err
  cmp from_file same || fail "a policy from a file is another one"
  "$program" $small --steps 5 --warmup-steps 19 --checkpoint other > out 2> err
  if cmp -s same other; then fail "the policy does not depend on its own steps"; fi
  refused "trained with hidden 48, not 40" $small --hidden 40 --policy state
  refused "trained with tokenizer" $small --vocab 301 --policy state
  # train_llama goes on with it.
  "$train_llama" $common $model --batch 8 --steps 6 --sample-tokens 8 --resume from_file > out 2> err ||
    fail "train_llama refuses the policy: $(cat err)"
  ;;
*)
  fail "there is no such part"
  ;;
esac
