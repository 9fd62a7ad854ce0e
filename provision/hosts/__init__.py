"""Ways to hosts: SSH, this very machine, host keys, the toolkit's own key pair, the inventory, interactive sessions."""
