"""What Dataflow expects of an image, of options and of a run."""
