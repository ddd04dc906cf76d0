"""An answer: the question, the rounds with the model and its tools, and what is returned and titled."""
