"""One use case for each task: the task NOUN.VERB is NOUN/VERB.py."""
