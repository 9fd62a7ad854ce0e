"""A Dataflow GPU worker of your own, in one command."""
