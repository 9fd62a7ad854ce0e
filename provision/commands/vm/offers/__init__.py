"""`vm.offers`."""
