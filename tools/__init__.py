"""Tools for the project itself; nothing here ships."""
