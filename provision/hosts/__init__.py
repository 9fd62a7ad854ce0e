"""Ways to reach hosts: SSH and this machine; key pairs, known host keys, host patterns."""
