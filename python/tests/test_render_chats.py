"""tools/finetune/render_chats.py: conversations as tokens, with what is learned of them."""
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

PreTrainedTokenizerFast = pytest.importorskip("transformers").PreTrainedTokenizerFast

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools/finetune/render_chats.py"
TOKENIZER = ROOT / "tests/tools/fixtures/finetune_text/smollm2.json"
spec = importlib.util.spec_from_file_location("render_chats", SCRIPT)
render_chats = importlib.util.module_from_spec(spec)
spec.loader.exec_module(render_chats)

TURNS = "{% for m in messages %}{{ '[' + m['role'] + ']\n' + m['content'] | trim + eos_token + '\n' }}{% endfor %}"
OPEN = "{% if add_generation_prompt %}{{ '[assistant]\n' }}{% endif %}"
TOOLS = "{% if tools %}{{ '[tools] ' + tools[0]['function']['name'] + '\n' }}{% endif %}"
# Thoughts stay in the last answer alone.
THINKS = ("{% for m in messages %}{{ '[' + m['role'] + ']\n' }}{% if m['thoughts'] and loop.last %}{{ '<' + m['thoughts'] + '>' }}"
          "{% endif %}{{ m['content'] + eos_token + '\n' }}{% endfor %}")
MARKED = ("{% for m in messages %}{{ '[' + m['role'] + ']\n' }}{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
          "{% endgeneration %}{{ eos_token }}{% else %}{{ m['content'] }}{% endif %}{% endfor %}")
CHAT = [dict(role="user", content="How? "), dict(role="assistant", content=" Like this.\n", thoughts="a"),
        dict(role="user", content="Why?"), dict(role="assistant", content="So.", thoughts="b")]


def made(template, line, which="answers"):
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), eos_token="<|end|>", chat_template=template)
    out = render_chats.sample(tokenizer, line, which)
    assert len(out["labels"]) == len(out["input_ids"])
    assert all(label in (token, -100) for token, label in zip(out["input_ids"], out["labels"]))
    options = {key: line[key] for key in ("tools",) if key in line}
    text = tokenizer.apply_chat_template(line["messages"], tokenize=False, **options)
    assert tokenizer.decode(out["input_ids"]) == text
    spans, last = [], None
    for token, label in zip(out["input_ids"], out["labels"]):
        if label != -100:
            spans = spans + [[token]] if last == -100 or last is None else spans[:-1] + [spans[-1] + [token]]
        last = label
    return text, [tokenizer.decode(span) for span in spans]


def test_answers_and_what_ends_them_are_learned():
    assert made(TURNS + OPEN, dict(messages=CHAT))[1] == ["Like this.<|end|>", "So.<|end|>"]
    assert made(TURNS + OPEN, dict(messages=CHAT), "last")[1] == ["So.<|end|>"]
    assert made(TURNS + OPEN, dict(messages=CHAT[:3]), "last")[1] == []


def test_what_the_template_reads_is_handed_on():
    tools = [dict(type="function", function=dict(name="search", description="", parameters={}))]
    text, learned = made(TOOLS + TURNS + OPEN, dict(messages=CHAT, tools=tools))
    assert text.startswith("[tools] search\n") and learned == ["Like this.<|end|>", "So.<|end|>"]


def test_marks_of_the_template_come_first():
    assert made(MARKED, dict(messages=CHAT))[1] == [" Like this.\n", "So."]


def test_turns_that_change_are_refused():
    with pytest.raises(ValueError, match="message 2"):
        made(THINKS + OPEN, dict(messages=CHAT))
    assert made(THINKS + OPEN, dict(messages=CHAT), "last")[1] == ["<b>So.<|end|>"]


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path):
    PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), eos_token="<|end|>", chat_template=TURNS + OPEN).save_pretrained(tmp_path)
    chats, tokens = tmp_path / "chats.jsonl", tmp_path / "tokens.jsonl"
    run = [sys.executable, str(SCRIPT), str(tmp_path), str(chats), str(tokens)]
    chats.write_text(json.dumps(dict(messages=CHAT)) + "\n\n" + json.dumps(dict(messages=CHAT[:2])) + "\n")
    subprocess.run(run, check=True, capture_output=True)
    lines = [json.loads(line) for line in tokens.read_text().splitlines()]
    assert len(lines) == 2 and lines[0].keys() == {"input_ids", "labels"}
    tokens.unlink()
    chats.write_text(json.dumps(dict(messages=CHAT)) + "\n" + json.dumps(dict(messages=[dict(content="a")])) + "\n")
    failed = subprocess.run(run, capture_output=True, text=True)
    assert failed.returncode != 0 and "line 2" in failed.stderr and not tokens.exists()
