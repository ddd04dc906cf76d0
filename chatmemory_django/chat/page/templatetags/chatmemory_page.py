"""The template tag that puts the chat into a page of the site."""

from django import template
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.template.context import Context
from django.template.loader import render_to_string
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag(takes_context=True)
def chat_widget(
    context: Context,
    *,
    conversations: bool = True,
    memory: bool | None = None,
    assistant: str | None = None,
    page: bool = False,
) -> SafeString:
    """
    Render the chat, once in a page: ``{% chat_widget memory=False assistant="support" %}``.

    *conversations* and *memory* are whether these columns are shown; *memory* is by default as in the settings. With
    *assistant*, the chat is with that one alone. *page* is for a page that is the chat's alone: it has the open
    conversation in its address. Who is not signed in sees where to sign in.
    """
    # Models can be imported only now: Django imports this module while it loads the apps.
    from chatmemory_django.access import NotAllowedError
    from chatmemory_django.chat.page import given

    request: HttpRequest | None = getattr(context, "request", None)
    if request is None:
        raise ImproperlyConfigured("{% chat_widget %} needs the request: render the template with render(request, …).")
    parts = given.Parts(is_page=page, conversations=conversations, memory=memory, assistant=assistant)
    try:
        values = given.context(request, given.user_of(request), parts)
    except NotAllowedError:
        sign_in = redirect_to_login(request.get_full_path()).url
        return render_to_string("chatmemory_page/signed_out.html", {"address": sign_in}, request)
    return render_to_string("chatmemory_page/widget.html", values, request)
