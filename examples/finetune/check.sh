#!/bin/sh
# Runs the program on a tiny model: check.sh refuses|learns|resume|adapters|crash PROGRAM FOLDER FIXTURES
set -eu
part=$1 program=$2 folder=$3 fixtures=$4
. "$(dirname "$0")/../support/check_refusals.sh"
rm -rf "$folder" && mkdir -p "$folder" && cd "$folder"
model=$fixtures/tiny

# Documents of 5 to 29 ids below 64, of which each is a function of the one before it.
awk 'BEGIN { for (i = 0; i < 60; ++i) { x = i % 64; n = 5 + i % 25; line = x;
  for (j = 1; j < n; ++j) { x = (x * 5 + 3) % 64; line = line " " x } print line } }' > train.ids
head -12 train.ids > held.ids
small="--data train.ids --seq-len 32 --steps 12 --lr 3e-3 --threads 2"

# A copy of the model whose config.json has other values.
with() {
  rm -rf changed && cp -r "$model" changed && chmod -R u+w changed
  sed "s/$1/$2/" "$model/config.json" > changed/config.json
  ! cmp -s "$model/config.json" changed/config.json || fail "$1 is not in config.json"
}

loss_of() { cut -d, -f3 "$1" | tail -n +2; }

case $part in
refuses)
  "$program" --help > out || fail "--help ended with $?"
  grep -q -- --lora-rank out || fail "--help does not name --lora-rank"
  refused "folder is required" --data train.ids
  refused "data is required" "$model"
  refused "nowhere is not a folder" nowhere $small
  refused "config.json cannot be opened" . $small
  refused "neither model.safetensors nor" "$fixtures/llama" $small
  refused "steps: 0 is not" "$model" $small --steps 0
  refused "f64 is not one of" "$model" $small --dtype f64
  refused "min-lr is larger" "$model" $small --min-lr 1
  refused "resume needs --out" "$model" $small --resume
  refused "merge needs adapters" "$model" $small --merge
  refused "patience needs --eval-every" "$model" $small --eval-data held.ids --patience 2
  refused "needs --eval-data or --eval-share" "$model" $small --eval-every 2
  refused "exclude one another" "$model" $small --eval-data held.ids --eval-share 0.1
  refused "no projection c_attn" "$model" $small --lora-rank 2 --lora-targets c_attn
  refused "words.doc" "$model" --data words.doc
  refused "missing.ids cannot be opened" "$model" --data missing.ids
  refused "cannot be opened" "$model" $small --out new --resume
  refused "name one file" "$model" $small --out "$model"
  refused "name one file" "$model" $small --csv train.ids
  printf '1 2\n3 64\n' > wrong.ids
  refused 'wrong.ids, line 2, has "64", which is no id below 64' "$model" --data wrong.ids
  printf '1 2\n3 x\n' > wrong.ids
  refused 'wrong.ids, line 2, has "x", which is no id below 64' "$model" --data wrong.ids
  : > empty.ids
  refused "holds no document" "$model" --data empty.ids
  with '"llama"' '"gpt2"'
  refused "model_type gpt2, which this program does not know" changed $small
  with '"silu"' '"relu"'
  refused "activation relu, which" changed $small
  with '"rope_type": "default"' '"rope_type": "spiral"'
  refused "rope scaling spiral, which" changed $small
  with '"attention_dropout": 0.0' '"attention_dropout": 0.1'
  refused "attention_dropout, which" changed $small
  with '"attention_dropout": 0.0' '"quantization_config": {}'
  refused "quantization_config, which" changed $small
  with '"hidden_size": 16' '"hidden_size": -16'
  refused "hidden_size that is not a whole number" changed $small
  with '"hidden_size": 16' '"hidden_size": 32'
  refused "of another shape than" changed $small
  with '"hidden_size": 16' '"hidden_size": 2000000000'
  refused "does not fit into memory\|overflow" changed $small
  with '"num_hidden_layers": 2' '"num_hidden_layers": 3'
  refused "holds no tensor \"model.layers.2" changed $small
  with '"num_hidden_layers": 2' '"num_hidden_layers": 1'
  refused "holds a tensor \"model.layers.1.*does not have" changed $small
  with '"num_key_value_heads": 2' '"num_key_value_heads": 3'
  refused "no multiple of num_key_value_heads" changed $small
  with '{' '['
  refused "is not a JSON object" changed $small
  with '"dtype"' '"kind"'
  for file in changed/model-*.safetensors; do break; done
  head -c 700 "$file" > cut && cp cut "$file"
  refused "safetensors file changed/model-0.* bytes long\|safetensors file changed/model-0.*ends before tensor" \
    changed $small
  rm "$file"
  refused "safetensors file changed/model-0.*cannot be opened" changed $small
  sed 's/"model-00001-of[^"]*"/"..\/tiny"/' "$model/model.safetensors.index.json" > changed/model.safetensors.index.json
  refused "a file that is not one of its folder" changed $small
  echo '{' > changed/model.safetensors.index.json
  refused "has no weight_map" changed $small
  [ ! -e new/model.safetensors ] || fail "a refused run left a model"
  ;;

learns)
  small="--data train.ids --seq-len 32 --steps 40 --lr 1e-2 --batch 4 --threads 2"
  "$program" "$model" $small --eval-data held.ids --csv run.csv --svg run.svg --out saved > out 2> err ||
    fail "$(cat err)"
  grep -q "saved in saved" out || fail "it does not say where the model is: $(cat out)"
  grep -q "<svg" run.svg || fail "no picture"
  cmp "$model/config.json" saved/config.json || fail "config.json was changed"
  awk -v first="$(loss_of run.csv | head -1)" -v last="$(loss_of run.csv | tail -1)" \
    'BEGIN { exit !(last < 0.6 * first) }' || fail "the loss did not fall: $(loss_of run.csv)"
  # The same losses for any number of threads, and with layers made again; near ones in bf16.
  "$program" "$model" $small --eval-data held.ids --csv one.csv --threads 1 > out 2>&1 || fail "$(cat out)"
  cmp run.csv one.csv || fail "the losses depend on the threads"
  "$program" "$model" $small --csv again.csv --recompute > out 2>&1 || fail "$(cat out)"
  "$program" "$model" $small --csv bf16.csv --dtype bf16 --profile > out 2>&1 || fail "$(cat out)"
  grep -q "attention" out || fail "no profile: $(cat out)"
  for other in again:1e-5 bf16:3e-2; do
    loss_of run.csv > a && loss_of ${other%:*}.csv > b
    paste -d' ' a b | awk -v most=${other#*:} '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > most) exit 1 }' ||
      fail "the losses of ${other%:*} are not near: $(paste a b)"
  done
  # What was saved goes in again, and begins where the run ended.
  "$program" saved $small --eval-data held.ids --lr 1e-12 --steps 1 --csv next.csv > out 2>&1 || fail "$(cat out)"
  [ "$(tail -1 run.csv | cut -d, -f6 | cut -c1-6)" = "$(tail -1 next.csv | cut -d, -f6 | cut -c1-6)" ] ||
    fail "the saved model has another loss: $(tail -1 run.csv) and $(tail -1 next.csv)"
  # A share of the data instead of a file of its own.
  "$program" "$model" $small --eval-share 0.2 --csv share.csv > out 2>&1 || fail "$(cat out)"
  grep -q "held-out loss" out || fail "a share of the data was not evaluated: $(cat out)"
  grep -q "^48 samples" out || grep -q "^4[0-9] samples" out || fail "the share was trained on: $(cat out)"
  # The run ends where held-out loss no longer falls: at a rate of 1e-12 it does not.
  "$program" "$model" $small --lr 1e-12 --eval-data held.ids --eval-every 1 --patience 3 --csv early.csv > out 2>&1 ||
    fail "$(cat out)"
  [ "$(wc -l < early.csv)" -lt 40 ] || fail "--patience 3 did not end the run"
  ;;

resume)
  small="$small --eval-data held.ids --eval-every 4"
  for kind in "" "--dtype bf16 --accumulate 2" "--batch 2 --lora-rank 2 --merge"; do
    rm -rf whole parts
    "$program" "$model" $small $kind --out whole --csv whole.csv > out 2>&1 || fail "$(cat out)"
    "$program" "$model" $small $kind --out parts --stop-at 5 > out 2>&1 || fail "$(cat out)"
    "$program" "$model" $small $kind --out parts --resume --csv rest.csv > out 2>&1 || fail "$(cat out)"
    cmp whole/model.safetensors parts/model.safetensors || fail "a resumed run ($kind) leaves another model"
    cmp whole/training_state.safetensors parts/training_state.safetensors || fail "another state ($kind)"
    tail -7 whole.csv > a && tail -7 rest.csv > b && cmp a b || fail "a resumed run ($kind) has other losses"
    refused "has 12 steps already" "$model" $small $kind --out parts --resume
  done
  refused "of a run with another method" "$model" $small --out parts --resume
  refused "of a run with another seed" "$model" $small $kind --seed 3 --out parts --resume
  head -c 3000 parts/training_state.safetensors > cut && cp cut parts/training_state.safetensors
  refused "safetensors file parts/training_state" "$model" $small $kind --out parts --resume
  cp "$model/model-00001"* parts/training_state.safetensors
  refused "is not a state of this program" "$model" $small $kind --out parts --resume
  ;;

adapters)
  "$program" "$model" $small --steps 40 --batch 4 --lr 1e-2 --lora-rank 4 --lora-targets q_proj,v_proj --out beside \
    --csv run.csv > out 2>&1 || fail "$(cat out)"
  [ ! -e beside/model.safetensors ] || fail "the frozen weights were saved"
  grep -q '"r": 4' beside/adapter_config.json || fail "$(cat beside/adapter_config.json)"
  grep -q 'base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight' beside/adapter_model.safetensors ||
    fail "no adapter under PEFT's name"
  awk -v first="$(loss_of run.csv | head -1)" -v last="$(loss_of run.csv | tail -1)" \
    'BEGIN { exit !(last < first) }' || fail "the loss did not fall: $(loss_of run.csv)"
  ;;

crash)
  # A second run dies while it writes its state, where no file may be longer than 4 KiB, or its model, where 8 KiB are
  # enough for the state of its adapters.
  merged="--lora-rank 1 --lora-targets q_proj --merge"
  for kind in "8:" "16:$merged"; do
    rm -rf kept
    "$program" "$model" $small ${kind#*:} --out kept > out 2>&1 || fail "$(cat out)"
    cp kept/model.safetensors old && cp kept/training_state.safetensors old_state
    code=0
    (ulimit -f "${kind%%:*}" && exec "$program" "$model" $small ${kind#*:} --lr 1e-3 --out kept) > out 2>&1 ||
      code=$?
    [ $code -ne 0 ] || fail "a run that could not write its model ended well"
    cmp old kept/model.safetensors || fail "the old model did not survive"
    [ -z "${kind#*:}" ] && { cmp old_state kept/training_state.safetensors || fail "the old state did not survive"; }
    [ -n "${kind#*:}" ] && { ! cmp -s old_state kept/training_state.safetensors || fail "it died before its model"; }
    "$program" kept $small --steps 1 > out 2>&1 || fail "the old model cannot be read: $(cat out)"
  done
  ;;

*) fail "no such part" ;;
esac
