"""One file, one command: parse options, call the library, hand the result to a renderer."""
