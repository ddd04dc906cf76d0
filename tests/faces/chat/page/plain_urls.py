"""A site that includes the whole chat below a prefix, and has a page of its own with the tag in ``?tag=``."""

from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import include, path


def shop(request: HttpRequest) -> HttpResponse:
    tag = request.GET.get("tag", "chat_widget")
    template = engines["django"].from_string(f"{{% load chatmemory_page %}}<main>{{% {tag} %}}</main>")
    return HttpResponse(template.render({}, request))


urlpatterns = [path("shop/", shop), path("help/talk/", include("chatmemory_django.chat.page.urls"))]
