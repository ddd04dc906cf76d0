"""
Upgrade a dump in an empty database: ``python -m tests.database.release.upgrade NAME``.

It prints what is not as it was, and nothing else; the site is then used.
"""

import sys
from collections.abc import Iterator
from io import StringIO

import django
from django.core.management import CommandError, call_command

django.setup()

from chatmemory_django.checks import unlike  # noqa: E402  # Django is set up first
from chatmemory_django.messages import UserMessage  # noqa: E402
from chatmemory_django.provider import get_chat_memory  # noqa: E402
from tests.database.release import frozen  # noqa: E402
from tests.database.release.dump import dumped  # noqa: E402


def problems(name: str) -> Iterator[str]:
    """Make the tables of the dump *name*, fill and migrate them; yield what is wrong with them then."""
    before = dumped(name)
    frozen.make_tables(before)
    frozen.load(before)
    call_command("migrate", verbosity=0)
    output = StringIO()
    for each in unlike("default"):
        yield f"{each.msg} {each.hint}"
        return  # nothing can be read
    yield from (f"{label} is no longer what it was." for label in frozen.changed(before))
    try:
        call_command("prune_chatmemory", stdout=output, verbosity=0)  # what killed processes have left
        call_command("check_chatmemory", stdout=output, verbosity=0)
    except CommandError as exc:
        yield f"{output.getvalue()}{exc}"
    get_chat_memory("verbs", max_tokens=1000).add(UserMessage("It goes on."))
    get_chat_memory("another").add(UserMessage("It begins."))
    for memory_id, text in (("verbs", "It goes on."), ("another", "It begins.")):
        if get_chat_memory(memory_id, max_tokens=1000).messages()[-1] != UserMessage(text):
            yield f"{memory_id!r} does not go on."


if __name__ == "__main__":
    sys.stdout.writelines(f"{problem}\n" for problem in problems(sys.argv[1]))
