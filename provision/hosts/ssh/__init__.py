"""SSH: connections, authentication, the user's ssh_config, interactive sessions."""
