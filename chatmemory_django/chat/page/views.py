"""The views of the page. The rest is done by the REST API and the chat over HTTP."""

from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import redirect_to_login
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache

from chatmemory_django.access import NotAllowedError
from chatmemory_django.chat.page import modules
from chatmemory_django.chat.page.conf import page_settings
from chatmemory_django.chat.page.given import user_of


@login_not_required  # the access policy decides who may chat
@never_cache
def page(request: HttpRequest) -> HttpResponse:
    """Render the page. The scripts open the conversation in ``?chat=``."""
    try:
        user_of(request)
    except NotAllowedError as exc:
        if exc.status == 401 and not request.user.is_authenticated:
            return redirect_to_login(request.get_full_path())
        return exc.response()
    return render(request, "chatmemory_page/page.html", {"base": page_settings().BASE})


@login_not_required  # it is the same for everybody
def module(request: HttpRequest, version: str, name: str) -> HttpResponse:
    """Serve a script; for ever, if it is of this *version*."""
    content = modules.contents().get(name)
    if content is None:
        raise Http404
    age = "public, max-age=31536000, immutable" if version == modules.version() else "no-cache"
    return HttpResponse(content, "text/javascript; charset=utf-8", headers={"Cache-Control": age})
