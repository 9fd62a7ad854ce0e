"""The project: settings, state folder, key pair, known hosts, VM records, journal, cloud."""
