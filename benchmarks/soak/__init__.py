"""
The soak: many processes do random verbs to the same conversations while processes, connections and servers are killed.

Triggers of the database write down each state that a conversation was ever in, in the transaction that made it, and
each message that was ever stored. Every write grows the conversation's version by one, so these are the writes in
their order, whoever made them and whatever he was told. Afterwards the judge goes through them: each must follow from
the one before by a verb that a worker had begun by then, as the store that lives in the process does it, and each
read must have given one of the states that stood while it ran.
"""
