"""
The judge of answers: what design §16 promises, sentence by sentence, against the log of the world and the tables.

It knows nothing of how answers are made. Each finding is a sentence that begins with what was promised and broken.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from chatmemory_django.chat.model import CLIENT
from chatmemory_django.chat.models import ToolApproval
from chatmemory_django.messages import AiMessage, MessageType
from chatmemory_django.models import Conversation, Message
from tests.database.chat.answers.world import (
    MARKED,
    MAX_ROUNDS,
    NOTE,
    OUT_OF_TURN,
    REJECTIONS,
    UNKNOWN,
    WAITS,
    Act,
    Outcome,
    Question,
)

UNCHANGED = (
    "window_start",
    "memory_messages",
    "memory_tokens",
    "next_sequence",
    "parent_sequence",
    "pinned_sequence",
    "total_messages",
    "forgotten_through",
    "version",
)
"""What of a conversation a refused question leaves as it was."""

State = ToolApproval.State


class Tables:
    """What the tables hold of a conversation now."""

    def __init__(self, memory_id: str) -> None:
        while True:  # a tool that an answer has not waited for may end in between
            self._read(memory_id)
            now = Conversation.objects.filter(memory_id=memory_id).first()
            if getattr(now, "version", None) == getattr(self.conversation, "version", None):
                break

    def _read(self, memory_id: str) -> None:
        self.conversation = Conversation.objects.filter(memory_id=memory_id).first()
        self.rows: dict[int, Message] = {}
        self.parents: dict[int, int] = {}
        self.memory: set[int] = set()
        self.approvals: dict[str, ToolApproval] = {}
        self.callers: dict[int, int] = {}
        """The results, each with the message of its call; 0 if it has none."""
        self.of_staff: dict[str, ToolApproval] = {}
        """The approvals that staff alone may give."""
        self.of_client: dict[str, ToolApproval] = {}
        """What waits for the browser, or has waited for it."""
        self.answered: dict[str, int] = {}
        """The results on the path, by the tokens of their calls."""
        self.late: set[int] = set()
        """The results that are stored behind other messages than their calls."""
        self._begins: dict[int, int] = {}
        self.state: Any = None
        if self.conversation is None:
            return
        before = 0
        for row in self.conversation.history(all_branches=True).order_by("sequence"):
            self.rows[row.sequence] = row
            self.parents[row.sequence] = before if row.parent_sequence is None else row.parent_sequence
            before = row.sequence
        self.memory = {row.sequence for row in self.conversation.memory()}
        self._read_approvals(self.conversation.pk)
        self._match()
        self._divide()
        self.state = self._state()

    def _state(self) -> Any:
        """Return what a refused question must not change."""
        approvals = list(ToolApproval.objects.filter(conversation=self.conversation.pk).order_by("pk").values())
        rows = Message.objects.filter(conversation=self.conversation.pk).order_by("sequence").values()
        return [getattr(self.conversation, name) for name in UNCHANGED], approvals, list(rows)

    def _read_approvals(self, conversation: int) -> None:
        calls = {(sequence, position): (name, token) for sequence, position, token, name in self.calls()}
        for each in ToolApproval.objects.filter(conversation=conversation).order_by("sequence", "position"):
            self.approvals[str(each.pk)] = each
            if each.approve_by == CLIENT:
                self.of_client[str(each.pk)] = each
            if is_for_staff(*calls.get((each.sequence, each.position), ("", ""))):
                self.of_staff[str(each.pk)] = each

    def _match(self) -> None:
        """Find the call of each result: of the message in front of it, or one that has waited for an approval."""
        approved = {(each.sequence, each.position) for each in self.approvals.values()}
        tokens = {(sequence, position): token for sequence, position, token, _ in self.calls()}
        answered: dict[tuple[int, int], set[int]] = {}
        for sequence, row in self.rows.items():
            if row.type != MessageType.TOOL_EXECUTION_RESULT:
                continue
            before = list(self.before(sequence))
            following = (MessageType.TOOL_EXECUTION_RESULT, MessageType.SYSTEM)
            direct = next((each for each in before if self.rows[each].type not in following), 0)
            calls = (
                (each, position)
                for each in before
                for position, call in enumerate(calls_of(self.rows[each]))
                if call.id == row.chat_message.id and (each == direct or (each, position) in approved)
            )
            found = next((call for call in calls if answered.get(call, set()).isdisjoint(before)), (0, 0))
            answered.setdefault(found, set()).add(sequence)
            self.answered |= {tokens[found]: sequence} if found in tokens and row.on_path else {}
            self.callers[sequence] = found[0]
            self.late |= {sequence} if found[0] not in {0, direct} else set()

    def before(self, sequence: int) -> Iterator[int]:
        """Yield the rows before a row, the last one first."""
        while (sequence := self.parents[sequence]) in self.rows:
            yield sequence

    def is_out_of_turn(self, sequence: int) -> bool:
        """Return whether a row is of an answer about a decision."""
        return self._begins[sequence] in self.late

    def question_of(self, sequence: int) -> int:
        """Return the sequence of the question that a row belongs to; 0 if there is none."""
        sequence = self._begins[sequence] if sequence else 0
        while sequence in self.late:
            sequence = self._begins[self.callers[sequence]]
        return sequence

    def questions_of(self, approvals: Sequence[str]) -> set[int]:
        """Return the sequences of the questions whose answers wait for *approvals*; 0 for one that is not open."""
        found = [self.approvals.get(name) for name in approvals]
        return {self.question_of(each.sequence) if each is not None and each.is_open else 0 for each in found}

    def _divide(self) -> None:
        """Find with what the answer of each row begins: a question, or a result behind others; 0 with neither."""
        outer: dict[int, int] = {}
        for sequence, row in self.rows.items():
            parent = self.parents[sequence]
            begin = self._begins.get(parent, 0)
            if begin in self.late and row.type == MessageType.AI and not _is_out_of_turn(row):
                begin = outer[begin]  # the answer between whose rows the other one stands
            if row.type == MessageType.USER or sequence in self.late:
                outer[sequence] = outer[begin] if begin in self.late else begin
                begin = sequence
            elif self.callers.get(sequence):
                begin = self._begins[self.callers[sequence]]
            self._begins[sequence] = begin

    def for_staff(self, *, pending: bool) -> dict[str, ToolApproval]:
        """Return the approvals on the path that wait for staff or, not *pending*, to be carried out."""
        return {
            name: each
            for name, each in self.of_staff.items()
            if self.rows[each.sequence].on_path and each.state != State.ENDED and (each.approved is None) == pending
        }

    def tokens(self) -> dict[str, str]:
        """Return the token of the call of each approval."""
        tokens = {(sequence, position): token for sequence, position, token, _ in self.calls()}
        return {key: tokens.get((each.sequence, each.position), "") for key, each in self.approvals.items()}

    def asked(self, question: Question) -> Message | None:
        """Return the newest row of *question*, one on the path before all others."""
        found = [row for row in self.rows.values() if row.type == MessageType.USER and _is_of(row.text, question)]
        return max(found, key=lambda row: (row.on_path, row.sequence), default=None)

    def is_newest(self, question: Question) -> bool:
        """Return whether no other question follows; one that is sent again behind others is asked once more."""
        row = self.asked(question)
        asked = [each.sequence for each in self.rows.values() if each.type == MessageType.USER and each.on_path]
        return row is None or row.sequence in asked[-1:]

    def answer_to(self, row: Message) -> list[Message]:
        """Return the rows of the answer on the path."""
        return [
            each
            for each in self.rows.values()
            if each.on_path and each.type != MessageType.SYSTEM and self.question_of(each.sequence) == row.sequence
        ][1:]

    def ended(self, question: Question) -> str | None:
        """Return the text with which the answer to *question* has ended; None if it has not."""
        row = self.asked(question)
        answer = [] if row is None or not row.on_path or not row.is_complete else self.answer_to(row)
        if not answer or answer[-1].type != MessageType.AI or calls_of(answer[-1]):
            return None
        return answer[-1].text

    def was_answered(self, question: Question) -> bool:
        """Return whether an answer to *question* has ended, also if that is on another branch now."""
        row = self.asked(question)
        texts = (each for each in self.rows.values() if each.type == MessageType.AI and not calls_of(each))
        return (
            row is not None
            and row.is_complete
            and any(self.question_of(each.sequence) == row.sequence for each in texts)
        )

    def decided(self) -> set[str]:
        """Return the approvals on the path, of the owner and of others, that were decided and not carried out."""
        return {
            name
            for name, each in self.approvals.items()
            if self.rows[each.sequence].on_path and each.state != State.ENDED and each.approved is not None
        }

    def calls(self) -> list[tuple[int, int, str, str]]:
        """Return the calls in the history: sequence, position, token, and name of the tool."""
        return [
            (row.sequence, position, json.loads(call.arguments or "{}").get("token", ""), call.name or "")
            for row in self.rows.values()
            for position, call in enumerate(calls_of(row))
        ]


def is_for_staff(name: str, token: str) -> bool:
    """Return whether only staff may approve a call."""
    return name == "credit" or (name == "grant" and int(token.split(".")[3]) % 2 == 1)


def _is_out_of_turn(row: Message) -> bool:
    return row.text.startswith(f"[{OUT_OF_TURN}]") or any(OUT_OF_TURN in call.arguments for call in calls_of(row))


def calls_of(row: Message) -> Sequence[Any]:
    message = row.chat_message
    return message.tool_execution_requests if isinstance(message, AiMessage) else ()


def _is_of(text: str, question: Question) -> bool:
    found = MARKED.search(text)
    return found is not None and found[1] == question.name


@dataclass
class Chat:
    """What has happened in a conversation."""

    memory_id: str
    options: dict[str, int]
    questions: list[Question] = field(default_factory=list)
    waiting: tuple[str, ...] = ()
    waits_for: Question | None = None
    """What its answer waits for, as it was shown last, and the question."""
    effects: list[tuple[str, int]] = field(default_factory=list)
    """The tokens of the calls that had an effect, each with the number of the act."""
    lived: dict[int, bool] = field(default_factory=dict)
    """The numbers of the acts, and whether nothing cut their tools off."""
    outputs: set[str] = field(default_factory=set)
    """What the browser has sent for its calls, each time something else."""
    seen: set[str] = field(default_factory=set)
    """The results that a reader was shown."""
    approved: set[str] = field(default_factory=set)
    """The ids of the approvals that somebody has given, ..."""
    approved_by_staff: set[str] = field(default_factory=set)
    """... and those of staff."""
    acts: list[Act] = field(default_factory=list)
    killed_at: float = -math.inf
    """When a process was killed in it the last time, by the monotonic clock."""

    @property
    def is_large(self) -> bool:
        """Whether everything fits in its memory."""
        return min(self.options.values()) >= 10_000


def judge(
    chat: Chat, done: Sequence[tuple[Act, Outcome]], lines: Sequence[dict[str, Any]], before: Tables
) -> Iterator[str]:
    """
    Yield what is wrong in *chat* after one act, or several at once.

    *lines* are the news of the log, *before* are the tables before.
    """
    now, is_alone = Tables(chat.memory_id), len(done) == 1
    chat.effects += [(line["token"], line["act"]) for line in lines if line["kind"] == "effect"]
    for act, outcome in done:
        has_left = outcome.kind == "left" and act.way != "post"
        chat.lived[act.number] = not has_left and outcome.kind not in {"killed", "hangs", "stopped"}
        chat.seen |= set(outcome.seen)
        own = _owners_decisions(act, before)
        _note_decisions(chat, act, outcome, own)
        asked = [line for line in lines if line["act"] == act.number and line["kind"] == "request"]
        yield from _requests(chat, act, asked, lines)
        yield from _refused_to_decide(act, outcome, own, before, now, is_alone=is_alone)
        yield from _outcome(act, outcome, asked, is_alone=is_alone)
        if asked and (outcome.kind == "refused" or (act.kind == "trespass" and not own)):
            yield f"of a question or a decision that is refused, the model is not asked: {act.kind}"
        if is_alone:
            yield from _alone(chat, act, outcome, asked, before, now)
    chat.outputs |= {line["text"] for line in lines if line["kind"] == "output"}
    yield from _effects(chat, now)
    yield from _outputs(chat, done, now, is_alone=is_alone)
    yield from _waits_for_staff(chat, [act for act, _ in done], lines, before, now)
    yield from _history(chat, now)


def _owners_decisions(act: Act, before: Tables) -> set[str]:
    """Return the approvals on which the owner may decide in a trespass: by REST, each decision is made by itself."""
    is_by_itself = act.kind == "trespass" and act.way == "rest"
    return {name for name, _ in act.decisions if name not in before.of_staff} if is_by_itself else set()


def _note_decisions(chat: Chat, act: Act, outcome: Outcome, own: set[str]) -> None:
    approved = {name for name, approved in act.decisions if approved}
    is_known = outcome.kind not in {"killed", "hangs", "error"}
    decided = approved & {*outcome.decided} if is_known else approved
    if act.by_staff or act.kind == "staff":
        chat.approved_by_staff |= decided
    elif act.kind == "decide":
        chat.approved |= approved
    else:
        chat.approved |= decided & own


def _refused_to_decide(
    act: Act, outcome: Outcome, own: set[str], before: Tables, now: Tables, *, is_alone: bool
) -> Iterator[str]:
    """Who may not decide changes nothing; nor do they of what waits for staff, beside what is their *own*."""
    if act.kind != "trespass":
        if outcome.kind == "forbidden":
            yield f"who may decide is not refused: {act.kind} as {act.way}"
        return
    refused = {"forbidden", "killed"} if is_alone else {"forbidden", "killed", "busy", "nothing"}
    if outcome.kind not in refused or not own.issuperset(outcome.decided):
        yield f"the owner may not decide on what staff have to approve: {outcome}"
    if is_alone and not own and before.state != now.state:
        yield f"a decision of who may not decide changes nothing: as {act.way}"


def _waits_for_staff(
    chat: Chat, acts: Sequence[Act], lines: Sequence[dict[str, Any]], before: Tables, now: Tables
) -> Iterator[str]:
    """Whatever the owner does, a call waits for staff until they decide, and the model reads that it does."""
    decided = {name for act in acts if act.by_staff or act.kind == "staff" for name, _ in act.decisions}
    tokens = now.tokens()
    known_to = min(_known_to(chat, act, before) for act in acts)
    answered = {token for token in before.answered.keys() & now.answered if before.answered[token] <= known_to}
    waiting = {tokens[name] for name in before.for_staff(pending=True) if name not in decided and name in tokens}
    for name, approval in now.approvals.items():
        if tokens[name] in waiting and (approval.approved, approval.state) != (None, State.WAITING):
            yield f"a call that waits for staff waits on, whatever else is asked: {tokens[name]}"
    for line in lines:
        for token, text in _results(line["sent"]) if line["kind"] == "request" else ():
            if token in waiting and not text.startswith(WAITS):
                yield f"the model reads that a call waits for somebody else: of {token} it reads {text[:50]!r}"
            if token in answered and text.startswith(UNKNOWN):
                yield f"the model reads the result that a call has: of {token} it reads {text[:50]!r}"


def _known_to(chat: Chat, act: Act, before: Tables) -> float:
    """
    Return the last message that is known where *act* goes on: what leaves later ones for a branch does not know them.

    Another version of a question is an edit, also if it is sent again since the edit has stored nothing.
    """
    row = before.asked(act.question)
    if act.kind == "regenerate" and row is not None:
        return row.sequence
    versions = (each for each in chat.questions if each.client_id == act.question.client_id)
    rows = [found for each in versions if (found := before.asked(each)) is not None and found.on_path]
    return math.inf if row in rows else min((before.parents[each.sequence] for each in rows), default=math.inf)


def _results(sent: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yield the token of each call that is sent, and the text of its result."""
    for index, (kind, _, calls) in enumerate(sent):
        if kind != "AI" or not calls:
            continue
        texts = {str(each[2][0] or each[2][1]): each[1] for each in sent[index + 1 :][: len(calls)] if each[2]}
        for call in calls:
            yield json.loads(call[2])["token"], texts.get(str(call[0] or call[1]), "")


def _decided(chat: Chat, act: Act, outcome: Outcome, before: Tables, now: Tables) -> Iterator[str]:
    """What staff approve runs exactly once, as soon as they have; what was not carried out then, a Resume does."""
    pending, left = before.for_staff(pending=True), before.for_staff(pending=False)
    asked_of = {pending[name].sequence if name in pending else 0 for name, _ in act.decisions}
    is_whole = outcome.kind not in {"killed", "hangs"}
    if outcome.kind == "nothing" and 0 not in asked_of and (asked_of or left):
        yield f"who may decide, decides: {act.kind} as {act.way} has found nothing"
    # Of several answers it is the newest one that goes on first, also if it is one on which the owner has decided.
    if act.kind == "resume" and is_whole and now.decided() >= before.decided():
        yield f"what was decided, a Resume carries out: {outcome}"
    if act.kind != "staff" or not is_whole or left or 0 in asked_of:
        return
    ran, tokens = Counter(token for token, _ in chat.effects), now.tokens()
    for name, approved in act.decisions:
        if ran[tokens[name]] != int(approved):
            yield f"what staff approve has its effect once: {tokens[name]} had it {ran[tokens[name]]} times"
        if now.approvals[name].state != State.ENDED:
            yield f"what staff have decided is carried out: {tokens[name]} is not"


def _alone(
    chat: Chat, act: Act, outcome: Outcome, asked: Sequence[dict[str, Any]], before: Tables, now: Tables
) -> Iterator[str]:
    """What can only be judged if nothing else happened at the same time."""
    ended = before.ended(act.question)
    if outcome.kind == "refused" and before.state != now.state:
        yield f"a refused question changes nothing: {act.persist} as {act.way}"
    if (
        outcome.kind == "answered"
        and act.kind != "resume"
        and outcome.text.rstrip() != (now.ended(act.question) or "").rstrip()
    ):
        yield f"the answer that is returned is stored: {outcome.text!r}, {now.ended(act.question)!r}"
    if act.kind == "retry" and ended is not None:
        yield from _answered_before(act, outcome, asked, ended, before, now)
    is_waiting = act.kind == "retry" and chat.waiting and chat.waits_for is act.question
    if is_waiting and outcome.kind in {"answered", "waits"} and (asked or {*outcome.asked} != {*chat.waiting}):
        yield "a retry of a question whose answer waits gets the same requests for approval, without the model"
    if chat.is_large and asked and act.kind == "ask":
        yield from _remembers(before, asked[0])
    yield from _rejected(act, outcome, asked, before, now)
    if act.kind in {"staff", "resume"}:
        yield from _decided(chat, act, outcome, before, now)
    own = {getattr(now.asked(act.question), "sequence", 0)}
    if act.kind in {"ask", "edit"} and outcome.kind == "waits" and now.questions_of(outcome.asked) != own:
        yield f"a question waits for its own calls alone: {act.question.name}"
    if asked:  # else nothing was written
        yield from _window(chat, act, outcome, before, now)


def _effects(chat: Chat, now: Tables) -> Iterator[str]:
    """What happened is remembered: a call is stored before it runs, and its result when it ends."""
    stored = Counter(token for *_, token, _ in now.calls())
    ran = Counter(token for token, _ in chat.effects)
    wanted = Counter(tuple(token.split(".")[:4]) for token in ran)
    results = Counter(token for token in ran for row in now.rows.values() if _has_result(row, token))
    shown = {token for token in ran if any(_names(text, token) for text in chat.seen)}
    approved = _approved(chat, now)
    for token, act in chat.effects:
        if ran[token] > 1:
            yield f"a call has its effect once: {token} had it {ran[token]} times"
        if wanted[tuple(token.split(".")[:4])] > 1:
            yield f"an effect is repeated only if that is asked for by name: {token}"
        if stored[token] != 1:
            yield f"the history knows each effect: {token} is in {stored[token]} calls"
        must_be_there = (chat.lived[act] or token in shown) and stored[token]
        if results[token] > 1 or (must_be_there and results[token] != 1):
            yield f"each call that has ended has its result: {token} has {results[token]}"
        if stored[token] and not approved.get(token, True):
            yield f"what needs an approval waits for it: {token}"


def _outputs(chat: Chat, done: Sequence[tuple[Act, Outcome]], now: Tables, *, is_alone: bool) -> Iterator[str]:
    """A call of the browser has one result: an output that was sent for it, whole, or that there was none."""
    names = {(sequence, position): (token, name) for sequence, position, token, name in now.calls()}
    tokens = {token for token, name in names.values() if name == "browse"}
    found = Counter[str]()
    for row in now.rows.values():
        text = _text(row) if row.type == MessageType.TOOL_EXECUTION_RESULT else ""
        token = text.split(" ")[1] if text.startswith("put ") else ""
        found[token] += bool(token)
        if token and text not in chat.outputs:
            yield f"the output of a call is one that was sent: {text}"
        if token and token not in tokens:
            yield f"an output belongs to a call of the browser: {text}"
    if twice := [token for token, count in found.items() if count > 1]:
        yield f"a call goes on with one output: {twice[0]} with {found[twice[0]]}"
    for key, each in now.of_client.items():
        token, _ = names.get((each.sequence, each.position), ("", ""))
        if (found[token] == 1) != (each.state == State.ENDED and each.approved is True) and token:
            yield f"a call that has its output waits for none, and the others have none: {token}"
        if is_alone and done[0][1].kind in {"answered", "waits"} and done[0][0].kind == "decide":
            act = done[0][0]
            if not act.by_staff and key in {name for name, _ in act.decisions} and not found[token]:
                yield f"an output that was sent is stored: that of {token} is not"


def _approved(chat: Chat, now: Tables) -> dict[str, bool]:
    """Return the calls that need an approval, and whether somebody has given it."""
    tokens = now.tokens()
    by_staff = {tokens.get(name) for name in chat.approved_by_staff}
    by_anybody = {tokens.get(name) for name in chat.approved} | by_staff
    return {
        token: token in (by_staff if is_for_staff(name, token) else by_anybody)
        for *_, token, name in now.calls()
        if name in {"refund", "credit", "grant"}
    }


def _names(text: str, token: str) -> bool:
    return f"{token} " in f"{text} "


def _has_result(row: Message, token: str) -> bool:
    return row.type == MessageType.TOOL_EXECUTION_RESULT and _names(_text(row), token)


def _text(row: Message) -> str:
    return getattr(row.chat_message, "text", None) or row.text


def _history(chat: Chat, now: Tables) -> Iterator[str]:
    """Each row belongs to the question before it, and each result to a call; one answer at a time."""
    names = {question.name for question in chat.questions}
    for sequence, row in now.rows.items():
        if row.type == MessageType.USER:
            if not any(f"[{name}]" in row.text for name in names):
                yield f"only what was asked is in the history: {sequence}"
            continue
        if row.type == MessageType.SYSTEM:
            continue
        question = now.rows.get(now.question_of(sequence))
        name = question and MARKED.search(question.text)[1]
        own = [row.text] if row.text and row.type == MessageType.AI else []
        own += [f"[{json.loads(call.arguments or '{}').get('token', '').split('.')[0]}]" for call in calls_of(row)]
        name = OUT_OF_TURN if name is not None and now.is_out_of_turn(sequence) else name
        if name is None or any(f"[{name}]" not in text for text in own):
            yield f"after each question come the rows of its own answer alone: {sequence} is not of {name}"
        if row.type == MessageType.TOOL_EXECUTION_RESULT and not now.callers[sequence]:
            yield f"each result belongs to a call: {sequence} has none"


def _requests(chat: Chat, act: Act, asked: Sequence[dict[str, Any]], lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What is sent: the present system message, the question, and all that its answer has done."""
    for request in asked:
        sent = request["sent"]
        systems = [text for kind, text, _ in sent if kind == "SYSTEM"]
        if sent[0][:2] != ["SYSTEM", act.system] or len(systems) != 1:
            yield f"the present system message is first in what is sent, and alone: {sent[0][:2]}, {len(systems)}"
        yield from _paired(sent)
        users = [index for index, (kind, *_) in enumerate(sent) if kind == "USER"]
        last = sent[users[-1]][1] if users else ""
        asks = chat.questions if act.by_staff or act.kind in {"staff", "resume", "trespass"} else [act.question]
        question = next((each for each in asks if each.text in last), None)
        is_note = last.startswith(NOTE)
        if question is None and not is_note:
            yield f"the present question is in each request: {act.question.name} is not"
        known = {token for token, _ in _results(sent if is_note else sent[users[-1] if users else 0 :])}
        key = _key(act, question)
        earlier = [token for token, _ in chat.effects if token.split(".")[:2] == key and not is_note]
        earlier = [token for token in earlier if token not in _after(lines, request)]
        if missing := [token for token in earlier + _just_before(lines, request) if token not in known]:
            yield f"the model is sent what this answer has done so far: {missing[0]} is not sent"


def _key(act: Act, question: Question | None = None) -> list[str]:
    name = (question or act.question).name
    return [name, str(act.generations.get(name, 0))]


def _just_before(lines: Sequence[dict[str, Any]], request: dict[str, Any]) -> list[str]:
    """Return the tokens of the effects in the same act between *request* and the one before it."""
    own = [line for line in lines if line["act"] == request["act"]]
    index = next(index for index, line in enumerate(own) if line is request)
    return [
        line["token"]
        for line in takewhile(lambda line: line["kind"] == "effect", own[index - 1 :: -1] if index else ())
    ]


def _after(lines: Sequence[dict[str, Any]], request: dict[str, Any]) -> set[str]:
    """Return the tokens of the effects that came after *request*."""
    later = lines[next(index for index, line in enumerate(lines) if line is request) :]
    return {line["token"] for line in later if line["kind"] == "effect"}


def _paired(sent: Sequence[Any]) -> Iterator[str]:
    """Behind each message with calls is one result for each of them, and no result is anywhere else."""
    index = 0
    while index < len(sent):
        kind, _, calls = sent[index]
        index += 1
        if kind == "TOOL_EXECUTION_RESULT":
            yield "each result that is sent stands behind its call"
        if kind != "AI" or not calls:
            continue
        results = sent[index : index + len(calls)]
        index += len(calls)
        got = Counter(str(each[2][0] or each[2][1]) for each in results if each[0] == "TOOL_EXECUTION_RESULT")
        if got != Counter(str(call[0] or call[1]) for call in calls):
            yield "each call that is sent has exactly one result directly behind its message"


def _outcome(act: Act, outcome: Outcome, asked: Sequence[dict[str, Any]], *, is_alone: bool) -> Iterator[str]:
    """Nothing fails that nothing has made fail."""
    raised = [request["raised"] for request in asked if request["raised"]]
    rounds = max(len(act.question.rounds), sum(bool(request["calls"]) for request in asked))
    # One that waits for another regeneration goes on with what that one has left, if it was stopped.
    goes_on = {"retry", "resume"} if is_alone else {"retry", "resume", "regenerate"}
    is_any = act.kind in goes_on or outcome.text.startswith(f"[{OUT_OF_TURN}]")
    match outcome.kind:
        case "hangs":
            yield "each act ends: this one hangs"
        case "killed" if act.kill is None:
            yield "only who is killed dies"
        case "busy" if is_alone:
            yield "who asks alone is not refused for another answer in progress"
        case "busy" if asked and not (act.by_staff or act.question.is_nameless):  # what staff decided had asked it
            yield "of who is refused for another answer in progress, the model is not asked"
        case "nothing" if is_alone and act.kind == "decide" and not act.question.was_killed:
            yield f"who may decide, decides: as {act.way} they have found nothing"
        case "nothing" if is_alone and act.kind in {"ask", "edit", "retry", "regenerate"}:
            yield f"a question sent again goes on, or has the stored answer: {act.kind} has found nothing to go on with"
        case "error" if is_alone and not (raised or rounds >= MAX_ROUNDS):
            yield f"nothing fails by itself: {act.kind} has failed with {outcome.text[:120]}"
        case "refused" if not act.question.is_too_long:
            yield "only a question that is too long is refused as too long"
        case "answered" if act.question.is_too_long:
            yield "a question that is too long for the window is refused"
        case "answered" if not (outcome.text == act.question.answer or is_any or act.cut is not None or act.stops):
            yield f"an answer is whole: {outcome.text!r}"


def _answered_before(
    act: Act, outcome: Outcome, asked: Sequence[dict[str, Any]], ended: str, before: Tables, now: Tables
) -> Iterator[str]:
    """
    An id that was answered gets the stored answer, and no model is called.

    Behind a text about one of its calls it may still wait for other calls: then it gets these requests.
    """
    own = getattr(before.asked(act.question), "sequence", 0)
    if asked:
        yield "an id that was answered gets the stored answer without the model: it was asked"
    elif outcome.kind == "answered" and outcome.text.rstrip() != ended.rstrip():
        yield f"an id that was answered gets the stored answer: {outcome.text!r}, {ended!r}"
    elif outcome.kind == "waits" and before.questions_of(outcome.asked) != {own}:
        yield "an id that was answered gets the stored answer: it waits for approvals of another one"
    if before.rows.keys() != now.rows.keys():
        yield "an id that was answered adds nothing to the history"


def _remembers(before: Tables, request: dict[str, Any]) -> Iterator[str]:
    """What happened before, and is in the memory, is sent."""
    texts = " ".join(f"{text} {json.dumps(calls)}" for _, text, calls in request["sent"])
    for sequence in sorted(before.memory & before.rows.keys()):
        row = before.rows[sequence]
        tokens = [json.loads(call.arguments)["token"] for call in calls_of(row)]
        wanted = tokens if row.type != MessageType.USER else [row.text]
        wanted += [row.text] if row.type == MessageType.AI and row.text else []
        if any(each not in texts for each in wanted):
            yield f"what is in the memory is sent with the next question: {sequence}, {row.type}, is not"


def _rejected(
    act: Act, outcome: Outcome, asked: Sequence[dict[str, Any]], before: Tables, now: Tables
) -> Iterator[str]:
    """
    A question that the vendor rejected at the first request stays in the history, and out of the memory.

    With that request, nothing is sent behind the question. One that was answered once, on whichever branch, is none
    that the vendor rejects.
    """
    last = asked[0]["sent"][-1] if len(asked) == 1 else ["", "", None]
    is_first = last[0] == "USER" and act.question.text in last[1] and not before.was_answered(act.question)
    if outcome.kind != "error" or not is_first:
        return
    if asked[0]["raised"] not in REJECTIONS or not (act.way == "post" or act.persist == "early"):
        return
    row = now.asked(act.question)
    if row is None:
        yield "a rejected question stays in the history"
    elif row.sequence in now.memory:
        yield f"a rejected question is no longer in the memory: {act.persist} as {act.way}"


def _window(chat: Chat, act: Act, outcome: Outcome, before: Tables, now: Tables) -> Iterator[str]:
    """The window moves in the write that ends an answer, and only there."""
    if now.conversation is None:
        return
    if now.conversation.memory_messages != len(now.memory):
        yield f"the counter of the memory is right: {now.conversation.memory_messages}, not {len(now.memory)}"
    if outcome.kind == "answered" and len(now.memory) > chat.options.get("max_messages", len(now.memory)):
        yield f"once an answer has ended, the memory fits in its window: {len(now.memory)} messages"
    if outcome.kind == "answered" and now.conversation.memory_tokens > chat.options.get("max_tokens", 10**9):
        yield f"once an answer has ended, the memory fits in its window: {now.conversation.memory_tokens} tokens"
    was_whole = before.conversation is not None and all(row.is_complete for row in before.rows.values() if row.on_path)
    is_open = was_whole and act.kind == "ask" and not chat.waiting and now.ended(act.question) is None
    if is_open and now.conversation.window_start != before.conversation.window_start:
        yield f"an answer that has not ended has evicted nothing: {act.persist} as {act.way}"
