"""How many processes can share a GPU, with which limits."""
