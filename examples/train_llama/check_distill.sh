#!/bin/sh
# Runs the program at small sizes: check_distill.sh refuses|learns|teacher PROGRAM FOLDER TRAIN_LLAMA
set -eu
part=$1 program=$2 folder=$3 train_llama=$4
. "$(dirname "$0")/../../support/check_refusals.sh"
. "$(dirname "$0")/check_outputs.sh"
rm -rf "$folder" && mkdir -p "$folder" && cd "$folder"

small_text
common="--text text --cache-dir cache --vocab 300 --seq-len 32 --batch 3"
teacher="--layers 2 --hidden 48 --intermediate 80 --heads 4 --kv-heads 2"
small="$common --teacher-layers 2 --teacher-hidden 48 --teacher-intermediate 80 --teacher-heads 4 --teacher-kv-heads 2
  --layers 1 --hidden 24 --intermediate 40 --heads 2 --kv-heads 1 --warmup 2"

case $part in
refuses)
  "$program" --help > out || fail "--help ended with $?"
  grep -q -- --teacher-steps out || fail "--help does not name --teacher-steps"
  refused "--wrong" --wrong
  refused "steps: 0 is not" $small --steps 0
  refused "teacher-steps: 0 is not" $small --teacher-steps 0
  refused "1.5 is not a number from 0 to 1" $small --beta 1.5
  refused "nan is not a number from 0 to 1" $small --beta nan
  refused "0 is not a number above 0" $small --softmax-temperature 0
  refused "not between 1e-30 and 1e30" $small --softmax-temperature 1e31
  refused "takes no --teacher-steps" $small --teacher state --teacher-steps 3
  refused "not a multiple of --kv-heads 3" $small --kv-heads 3
  refused "of the teacher, --heads 4 is not a multiple of --kv-heads 3" $small --teacher-kv-heads 3
  refused "text missing does not exist" $small --text missing
  refused "cannot be opened" $small --teacher missing
  # In f32 these are 0, infinite, or 1.
  for option in lr min-lr teacher-lr softmax-temperature; do
    refused "$option: 1e-50 rounds away in f32" $small --$option 1e-50
    refused "$option: 1e39 is infinite in f32" $small --$option 1e39
  done
  refused "beta: 1e-50 rounds away in f32" $small --beta 1e-50
  refused "beta: 0.99999999999 is 1 in f32" $small --beta 0.99999999999
  refused "steps: 99999999999999999999 is not" $small --steps 99999999999999999999
  refused "do not fit into memory" $small --seq-len 65536 --batch 65536
  outputs_are_checked $small
  refused "--checkpoint and --teacher name one file" $small --teacher kept --checkpoint ./kept
  head -c 1000 text > state
  refused "state" $small --teacher state
  ;;
learns)
  for threads in 1 2 3; do
    "$program" $small --teacher-steps 30 --steps 40 --threads $threads --csv $threads.csv --svg curves.svg \
      --checkpoint $threads.state > $threads.out 2> err
    cmp 1.csv $threads.csv || fail "the divergences depend on the threads"
    cmp 1.state $threads.state || fail "the weights depend on the threads"
  done
  # step,learning_rate,divergence,student,teacher
  [ "$(wc -l < 1.csv)" -eq 41 ] || fail "the CSV has $(wc -l < 1.csv) lines"
  awk -F, 'NR == 2 { first = $3 } NR == 11 { early = $4 } { last = $3; held_out = $4 }
    END { if (!(last < 0.7 * first && held_out < early - 0.1)) { print first, last, early, held_out; exit 1 } }' 1.csv ||
    fail "the student does not learn"
  grep -q ">divergence<" curves.svg && grep -q ">teacher, held out<" curves.svg || fail "the picture lacks a curve"
  grep -q "40/40" err || fail "there was no progress"
  grep -q "teacher, held-out loss" 1.out || fail "the table lacks a line"
  for beta in 0 1; do
    "$program" $small --teacher-steps 10 --steps 10 --beta $beta --softmax-temperature 2 --csv $beta.csv > out 2> err
    awk -F, 'NR == 2 { first = $3 } { last = $3 } END { exit !(last < first) }' $beta.csv || fail "beta $beta does not learn"
  done
  ;;
teacher)
  "$train_llama" $common $teacher --steps 20 --warmup 2 --sample-tokens 0 --checkpoint state > out 2> err
  "$program" $small --teacher state --steps 5 --checkpoint student > out 2> err
  # The same teacher trained here gives the same student.
  "$program" $small --teacher-steps 20 --steps 5 --checkpoint same > out 2> err
  cmp student same || fail "a teacher from a file is another one"
  refused "trained with hidden 48, not 40" $small --teacher-hidden 40 --teacher state
  refused "trained with tokenizer" $small --vocab 301 --teacher state
  # train_llama goes on with the student.
  "$train_llama" $common --layers 1 --hidden 24 --intermediate 40 --heads 2 --kv-heads 1 --warmup 2 --steps 6 \
    --sample-tokens 8 --resume student > out 2> err || fail "train_llama refuses the student: $(cat err)"
  ;;
*)
  fail "there is no such part"
  ;;
esac
