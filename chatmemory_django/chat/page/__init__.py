"""The chat page, for ``include("chatmemory_django.chat.page.urls")``: conversations, the chat and its memory."""
