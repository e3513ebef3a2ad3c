"""Container runtimes: the implementations of the runtime port."""
