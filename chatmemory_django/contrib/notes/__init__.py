"""
Notes about users, an optional app: what assistants keep in mind about a user in every conversation.

``assistants`` has the tools and the context of an assistant, ``keeping`` what all faces call, ``page`` the user's page.
"""
