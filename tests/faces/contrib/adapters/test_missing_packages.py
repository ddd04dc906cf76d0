"""An adapter without the package of its framework names what to install."""

import subprocess
import sys

import pytest

from tests.quick import mostly_slow


@pytest.mark.parametrize(
    ("package", "module"),
    mostly_slow(
        [
            ("langchain_core", "langchain"),
            ("llama_index", "llama_index"),
            ("agents", "openai_agents"),
            ("pydantic_ai", "pydantic_ai"),
        ]
    ),
)
def test_the_error_names_the_extra(package, module):
    script = (
        f"import sys, django; django.setup(); sys.modules[{package!r}] = None\n"
        f"import chatmemory_django.contrib.adapters.{module}"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert f"pip install 'chatmemory_django[{module.replace('_', '-')}]'" in ended.stderr.splitlines()[-1]
