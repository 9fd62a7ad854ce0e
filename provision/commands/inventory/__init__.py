"""The inventory: every host of the settings and every VM of the project."""
