"""`vm.create`: VMs created, provisioned and verified."""
