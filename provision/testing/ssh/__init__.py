"""The SSH server of a mock host: connections, sessions, SFTP and keys."""
