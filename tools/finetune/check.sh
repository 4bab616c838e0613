#!/bin/sh
# Runs the program on a tiny model: check.sh refuses|outputs|learns|resume|adapters|preferences|teacher|mpi|crash PROGRAM FOLDER
# FIXTURES [MPIRUN]
set -eu
part=$1 program=$2 folder=$3 fixtures=$4
. "$(dirname "$0")/../../support/check_refusals.sh"
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

# A copy of the model with a tokenizer of letters, a blank and a line's end, and pairs of answers: letters that go up, and
# the same that go down; and the same as answers with labels.
with_letters() {
  cp -r "$model" letters && chmod -R u+w letters && model=$PWD/letters
  awk 'BEGIN { printf "{\"added_tokens\": [";
    split("<|im_start|> <|im_end|>", special); for (i = 1; i <= 2; ++i)
      printf "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}", (i == 1 ? "" : ", "), 27 + i, special[i]
    printf "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, \"post_processor\": null, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {"
    for (i = 0; i < 26; ++i) printf "\"%c\": %d, ", 97 + i, i
    print "\"\304\240\": 26, \"\304\212\": 27}}}" }' > letters/tokenizer.json
  printf '{"eos_token": "<|im_end|>", "chat_template": "%s"}\n' "$1" > letters/tokenizer_config.json
  awk 'BEGIN { for (i = 0; i < 24; ++i) { up = down = ""; n = 2 + i % 4
    for (j = 1; j <= n; ++j) { up = up sprintf("%c", 97 + (i + j) % 26); down = down sprintf("%c", 97 + (i + 26 - j) % 26) }
    printf "{\"prompt\": \"go %c\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\n", 97 + i, up, down } }' > pairs.jsonl
  sed 's/"chosen": \(.*\), "rejected": \(.*\)}/"completion": \1, "label": true}/' pairs.jsonl > labels.jsonl
  sed 's/"chosen": \(.*\), "rejected": \(.*\)}/"completion": \2, "label": false}/' pairs.jsonl >> labels.jsonl
}

loss_of() { cut -d, -f3 "$1" | tail -n +2; }

case $part in
refuses)
  "$program" --help > out || fail "--help ended with $?"
  grep -q -- --lora-rank out || fail "--help does not name --lora-rank"
  refused "folder" --data train.ids
  refused "--data" "$model"
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
  refused "lora-targets: q_proj is given twice" "$model" $small --lora-rank 2 --lora-targets q_proj,q_proj
  refused 'lora-targets: "q_proj," has an empty item' "$model" $small --lora-rank 2 --lora-targets q_proj,
  refused 'lora-targets: the item " v_proj" has a blank' "$model" $small --lora-rank 2 --lora-targets "q_proj, v_proj"
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
  [ ! -e new ] || fail "a refused run left a folder"
  # A teacher or a reference that spells ids in another way, or splits texts in another way.
  plain=$model
  with_letters ""
  rm -rf other && cp -r letters other
  sed 's/"a": 0, "b": 1/"a": 1, "b": 0/' letters/tokenizer.json > other/tokenizer.json
  ! cmp -s letters/tokenizer.json other/tokenizer.json || fail "the letters are not in tokenizer.json"
  said='tokenizers of the model in .*letters and of --teacher other differ: the id 0 is "a" in the one, and "b" in the'
  refused "$said" "$model" $small --teacher other
  refused "of --reference other differ: the id 0 is" "$model" --data pairs.jsonl --preference dpo --reference other
  sed 's/"add_prefix_space": false/"add_prefix_space": true/' letters/tokenizer.json > other/tokenizer.json
  refused 'vocabularies are the same, but not how they split "The quick' "$model" $small --teacher other
  echo '{' > other/tokenizer.json
  refused "tokenizer other/tokenizer.json is not JSON" "$model" $small --teacher other
  # Ids alone tell nothing of a tokenizer, and a teacher may have more of them.
  "$program" "$model" $small --steps 1 --teacher "$plain" > out 2>&1 || fail "$(cat out)"
  sed 's/"added_tokens": \[/&{"id": 40, "content": "<more>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}, /' \
    letters/tokenizer.json > other/tokenizer.json
  "$program" "$model" $small --steps 1 --teacher other > out 2>&1 || fail "$(cat out)"
  ;;

outputs)
  # No output is a file of a folder that is read, or one that --out gets; not by another name either.
  for folder in given teaching saved; do cp -r "$model" $folder && chmod -R u+w $folder; done
  ln given/config.json hard && ln -s given/config.json link && ln -s given other
  cksum given/* teaching/* saved/* train.ids > before
  said="name one file"
  for option in --csv --svg --trace; do
    for file in given/*; do refused "$option and the model's folder $said" given $small $option "$file"; done
    for file in hard link other/config.json given/../given/config.json given/model.safetensors given/tokenizer.json; do
      refused "$option and the model's folder $said" given $small $option $file
    done
    refused "$option and --teacher $said" given $small --teacher teaching $option teaching/config.json
    refused "$option and --reference $said" given --data pairs.jsonl --preference dpo --reference teaching $option teaching/config.json
    for file in config.json model.safetensors training_state.safetensors adapter_config.json; do
      refused "$option and --out $said" given $small --out saved $option saved/$file
      refused "$option and --out $said" given $small --out new $option new/$file
    done
    refused "$option and --data $said" given $small $option ./train.ids
    refused "nowhere does not exist" given $small $option nowhere/file
    refused "No space left" given $small $option /dev/full
  done
  refused "--csv and --svg $said" given $small --csv a --svg ./a
  refused "--out and the model's folder $said" given $small --out other
  refused "--out and --data $said" given $small --out train.ids
  mkdir linked && ln -s ../given/config.json linked/config.json
  refused "--out and the model's folder $said" given $small --out linked
  cksum given/* teaching/* saved/* train.ids > after
  cmp before after || fail "a refused run changed a file"
  [ ! -e new ] && [ ! -e a ] || fail "a refused run left a file"
  # What is written at the end alone is looked at before the first step.
  lora="--lora-rank 2"
  for place in "training_state.safetensors:" "config.json:" "model.safetensors:" "adapter_config.json:$lora" \
    "adapter_model.safetensors:$lora" "training_state.safetensors:$lora" "model.safetensors:$lora --merge"; do
    rm -rf saved && mkdir -p "saved/${place%%:*}"
    refused "saved/${place%%:*} cannot be written: it is a folder" given $small ${place#*:} --out saved
  done
  rm -rf saved
  refused "train.ids/saved cannot be made" given $small --out train.ids/saved
  # 8 KiB are enough for the state of a few adapters, and not for the model.
  refused_below() {
    limit=$1
    shift
    (ulimit -f "$limit" && refused "$@")
  }
  refused_below 8 "training_state.safetensors cannot be written" given $small --out saved
  refused_below 16 "model.safetensors cannot be written" given $small --lora-rank 1 --lora-targets q_proj --merge --out saved
  [ ! -e saved ] || fail "a refused run left a folder"
  # A disk of 88 KiB has room for the state, or for the model, and not for both. Who may not make one leaves this out.
  mkdir disk
  if mount -t tmpfs -o size=88k tigon disk 2> mount.err; then
    trap 'umount disk' EXIT
    refused "has less space" given $small --out disk/saved
    [ -z "$(ls -A disk)" ] || fail "a refused run left $(ls -A disk)"
    umount disk
    trap - EXIT
  fi
  # Names that nothing else has are free, beside the model's files and those of --out.
  "$program" given $small --steps 1 --out given/new/tuned --csv given/losses.csv --svg given/new/tuned/loss.svg > out 2>&1 ||
    fail "$(cat out)"
  "$program" given $small --steps 1 --out given/new/tuned --csv given/new/tuned/losses.csv > out 2>&1 || fail "$(cat out)"
  [ -e given/new/tuned/model.safetensors ] && [ -e given/losses.csv ] && [ -e given/new/tuned/loss.svg ] ||
    fail "an output is not there"
  ;;

learns)
  small="--data train.ids --seq-len 32 --steps 40 --lr 1e-2 --batch 4 --threads 2"
  "$program" "$model" $small --eval-data held.ids --csv run.csv --svg run.svg --out saved > out 2> err ||
    fail "$(cat err)"
  grep -q "saved in saved" out || fail "it does not say where the model is: $(cat out)"
  grep -q "<svg" run.svg || fail "no picture"
  # transformers loads a folder in the type that its config.json states; nothing else is changed.
  for type in f32:float32 bf16:bfloat16; do
    "$program" "$model" $small --steps 1 --save-dtype ${type%:*} --out saved-$type > out 2>&1 || fail "$(cat out)"
    sed 's/"dtype": "bfloat16"/"dtype": "'${type#*:}'"/' "$model/config.json" > wanted
    cmp wanted saved-$type/config.json || fail "config.json is another than that of a model in $type"
  done
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
  # Weights that the type of the save does not hold: the state is there, and the model is saved in another type.
  big="$small --steps 1 --lr 1e5 --out big"
  code=0
  "$program" "$model" $big --save-dtype f16 > out 2> err || code=$?
  [ $code -eq 2 ] || fail "a model beyond f16 ended with $code: $(cat err)"
  grep -q 'cannot be saved in f16: the tensor "model.*the state of step 1 is saved in big' err || fail "$(cat err)"
  [ ! -e big/model.safetensors ] && [ ! -e big/config.json ] || fail "a part of a model was saved"
  refused 'cannot be saved in f16: the tensor "model' "$model" $big --save-dtype f16 --resume
  "$program" "$model" $big --resume > out 2>&1 || fail "$(cat out)"
  refused "has 1 steps already" "$model" $big --resume
  refused 'cannot be saved in f16: the tensor "model' big $small --steps 1 --save-dtype f16 --out none
  [ ! -e none/training_state.safetensors ] || fail "it was trained before it was refused"
  refused "holds model.safetensors, a model, and adapters" "$model" $small --lora-rank 1 --out big
  refused "of a run with another lora_rank: 2, not 0" "$model" $small --batch 2 --out parts --resume
  refused "of a run with another lora_alpha: 16, not 16.00001" "$model" $small $kind --lora-alpha 16.00001 --out parts --resume
  refused "of a run with another lr: 0.003, not 0.0030000000000000005" "$model" $small $kind --lr 0.0030000000000000005 \
    --out parts --resume
  refused "of a run with another seed" "$model" $small $kind --seed 3 --out parts --resume
  # The rates of a cosine depend on the number of steps. A constant one goes on.
  refused "of a run with another steps: 12, not 14" "$model" $small $kind --steps 14 --out parts --resume
  "$program" "$model" $small --schedule constant --out longer > out 2>&1 || fail "$(cat out)"
  "$program" "$model" $small --schedule constant --out longer --resume --steps 14 --eval-every 2 --threads 1 > out 2>&1 ||
    fail "a constant rate does not go on: $(cat out)"
  # A run that learned from a teacher does not go on without it.
  "$program" "$model" $small --teacher "$model" --stop-at 3 --out taught > out 2>&1 || fail "$(cat out)"
  refused "of a run with another teacher" "$model" $small --out taught --resume
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

preferences)
  with_letters ""
  small="--data pairs.jsonl --eval-data pairs.jsonl --seq-len 16 --batch 4 --steps 30 --lr 1e-2 --threads 2"
  for loss in dpo "simpo --beta 2" orpo "ipo --lora-rank 4" "dpo --dtype bf16" "dpo --dtype bf16 --lora-rank 4"; do
    "$program" "$model" $small --preference $loss --csv run.csv > out 2>&1 || fail "$loss: $(cat out)"
    awk -F, 'NR == 2 { first = $3 } END { exit !($3 < 0.7 * first && $6 < 0.7 * first && $7 > 0.9 && $8 > 0) }' run.csv ||
      fail "$loss does not learn: $(cat run.csv)"
  done
  # Before the first step, the reference is the model: the loss of DPO is log 2.
  "$program" "$model" $small --preference dpo --csv run.csv --steps 1 > out 2>&1 || fail "$(cat out)"
  awk -F, 'NR == 2 { exit !(($3 - 0.693147) ^ 2 < 1e-10) }' run.csv || fail "not log 2: $(cat run.csv)"
  "$program" "$model" $small --preference dpo --out other --steps 8 > out 2>&1 || fail "$(cat out)"
  "$program" other $small --preference dpo --reference "$model" --csv run.csv --steps 1 > out 2>&1 || fail "$(cat out)"
  awk -F, 'NR == 2 { exit !($3 < 0.6) }' run.csv || fail "the reference is not that of its folder: $(cat run.csv)"
  # KTO, on answers that are liked or not: 1/2 before the first step, as neither is there a reward nor a baseline.
  labelled="--data labels.jsonl --eval-data labels.jsonl --seq-len 16 --batch 8 --lr 1e-2 --threads 2 --preference kto"
  for kind in "" "--lora-rank 4 --beta 0.5" "--dtype bf16"; do
    "$program" "$model" $labelled --steps 40 $kind --csv run.csv > out 2>&1 || fail "kto $kind: $(cat out)"
    awk -F, 'NR == 2 { first = $3; if ((first - 0.5) ^ 2 > 1e-4 || $9 > 1e-2) exit 1 }
      END { exit !($3 < 0.8 * first && $6 < 0.8 * first && $7 > 0.9 && $8 > 0 && $9 >= 0) }' run.csv ||
      fail "kto $kind does not learn: $(cat run.csv)"
  done
  grep -q "of the answers on their side" out || fail "no report of answers: $(cat out)"
  "$program" "$model" $labelled --steps 1 --desirable-weight 3 --csv run.csv > out 2>&1 || fail "$(cat out)"
  awk -F, 'NR == 2 { exit !($3 > 0.6) }' run.csv || fail "the weight of desirable answers has no effect: $(cat run.csv)"
  # Resumed, the reference is still the model before its first step.
  small="$small --data labels.jsonl --eval-data labels.jsonl"
  "$program" "$model" $small --preference kto --steps 8 --out whole > out 2>&1 || fail "$(cat out)"
  "$program" "$model" $small --preference kto --steps 8 --out parts --stop-at 3 > out 2>&1 || fail "$(cat out)"
  "$program" "$model" $small --preference kto --steps 8 --out parts --resume > out 2>&1 || fail "$(cat out)"
  cmp whole/training_state.safetensors parts/training_state.safetensors || fail "another state (kto)"
  sed 's/true/false/' labels.jsonl > other.jsonl
  refused "of a run with another data" "$model" $small --preference kto --steps 8 --data other.jsonl --out parts --resume
  refused "of a run with another desirable_weight" "$model" $small --preference kto --steps 8 --desirable-weight 2 --out parts --resume
  small="$small --data pairs.jsonl --eval-data pairs.jsonl"
  for kind in "" "--lora-rank 2"; do
    kind="--preference dpo $kind --steps 8"
    rm -rf whole parts
    "$program" "$model" $small $kind --out whole > out 2>&1 || fail "$(cat out)"
    "$program" "$model" $small $kind --out parts --stop-at 3 > out 2>&1 || fail "$(cat out)"
    "$program" "$model" $small $kind --out parts --resume > out 2>&1 || fail "$(cat out)"
    cmp whole/training_state.safetensors parts/training_state.safetensors || fail "another state ($kind)"
  done
  refused "of a run with another beta: 0.1, not 0.2" "$model" $small $kind --beta 0.2 --out parts --resume
  refused "dpp is not one of" "$model" $small --preference dpp
  refused "beta requires" "$model" $small --beta 0.2
  refused "has no --reference" "$model" $small --preference orpo --reference "$model"
  refused "exclude one another" "$model" $small --preference dpo --teacher "$model"
  refused "below 1/2" "$model" $small --preference ipo --label-smoothing 0.1
  refused "needs --label-smoothing" "$model" $small --preference exo_pair
  refused "cannot hold preferences" "$model" --data train.ids --preference dpo
  refused "kto needs --batch of at least 2" "$model" $labelled --batch 1
  refused "kto has no --nll" "$model" $labelled --nll 1
  refused "desirable-weight: 0 is not" "$model" $labelled --desirable-weight 0
  refused "undesirable-weight are of kto" "$model" $small --preference dpo --undesirable-weight 2
  refused 'pairs.jsonl, line 1, has no "completion"' "$model" $labelled --data pairs.jsonl
  echo '{"prompt": "a", "completion": "b", "label": "yes"}' > half.jsonl
  refused 'half.jsonl, line 1, has a "label" that is neither true nor false' "$model" $labelled --data half.jsonl
  echo '{"prompt": "a", "chosen": "b"}' > half.jsonl
  refused 'half.jsonl, line 1, has no "rejected"' "$model" --data half.jsonl --preference dpo
  # Conversations.
  echo '{"messages": [{"role": "user", "content": "go"}, {"role": "assistant", "content": "abc"}]}' > chat.jsonl
  refused "holds a conversation, and the tokenizer has a chat template that .* render_chats.py" "$model" --data chat.jsonl
  with_chat() { printf '{"eos_token": "<|im_end|>", "chat_template": "%s"}\n' "$1" > letters/tokenizer_config.json; }
  chatml="{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\\\n' + message['content'] + '<|im_end|>' + '\\\\n'}}{% endfor %}"
  with_chat "$chatml"
  refused "render_chats.py" "$model" --data chat.jsonl
  with_chat "$chatml{% if add_generation_prompt %}{{ '<|im_start|>assistant\\\\n' }}{% endif %}"
  "$program" "$model" --data chat.jsonl --steps 30 --lr 1e-2 --csv run.csv > out 2>&1 || fail "$(cat out)"
  awk -F, 'NR == 2 { first = $3 } END { exit !($3 < 0.6 * first) }' run.csv || fail "no chat is learned: $(cat run.csv)"
  # The same as tokens, with those that are learned: <|im_start|>, user, the end of a line, go, ...
  awk 'BEGIN { chat = "28 20 18 4 17 27 6 14 29 27 28 0 18 18 8 18 19 0 13 19 27 0 1 2 29 27"; n = split(chat, id, " ")
    for (i = 1; i <= n; ++i) { ids = ids (i == 1 ? "" : ", ") id[i]
      labels = labels (i == 1 ? "" : ", ") (i >= n - 4 && i < n ? id[i] : -100) }
    printf "{\"input_ids\": [%s], \"labels\": [%s]}\n", ids, labels }' > tokens.jsonl
  "$program" "$model" --data tokens.jsonl --steps 30 --lr 1e-2 --csv tokens.csv > out 2>&1 || fail "$(cat out)"
  cmp run.csv tokens.csv || fail "tokens are learned in another way: $(cat tokens.csv)"
  printf '{"input_ids": [1, 64]}\n' > tokens.jsonl
  refused '"input_ids" that is not a whole number from 0 to 63' "$model" --data tokens.jsonl
  ;;

teacher)
  small="--data train.ids --seq-len 32 --batch 2 --threads 2"
  "$program" "$model" $small --steps 40 --lr 1e-2 --out learned > out 2>&1 || fail "$(cat out)"
  for kind in "kl --hard 0" "reverse_kl --temperature 2 --hard 0" "jsd --dtype bf16 --hard 0" "kl --lora-rank 4"; do
    "$program" "$model" $small --steps 40 --lr 1e-2 --teacher learned --divergence $kind --eval-data held.ids \
      --csv run.csv > out 2>&1 || fail "$kind: $(cat out)"
    awk -F, 'NR == 2 { first = $3 } END { exit !($3 < 0.85 * first && $6 < 0.85 * first) }' run.csv ||
      fail "$kind does not learn: $(cat run.csv)"
  done
  # Its own teacher has nothing to say.
  "$program" "$model" $small --steps 1 --teacher "$model" --hard 0 --csv run.csv > out 2>&1 || fail "$(cat out)"
  awk -F, 'NR == 2 { exit !($3 < 1e-6 && $4 < 1e-4) }' run.csv || fail "far from itself: $(cat run.csv)"
  kind="--steps 6 --teacher learned --temperature 2"
  "$program" "$model" $small $kind --out whole > out 2>&1 || fail "$(cat out)"
  "$program" "$model" $small $kind --out parts --stop-at 2 > out 2>&1 || fail "$(cat out)"
  "$program" "$model" $small $kind --out parts --resume > out 2>&1 || fail "$(cat out)"
  cmp whole/training_state.safetensors parts/training_state.safetensors || fail "another state"
  refused "of a run with another teacher" "$model" $small --steps 6 --temperature 2 --teacher "$model" --out parts --resume
  refused "nowhere is not a folder" "$model" $small --teacher nowhere
  refused "name one file" "$model" $small --teacher learned --out learned
  refused "temperature requires" "$model" $small --temperature 2
  ;;

mpi)
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 \
    OMPI_MCA_hwloc_base_binding_policy=none OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_odls_base_sigkill_timeout=0
  mpirun=$5
  small="--data train.ids --seq-len 32 --accumulate 4 --steps 8 --lr 3e-3 --threads 1 --eval-data held.ids --eval-every 4"
  for kind in "" "--dtype bf16 --lora-rank 2 --merge"; do
    rm -rf one two
    "$program" "$model" $small $kind --out one --csv one.csv > out 2>&1 || fail "$(cat out)"
    "$mpirun" -n 2 "$program" "$model" $small $kind --out two --csv two.csv > out 2>&1 || fail "$(cat out)"
    [ "$(grep -c "^saved in" out)" -eq 1 ] || fail "not one rank is heard: $(cat out)"
    paste -d, one.csv two.csv | awk -F, -v most="$([ -z "$kind" ] && echo 1e-5 || echo 1e-3)" '
      NR > 1 { d = ($3 - $9) / $3; h = $6 == "" ? 0 : ($6 - $12) / $6
        if (d * d > most * most || h * h > most * most || $5 != $11) { print; exit 1 } }' ||
      fail "$kind: two ranks have other losses than one: $(cat two.csv)"
    [ -e two/model.safetensors ] || fail "no model was saved"
  done
  # The ranks share what the reference says of the answers.
  with_letters ""
  small="--seq-len 16 --accumulate 4 --steps 6 --lr 1e-2 --threads 1 --eval-every 3"
  for kind in "pairs.jsonl --preference dpo" "pairs.jsonl --preference ipo --lora-rank 2" "labels.jsonl --batch 4 --preference kto"; do
    for ranks in 1 2; do
      "$mpirun" -n $ranks "$program" "$model" $small --data $kind --eval-data ${kind%% *} --csv $ranks.csv > out 2>&1 ||
        fail "$kind: $(cat out)"
    done
    paste -d, 1.csv 2.csv | awk -F, 'NR > 1 { w = NF / 2; for (i = 3; i <= w; ++i) { d = $i - $(i + w)
      if (d * d > 1e-8 * $i * $i + 1e-12) { print; exit 1 } } }' || fail "$kind: two ranks differ: $(cat 1.csv 2.csv)"
  done
  small="--data train.ids --seq-len 32 --accumulate 4 --steps 8 --lr 3e-3 --threads 1 --eval-data held.ids --eval-every 4"
  model=$fixtures/tiny
  # Resumed by another number of ranks.
  "$mpirun" -n 2 "$program" "$model" $small --out parts --stop-at 3 > out 2>&1 || fail "$(cat out)"
  "$program" "$model" $small --out parts --resume > out 2>&1 || fail "$(cat out)"
  refused_by_ranks() {
    sentence=$1
    shift
    if timeout 60 "$mpirun" -n 2 "$program" "$@" > out 2> err; then fail "$* was accepted"; fi
    [ "$(grep -c -- "$sentence" err)" -eq 1 ] || fail "$* wrote: $(cat err)"
  }
  refused_by_ranks "accumulate 3 cannot be divided among 2 ranks" "$model" $small --accumulate 3
  refused_by_ranks "missing.ids cannot be opened" "$model" $small --data missing.ids
  refused_by_ranks "steps: 0 is not" "$model" $small --steps 0
  refused_by_ranks "has 8 steps already" "$model" $small --out parts --resume
  # Two ranks that were not given the same: one sentence, both end, and none of them trains.
  refused_apart() {
    code=0
    timeout 60 "$mpirun" -n 1 "$program" "$model" $small $2 : -n 1 "$program" "$model" $small $3 > out 2> err || code=$?
    [ $code -eq 2 ] || fail "$2 beside $3 ended with $code: $(cat err)"
    [ "$(grep -c -- "$1" err)" -eq 1 ] || fail "$2 beside $3 wrote: $(cat err)"
    if grep -q "fine-tuning" err; then fail "$2 beside $3 trained: $(cat err)"; fi
  }
  said="begin with different options: different"
  refused_apart "$said --seed" "" "--seed 2"
  refused_apart "$said --stop-at" "" "--stop-at 4"
  refused_apart "$said --eval-every" "" "--eval-every 2"
  refused_apart "$said --patience" "--patience 1" ""
  refused_apart "$said --steps" "" "--steps 9"
  refused_apart "$said --accumulate" "" "--accumulate 2"
  refused_apart "$said --dtype" "" "--dtype bf16"
  refused_apart "$said --lora-alpha" "--lora-rank 2" "--lora-rank 2 --lora-alpha 16.00001"
  refused_apart "$said --resume" "--out parts --resume --stop-at 4" "--out parts --stop-at 4"
  head -50 train.ids > fewer.ids
  refused_apart "begin with different options, data or weights" "" "--data fewer.ids"
  refused_apart "evaluate different data" "" "--eval-data fewer.ids"
  # The same by another name, with another number of threads, is the same.
  cp train.ids copy.ids
  "$mpirun" -n 1 "$program" "$model" $small : -n 1 "$program" "$model" $small --data copy.ids --threads 2 > out 2>&1 ||
    fail "equal data are refused: $(cat out)"
  ;;

crash)
  # While a run saves at each of its steps, files may no longer be longer than 1 KiB, or its disk is full.
  ends_with_its_state() {
    [ $code -eq 2 ] || fail "a run that could not save ended with $code: $(cat err)"
    [ "$(tail -n 1 err | grep -c "$1/.* cannot be written: ")" -eq 1 ] || fail "it wrote: $(cat err)"
    if ls -A "$1" | grep partial; then fail "a part of a file was left"; fi
    "$program" "$1" --data train.ids --steps 1 > out 2>&1 || fail "the model before cannot be read: $(cat out)"
    "$program" "$model" $2 --out "$1" --resume --stop-at 1 > out 2> err && fail "there was nothing to resume"
    grep -q "steps already" err || fail "the state before cannot be read: $(cat err)"
  }
  until_saved() { until [ -e "$1/model.safetensors" ] || ! kill -0 $job 2> /dev/null; do sleep 0.02; done; }
  small="--data train.ids --seq-len 32 --steps 1000000 --save-every 1 --threads 1"
  if command -v prlimit > found; then
    "$program" "$model" $small --out kept > out 2> err &
    job=$!
    until_saved kept
    prlimit --pid $job --fsize=1024
    code=0
    wait $job || code=$?
    ends_with_its_state kept "$small"
  fi
  mkdir disk
  if mount -t tmpfs -o size=2m tigon disk 2> mount.err; then
    trap 'umount disk' EXIT
    "$program" "$model" $small --out disk/kept > out 2> err &
    job=$!
    until_saved disk/kept
    dd if=/dev/zero of=disk/full bs=1k 2> dd.err || true
    code=0
    wait $job || code=$?
    rm disk/full
    ends_with_its_state disk/kept "$small"
    umount disk
    trap - EXIT
  fi
  ;;

*) fail "no such part" ;;
esac
