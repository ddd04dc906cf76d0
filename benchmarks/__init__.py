"""How fast, how small and how safe the memory is, beside SQL written by hand and beside its peers. See README.md."""
