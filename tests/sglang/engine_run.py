# SPDX-License-Identifier: Apache-2.0
"""One real Engine, in a process of its own: a prompt of 700 tokens, what it cost and what came out.

    engine_run.py OUT.json [--until-stored SECONDS] [name=value ...]

name=value: arguments of sglang.Engine beside those below, JSON where it parses, text otherwise.
OUT.json gets, of the first answer: `out` (token ids), `prompt`, `cached` (tokens), `details` (where
they came from), and `up`, the seconds until the Engine stood. Two runs over one store: the second
has cached 640, ten whole pages of 64, from storage, and the same `out`.

--until-stored: the backup to storage runs behind the answer and ends with the process. The caches
above storage are dropped and the prompt repeated until all its pages come from storage; that answer
is written as `again`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

PAGE = 64
PROMPT = [5 + (number * 7919) % 1000 for number in range(700)]
STORED = len(PROMPT) // PAGE * PAGE
"""Tokens of the prompt that are in whole pages, and so in storage."""

ARGUMENTS: dict[str, Any] = {
    "device": "cpu",
    "dtype": "bfloat16",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "max_total_tokens": 4096,
    "mem_fraction_static": 0.3,
    "page_size": PAGE,
    "log_level": "info",
    "enable_hierarchical_cache": True,
    "hicache_ratio": 2.0,
    "hicache_write_policy": "write_through",
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "page_first_direct",
    "hicache_storage_prefetch_policy": "wait_complete",
}


def value_of(name: str, text: str) -> Any:
    """The value of an Engine argument. The extra config is a text for SGLang too."""
    if name.endswith("extra_config"):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def ask(engine: Any, prompt: list[int] = PROMPT) -> dict[str, Any]:
    """Generate 16 tokens greedily."""
    answer = engine.generate(
        input_ids=prompt,
        sampling_params={"temperature": 0, "max_new_tokens": 16, "ignore_eos": True},
    )
    meta = answer["meta_info"]
    return {
        "out": answer["output_ids"],
        "prompt": meta["prompt_tokens"],
        "cached": meta["cached_tokens"],
        "details": meta.get("cached_tokens_details"),
    }


def ask_until_stored(engine: Any, seconds: float) -> dict[str, Any]:
    """Drop the caches and ask again, until all whole pages of the prompt come from storage."""
    deadline = time.monotonic() + seconds
    while True:
        time.sleep(0.5)
        # Refused while a backup is under way, and then worth another try.
        engine.flush_cache()
        answer = ask(engine)
        if (answer["details"] or {}).get("storage") == STORED:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"after {seconds} s still not all from storage: {answer}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Run one Engine.")
    parser.add_argument("result", type=Path)
    parser.add_argument("--until-stored", type=float, metavar="SECONDS")
    parser.add_argument("arguments", nargs="*", metavar="name=value")
    asked = parser.parse_intermixed_args()
    arguments = dict(ARGUMENTS)
    for argument in asked.arguments:
        name, _, text = argument.partition("=")
        arguments[name] = value_of(name, text)

    from sglang.srt.entrypoints.engine import Engine

    begin = time.monotonic()
    engine = Engine(**arguments)
    up = time.monotonic() - begin
    result = ask(engine) | {"up": up}
    if asked.until_stored:
        result["again"] = ask_until_stored(engine, asked.until_stored)
    asked.result.write_text(json.dumps(result), encoding="utf-8")
    sys.stdout.flush()
    engine.shutdown()


if __name__ == "__main__":
    main()
