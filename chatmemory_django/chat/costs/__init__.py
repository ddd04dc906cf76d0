"""What the calls of models cost, and the budgets that bound them."""
