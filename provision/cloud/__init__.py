"""Virtual machines: what can be had, where it is tried, how it is made, and what is written down so that nothing stays behind."""
