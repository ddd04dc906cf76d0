from django.contrib.auth.models import User
from django.urls import include, path

from tests.database.tenants.assistants import assistant


def own(request, memory_id):
    return assistant.response(request, memory_id, request.GET["text"], protocol="text", owner=User.objects.get())


async def aown(request, memory_id):
    return await assistant.aresponse(
        request, memory_id, request.GET["text"], protocol="text", owner=await User.objects.aget()
    )


urlpatterns = [
    path("api/own/<str:memory_id>", own),
    path("api/aown/<str:memory_id>", aown),
    path("api/chat", include("chatmemory_django.chat.urls")),
    path("api/", include("chatmemory_django.rest.urls")),
]
