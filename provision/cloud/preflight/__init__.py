"""Whether project, zones, quotas, image and network fit the VM of the settings. Pure.

Each function judges what the API returned and gives one line of `doctor`.
"""
