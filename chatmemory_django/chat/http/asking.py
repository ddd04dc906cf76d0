"""What a request to the chat asks, and whether it may."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from django.core.exceptions import PermissionDenied
from django.db import router
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext as _
from msgspec.structs import replace

from chatmemory_django.access import (
    AccessPolicy,
    NotAllowedError,
    WrongCredentialsError,
    access_policy,
    count_wrong_credentials,
    permitted,
    seconds_to_wait,
)
from chatmemory_django.chat import named
from chatmemory_django.chat.answers.questions import Question, posted_before, question_again
from chatmemory_django.chat.answers.stored import StoredAnswer
from chatmemory_django.chat.approvals import NotPendingError, Output, Resume
from chatmemory_django.chat.approvals.approving import May, by_policy, decide
from chatmemory_django.chat.approvals.waiting import pending_calls
from chatmemory_django.chat.assistant import Assistant
from chatmemory_django.chat.conf import chat_settings
from chatmemory_django.chat.guards import GuardRefusedError
from chatmemory_django.chat.http.files import FileAddresses, stored_file
from chatmemory_django.chat.http.posted import PostedAnswer, read_body, read_rest
from chatmemory_django.chat.model import CLIENT, OWNER
from chatmemory_django.chat.people.watching import Watching
from chatmemory_django.chat.runs.taking import Given, GivenOutput
from chatmemory_django.chat.wishes import NONE, Wishes, wished
from chatmemory_django.chat.work import Order
from chatmemory_django.conf import imported, is_path
from chatmemory_django.core.media import AddressError, check_files
from chatmemory_django.messages import UserMessage
from chatmemory_django.models import Conversation, Message
from chatmemory_django.models.conversations import unexpired
from chatmemory_django.models.message_codec import StorageError
from chatmemory_django.operations.reading import note_read
from chatmemory_django.security import SecurityEvent, report

if TYPE_CHECKING:
    from django.contrib.auth.base_user import AbstractBaseUser


class Admission(NamedTuple):
    """A request that passed all checks."""

    owner: AbstractBaseUser | None
    """That of the conversation; somebody else may have decided on its calls."""
    memory_id: str
    question: Question
    assistant: Assistant
    name: str
    """That of the assistant in the settings."""
    resume: Resume | None = None
    """What lets an answer go on, instead of an answer to a question."""
    may: May | None = None
    """Whether the user may decide on calls that wait in the conversation."""
    greeting: str | None = None
    """What the page shows in front of the first question, in the words of the site."""
    is_regenerate: bool = False
    """Whether it asks for another answer."""
    is_guarded: bool = False
    """Whether the question is read from the history, as guards have left it."""
    given: Given | None = None
    """What a process needs to answer it that has not seen the request."""

    def order(self) -> Order:
        """Return what the assistant is to answer."""
        question = self.question
        return Order(
            self.assistant,
            self.memory_id,
            self.owner,
            self.resume or question.message,
            question.client_message_id,
            question.after,
            self.may,
            question.shown,
            self.greeting,
            is_guarded=self.is_guarded,
        )

    def left(self, request: HttpRequest) -> bool:
        """Store the question for the person who answers in the conversation; return whether one does."""
        question = self.question
        if question.message is None:
            conversation = self.conversation()
            return conversation is not None and conversation.state != Conversation.State.ASSISTANT
        named = {"client_message_id": question.client_message_id, "after": question.after}
        options: Any = {"owner": self.owner, "request": request, **named}
        shown, is_guarded = question.shown, self.is_guarded
        return self.assistant.leave(self.memory_id, question.message, options, shown=shown, is_guarded=is_guarded)

    def conversation(self) -> Conversation | None:
        """Return the conversation as it is now, if there is one by now."""
        owner = None if self.owner is None else self.owner.pk
        found = Conversation.objects.using(router.db_for_write(Conversation))
        return found.filter(memory_id=self.memory_id, owner=owner).first()


def admission(request: HttpRequest) -> Admission:
    """Return what *request* of an AI SDK's client asks; ``NotAllowedError`` if it is refused."""
    return admission_of(request, *admitted(request), body_of(request))


def admission_of(
    request: HttpRequest, policy: AccessPolicy, user: AbstractBaseUser, content: bytes, wishes: Wishes = NONE
) -> Admission:
    """Return what *content*, a body of the AI SDK's, asks for *user*, whom *policy* has let in; see ``admission``."""
    try:
        return _checked(request, policy, user, content, wishes)
    except NotAllowedError as exc:
        # Futures pass the error on to the event loop, and stay in a circle with its traceback until a garbage
        # collection. Frames that have the body of the request must not be part of it.
        exc.__context__ = exc.__traceback__ = None
        raise


def body_of(request: HttpRequest) -> bytes:
    """Return the body of *request*; raise ``NotAllowedError`` if it is too large."""
    most = chat_settings().MAX_BODY_BYTES
    content = request.read(most + 1)
    if len(content) > most:
        raise NotAllowedError(413, f"The body may have at most {most} bytes; send only the last message.")
    return content


def admitted_body_of(request: HttpRequest) -> bytes:
    """See ``body_of``; of somebody who may not chat, nothing is read. This does not count against the rate."""
    _admitted(request, "read", None)
    return body_of(request)


def _checked(
    request: HttpRequest, policy: AccessPolicy, user: AbstractBaseUser, content: bytes, wishes: Wishes
) -> Admission:
    try:
        posted = read_body(content)
        memory_id = policy.memory_id(request, posted.id)
        # From the primary database: a replica may not have the last answer yet. What else is needed of it is read then.
        found = Conversation.objects.using(router.db_for_write(Conversation)).filter(memory_id=memory_id)
        columns = ("memory_id", "owner", "forgotten_through", "assistant", "next_sequence", "fence", "expires_at")
        conversation = next(iter(found.only(*columns)), None)
        choose = partial(_chosen, policy, request, content, posted.id, memory_id, posted.assistant_name, wishes)
        is_others = conversation is not None and conversation.owner_id != user.pk
        files = FileAddresses.of(request, request.path, posted.id, memory_id)
        check = partial(check_files, remote=policy.may_link_files(request))
        question = posted.question() if is_others else posted.question(partial(stored_file, conversation, files), check)
        if isinstance(question, PostedAnswer):
            allowed = policy.conversations(request, "view").using(found.db)
            conversation = conversation or allowed.filter(memory_id=posted.id).first()  # staff know no other id
        elif is_others:
            raise NotAllowedError(404, "There is no such chat.")
        elif question.message is not None:
            try:
                policy.check_quota(request, user, question.message)
            except ValueError:
                chosen = partial(choose, conversation, question)
                if conversation is None or not stored_question(request, conversation, question, lambda: chosen()[0]):
                    report(SecurityEvent.QUOTA, request)
                    raise  # one that is stored already adds nothing
    except StorageError:
        raise NotAllowedError(503, "The files of this chat cannot be read now; try again later.") from None
    except AddressError as exc:
        raise NotAllowedError(400, f"{exc.where}: {exc}") from None
    except ValueError as exc:
        raise NotAllowedError(400, str(exc)) from None
    if conversation is not None and conversation.has_expired:
        raise NotAllowedError(404, "There is no such chat.")
    if isinstance(question, PostedAnswer):
        return _decided(policy, request, conversation, question, choose)
    is_guarded = False
    if posted.is_regenerate:
        again = None if conversation is None else question_again(conversation, posted.message_id, question)
        is_guarded = again is not None and again is not question
        question = again or question
        if question == Question(None):
            raise NotAllowedError(404, "There is no message to answer.")
    may = None if conversation is None else by_policy(policy, request, conversation)
    greets = greeting(request, conversation) if _is_shown(question) else None
    assistant, name, given = choose(conversation, question)
    if posted.is_regenerate and not is_guarded and conversation is not None and question.message is not None:
        with suppress(GuardRefusedError):  # which it is again when it begins
            guarded = assistant.guarded(memory_id, question.message, {"owner": user, "request": request})
            question = _stored_as(conversation, question, guarded)
    if conversation is not None:
        named.bind(conversation, name)
    given = replace(given, is_another=question.message is None)
    return Admission(
        user, memory_id, question, assistant, name, None, may, greets, posted.is_regenerate, is_guarded, given
    )


def _stored_as(conversation: Conversation, question: Question, guarded: UserMessage) -> Question:
    """Return the *question* to answer again if it is stored as its guards have left it, and *question* if it is not."""
    if guarded == question.message:
        return question
    again = question_again(conversation, None, question._replace(message=guarded))
    return question if again is None or again.message is not None else again


def _chosen(
    policy: AccessPolicy,
    request: HttpRequest,
    content: bytes,
    chat_id: str,
    memory_id: str,
    wanted: str | None,
    wishes: Wishes,
    conversation: Conversation | None,
    question: Question,
) -> tuple[Assistant, str, Given]:
    """
    Return the assistant that answers *question*, its name, to which *conversation* may be bound then, and what it was
    given.
    """
    name, body = named.name_for(conversation, wanted), dict[str, Any]()

    def asked() -> named.Asked:
        try:
            body.update(read_rest(content))
        except ValueError as exc:
            raise NotAllowedError(400, str(exc)) from None
        key = memory_id if conversation is None else conversation.memory_id
        user = cast("AbstractBaseUser", request.user)
        return named.Asked(id=chat_id, memory_id=key, message=question.message, user=user, assistant=name, body=body)

    if not policy.may_ask(request, name):
        raise named.unknown()
    if conversation is not None and conversation.owner_id != request.user.pk:
        wishes = NONE  # what a client's tools return is the owner's to send
    assistant = wished(named.assistant(name, request, asked), wishes)
    return assistant, name, Given(chat_id=chat_id, user=str(request.user.pk), body=body, wishes=wishes)


def _decided(
    policy: AccessPolicy,
    request: HttpRequest,
    conversation: Conversation | None,
    answer: PostedAnswer,
    choose: Callable[[Conversation, Question], tuple[Assistant, str, Given]],
) -> Admission:
    """Record what the user decided on the calls of an *answer* that waits, which goes on then, with its outputs."""
    if conversation is None:
        raise nothing_waits()
    may, using = by_policy(policy, request, conversation), conversation._state.db
    if conversation.owner_id != request.user.pk:
        if not policy.conversations(request, "view").using(using).filter(pk=conversation.pk).exists():
            raise NotAllowedError(404, "There is no such chat.")
        if not (answer.decisions or may(OWNER)):
            raise NotAllowedError(403, "You may not approve this.")
    question = Question(None)
    assistant, name, given = choose(conversation, question)
    try:
        own = Conversation.objects.using(using).filter(pk=conversation.pk)
        decide(own, conversation.memory_id, answer.decisions, request.user, may)
        whole = own.first() if answer.parts and may(CLIENT) else None
        outputs = [] if whole is None else _outputs(whole, answer)
    except NotPendingError:
        raise nothing_waits() from None
    except PermissionDenied:
        raise NotAllowedError(403, "You may not approve this.") from None
    except ValueError as exc:  # of what was posted, and not of a function of the site
        raise NotAllowedError(400, str(exc)) from None
    named.bind(conversation, name)
    resume = Resume(*outputs, about=[each.id for each in answer.decisions])
    given = replace(
        given,
        about=[str(each) for each in resume.about],
        outputs=[GivenOutput(str(each.id), each.value, each.is_error) for each in outputs],
    )
    return Admission(conversation.owner, conversation.memory_id, question, assistant, name, resume, given=given)


def is_next(asked: Admission, request: HttpRequest) -> bool:
    """
    Return whether *asked*, by *request*, is a question of its own: what may be about the answer in progress does not
    stop that.
    """
    if asked.resume is not None or asked.is_regenerate:
        return False
    conversation = asked.conversation()
    return conversation is None or not stored_question(request, conversation, asked.question, lambda: asked.assistant)


def stored_question(
    request: HttpRequest, conversation: Conversation, question: Question, assistant: Callable[[], Assistant]
) -> Message | None:
    """Return where *question* is stored, as it was posted or as the guards of its *assistant* have left it, or None."""
    if (row := posted_before(conversation, question)) is not None or question.message is None:
        return row
    with suppress(GuardRefusedError):  # which it is again when it begins
        options: Any = {"owner": conversation.owner, "request": request}
        message = assistant().guarded(conversation.memory_id, question.message, options)
        return posted_before(conversation, question._replace(message=message))
    return None


def _outputs(conversation: Conversation, posted: PostedAnswer) -> list[Output]:
    """Return what the page has *posted* for calls that wait for it, in the same answer: ids of calls come again."""
    outputs = []
    for approval, call in pending_calls(conversation, in_client=True):
        if call.id in posted.parts:
            answer = StoredAnswer.before(conversation, approval.sequence)
            if answer is not None and answer.id == posted.id:
                outputs.append(posted.output(str(call.id), approval.id))
    return outputs


def greeting(request: HttpRequest, conversation: Conversation | None) -> str | None:
    """Return what the assistant writes first in *conversation*; None for nothing, or if there are messages already."""
    if conversation is not None and conversation.next_sequence > 1:
        return None
    given = chat_settings().GREETING
    given = imported(given) if is_path(given) else given
    if callable(given):
        given = given(request)
    return str(given) if given else None


def _is_shown(question: Question) -> bool:
    """Return whether the page of *question* may show a greeting: a list without one has none."""
    return question.shown is None or (bool(question.shown) and question.shown[-1].is_answer)


def nothing_waits() -> NotAllowedError:
    """Return the refusal of a decision, or of an output, for which nothing waits."""
    return NotAllowedError(409, _("Nothing waits here any more. Load the conversation again."))


def admitted(request: HttpRequest) -> tuple[AccessPolicy, AbstractBaseUser]:
    """Return the access policy, and the user of *request*, who may ask by it, within the rate of questions."""
    return _admitted(request, "question", chat_settings().THROTTLE_RATE)


def admitted_reader(request: HttpRequest) -> tuple[AccessPolicy, AbstractBaseUser]:
    """Return the access policy, and the user of *request*, who may read by it, within the rate of that."""
    return _admitted(request, "read", chat_settings().READ_THROTTLE_RATE)


def _admitted(request: HttpRequest, kind: str, rate: str | None) -> tuple[AccessPolicy, AbstractBaseUser]:
    """Return the access policy, and the user of *request*, who may chat by it, within the *rate* of this *kind*."""
    policy = access_policy()
    try:
        user = policy.user(request)
    except NotAllowedError as exc:
        is_of_site = "Authorization" in request.headers and exc.status == HTTPStatus.UNAUTHORIZED  # a policy of its own
        if (is_of_site or isinstance(exc, WrongCredentialsError)) and (wait := count_wrong_credentials(request)):
            raise NotAllowedError.too_often(wait, "Too many failed attempts") from None
        raise
    request.user = user  # type: ignore[assignment]  # the policy's methods, templates and tools see who it is
    if not policy.is_allowed(request):
        raise NotAllowedError(403, "You may not chat.")
    if wait := seconds_to_wait(f"chat_{kind}_{user.pk}", rate):
        raise NotAllowedError.too_often(wait)
    return policy, user


def watchable(request: HttpRequest, chat_id: str, user: AbstractBaseUser, memory_id: str) -> Watching | None:
    """
    Return what looks at the conversation *chat_id* while a person answers there; None if none does and *request* does
    not ask to stay, or if it is not for *user* to see.

    That is for its owner, and for those who may answer there; what they may read of it is up to the access policy.
    """
    policy, conversation = access_policy(), own_conversation(user, memory_id)
    if conversation is None:  # staff know no other id than the memory id
        conversation = permitted(policy, request, "answer").filter(memory_id=chat_id).first()
    stays = request.GET.get("stays") == "true"
    if conversation is None or (conversation.state == Conversation.State.ASSISTANT and not stays):
        return None
    note = partial(note_read, user, [conversation], "read", partial(policy.is_own, request))
    types = policy.readable_types(request, own=policy.is_own(request, conversation))
    return Watching(str(conversation._state.db), conversation.pk, types, request.GET.get("after"), note, stays=stays)


def own_conversation(user: AbstractBaseUser, memory_id: str, using: str | None = None) -> Conversation | None:
    """Return the conversation of *user* with this memory id; None if there is none, or if its time has passed."""
    own = Conversation.objects.using(using).filter(unexpired(timezone.now()), memory_id=memory_id, owner=user.pk)
    return own.first()


def entered(request: HttpRequest, chat_id: str) -> tuple[AbstractBaseUser, str]:
    """Return the user of *request*, and the memory id of the conversation that *chat_id* names."""
    policy, user = admitted_reader(request)
    try:
        return user, policy.memory_id(request, chat_id)
    except ValueError as exc:
        raise NotAllowedError(400, str(exc)) from None
