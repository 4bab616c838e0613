#!/usr/bin/env python3
"""Conversations as tokens, by the chat template of a model's folder: data for finetune, which runs no templates.

    python render_chats.py FOLDER chats.jsonl tokens.jsonl [--learn answers|last]        (transformers 5.21 and later)

A line of chats.jsonl is an object with "messages", and "tools", "documents" and "chat_template_kwargs" where there are
some: whatever the template reads. A line of tokens.jsonl has "input_ids", as apply_chat_template makes them, and "labels":
the same ids where they are learned, and -100 elsewhere. Of answers the content and what ends it are learned, not the white
space behind. Where a template has {% generation %} marks, these say what is learned.
"""
import argparse
import json
import re
import sys

from transformers import AutoTokenizer

NOT_LEARNED = -100


def learned_spans(render, messages, which):
    """Begins and ends of the answers in the text of the conversation."""
    text = render(messages)
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    if which == "last":
        answers = [i for i in answers[-1:] if i == len(messages) - 1]
    spans = []
    for i in answers:
        before = render(messages[:i], add_generation_prompt=True) if i else text[:0]
        through = render(messages[:i + 1])
        if i + 1 == len(messages):
            through = text
        if not (text.startswith(through) and through.startswith(before)):
            raise ValueError(f"the template changes the text of message {i + 1} with what follows it; --learn last learns "
                             "the last answer alone, and {% generation %} marks in the template say what is learned")
        spans.append((len(before), len(through.rstrip())))
    return text, spans


def sample(tokenizer, line, which):
    messages = line["messages"]
    options = dict(line.get("chat_template_kwargs") or {})
    for key in ("tools", "documents"):
        if line.get(key):
            options[key] = line[key]
    ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **options)["input_ids"]
    template = tokenizer.get_chat_template(tools=options.get("tools"))
    if re.search(r"\{%-?\s*generation\s*-?%\}", template):
        mask = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True,
                                             **options)["assistant_masks"]
    else:
        text, spans = learned_spans(
            lambda part, **more: tokenizer.apply_chat_template(part, tokenize=False, **options, **more), messages, which)
        encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        if encoded["input_ids"] != ids:
            raise ValueError("the tokenizer splits the text in another way than apply_chat_template")
        mask = [any(begin < last and first < end for first, last in spans) for begin, end in encoded["offset_mapping"]]
    return dict(input_ids=ids, labels=[token if learned else NOT_LEARNED for token, learned in zip(ids, mask)])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", help="of the model with its tokenizer")
    parser.add_argument("chats", help="JSON lines with messages")
    parser.add_argument("tokens", help="JSON lines to write")
    parser.add_argument("--learn", choices=("answers", "last"), default="answers")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.folder)
    out = []
    with open(options.chats, encoding="utf-8") as chats:
        for number, line in enumerate(chats, 1):
            if not line.strip():
                continue
            try:
                out.append(json.dumps(sample(tokenizer, json.loads(line), options.learn)))
            except Exception as fault:
                sys.exit(f"{options.chats}, line {number}: {fault}")
    with open(options.tokens, "w", encoding="utf-8") as tokens:
        tokens.write("".join(line + "\n" for line in out))
    print(f"{len(out)} conversations in {options.tokens}")


if __name__ == "__main__":
    main()
