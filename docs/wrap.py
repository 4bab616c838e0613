#!/usr/bin/env python3
"""Wraps the paragraphs and lists of pages at 120 columns: wrap.py PAGE... Tables, headings, fenced and indented blocks and
comments stay as they are; spans of code, links and stored numbers are not broken."""

import pathlib
import re
import sys

WIDTH = 120


def wrapped(lines):
    """A paragraph, or an item of a list, as lines of at most WIDTH. None begins with what would begin another item or a
    table: the minus of a formula, or |x|, takes the word before it along."""
    item = re.match(r"(\s*)(?:[-*]|\d+\.)\s+|\s*", lines[0])
    begin, indent = item[0], " " * len(item[0])
    text = " ".join([lines[0][len(begin):].strip(), *(line.strip() for line in lines[1:])])
    made, line = [], []
    for word in re.findall(r"(?:<!-- number: [^<]*<!-- end -->|`[^`]*`|\[[^\]]*\]\([^)]*\)|\S)+", text):
        if line and len(indent) + len(" ".join([*line, word])) > WIDTH:
            alone = re.fullmatch(r"[-+*#]|\d+\.|\|.*", word) and len(line) > 1
            made.append(line[:-1] if alone else line)
            line = line[-1:] if alone else []
        line.append(word)
    return [(indent if k else begin) + " ".join(words) for k, words in enumerate([*made, line])]


def wrap(text):
    made, paragraph, fence, comment = [], [], None, False

    def flush():
        if paragraph:
            made.extend(wrapped(paragraph))
            paragraph.clear()

    for line in text.split("\n"):
        opens = re.match(r"\s*(`{3,})", line)
        in_list = bool(paragraph) and re.match(r"\s*([-*]|\d+\.)\s+", paragraph[0])
        # A number begins a list at the beginning of a paragraph, or where the item before has one.
        is_item = re.match(r"\s*[-*]\s+" if paragraph and not in_list else r"\s*([-*]|\d+\.)\s+", line)
        if fence or comment or opens or re.match("<!--(?! number: )", line):
            flush()
            made.append(line)
            if fence:
                fence = None if opens and opens[1].startswith(fence) else fence
            elif opens and not comment:
                fence = opens[1]
            else:
                comment = "-->" not in line
            continue
        indented = line.startswith("    ") and not in_list
        if not line.strip() or re.match(r"\s*(\||#|<(?!!-- number: )|!\[)", line) or (indented and not is_item):
            flush()
            made.append(line)
            continue
        if is_item:
            flush()
        paragraph.append(line)
    flush()
    return "\n".join(made)


for page in sys.argv[1:]:
    path = pathlib.Path(page)
    path.write_text(wrap(path.read_text()))
