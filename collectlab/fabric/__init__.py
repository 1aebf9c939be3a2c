"""What a program stands on: the context that it is called with."""
