#!/usr/bin/env python3
"""Writes unicode_tables.hpp: the classes of characters and the canonical compositions that tokenizers depend on.

They are taken from the tokenizers package itself, whose version of Unicode is the one that counts here.

    python make_unicode_tables.py > unicode_tables.hpp
"""
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str


def members(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {ord(c) for piece, _ in split.pre_tokenize_str("".join(map(chr, CODE_POINTS))) for c in piece}


def numeric():
    """What the Digits pre-tokenizer takes for a digit: another version of Unicode than that of the regexes."""
    digits = pre_tokenizers.Digits(individual_digits=False)
    return {c for c in CODE_POINTS if len(digits.pre_tokenize_str("a" + chr(c))) == 2}


def numbers(name, kind, values, comment):
    print(f"\n/// {comment}\ninline constexpr std::{kind} {name}[] = {{")
    line = "   "
    for value in values:
        word = f" {value},"
        if len(line) + len(word) > 118:
            print(line)
            line = "   "
        line += word
    print(line + "\n};")


def classes():
    sets = [members(r"\p{L}"), members(r"\p{N}"), members(r"\s"), numeric(), members(r"\p{M}"),
            members(r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"), members(r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]")]
    masks, runs = [], []
    for c in range(0x110000):
        mask = sum(1 << i for i, members_of in enumerate(sets) if c in members_of)
        if mask not in masks:
            masks.append(mask)
        if runs and runs[-1][1] == mask:
            runs[-1][0] += 1
        else:
            runs.append([1, mask])
    assert len(masks) <= 8
    numbers("unicode_masks", "uint8_t", masks, "The combinations of classes that occur: bits of unicode_class.")
    numbers("unicode_runs", "uint32_t", [length * 8 + masks.index(mask) for length, mask in runs],
            "From code point 0 on: 8 * (how many have the same classes) + which of unicode_masks.")


def decompositions():
    values, last = [], 0
    for c in CODE_POINTS:
        full = NFD(chr(c))
        if full == chr(c) or 0xAC00 <= c < 0xAC00 + 11172:
            continue
        composes = len(full) > 1 and NFC(full) == chr(c)
        if composes:
            pair = [NFC(full[:-1]), full[-1]]
        elif unicodedata.decomposition(chr(c)):
            pair = [chr(int(word, 16)) for word in unicodedata.decomposition(chr(c)).split()]
        else:
            pair = list(full)
        assert len(pair) <= 2 and all(len(part) == 1 for part in pair)
        assert NFD("".join(pair)) == full
        values += [(c - last) * 2 + composes, ord(pair[0]), ord(pair[1]) if len(pair) == 2 else 0]
        last = c
    numbers("unicode_decompositions", "uint32_t", values,
            "Triples: 2 * (distance from the last) + (1: composes again), first part, second part or 0. Without Hangul.")


def reorders(c):
    """Whether the package exchanges it with an accent below 230 or an overlay, as marks of a combining class are."""
    return NFD("a\u0301" + chr(c)) != "a\u0301" + chr(c) or NFD("a" + chr(c) + "\u0334") != "a" + chr(c) + "\u0334"


def combining_classes():
    values, last = [], 0
    for c in CODE_POINTS:
        kind = unicodedata.combining(chr(c))
        if NFD(chr(c)) != chr(c):
            continue
        if kind not in (0, 1) and not reorders(c):
            kind = 0
        if kind == 0 and reorders(c):
            # Newer than Python's table: all marks that came late are of one of these.
            probe = "a\u0301" + chr(c)
            kind = 220 if NFD(probe) != probe else 230
        if kind:
            values += [c - last, kind]
            last = c
    numbers("unicode_combining", "uint32_t", values, "Pairs: distance from the last, canonical combining class.")


print(f"""// Made by make_unicode_tables.py with tokenizers {tokenizers.__version__}; do not edit.
// clang-format off
#ifndef EXAMPLE_FINETUNE_TEXT_UNICODE_TABLES_HPP
#define EXAMPLE_FINETUNE_TEXT_UNICODE_TABLES_HPP

#include <cstdint>

namespace example::finetune::detail {{""")
classes()
decompositions()
combining_classes()
print("\n}  // namespace example::finetune::detail\n#endif")
