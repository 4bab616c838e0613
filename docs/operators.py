#!/usr/bin/env python3
"""A page for every operator, made of its header: contract, formula, signatures, options, the call that .ci/contracts runs,
and links to accuracy, tests and benchmark.

    operators.py FOLDER [DOCS]     writes FOLDER/<name>.md, and FOLDER/index.md; DOCS is the way from there to docs/ (../)
    operators.py --index           writes docs/operators.md, the index by family, and the kernels in docs/vendors.md
    operators.py --check           fails where docs/operators.md is out of date, or a header lacks a part of its page
"""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "include" / "tigon"
FAMILIES = {
    "norm": "Norms", "gate": "Gates and activations", "mlp": "MLPs and tiles of rows", "moe": "Mixture of experts",
    "rotary": "Rotary positions", "attention": "Attention", "ops/softmax": "Softmax", "depth": "Depth and hyper-connections",
    "embedding": "Embedding", "matmul": "Products", "optimizer": "Optimizer", "losses/softmax": "Cross entropy and log-probabilities",
    "divergence": "Divergences and distillation", "sequence": "Preference and policy losses", "ranks": "Losses over several ranks",
}
BY_HAND = {"mhc": "depth", "rotary_frequencies": "rotary", "gemm": "matmul"}  # headers that include no folder of a family


def declarations(text):
    """(comment, declaration) of what is public in a header: in namespace tigon, and not in one of its namespaces. Functions
    are without their body, structs with it."""
    inside, comment, code, body = [], [], [], False
    for line in text.splitlines():
        if body:  # ends with a brace at the margin
            if code is not None:
                code.append(line)
            if re.match(r"\}", line):
                if code is not None:
                    yield "\n".join(comment), "\n".join(code).rstrip(";")
                comment, code, body = [], [], False
            continue
        if opens := re.match(r"(inline )?namespace ([\w:]+) \{$", line):
            inside.append(bool(opens[1]) or opens[2] == "tigon")
            comment, code = [], []
        elif re.match(r"\}  // namespace", line):
            inside.pop()
            comment, code = [], []
        elif not inside or not all(inside) or re.match(r"#|//( |$)", line):
            comment, code = ([], []) if not line.startswith("//") else (comment, code)
        elif line.startswith("///"):
            comment.append(line[4:])
        elif not line.strip():
            comment, code = [], []
        else:
            code.append(line)
            if line.endswith("{"):
                if re.match(r"(template .*\n( +requires.*\n)*)?(struct|class|enum)\b", "\n".join(code)):
                    body = True
                else:
                    yield "\n".join(comment), "\n".join(code).removesuffix(" {")
                    comment, code, body = [], None, True
            elif re.search(r"(;|\})$", line):
                one_line = re.match(r"(.*\)) \{.*\}$", "\n".join(code), re.S)
                yield "\n".join(comment), one_line[1] if one_line else "\n".join(code).rstrip(";")
                comment, code = [], []


class Operator:
    def __init__(self, path):
        self.path, self.name = path, path.stem
        self.header = str(path.relative_to(INCLUDE.parent))
        self.text = path.read_text()
        contract = INCLUDE / "gemm/contract.hpp" if self.name == "gemm" else path
        self.contract_text = contract.read_text()
        self.family = self.find_family()
        self.summary = self.find_summary()
        self.contract, self.call = self.find_contract()

    def find_family(self):
        if self.name in BY_HAND:
            return BY_HAND[self.name]
        part, folder = re.search(r"#include <tigon/(ops|losses)/(\w+)/", self.text).groups()
        return f"{part}/{folder}" if folder == "softmax" else folder

    def find_summary(self):
        lines = []
        for line in self.text.splitlines():
            if not line.startswith("// "):
                break
            lines.append(line[3:])
        return " ".join(lines)

    def find_contract(self):
        """The comment that has the formula or the call, without the call, and the call."""
        for comment in re.findall(r"(?:^///.*\n)+", self.contract_text, re.M):
            if "/// ```cpp" in comment:
                text = re.sub(r"^/// ?", "", comment, flags=re.M)
                call = re.search(r"```cpp\n(.*?)```\n", text, re.S)
                return (text[:call.start()] + text[call.end():]).strip("\n"), call[1]
        return None, None

    def functions(self):
        """(comment, signature) of the public functions."""
        for comment, text in declarations(self.text):
            if re.match(r"(template .*\n( +requires.*\n)*)?(?!struct|class|enum|concept|using|inline constexpr|friend)[^=]*?\w\(", text):
                yield " ".join(comment.split()), text

    def options(self):
        """The structs of options and results, as their headers have them."""
        files = sorted(INCLUDE.glob(f"*/*/{self.name}_options.hpp"))
        files += [] if files else [f for f in sorted(INCLUDE.rglob("*.hpp")) if f"struct {self.name}_options {{" in f.read_text()]
        for file in files:
            for comment, text in declarations(file.read_text()):
                if re.match(r"(template .*\n)?(struct|enum class) \w+[^;]*\{", text):
                    comment = "" if re.match("The contract is in|.*Max error", comment, re.S) else "".join(
                        f"/// {line}".rstrip() + "\n" for line in comment.splitlines())
                    yield comment + text + ";"

    def formula(self):
        if (ROOT / f"docs/formulas/{self.name}.md").exists():
            return self.name
        named = re.search(r"docs/formulas/(\w+)\.md", self.contract or "")
        if named:
            return named[1]
        mentions = {page.stem: page.read_text().count(self.name) for page in (ROOT / "docs/formulas").glob("*.md")}
        return max(sorted(mentions), key=lambda page: mentions[page])

    def files(self):
        names = [f"tests/{self.path.parent.name}/{self.name}_test.cpp", f"bench/ops/{self.name}.cpp"]
        for adapter in sorted((ROOT / "tests/golden/adapters").glob("*.hpp")):
            if f"using op = tigon::op::{self.name};" in adapter.read_text():
                names.append(f"tests/golden/adapters/{adapter.name}")
        return [name for name in names if (ROOT / name).exists()]


def taken_apart(contract):
    """The lines of the text and formulas, and the parts that have a word before them."""
    lines, parts = [], []
    for line in contract.splitlines():
        word = re.match(r"([A-Z][a-z]+(?: error)?)  +(\S.*)", line)
        if word:
            parts.append([word[1], [word[2]]])
        elif parts and line.startswith("   "):
            parts[-1][1].append(line.strip())
        else:
            lines.append(line)
    return lines, [(word, " ".join(of)) for word, of in parts]


def other_contract(options):
    """That of the operator whose options have this name."""
    for family in "ops", "losses":
        for path in sorted(INCLUDE.glob(f"{family}/*.hpp")):
            if f"struct {options};" in path.read_text():
                return Operator(path)
    raise SystemExit(f"operators.py: no header has the contract of {options}")


def parts_as_markdown(parts):
    """A table. A part that is another contract's has the text of that one."""
    rows = []
    for word, text in parts:
        as_other = re.match(r"as (\w+_options)[.;] *", text)
        if as_other:
            of_other = dict(taken_apart(other_contract(as_other[1]).contract)[1])
            text = f"{of_other[word]} {text[as_other.end():]}".strip()
        rows.append(f"| {word} | {text.replace('|', chr(92) + '|')} |")
    return "\n".join(["| | |", "|---|---|", *rows]) if rows else ""


def contract_as_markdown(text):
    """Paragraphs; formulas as they stand; then a table of the parts that have a word before them, of this contract and of
    the one that it says has everything else."""
    made, formula = [], []
    lines, parts = taken_apart(text)
    for line in lines:
        if line.startswith("  "):
            formula.append(line[2:])
        else:
            if formula and line.strip():
                made.append("```text\n" + "\n".join(formula).strip("\n") + "\n```\n")
                formula = []
            if formula:
                formula.append("")
            else:
                made.append(line)
    if formula:
        made.append("```text\n" + "\n".join(formula).strip("\n") + "\n```\n")
    tables = [parts_as_markdown(parts)]
    others = re.search(r"is as (\w+_options) has it", " ".join(text.split()))
    if others:
        other = other_contract(others[1])
        own = {word for word, _ in parts}
        rest = [part for part in taken_apart(other.contract)[1] if part[0] not in own]
        tables += [f"As [{other.name}]({other.name}.md) has it:", parts_as_markdown(rest)]
    return "\n\n".join(["\n".join(made).strip(), *filter(None, tables)])


def page(operator, docs):
    made = [f"# {operator.name}", "", operator.summary, "", f"`#include <{operator.header}>`", "", "## Call", "",
            "```cpp", (operator.call or "").rstrip(), "```", "", "## Contract", "", contract_as_markdown(operator.contract or ""), "",
            "## Functions", ""]
    for comment, signature in operator.functions():
        comment = re.sub(rf" ?See {operator.name}_options for the contract\.", "", comment)  # it is above, on the same page
        made += [comment, "", "```cpp", signature.replace("[[maybe_unused]] ", "") + ";", "```", ""]
    options = list(operator.options())
    if options:
        made += ["## Options and results", "", "```cpp", "\n\n".join(options), "```", ""]
    made += ["## See also", ""]
    pages = {p.stem for p in (INCLUDE / "ops").glob("*.hpp")} | {p.stem for p in (INCLUDE / "losses").glob("*.hpp")}
    refers = {p for name in re.findall(r"\b(\w+)_options\b", operator.contract or "") for p in (name, f"fused_linear_{name}")} & pages
    made += [f"- the contract refers to that of [{name}]({name}.md)" for name in sorted(refers - {operator.name})]
    made += [ f"- derivation and literature: [formulas/{operator.formula()}.md]({docs}formulas/{operator.formula()}.md)",
             f"- errors beside those of Liger-Kernel: [accuracy]({docs}accuracy.md); speed: [benchmarks]({docs}benchmarks.md)",
             f"- in the repository: {', '.join(f'`{name}`' for name in ['include/' + operator.header, *operator.files()])}"]
    return "\n".join(made) + "\n"


def all_operators():
    headers = [*sorted(INCLUDE.glob("ops/*.hpp")), *sorted(INCLUDE.glob("losses/*.hpp")), INCLUDE / "gemm/gemm.hpp"]
    return [Operator(path) for path in headers]


def index(operators, link, title, more):
    made = [f"# {title}", "", *more, ""]
    for family, name in FAMILIES.items():
        made += [f"## {name}", "", "| header | what it computes |", "|---|---|"]
        made += [f"| {link(o)} | {o.summary} |" for o in operators if o.family == family]
        made.append("")
    return "\n".join(made)


MORE = """<!-- Written by docs/operators.py --index: the first comment of each header. -->
For somebody who looks for an operator: the public headers by family. Each header has one operator or loss, or a part
of one: its contract, a call that compiles and runs, and the public functions. The link after a header leads to its
formulas. Types are f32, bf16, f16 and f64, with three exceptions: `matmul_int8_int2` multiplies 8-bit integers and has
no gradient, `moe_routing` orders integers, `rotary_tables` and `rotary_frequencies` make inputs of the rotary
operators. What a backend provides is in [backends.md](backends.md#who-provides-what).

`docs/operators.py FOLDER` writes a page for each header: contract, signatures, options, call and links. The reference
site (`packaging/site`) and an installed tigon (`share/doc/tigon/operators`) have these pages. `tigon/tigon.hpp`
includes all headers.""".splitlines()


def kernel_declarations(name):
    """What the generic kernel of an operator declares: saved, forward, backward."""
    for file in [*sorted(INCLUDE.glob("*/*/*_kernel.hpp")), INCLUDE / "gemm/kernel.hpp"]:
        found = re.search(rf"^struct kernel<op::{name}, backends::generic>[^{{]*\{{\n(.*?)^\}};", file.read_text(), re.S | re.M)
        if found:
            seen, made = set(), []
            for what in re.findall(r"(?:  template <[^\n]*>\n(?:    requires[^\n]*\n)?)?  (?:using saved = [^\n]*;|static (?:void|double|std::size_t) (?:forward|backward|step|norm)\([^{]*\{|"
                                   r"static constexpr bool forward_only[^\n]*;)", found[1]):
                word = re.search(r"saved|forward_only|(?:forward|backward|step|norm)\(", what)[0]
                if word not in seen:
                    seen.add(word)
                    made.append(re.sub(r" \{$", ";", what))
            return f"// {file.relative_to(INCLUDE.parent)}\nkernel<op::{name}, your_backend>\n" + "\n".join(made)
    return f"// {name}: not found"


def with_kernels(text):
    """A page with the declarations between its markers."""
    note = "<!-- not compiled: declarations, written by docs/operators.py of the generic kernels, which every test compiles -->"
    return re.sub(r"(<!-- kernels: ([\w ]+) -->\n).*?(<!-- end of kernels -->)", lambda m: m[1] + note + "\n```cpp\n" +
                  "\n\n".join(map(kernel_declarations, m[2].split())) + "\n```\n" + m[3], text, flags=re.S)


def main(arguments):
    operators = all_operators()
    vendors = with_kernels((ROOT / "docs/vendors.md").read_text())
    text = index(operators, lambda o: f"`{o.header}`, [formula](formulas/{o.formula()}.md)", "Operators by family", MORE)
    if arguments == ["--check"]:
        bad = []
        if (ROOT / "docs/operators.md").read_text() != text:
            bad.append("docs/operators.md is out of date; run docs/operators.py --index")
        if (ROOT / "docs/vendors.md").read_text() != vendors or "not found" in vendors:
            bad.append("docs/vendors.md is out of date; run docs/operators.py --index")
        for o in operators:
            for what, found in {"contract with a call": o.contract, "public function": list(o.functions()), "summary": o.summary,
                                "page of its formula": (ROOT / f"docs/formulas/{o.formula()}.md").exists()}.items():
                if not found:
                    bad.append(f"include/{o.header} has no {what}")
            words = re.findall(r"^\| ([A-Z][a-z]+(?: error)?) \|", contract_as_markdown(o.contract or ""), re.M)
            bad += [f"include/{o.header}: nothing says its {part}" for part in ("Shapes", "Throws", "Max error") if part not in words]
            if "backward" in o.summary and not any("backward" in signature for _, signature in o.functions()):
                bad.append(f"include/{o.header} says that it has a backward function, and has none")
            if o.family not in FAMILIES:
                bad.append(f"include/{o.header} is of the family {o.family}, which docs/operators.py does not know")
        print("\n".join(bad) or f"operators: pages of {len(operators)} headers")
        return 1 if bad else 0
    if arguments == ["--index"]:
        (ROOT / "docs/operators.md").write_text(text)
        (ROOT / "docs/vendors.md").write_text(vendors)
        return 0
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 2
    folder, docs = pathlib.Path(arguments[0]), arguments[1] if len(arguments) > 1 else "../"
    folder.mkdir(parents=True, exist_ok=True)
    for o in operators:
        (folder / f"{o.name}.md").write_text(page(o, docs))
    about = ["Operators by family. Each page has a call that compiles and runs, the contract, the functions, options and results."]
    (folder / "index.md").write_text(index(operators, lambda o: f"[{o.name}]({o.name}.md)", "Operators", about))
    print(f"{len(operators)} pages in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
