"""The soak: many processes run random operations ("verbs") on the same conversations, while processes, connections and
servers are killed.

Database triggers record each state of a conversation, in the transaction that writes it, and each message ever stored.
Every write increments the conversation's version, so these are the writes in order, independent of their authors and
of the results that these saw. Afterwards the judge checks them: each state must follow from the previous one by a verb
that a worker had started by then, as the in-process store does it, and each read must have returned one of the states
that were current while it ran.
"""
