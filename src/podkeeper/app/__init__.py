"""Configuration, wiring and the command line: the only room that knows everything."""
