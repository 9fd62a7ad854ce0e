"""What can be had where, at what price, within which quota."""
